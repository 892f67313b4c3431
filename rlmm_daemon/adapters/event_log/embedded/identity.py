"""Identity and generation of an embedded log: two small files beside the partitions.

The identity is written once, after the state, so that a log with an identity has a state. The
state is replaced before the first write of every open, and at every cut; only a clean stop leaves
`clean` ends in it. Those of open partitions go before anything is written; the others stay, so that
what is gone of their files is noticed whenever they are opened. An open that writes nothing needs
no room: a full disk does not keep a log from being read, though one of the two be damaged.

Either can be made again when it is damaged: the state holds the identity too, and what else is in
it can be told from the segment files. One of a newer format is left untouched.
"""

import asyncio
import random
from contextlib import suppress
from typing import Final

import msgspec
import structlog

from rlmm_daemon.adapters.event_log.embedded.epochs import EPOCH_MAX, is_one_bit_off
from rlmm_daemon.adapters.event_log.embedded.files import (
    CORRUPT_SUFFIX,
    IDENTITY_NAME,
    STATE_NAME,
)
from rlmm_daemon.codec.sealed_json import sealed, unsealed
from rlmm_daemon.domain.errors import InvalidArgument, LogCorrupt, UnsupportedProtocol
from rlmm_daemon.domain.ids import MetadataPartition, TopicId, uuid_bytes, uuid_text
from rlmm_daemon.ports.disk import Disk
from rlmm_daemon.ports.event_log import NO_EPOCH, LogIdentity, LogUnnamed

_log = structlog.get_logger(__name__)

#: Of a log that was never compacted, and of one that may have been: a version that knows the first
#: alone would take what was dropped for lost.
FORMAT_WHOLE: Final = 1
FORMAT_COMPACTED: Final = 2
#: Left out where the newest generation is not known but by the batches that are left.
GENERATIONS_SKIPPED: Final = 1_000


def spread(newest: int) -> int:
    """Return how many generations beyond the newest one an open may begin with.

    Two lives that go on from copies of one log would else write in the same one, and each confirm
    what the other had read: of a young log one pair in 262,144 does. Each life that writes takes
    half of it, and it shrinks with what is left: it is 5,000 after 50,000 lives, and millions find
    a generation.
    """
    left = max(EPOCH_MAX - newest, 0)
    return max(left * left >> 42, 1)


class CleanEnd(msgspec.Struct, frozen=True, kw_only=True):
    """Where a partition ended at a clean stop: its newest file need not be scanned."""

    base_offset: int
    size: int
    next_offset: int
    epochs: list[tuple[int, int]]


class _IdentityFile(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    cluster_id: str | None
    topic_id: str
    partition_count: int


class _StateFile(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    generation: int
    clean: dict[str, CleanEnd] = {}
    #: As in its own file; None in a state that an earlier version wrote, which ignores it.
    identity: _IdentityFile | None = None


class _Format(msgspec.Struct, frozen=True):
    #: Read before all else: the fields of a newer format are not known.
    format: int


async def read_identity(disk: Disk, directory: str) -> LogIdentity | None:
    """Return the identity, or None if there is no log here.

    Raises:
        LogUnnamed: the file is damaged.
        UnsupportedProtocol: the file is of a newer format.
    """
    found = await read_named(disk, directory)
    return None if found is None else found[0]


async def read_named(disk: Disk, directory: str) -> tuple[LogIdentity, int] | None:
    """Return what `read_identity` does, and the format of the file."""
    path = f"{directory}/{IDENTITY_NAME}"
    try:
        content = await disk.read(path)
    except FileNotFoundError:
        return None
    _check_format(content, path)
    try:
        file = msgspec.json.decode(unsealed(content)[0], type=_IdentityFile)
        return _identity_of(file), file.format
    except (msgspec.DecodeError, ValueError, InvalidArgument) as error:
        raise LogUnnamed(f"{path} is damaged: {error}", file=path) from error


async def remembered_identity(disk: Disk, directory: str) -> LogIdentity | None:
    """Return the identity as the state holds it; None if the state is damaged or older."""
    try:
        content = await disk.read(f"{directory}/{STATE_NAME}")
        found = msgspec.json.decode(unsealed(content)[0], type=_StateFile)
        return None if found.identity is None else _identity_of(found.identity)
    except (FileNotFoundError, msgspec.DecodeError, ValueError, InvalidArgument):
        return None


async def clean_ends(disk: Disk, directory: str) -> dict[MetadataPartition, CleanEnd]:
    """Return the ends that a log's state holds; none if it is damaged or not there."""
    with suppress(FileNotFoundError, msgspec.DecodeError, ValueError):
        content = await disk.read(f"{directory}/{STATE_NAME}")
        found = msgspec.json.decode(unsealed(content)[0], type=_StateFile)
        return {MetadataPartition(int(name)): end for name, end in found.clean.items()}
    return {}


async def set_aside(disk: Disk, path: str) -> str | None:
    """Keep what a file holds under the first free name, if it is there; return that name."""
    try:
        content = await disk.read(path)
    except FileNotFoundError:
        return None
    number, target = 1, path + CORRUPT_SUFFIX
    while await disk.exists(target):
        number += 1
        target = f"{path}{CORRUPT_SUFFIX}.{number}"
    await disk.write_atomically(target, content)
    return target


async def read_format(disk: Disk, directory: str) -> int:
    """Return the format that identity and state say: the newer one, should they differ."""
    found = FORMAT_WHOLE
    for name in (IDENTITY_NAME, STATE_NAME):
        with suppress(FileNotFoundError, msgspec.DecodeError, ValueError):
            content, _ = unsealed(await disk.read(f"{directory}/{name}"))
            found = max(found, msgspec.json.decode(content, type=_Format).format)
    return found


async def write_identity(
    disk: Disk, directory: str, identity: LogIdentity, *, file_format: int = FORMAT_WHOLE
) -> None:
    """Write the identity durably."""
    content = sealed(msgspec.json.encode(_file_of(identity, file_format)), indented=False)
    await disk.write_atomically(f"{directory}/{IDENTITY_NAME}", content)


def _file_of(identity: LogIdentity, file_format: int) -> _IdentityFile:
    return _IdentityFile(
        format=file_format,
        cluster_id=identity.cluster_id,
        topic_id=uuid_text(identity.topic_id),
        partition_count=identity.partition_count,
    )


def _identity_of(found: _IdentityFile) -> LogIdentity:
    return LogIdentity(
        cluster_id=found.cluster_id,
        topic_id=TopicId(uuid_bytes(found.topic_id)),
        partition_count=found.partition_count,
    )


class Generations:
    """The generation that writes now: each one is durable before a batch may carry it.

    The first one of an open begins with the first write, and is larger than those of all opens
    before that wrote anything, by luck.
    """

    def __init__(self, disk: Disk, directory: str, luck: random.Random) -> None:
        self._disk, self._luck = disk, luck
        self._directory = directory
        self.path = f"{directory}/{STATE_NAME}"
        #: Written with each state, once it is known.
        self.identity: LogIdentity | None = None
        #: Of the log's small files.
        self.format = FORMAT_WHOLE
        #: Both say so, as of this open.
        self._compaction_allowed = False
        #: The newest durable one.
        self._current = -1
        #: Whether it was begun since the log was opened: before, no batch may carry it.
        self._begun = False
        #: The clean ends of partitions whose files were not found to reach there yet.
        self.owed: dict[MetadataPartition, CleanEnd] = {}
        #: What stands in the file is no state; it is set aside before it is replaced.
        self._damaged = False
        #: Not to be written any more, nor anything below.
        self.floor = NO_EPOCH
        self._writing = asyncio.Lock()

    @property
    def newest(self) -> int:
        """The newest durable one, -1 before the first."""
        return self._current

    async def load(self) -> dict[MetadataPartition, CleanEnd]:
        """Read the last generation and the ends that a clean stop left.

        Raises:
            FileNotFoundError: there is no state.
            LogCorrupt: the file is damaged.
            UnsupportedProtocol: the file is of a newer format.
        """
        content = await self._disk.read(self.path)
        _check_format(content, self.path)
        try:
            found = msgspec.json.decode(unsealed(content)[0], type=_StateFile)
            clean = {MetadataPartition(int(name)): end for name, end in found.clean.items()}
        except (msgspec.DecodeError, ValueError) as error:
            raise LogCorrupt(f"{self.path} is damaged: {error}", file=self.path) from error
        self._current = max(self._current, found.generation)
        self.format = max(self.format, found.format)
        self.owed = dict(clean)
        return clean

    def go_on_without(self, *, beyond: int) -> None:
        """Begin with a later generation than `beyond`: the state is damaged or gone.

        What is left of it is kept when it is replaced, by the next write.
        """
        self._current, self._damaged = max(self._current, beyond), True

    def go_on_beyond(self, epoch: int) -> None:
        """Begin with a later generation than a log's epoch that the state does not know.

        It is an older state, which was put back. Some may have been used and cut off since.
        """
        if epoch + GENERATIONS_SKIPPED > self.floor:
            self.floor = epoch + GENERATIONS_SKIPPED
            _log.warning(
                "log_state_is_an_older_one",
                path=self.path,
                generation=self._current,
                newest_in_log=epoch,
            )

    async def advance(self, *, beyond: int = -1) -> int:
        """Begin and return a new generation, larger than `beyond` too.

        A state that came back after a restore names one that was used already: hence `beyond`.
        """
        async with self._writing:  # several partitions may be cut at once
            return await self._advance(beyond)

    async def begin(self, *, beyond: int = -1) -> int:
        """Return the generation of this open, begun at its first call; larger than `beyond`.

        To be called before anything of the log is changed: the clean ends go of what is open.
        """
        async with self._writing:
            if self._begun and self._current > max(beyond, self.floor):
                return self._current
            return await self._advance(beyond, 0 if self._begun else self._drawn(beyond))

    def _drawn(self, beyond: int) -> int:
        """Return how many generations the first one of this open leaves out."""
        newest = max(self._current, beyond, self.floor)
        further = self._luck.randrange(spread(newest))
        while any(is_one_bit_off(newest + 1 + further, each) for each in (self._current, beyond)):
            further += 1  # a lone batch of it would pass for a damaged one
        return further

    async def _advance(self, beyond: int, further: int = 0) -> int:
        generation = max(self._current, beyond, self.floor) + 1 + further
        await self._write(generation, {})
        self._current, self._begun = generation, True
        return generation

    async def allow_compaction(self) -> None:
        """Let no version read the log any more that would take what is dropped for lost.

        Raises:
            OSError: not now; nothing may be dropped.
        """
        async with self._writing:
            if self._compaction_allowed or self.identity is None:
                return
            before, self.format = self.format, FORMAT_COMPACTED
            try:
                await self._write(self._current, {})
                await write_identity(
                    self._disk, self._directory, self.identity, file_format=self.format
                )
            except OSError:
                self.format = before
                raise
            self._compaction_allowed = True

    async def finish(self, clean: dict[MetadataPartition, CleanEnd]) -> None:
        """Leave what a clean stop knows."""
        await self._write(self._current, clean)

    async def _write(self, generation: int, clean: dict[MetadataPartition, CleanEnd]) -> None:
        if self._damaged:
            kept = await set_aside(self._disk, self.path)
            self._damaged = False
            _log.warning("log_state_made_again", path=self.path, kept=kept)
        content = _StateFile(
            format=self.format,
            generation=generation,
            clean={str(number): end for number, end in sorted((self.owed | clean).items())},
            identity=None if self.identity is None else _file_of(self.identity, self.format),
        )
        data = sealed(msgspec.json.encode(content), indented=False)
        await self._disk.write_atomically(self.path, data)


def _check_format(content: bytes, path: str) -> None:
    """Refuse a file of a newer format; one that can't be read says nothing of it."""
    try:
        found = msgspec.json.decode(unsealed(content)[0], type=_Format).format
    except (msgspec.DecodeError, ValueError):
        return
    if found > FORMAT_COMPACTED:
        raise UnsupportedProtocol(
            f"{path} is of format {found}, this version knows {FORMAT_COMPACTED}; "
            "it is left untouched",
            file=path,
        )
