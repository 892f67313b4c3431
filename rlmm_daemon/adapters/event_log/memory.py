"""Event log in memory that several managers may share, gone with the process.

A `MemoryLogStore` holds the events, a `MemoryEventLog` is one manager's connection to it. All of
them live in one event loop. Nothing is ever lost of it but all: there is one leader epoch, and
offsets are dense.
"""

import asyncio
from collections.abc import AsyncGenerator, Collection, Mapping
from typing import Final

from rlmm_daemon.domain.errors import Draining, InvalidArgument, StorageFull
from rlmm_daemon.domain.ids import MetadataPartition, TopicId
from rlmm_daemon.ports.event_log import (
    NO_EPOCH,
    EpochEnd,
    LogBatch,
    LogIdentity,
    LogRange,
    LogTruncated,
    Told,
    appended,
    diverged,
)

RECORDS_MAX_DEFAULT: Final = 10_000_000
BATCH_RECORDS_MAX: Final = 500
#: The only leader epoch.
EPOCH: Final = 0


class MemoryLogStore:
    """The log itself."""

    def __init__(
        self,
        *,
        topic_id: TopicId,
        partition_count: int,
        cluster_id: str | None = None,
        records_max: int = RECORDS_MAX_DEFAULT,
    ) -> None:
        self.identity = LogIdentity(
            cluster_id=cluster_id, topic_id=topic_id, partition_count=partition_count
        )
        self._left = records_max
        self._partitions: list[list[bytes]] = [[] for _ in range(partition_count)]
        self._changed = asyncio.Event()

    def partition(self, partition: MetadataPartition) -> list[bytes]:
        """Return one partition's values, by their offsets.

        Raises:
            InvalidArgument: the log has no such partition.
        """
        if not 0 <= partition < len(self._partitions):
            raise InvalidArgument(f"the log has no partition {partition}")
        return self._partitions[partition]

    def put(self, partition: MetadataPartition, value: bytes) -> int:
        """Append and return the offset.

        Raises:
            StorageFull: the store holds `records_max` records.
        """
        values = self.partition(partition)
        if self._left <= 0:
            raise StorageFull
        self._left -= 1
        values.append(value)
        self.wake_all()
        return len(values) - 1

    def changed(self) -> asyncio.Event:
        """Return an event that the next change sets; take it before looking."""
        return self._changed

    def wake_all(self) -> None:
        """Let every follower look again."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


class MemoryEventLog:
    """One manager's connection to a `MemoryLogStore`."""

    def __init__(self, store: MemoryLogStore, *, heartbeat_seconds: float = 1.0) -> None:
        self._store = store
        self._heartbeat_seconds = heartbeat_seconds
        self._identity: LogIdentity | None = None
        self._closed = False

    async def open(self, *, create: bool) -> LogIdentity:  # noqa: ARG002 - it is there
        """Connect; the store is the log, so it is never absent."""
        self._identity, self._closed = self._store.identity, False
        return self._identity

    @property
    def identity(self) -> LogIdentity | None:
        """What `open` returned last."""
        return self._identity

    def begin_append(self, partition: MetadataPartition, value: bytes, told: Told) -> None:
        """Append at once, and tell of it later."""
        self._check_open()
        asyncio.get_running_loop().call_soon(told, self._store.put(partition, value))

    async def append(self, partition: MetadataPartition, value: bytes) -> int:
        """Append and return the offset."""
        return await appended(self, partition, value)

    async def end_offsets(
        self, partitions: Collection[MetadataPartition]
    ) -> Mapping[MetadataPartition, LogRange]:
        """Return the ranges; none at all while it is not open."""
        if self._closed or self._identity is None:
            return {}
        return {
            each: LogRange(start=0, end=len(self._store.partition(each)))
            for each in partitions
            if 0 <= each < self._identity.partition_count
        }

    async def epoch_end(self, partition: MetadataPartition, epoch: int) -> EpochEnd:
        """Return where the only epoch ends, once something was written in it."""
        self._check_open()
        return _epoch_end(self._store.partition(partition), epoch)

    async def follow(
        self, partition: MetadataPartition, from_offset: int, *, epoch: int
    ) -> AsyncGenerator[LogBatch, None]:
        """Yield what is there, then what comes, with heartbeats in between."""
        self._check_open()
        values, position = self._store.partition(partition), from_offset
        epoch, due = epoch if from_offset > 0 else NO_EPOCH, True
        if position > len(values) or (
            epoch >= 0 and diverged(_epoch_end(values, epoch), position, epoch)
        ):
            raise LogTruncated
        while True:
            self._check_open()
            changed = self._store.changed()
            found = tuple(enumerate(values[position : position + BATCH_RECORDS_MAX], position))
            if found:
                position, epoch = position + len(found), EPOCH
            if found or due:
                due = False
                yield LogBatch(
                    next_offset=position,
                    leader_epoch=epoch,
                    records=found,
                    range=LogRange(start=0, end=len(values)),
                )
                continue
            try:
                async with asyncio.timeout(self._heartbeat_seconds):
                    await changed.wait()
            except TimeoutError:
                due = True  # nothing came in time: say that the log still answers

    async def close(self) -> None:
        """Let followers end; the store stays."""
        self._closed = True
        self._store.wake_all()

    def _check_open(self) -> None:
        if self._closed or self._identity is None:
            raise Draining("the event log is closed")


def _epoch_end(values: list[bytes], epoch: int) -> EpochEnd:
    if not values or epoch < EPOCH:
        return EpochEnd(epoch=-1, end_offset=-1)
    return EpochEnd(epoch=EPOCH, end_offset=len(values))
