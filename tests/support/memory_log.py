"""An event log in memory that several managers may share, with faults to order.

The store plays the cluster, a `MemoryEventLog` one manager's connection to it. All of them live
in one event loop.
"""

import asyncio
import enum
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextlib import suppress
from typing import Final, assert_never

import msgspec
from msgspec.structs import replace

from rlmm_daemon.domain.errors import (
    Draining,
    InvalidArgument,
    OutcomeUnknown,
    Overloaded,
    PartitionFailed,
    RlmmError,
    StorageFull,
    StorageUnavailable,
)
from rlmm_daemon.domain.ids import MetadataPartition, TopicId
from rlmm_daemon.ports.event_log import (
    NO_EPOCH,
    EpochEnd,
    LogBatch,
    LogIdentity,
    LogMissing,
    LogRange,
    LogTrimmed,
    LogTruncated,
    Told,
    TopicIdChanged,
    appended,
    diverged,
    ranges_joined,
    ranges_less,
    ranges_within,
)

RECORDS_MAX_DEFAULT: Final = 10_000_000
BATCH_RECORDS_MAX: Final = 500
FAULTS_MAX: Final = 1_000
REQUESTS_HELD_MAX: Final = 100_000


class AppendFault(enum.Enum):
    """What becomes of one append."""

    REFUSED = enum.auto()  #: certainly not in the log
    UNKNOWN_LANDED = enum.auto()  #: in the log, but the answer was lost
    UNKNOWN_LOST = enum.auto()  #: not in the log, and nobody can tell
    UNKNOWN_LATE = enum.auto()  #: appears when `MemoryLogStore.deliver_late` is called


class _Cursor(msgspec.Struct, eq=False):
    """One follower: where it stands, and whether what it stood on is gone; itself, not its like."""

    position: int
    truncated: bool = False


class _Partition(msgspec.Struct):
    start: int = 0
    end: int = 0
    epoch: int = 0
    #: Ascending, one entry per record; a gap has no entry.
    offsets: list[int] = msgspec.field(default_factory=list)
    values: list[bytes | None] = msgspec.field(default_factory=list)
    #: (leader epoch, first offset written in it), both ascending.
    epochs: list[tuple[int, int]] = msgspec.field(default_factory=list)
    faults: deque[AppendFault] = msgspec.field(default_factory=deque)
    late: list[bytes] = msgspec.field(default_factory=list)
    cursors: list[_Cursor] = msgspec.field(default_factory=list)
    #: Offsets whose records were lost, ascending and apart.
    lost: tuple[LogRange, ...] = ()

    @property
    def range(self) -> LogRange:
        return LogRange(start=self.start, end=self.end)

    def put(self, value: bytes | None) -> int:
        self._begin_epoch()
        self.offsets.append(self.end)
        self.values.append(value)
        self.end += 1
        return self.end - 1

    def skip(self, count: int) -> None:
        self._begin_epoch()
        self.end += count

    def _begin_epoch(self) -> None:
        if not self.epochs or self.epochs[-1][0] != self.epoch:
            self.epochs.append((self.epoch, self.end))

    def lose(self, start: int, end: int) -> None:
        begin, behind = bisect_left(self.offsets, start), bisect_left(self.offsets, end)
        del self.offsets[begin:behind], self.values[begin:behind]
        self.lost = ranges_joined([*self.lost, LogRange(start=start, end=min(end, self.end))])

    def truncate(self, end: int) -> None:
        self.lost = ranges_less(self.lost, [LogRange(start=end, end=max(end, self.end))])
        kept = bisect_left(self.offsets, end)
        del self.offsets[kept:], self.values[kept:]
        self.end = min(self.end, end)
        self.epochs = [entry for entry in self.epochs if entry[1] < end]
        self.epoch += 1
        for cursor in self.cursors:
            cursor.truncated |= cursor.position > end

    def trim(self, start: int) -> None:
        gone = bisect_left(self.offsets, start)
        del self.offsets[:gone], self.values[:gone]
        self.start = start

    def epoch_at(self, offset: int) -> int:
        """Return the epoch in which `offset` was written, -1 before the first."""
        found = bisect_right(self.epochs, offset, key=lambda entry: entry[1])
        return self.epochs[found - 1][0] if found else -1

    def diverged(self, position: int, epoch: int) -> bool:
        if position < self.start:
            return False  # trimmed: nothing that is left can say
        return diverged(self.epoch_end(epoch), position, epoch) is not None

    def epoch_end(self, epoch: int) -> EpochEnd:
        found = bisect_right(self.epochs, epoch, key=lambda entry: entry[0])
        if not found:
            return EpochEnd(epoch=-1, end_offset=-1)
        end = self.epochs[found][1] if found < len(self.epochs) else self.end
        return EpochEnd(epoch=self.epochs[found - 1][0], end_offset=end)


class MemoryLogStore:
    """The log itself. Its methods are what a cluster's operator, or its bad day, would do."""

    def __init__(
        self,
        *,
        topic_id: TopicId,
        partition_count: int,
        cluster_id: str | None = None,
        records_max: int = RECORDS_MAX_DEFAULT,
        exists: bool = True,
    ) -> None:
        #: Whether the log was made; a connection that may create it makes it so.
        self.exists = exists
        self._identity = LogIdentity(
            cluster_id=cluster_id, topic_id=topic_id, partition_count=partition_count
        )
        self._records_max = records_max
        self._partitions = [_Partition() for _ in range(partition_count)]
        self._changed = asyncio.Event()
        self._running = True
        self._held: list[Callable[[], object]] = []

    @property
    def identity(self) -> LogIdentity:
        """The identity as a connection made now would see it."""
        return self._identity

    @property
    def paused(self) -> bool:
        """Whether the log answers nobody."""
        return not self._running

    def partition(self, partition: MetadataPartition) -> _Partition:
        """Return one partition's contents.

        Raises:
            InvalidArgument: the topic has no such partition.
        """
        if not 0 <= partition < len(self._partitions):
            raise InvalidArgument(f"the log has no partition {partition}")
        return self._partitions[partition]

    def fail_next_append(self, partition: MetadataPartition, fault: AppendFault) -> None:
        """Give the next append that has no fault yet this one."""
        faults = self.partition(partition).faults
        assert len(faults) < FAULTS_MAX
        faults.append(fault)

    def put(self, partition: MetadataPartition, value: bytes | None) -> int:
        """Append as a foreign writer would; None is a tombstone.

        Raises:
            StorageFull: the store holds `records_max` records.
        """
        if sum(len(each.offsets) for each in self._partitions) >= self._records_max:
            raise StorageFull
        offset = self.partition(partition).put(value)
        self._wake()
        return offset

    def skip(self, partition: MetadataPartition, count: int) -> None:
        """Use up offsets without records, as transaction markers do; the log vouches for them."""
        self.partition(partition).skip(count)
        self._wake()

    def lose(self, partition: MetadataPartition, start: int, end: int) -> None:
        """Lose the records of [start, end) while their offsets stay, as compaction does."""
        self.partition(partition).lose(start, end)
        self._wake()

    def deliver_late(self, partition: MetadataPartition) -> None:
        """Let the appends that were given UNKNOWN_LATE appear."""
        target = self.partition(partition)
        late, target.late = target.late, []
        for value in late:
            self.put(partition, value)

    def truncate(self, partition: MetadataPartition, end: int) -> None:
        """Lose the tail from `end` on, as an unclean leader election does; the epoch grows."""
        self.partition(partition).truncate(end)
        self._wake()

    def trim(self, partition: MetadataPartition, start: int) -> None:
        """Lose the head before `start`, as retention does."""
        self.partition(partition).trim(start)
        self._wake()

    def begin_epoch(self, partition: MetadataPartition) -> None:
        """Elect a new leader that has everything."""
        self.partition(partition).epoch += 1

    def recreate(self, topic_id: TopicId) -> None:
        """Delete the topic and create it again, empty, under the same name."""
        count = self._identity.partition_count
        self._identity = LogIdentity(
            cluster_id=self._identity.cluster_id, topic_id=topic_id, partition_count=count
        )
        self._partitions = [_Partition() for _ in range(count)]
        self._wake()

    def grow(self, partition_count: int) -> None:
        """Have more partitions, as an operator may order."""
        more = partition_count - len(self._partitions)
        self._partitions += [_Partition() for _ in range(more)]
        self._identity = replace(self._identity, partition_count=partition_count)
        self._wake()

    def pause(self) -> None:
        """Stop answering: appends wait, followers get nothing, questions are refused."""
        self._running = False

    def resume(self) -> None:
        """Answer again."""
        self._running = True
        held, self._held = self._held, []
        for request in held:
            request()
        self._wake()

    def when_running(self, request: Callable[[], object]) -> None:
        """Do it once the store answers again; only while it is paused."""
        assert self.paused
        if len(self._held) >= REQUESTS_HELD_MAX:
            raise Overloaded(f"{REQUESTS_HELD_MAX} requests wait for the log to answer")
        self._held.append(request)

    def changed(self) -> asyncio.Event:
        """Return an event that the next change sets; take it before looking."""
        return self._changed

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def wake_all(self) -> None:
        """Let every follower look again."""
        self._wake()


class MemoryEventLog:
    """One manager's connection to a `MemoryLogStore`."""

    def __init__(
        self,
        store: MemoryLogStore,
        *,
        heartbeat_seconds: float = 1.0,
    ) -> None:
        self._store = store
        self._heartbeat_seconds = heartbeat_seconds
        self._identity: LogIdentity | None = None
        self._closed = False

    async def open(self, *, create: bool) -> LogIdentity:
        """Connect; again after a topic was recreated, to accept the new one.

        Raises:
            LogMissing: the store was told to be absent, and it may not be created.
            StorageUnavailable: the store is paused.
        """
        self._check_answering()
        if not create and not self._store.exists:
            raise LogMissing
        self._store.exists = True
        self._identity, self._closed = self._store.identity, False
        return self._identity

    @property
    def identity(self) -> LogIdentity | None:
        """What `open` returned last."""
        return self._identity

    def begin_append(self, partition: MetadataPartition, value: bytes, told: Told) -> None:
        """Append once the store answers, or suffer the fault that was ordered."""
        call_soon = asyncio.get_running_loop().call_soon
        if self._store.paused:
            # By call_soon here too: nobody is told from within the call that resumes the store.
            self._store.when_running(lambda: call_soon(told, self._fate(partition, value)))
            return
        self._check_topic()
        call_soon(told, self._put(partition, value))

    async def append(self, partition: MetadataPartition, value: bytes) -> int:
        """Append and return the offset, or suffer the fault that was ordered."""
        return await appended(self, partition, value)

    def _fate(self, partition: MetadataPartition, value: bytes) -> int | RlmmError:
        try:
            self._check_topic()
            return self._put(partition, value)
        except RlmmError as error:
            return error

    def _put(self, partition: MetadataPartition, value: bytes) -> int | RlmmError:
        target = self._store.partition(partition)
        if not target.faults:
            return self._store.put(partition, value)
        fault = target.faults.popleft()
        match fault:
            case AppendFault.REFUSED:
                return StorageUnavailable("the event log refused the record")
            case AppendFault.UNKNOWN_LANDED:
                self._store.put(partition, value)
            case AppendFault.UNKNOWN_LOST:
                pass
            case AppendFault.UNKNOWN_LATE:
                target.late.append(value)
            case _:
                assert_never(fault)
        return OutcomeUnknown()

    async def end_offsets(
        self, partitions: Collection[MetadataPartition]
    ) -> Mapping[MetadataPartition, LogRange]:
        """Return the ranges; none at all while the store is paused or another topic."""
        known = self._identity is not None and self._identity.topic_id
        if self._closed or self._store.paused or self._store.identity.topic_id != known:
            return {}
        count = self._store.identity.partition_count
        return {each: self._store.partition(each).range for each in partitions if 0 <= each < count}

    async def epoch_end(self, partition: MetadataPartition, epoch: int) -> EpochEnd:
        """Return where the epoch ends."""
        self._check_answering()
        self._check_topic()
        return self._store.partition(partition).epoch_end(epoch)

    async def follow(
        self, partition: MetadataPartition, from_offset: int, *, epoch: int
    ) -> AsyncGenerator[LogBatch, None]:
        """Yield what is there, then what comes, with heartbeats in between."""
        cursor = _Cursor(from_offset)
        target = self._follow_target(partition)
        target.cursors.append(cursor)
        epoch, due = epoch if from_offset > 0 else NO_EPOCH, True
        cursor.truncated = epoch >= 0 and target.diverged(from_offset, epoch)
        try:
            while True:
                changed = self._store.changed()
                if self._store.paused and not self._closed:
                    await changed.wait()
                    continue
                if self._follow_target(partition) is not target:
                    raise TopicIdChanged(self._store.identity.topic_id)
                batch = _next_batch(target, cursor, epoch)
                if due or batch.next_offset > cursor.position:
                    cursor.position, epoch, due = batch.next_offset, batch.leader_epoch, False
                    yield batch
                    continue
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._heartbeat_seconds):
                        await changed.wait()
                    continue
                due = True  # nothing came in time: say that the log still answers
        finally:
            target.cursors.remove(cursor)

    async def close(self) -> None:
        """Let followers end; the store stays."""
        self._closed = True
        self._store.wake_all()

    def _follow_target(self, partition: MetadataPartition) -> _Partition:
        if self._closed or self._identity is None:
            raise Draining("the event log is closed")
        if self._store.identity.topic_id != self._identity.topic_id:
            raise TopicIdChanged(self._store.identity.topic_id)
        return self._store.partition(partition)

    def _check_answering(self) -> None:
        if self._store.paused:
            raise StorageUnavailable("the event log does not answer")

    def _check_topic(self) -> None:
        if self._closed or self._identity is None:
            raise Draining("the event log is closed")
        if self._store.identity.topic_id != self._identity.topic_id:
            raise PartitionFailed("the metadata topic was recreated")


def _next_batch(target: _Partition, cursor: _Cursor, epoch: int) -> LogBatch:
    if cursor.truncated or cursor.position > target.end:
        raise LogTruncated
    if cursor.position < target.start:
        raise LogTrimmed(target.start)
    begin = bisect_left(target.offsets, cursor.position)
    end = min(begin + BATCH_RECORDS_MAX, len(target.offsets))
    next_offset = target.offsets[end] if end < len(target.offsets) else target.end
    if next_offset > cursor.position:
        epoch = target.epoch_at(next_offset - 1)
    records = tuple(zip(target.offsets[begin:end], target.values[begin:end], strict=True))
    passed = LogRange(start=cursor.position, end=next_offset)
    return LogBatch(
        next_offset=next_offset,
        leader_epoch=epoch,
        records=records,
        range=target.range,
        unvouched=ranges_within(target.lost, passed),
    )
