"""Recovery of an embedded log's identity from the state directory (`rlmm log name`)."""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from typing import Final

import msgspec

from rlmm_daemon.adapters.event_log.embedded import compacted_files, files
from rlmm_daemon.adapters.event_log.embedded.identity import (
    FORMAT_COMPACTED,
    FORMAT_WHOLE,
    read_identity,
    set_aside,
    write_identity,
)
from rlmm_daemon.adapters.os.disk import LocalDisk
from rlmm_daemon.codec.state_files import Identity, Position
from rlmm_daemon.config import Config, EmbeddedLog
from rlmm_daemon.daemon.base.state_directory import StateDirectory
from rlmm_daemon.domain.errors import InvalidArgument, StorageUnavailable
from rlmm_daemon.domain.ids import TopicId, uuid_bytes
from rlmm_daemon.offline.ownership import given_to_owner
from rlmm_daemon.ports.disk import Disk
from rlmm_daemon.ports.event_log import EpochEnd, LogIdentity, LogUnnamed
from rlmm_daemon.reconcile.read.log_files import epoch_ends

_BY_COPY: Final = "put that file back from a copy"
_LOCK_SECONDS: Final = 5.0
_LOCK_PAUSE_SECONDS: Final = 0.02


class Naming(msgspec.Struct, frozen=True, kw_only=True):
    """A log's name, and what shows that the log bears it."""

    file: str
    identity: LogIdentity
    #: The file names it already: there is nothing to do.
    present: bool = False
    #: Metadata partitions whose files hold what had been read of this log, and those that do not.
    confirmed: list[int] = msgspec.field(default_factory=list)
    unconfirmed: list[int] = msgspec.field(default_factory=list)
    written: bool = False
    #: Where the damaged file is kept.
    set_aside: str | None = None


def name_log(config: Config, *, execute: bool) -> Naming:
    """Return the name that the state directory has for the log, and write it if told to.

    Raises:
        InvalidArgument: the log is not an embedded one or not there, nothing remembers its name,
            or nothing shows that these files are that log's.
        StorageUnavailable: a process uses the log just now, or the disk fails.
        UnsupportedProtocol: a newer version wrote the file.
    """
    return asyncio.run(_named(config, execute=execute))


async def _named(config: Config, *, execute: bool) -> Naming:
    if not isinstance(config.event_log, EmbeddedLog):
        raise InvalidArgument("the configuration names no embedded log: others name their own")
    disk, directory = LocalDisk(), config.event_log_directory
    try:
        async with AsyncExitStack() as held:
            if execute:
                await _lock(disk, directory, held)
            naming = await _look(disk, config)
            if naming.present or not execute:
                return naming
            with given_to_owner(directory):
                return await _write(disk, directory, naming)
    except FileNotFoundError as error:
        raise InvalidArgument(f"{directory} holds no event log") from error
    except OSError as error:
        raise StorageUnavailable(f"{directory}: {error}") from error
    finally:
        disk.close()


async def _lock(disk: Disk, directory: str, held: AsyncExitStack) -> None:
    """Keep daemons out; one that looks every few seconds whether the name is back lets go again."""
    try:
        async with asyncio.timeout(_LOCK_SECONDS):
            while True:
                with suppress(BlockingIOError):
                    lock = await disk.lock(f"{directory}/{files.LOCK_NAME}")
                    held.push_async_callback(lock.release)
                    return
                await asyncio.sleep(_LOCK_PAUSE_SECONDS)
    except TimeoutError as error:
        raise StorageUnavailable(f"another process has the event log in {directory}") from error


async def _look(disk: Disk, config: Config) -> Naming:
    directory, path = config.event_log_directory, f"{config.event_log_directory}/identity.json"
    numbers = await files.partitions(disk, directory)
    try:
        present = await read_identity(disk, directory)
    except LogUnnamed:
        present = None
    if present is not None:
        return Naming(file=path, identity=present, present=True)
    if not numbers:
        raise InvalidArgument(f"{directory} holds no event log")
    state = StateDirectory(disk, config.daemon.state_dir)
    known = await state.identity()
    if known is None:
        raise InvalidArgument(f"nothing in {state.path} names the log of {path}: {_BY_COPY}")
    identity = _identity(config, known)
    if numbers[-1] >= identity.partition_count:
        raise InvalidArgument(
            f"{directory} holds partition {numbers[-1]}, and the log of {state.path} has only "
            f"{identity.partition_count}: {path} is another log's; {_BY_COPY}"
        )
    positions = await state.positions()
    read = {} if positions is None or positions.topic_id != known.topic_id else positions.numbered()
    pairs = {(number, each.leader_epoch): each for number, each in read.items() if each.next_offset}
    confirmed, unconfirmed = _judged(pairs, await epoch_ends(config, pairs))
    if not confirmed:
        raise InvalidArgument(
            f"nothing shows that the files in {directory} are of the log that {state.path} had "
            f"read: {_BY_COPY}"
        )
    return Naming(file=path, identity=identity, confirmed=confirmed, unconfirmed=unconfirmed)


def _identity(config: Config, known: Identity) -> LogIdentity:
    wanted = config.daemon.cluster_id
    if None not in (wanted, known.cluster_id) and wanted != known.cluster_id:
        raise InvalidArgument(
            f"the state directory is of cluster {known.cluster_id}, the configuration of {wanted}"
        )
    return LogIdentity(
        cluster_id=known.cluster_id or wanted,
        topic_id=TopicId(uuid_bytes(known.topic_id)),
        partition_count=known.partition_count,
    )


def _judged(
    read: Mapping[tuple[int, int], Position], ends: Mapping[tuple[int, int], EpochEnd]
) -> tuple[list[int], list[int]]:
    """Return the partitions that hold all that had been read of them, and those that do not."""
    confirmed, unconfirmed = list[int](), list[int]()
    for pair, position in sorted(read.items()):
        end = ends[pair]
        held = end.epoch == position.leader_epoch and end.end_offset >= position.next_offset
        (confirmed if held else unconfirmed).append(pair[0])
    return confirmed, unconfirmed


async def _write(disk: Disk, directory: str, naming: Naming) -> Naming:
    kept = await set_aside(disk, naming.file)
    compacted = await compacted_files.was_compacted(disk, directory)
    known = FORMAT_COMPACTED if compacted else FORMAT_WHOLE
    await write_identity(disk, directory, naming.identity, file_format=known)
    return Naming(
        file=naming.file,
        identity=naming.identity,
        confirmed=naming.confirmed,
        unconfirmed=naming.unconfirmed,
        written=True,
        set_aside=kept,
    )
