"""Answers from a daemon's files alone, without the daemon; only `seal` writes.

The files may be those of a daemon that runs: each is replaced whole, so what is read is true of
some moment, and the answer says of which.
"""

import asyncio
import contextlib
import random
import re
from collections.abc import Coroutine
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

from rlmm_daemon.adapters.event_log.embedded import EmbeddedLog, compacted_files
from rlmm_daemon.adapters.event_log.embedded.files import partition_directory
from rlmm_daemon.adapters.event_log.embedded.identity import read_identity
from rlmm_daemon.adapters.event_log.embedded.repair import seal
from rlmm_daemon.adapters.event_log.embedded.verify import (
    PartitionReport,
    pieces,
    verify,
    verify_partition,
)
from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.adapters.os.disk import LocalDisk
from rlmm_daemon.adapters.quorum.files.formatted import TOPIC
from rlmm_daemon.adapters.quorum.files.layout import Layout
from rlmm_daemon.codec import batches, records
from rlmm_daemon.codec.snapshot import Header
from rlmm_daemon.codec.state_files import Announced, Identity, Lost, Positions
from rlmm_daemon.core.explain import explanation as judge
from rlmm_daemon.core.explain.facts import AnnouncedRole, Facts
from rlmm_daemon.core.fold.fold import Fold
from rlmm_daemon.core.partitioner import metadata_partition
from rlmm_daemon.core.snapshots import unsealing
from rlmm_daemon.daemon.base.state_directory import StateDirectory
from rlmm_daemon.daemon.metadata.assignment import from_file
from rlmm_daemon.daemon.operator.facts import of_fold
from rlmm_daemon.daemon.operator.selector import matching, only
from rlmm_daemon.domain.errors import InvalidArgument, RlmmError
from rlmm_daemon.domain.ids import MetadataPartition, TopicIdPartition
from rlmm_daemon.domain.segment import SegmentMetadata
from rlmm_daemon.observability.logging import beside_answers
from rlmm_daemon.offline.quorum import replica_log
from rlmm_daemon.ports.disk import Disk
from rlmm_daemon.ports.event_log import LogIdentity

_SNAPSHOT: Final = re.compile(r"(\d+)-(\d{10})\.snapshot")
T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run one piece of work to its end."""
    beside_answers()
    return asyncio.run(work)


class _Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What the asker typed."""

    selector: str
    epoch: int | None
    offset: int | None


class _Files(msgspec.Struct, kw_only=True):
    """The small files of a state directory, and where its log is."""

    state_dir: Path
    log_dir: Path | None
    identity: Identity | None
    announced: Announced | None
    positions: Positions | None
    count: int = 0


class _Read(msgspec.Struct, kw_only=True):
    """One metadata partition as its files have it."""

    fold: Fold
    snapshot: Header | None = None
    report: PartitionReport | None = None
    lost: Lost | None = None
    damage: list[str] = msgspec.field(default_factory=list)


def explain(
    state_dir: str, log_dir: str | None, selector: str, epoch: int | None, *, offset: int | None
) -> dict[str, Any]:
    """Return what `Operator.explain` returns, judged by files.

    Raises:
        InvalidArgument: no such directory, or the selector names several partitions.
        RlmmError: a file of the state directory is damaged.
    """
    if not Path(state_dir).is_dir():
        raise InvalidArgument(f"{state_dir} is no directory", path=state_dir)
    asked = _Asked(selector=selector, epoch=epoch, offset=offset)
    return run(_explain(Path(state_dir), log_dir, asked))


async def _explain(state_dir: Path, log_dir: str | None, asked: _Asked) -> dict[str, Any]:
    disk = LocalDisk()
    try:
        files = await _small_files(disk, state_dir, log_dir)
        partition = await _resolve(disk, files, asked.selector)
        facts = await _facts(disk, files, asked, partition)
    finally:
        disk.close()
    return {
        "partition": None if partition is None else str(partition),
        "metadata_partition": facts.metadata_partition,
        "as_of_ms": facts.facts_at_ms,
        **judge.explain(facts).to_dict(),
    }


async def _small_files(disk: Disk, state_dir: Path, log_dir: str | None) -> _Files:
    state = StateDirectory(disk, str(state_dir))
    identity = await state.identity()
    home = Path(log_dir) if log_dir is not None else state_dir / "log"
    log = await read_identity(disk, str(home)) if home.is_dir() else None
    if log_dir is not None and log is None:
        raise InvalidArgument(f"{home} holds no event log", path=str(home))
    known = identity or log
    return _Files(
        state_dir=state_dir,
        log_dir=None if log is None else home,
        identity=identity,
        announced=await state.announced(),
        positions=await state.positions(),
        count=known.partition_count if known else 0,
    )


async def _resolve(disk: Disk, files: _Files, selector: str) -> TopicIdPartition | None:
    """Return the partition meant, looking into every fold only if the announcement has none."""
    found = matching(selector, from_file(files.announced))
    if not found:
        known: set[TopicIdPartition] = set()
        for number in range(files.count):
            known.update((await _read(disk, files, MetadataPartition(number))).fold.partitions)
        found = matching(selector, known)
    return only(selector, found)


async def _facts(
    disk: Disk, files: _Files, asked: _Asked, partition: TopicIdPartition | None
) -> Facts:
    newest = max((path.stat().st_mtime for path in _paths(files)), default=None)
    facts = Facts(
        selector=asked.selector,
        partition=partition,
        now_ms=SystemClock().now_ms(),
        offline=True,
        facts_at_ms=None if newest is None else int(newest * 1000),
        bound=files.identity is not None,
        gate_open=None,
        role=None,
    )
    if partition is None or not files.count:
        return facts
    number = metadata_partition(partition.topic_id, partition.partition, files.count)
    read = await _read(disk, files, number)
    return await _of_files(facts, files, read, asked)


async def _of_files(facts: Facts, files: _Files, read: _Read, asked: _Asked) -> Facts:
    partition = facts.partition
    assert partition is not None, "there is a partition to read about"
    number = read.fold.partition
    recorded = files.positions.numbered().get(number) if files.positions else None
    known = replace(
        facts,
        metadata_partition=number,
        damage="; ".join(read.damage) or None,
        recorded_position=recorded.next_offset if recorded else None,
        log_start=read.report.range.start if read.report else None,
        log_end=read.report.range.end if read.report else None,
        snapshot_at_ms=read.snapshot.created_at_ms if read.snapshot else None,
        snapshot_next_offset=read.snapshot.next_offset if read.snapshot else None,
        missing=_missing(read),
        missing_reasons=tuple(read.lost.reasons) if read.lost else (),
        role=_role(files, partition),
    )
    return await of_fold(known, read.fold, partition, epoch=asked.epoch, offset=asked.offset)


def _role(files: _Files, partition: TopicIdPartition) -> AnnouncedRole | None:
    rows = files.announced.partitions if files.announced else []
    for row, tp in zip(rows, from_file(files.announced), strict=False):
        if tp == partition:
            return AnnouncedRole.LEADER if row.leader else AnnouncedRole.FOLLOWER
    return None


def _missing(read: _Read) -> int:
    """Return how many segments of the `.lost` file the folded log does not have."""
    count = 0
    for record in read.lost.records if read.lost else ():
        segment = records.decode(record)
        if isinstance(segment, SegmentMetadata):
            cache = read.fold.cache(segment.partition)
            count += cache is None or cache.get(segment.segment_id) is None
    return count


async def _read(disk: Disk, files: _Files, number: MetadataPartition) -> _Read:
    """Fold the newest snapshot that reads well and whatever the log's files hold behind it."""
    state = StateDirectory(disk, str(files.state_dir))
    read = _Read(fold=Fold(number, files.count), lost=await state.lost(number))
    for path in _snapshots(files.state_dir / "snapshots", number):
        try:
            read.snapshot, read.fold = unsealing.load(path.read_bytes())
        except RlmmError:
            continue  # the daemon sets it aside and replays more of the log
        break
    if files.log_dir is not None:
        await _read_log(disk, files.log_dir, read)
    return read


async def _read_log(disk: Disk, log_dir: Path, read: _Read) -> None:
    number = read.fold.partition
    read.damage.clear()
    read.report = await verify_partition(disk, str(log_dir), number, read.fold.partition_count)
    read.damage += [
        f"{finding.file} at byte {finding.position}: {finding.reason}"
        for finding in read.report.findings
        if finding.kind == "corrupt"
    ]
    home = partition_directory(str(log_dir), number)
    found = await compacted_files.segment_files(disk, home)
    position = read.fold.position
    # A partition that was never written to has no file.
    for (base, path), after in zip_longest(found, [base for base, _ in found[1:]]):
        buffer = await compacted_files.read(disk, path)
        for piece in pieces(buffer, base, end=after):
            if any(each.compacted and each.next_offset > position > 0 for each in piece.found):
                # The snapshot is behind the compaction: the log alone says what is true.
                read.snapshot, read.fold = None, Fold(number, read.fold.partition_count)
                return await _read_log(disk, log_dir, read)
            if piece.found and piece.next_offset > read.fold.position:
                _fold(read.fold, buffer[piece.position : piece.end], piece.next_offset)
    return None


def _fold(fold: Fold, buffer: bytes, next_offset: int) -> None:
    epoch = fold.leader_epoch
    with contextlib.suppress(RlmmError):  # what does not read is in the report
        for batch in batches.split(buffer):
            for offset, value in batches.records_of(batch):
                if offset >= fold.position:
                    fold.apply(offset, value)
            epoch = batch.leader_epoch
    fold.advance(max(next_offset, fold.position), epoch)


def _snapshots(directory: Path, number: int) -> list[Path]:
    """Return a partition's snapshots, newest first."""
    if not directory.is_dir():
        return []
    found = [
        (match, path) for path in directory.iterdir() if (match := _SNAPSHOT.fullmatch(path.name))
    ]
    mine = [(int(match[2]), path) for match, path in found if int(match[1]) == number]
    return [path for _, path in sorted(mine, reverse=True)]


def _paths(files: _Files) -> list[Path]:
    """Return every file that the facts may come from."""
    homes = [files.state_dir, files.state_dir / "snapshots"]
    paths = [path for home in homes if home.is_dir() for path in home.iterdir() if path.is_file()]
    if files.log_dir is not None:
        paths += files.log_dir.glob("*/*.log")
    return [path for path in paths if path.name != "lock"]


def verify_log(directory: str) -> list[PartitionReport]:
    """Return a report on each partition of an embedded log, or of a quorum's replica.

    Of a replica, whose files all partitions share, damage is raised.

    Raises:
        InvalidArgument: there is no log.
        LogCorrupt, HistoryLost: a replica's files are damaged, or some are gone.
    """
    _require_directory(directory)
    return run(_verify(directory))


async def _verify(directory: str) -> list[PartitionReport]:
    disk = LocalDisk()
    try:
        if await disk.exists(Layout(directory, TOPIC).meta):
            return await replica_log.reports(directory, disk)
        identity = await _identity(disk, directory)
        return await verify(disk, directory, identity.partition_count)
    finally:
        disk.close()


def seal_log(directory: str) -> int:
    """Begin a new file in every partition of a log that no daemon uses; return how many there are.

    Raises:
        InvalidArgument: there is no log.
        RlmmError: a daemon holds its lock, or it cannot be opened.
    """
    _require_directory(directory)
    return run(_seal(directory))


async def _seal(directory: str) -> int:
    disk = LocalDisk()
    try:
        identity = await _identity(disk, directory)
        async with asyncio.TaskGroup() as group:
            log = EmbeddedLog(
                disk=disk,
                clock=SystemClock(),
                spawn=lambda work, name: group.create_task(work, name=name),
                luck=random.Random(),  # noqa: S311 - generations, no secrets
                directory=directory,
                partition_count=identity.partition_count,
                cluster_id=identity.cluster_id,
            )
            try:
                await log.open(create=False)
                await seal(log)
            finally:
                await log.close()
    except* (RlmmError, PermissionError) as errors:
        raise errors.exceptions[0] from None
    else:
        return identity.partition_count
    finally:
        disk.close()


def _require_directory(directory: str) -> None:
    if not Path(directory).is_dir():
        raise InvalidArgument(f"{directory} is no directory", path=directory)


async def _identity(disk: Disk, directory: str) -> LogIdentity:
    identity = await read_identity(disk, directory)
    if identity is None:
        if await disk.exists(Layout(directory, TOPIC).meta):
            raise InvalidArgument(
                f"{directory} is a replica of a quorum's log, which closes its files by itself",
                path=directory,
            )
        raise InvalidArgument(f"{directory} holds no event log", path=directory)
    return identity
