"""Who this log is, and which generation writes now: two small files beside the partitions.

The identity is written once, after the state, so that a log with an identity has a state. The
state is replaced at every open and every cut; only a clean stop leaves `clean` ends in it, and
the next open replaces them before anything is written, so they can never be out of date.
"""

import asyncio

import msgspec

from rlmm_daemon.adapters.event_log.embedded.files import IDENTITY_NAME, STATE_NAME
from rlmm_daemon.domain.errors import InvalidArgument, LogCorrupt
from rlmm_daemon.domain.ids import MetadataPartition, TopicId, uuid_bytes, uuid_text
from rlmm_daemon.ports.disk import Disk
from rlmm_daemon.ports.event_log import LogIdentity

FORMAT = 1


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


async def read_identity(disk: Disk, directory: str) -> LogIdentity | None:
    """Return the identity, or None if there is no log here.

    Raises:
        LogCorrupt: the file is damaged, or of a newer version.
    """
    path = f"{directory}/{IDENTITY_NAME}"
    try:
        found = msgspec.json.decode(await disk.read(path), type=_IdentityFile)
        topic_id = TopicId(uuid_bytes(found.topic_id))
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, InvalidArgument) as error:
        raise LogCorrupt("the event log's identity is damaged", file=path) from error
    _check_format(found.format, path)
    return LogIdentity(
        cluster_id=found.cluster_id, topic_id=topic_id, partition_count=found.partition_count
    )


async def write_identity(disk: Disk, directory: str, identity: LogIdentity) -> None:
    """Write the identity durably."""
    content = _IdentityFile(
        format=FORMAT,
        cluster_id=identity.cluster_id,
        topic_id=uuid_text(identity.topic_id),
        partition_count=identity.partition_count,
    )
    await disk.write_atomically(f"{directory}/{IDENTITY_NAME}", msgspec.json.encode(content))


class Generations:
    """The generation that writes now: each one is durable before a batch may carry it."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._path = f"{directory}/{STATE_NAME}"
        self._current = -1
        self._writing = asyncio.Lock()

    @property
    def current(self) -> int:
        """The newest durable generation."""
        return self._current

    async def load(self) -> dict[MetadataPartition, CleanEnd]:
        """Read the last generation and the ends that a clean stop left.

        Raises:
            FileNotFoundError: there is no state.
            LogCorrupt: the file is damaged, or of a newer version.
        """
        try:
            found = msgspec.json.decode(await self._disk.read(self._path), type=_StateFile)
            clean = {MetadataPartition(int(name)): end for name, end in found.clean.items()}
        except (msgspec.DecodeError, ValueError) as error:
            raise LogCorrupt("the event log's state is damaged", file=self._path) from error
        _check_format(found.format, self._path)
        self._current = max(self._current, found.generation)
        return clean

    async def advance(self, *, beyond: int = -1) -> int:
        """Begin and return a new generation, larger than `beyond` too."""
        async with self._writing:  # several partitions may be cut at once
            generation = max(self._current, beyond) + 1
            await self._write(generation, {})
            self._current = generation
        return generation

    async def finish(self, clean: dict[MetadataPartition, CleanEnd]) -> None:
        """Leave what a clean stop knows."""
        await self._write(self._current, clean)

    async def _write(self, generation: int, clean: dict[MetadataPartition, CleanEnd]) -> None:
        content = _StateFile(
            format=FORMAT,
            generation=generation,
            clean={str(partition): end for partition, end in sorted(clean.items())},
        )
        await self._disk.write_atomically(self._path, msgspec.json.encode(content))


def _check_format(found: int, path: str) -> None:
    if found != FORMAT:
        raise LogCorrupt(
            f"the event log is of format {found}, this program knows {FORMAT}", file=path
        )
