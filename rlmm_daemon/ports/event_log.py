"""The log that is the truth: append to it, follow it, and know where it ends.

One contract test class holds every promise below against every adapter.
"""

import asyncio
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol, runtime_checkable

import msgspec

from rlmm_daemon.domain.errors import LogCorrupt, RlmmError, StorageUnavailable
from rlmm_daemon.domain.ids import MetadataPartition, TopicId

#: Leader epoch of a position before which nothing was read, or nobody knows in which epoch.
NO_EPOCH: Final = -1


class LogIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Which log this is. Known after `open`; the count never changes for one topic id."""

    #: None until the cluster is known (an embedded log takes it from the configuration).
    cluster_id: str | None
    topic_id: TopicId
    partition_count: int


class LogRange(msgspec.Struct, frozen=True, kw_only=True):
    """`start` is the first offset still there, `end` the next one to be written (stable end)."""

    start: int
    end: int


class EpochEnd(msgspec.Struct, frozen=True, kw_only=True):
    """Kafka's OffsetForLeaderEpoch answer: the largest epoch <= the asked one, and where it ends.

    `epoch` is -1 (and `end_offset` -1) when the log knows no such epoch.
    """

    epoch: int
    end_offset: int


def diverged(found: EpochEnd, position: int, epoch: int) -> str | None:
    """Return how the log differs from what was read up to `position` in `epoch`, if it does."""
    if found.epoch == epoch and found.end_offset >= position:
        return None
    return (
        f"read up to {position} in epoch {epoch}, "
        f"the log's epoch {found.epoch} ends at {found.end_offset}"
    )


class LogBatch(msgspec.Struct, frozen=True, kw_only=True):
    """One answer of the log to a follower; empty `records` means "still nothing new".

    Every batch but a `late` one proves that the log answered just now (staleness is judged by it).
    `next_offset` is past control records and gaps: readiness is judged by position, not by
    delivered data.

    An adapter vouches for an offset without a record if it knows that no event of ours ever stood
    there (a control batch), or if its own compaction dropped the event (`dropped_to`). Every other
    offset without a record may have held an acknowledged event, and is named in `unvouched`: a hole
    between batches, a batch with fewer records than its span (Kafka's log cleaner leaves both), the
    empty batch that a repair writes over lost offsets.
    """

    next_offset: int
    #: Of the last batch delivered or passed over; before the first, the one given to `follow`.
    leader_epoch: int
    #: (offset, value) ascending; None is a tombstone.
    records: Sequence[tuple[int, bytes | None]]
    #: The log's start and stable end as this answer saw them.
    range: LogRange
    #: Offsets without a record that nobody vouches for: ascending, apart, below `next_offset`.
    #: The first batch of a follower may name some below its position, too: they concern its fold.
    unvouched: tuple[LogRange, ...] = ()
    #: Events of another metadata partition stand at some of these.
    misplaced: bool = False
    #: Of the offsets before this one a compaction dropped some events; 0: none of this batch. The
    #: log folds to what it did before, if it is read from its start: a fold that had read less
    #: than this when they were dropped lacks what they said, and has to be made anew.
    dropped_to: int = 0
    #: What this follower had read before was read before these were dropped: with what is left it
    #: does not make the fold that it should, which has to be made anew from the log's start.
    lacking: bool = False
    #: More may have been acknowledged by now than the log has here: this replica is behind.
    late: bool = False


def ranges_without(begin: int, end: int, offsets: Iterable[int]) -> tuple[LogRange, ...]:
    """Return the ranges of [begin, end) that none of the ascending offsets is in."""
    found = list[LogRange]()
    for offset in offsets:
        if offset > begin:
            found.append(LogRange(start=begin, end=offset))
        begin = max(begin, offset + 1)
    if end > begin:
        found.append(LogRange(start=begin, end=end))
    return tuple(found)


async def range_of(log: "EventLog", partition: MetadataPartition) -> LogRange:
    """Return where a partition starts and ends.

    Raises:
        UnavailableError: not now.
        RlmmError: why not, where the log knows it: of a corrupt partition no end is known either.
    """
    ranges = await log.end_offsets([partition])
    if partition not in ranges:
        await log.epoch_end(partition, 0)  # asked for its error alone
        raise StorageUnavailable(f"the ends of metadata partition {partition} are not known now")
    return ranges[partition]


def ranges_joined(ranges: Iterable[LogRange]) -> tuple[LogRange, ...]:
    """Return the same offsets in as few ranges as can be, ascending."""
    joined = list[LogRange]()
    for each in sorted(ranges, key=lambda one: one.start):
        if joined and each.start <= joined[-1].end:
            last = joined.pop()
            joined.append(LogRange(start=last.start, end=max(last.end, each.end)))
        elif each.end > each.start:
            joined.append(each)
    return tuple(joined)


def ranges_within(ranges: Iterable[LogRange], limits: LogRange) -> tuple[LogRange, ...]:
    """Return the offsets of `ranges` that are in `limits`, too."""
    cut = (LogRange(start=max(r.start, limits.start), end=min(r.end, limits.end)) for r in ranges)
    return tuple(each for each in cut if each.end > each.start)


def ranges_less(ranges: Iterable[LogRange], without: Iterable[LogRange]) -> tuple[LogRange, ...]:
    """Return the offsets of `ranges` that are in none of `without`, ascending and joined."""
    gone = ranges_joined(without)
    left = list[LogRange]()
    for each in ranges_joined(ranges):
        begin = each.start
        for hole in gone:
            if hole.end <= begin or hole.start >= each.end:
                continue
            if hole.start > begin:
                left.append(LogRange(start=begin, end=hole.start))
            begin = hole.end
        if begin < each.end:
            left.append(LogRange(start=begin, end=each.end))
    return tuple(left)


#: Hears once what became of a record: its offset, or as which error it was not acknowledged.
Told = Callable[[int | RlmmError], None]


class EventLog(Protocol):
    """What holds the events. Offsets are per metadata partition, dense except for gaps."""

    async def open(self, *, create: bool) -> LogIdentity:
        """Make the log usable and return its identity; an absent one is made only if `create`.

        Raises:
            LogMissing: there is no log, and it may not be created.
            NoTopicId: the log has no id, so a recreated one could not be told from it.
            LogUnnamed: its events may be whole, but what names the log is damaged.
            LogForeign: it is another cluster's than this daemon's.
            UnsupportedProtocol: a newer version wrote it; it is left untouched.
            LogCorrupt: the log as a whole is unusable; a single corrupt partition opens, and
                raises from `append` and `follow`.
            UnavailableError: not now; the caller retries with back-off.
        """

    @property
    def identity(self) -> LogIdentity | None:
        """The identity once `open` has returned, else None."""

    def begin_append(self, partition: MetadataPartition, value: bytes, told: Told) -> None:
        """Take a record and return; `told` is given its offset once it is durable.

        Durable is acks=all, or fdatasync. `told` is called exactly once, in the loop and never
        from within this call, with the offset or with an error that `append` would raise. A
        record that is refused here is certainly not in the log, and `told` never hears of it.

        Raises:
            UnavailableError, InvalidArgument, PartitionFailed, LogCorrupt: not taken.
        """

    async def append(self, partition: MetadataPartition, value: bytes) -> int:
        """Return the record's offset once it is durable: `begin_append`, awaited.

        Cancelling the caller does not take the record back.

        Raises:
            OutcomeUnknown: it may be in the log now or later.
            UnavailableError: any other leaf: certainly not in the log, now or later.
            PartitionFailed, LogCorrupt: this partition takes no writes.
        """

    async def end_offsets(
        self, partitions: Collection[MetadataPartition]
    ) -> Mapping[MetadataPartition, LogRange]:
        """Return the ranges that are known right now; a missing entry is unknown, never 0."""

    async def epoch_end(self, partition: MetadataPartition, epoch: int) -> EpochEnd:
        """Return where `epoch` ends in the log as it is now (the divergence check).

        Raises:
            UnavailableError: not now.
        """

    def follow(
        self, partition: MetadataPartition, from_offset: int, *, epoch: int
    ) -> AsyncGenerator[LogBatch, None]:
        """Yield batches from `from_offset` on, for ever, durable records only.

        A batch (perhaps empty) comes at least every few seconds while the log answers. Closing
        the generator, or cancelling at any await, delivers nothing more. The first batch of all,
        and the first after any reconnect or leader epoch change, is preceded by the adapter's own
        divergence check: `epoch` is the leader epoch of the last batch that was read before
        `from_offset`, `NO_EPOCH` where none was, and then there is nothing to check at first.

        Raises:
            LogTruncated: records before the position were cut off, perhaps overwritten since, or
                the position itself is gone.
            LogTrimmed: the log now starts beyond the position.
            TopicIdChanged: the log under this name is another one now.
            LogCorrupt: an invalid batch that a second fetch did not cure.
            UnavailableError: not now; follow again with back-off.
        """

    async def close(self) -> None:
        """Finish appends that were taken and give everything back; idempotent."""


@runtime_checkable
class OwnEpochs(Protocol):
    """An `EventLog` that numbers its epochs itself, and can be put back as an older copy of itself.

    Such a copy counts on from an older number: what it wrote then would look like what it lost.
    """

    def begin_beyond(self, epoch: int) -> None:
        """Let all that is written from now on, while the log is open, bear an epoch beyond it."""


@runtime_checkable
class SharedEpochs(Protocol):
    """An `EventLog` that others write to as well, and that can be put back, where this one leads.

    What is written from then on must not bear an epoch that it was written in before.
    """

    def outgrow(self, epoch: int) -> None:
        """Have nothing more written in this epoch or an older one, if this daemon can see to it."""


def outgrow(log: EventLog, epoch: int) -> None:
    """Have a log write nothing more in an epoch of which it lacks something, where it can."""
    if isinstance(log, OwnEpochs):
        log.begin_beyond(epoch)
    elif isinstance(log, SharedEpochs):
        log.outgrow(epoch)


@runtime_checkable
class Settling(Protocol):
    """An `EventLog` to which a process that was killed may have records on their way yet."""

    async def settle(self) -> None:
        """Have whatever this writer sent before in the log by now, or never.

        Raises:
            UnavailableError: not now.
        """


#: Lets others have their turn of the loop.
Turn = Callable[[], Awaitable[None]]
#: Entered, it keeps what was folded of a partition as it is, and says whether the fold that allowed
#: a compaction is still the one there is.
Steady = Callable[[], AbstractAsyncContextManager[bool]]


class Compacted(msgspec.Struct, frozen=True, kw_only=True):
    """What a compaction did to the part of a metadata partition that it wrote anew."""

    until: int
    bytes_before: int
    bytes_after: int
    events_after: int


@runtime_checkable
class Compactable(Protocol):
    """An `EventLog` that can drop events that its fold does not need any more."""

    async def compact(
        self, partition: MetadataPartition, upto: int, *, turn: Turn, steady: Steady
    ) -> Compacted | None:
        """Drop what is not needed of the events before `upto`, if there is enough of it.

        Nobody may be left who has read less than `upto` and would read on: no snapshot, no list of
        lost segments, no fold. Offsets and epochs of what stays are as before. Goes on beside
        appends, in slices; may be cancelled, and a crash at any moment loses nothing.

        Returns None if nothing was changed; or not yet, by a log that does it when it suits.

        Raises:
            LogCorrupt: the partition is damaged.
            UnavailableError: not now: the disk is full, or fails.
        """


async def appended(log: EventLog, partition: MetadataPartition, value: bytes) -> int:
    """Return what `EventLog.append` promises, by `begin_append`."""
    return await begun(log, partition, value)


def begun(log: EventLog, partition: MetadataPartition, value: bytes) -> asyncio.Future[int]:
    """Begin an append, in the order of these calls; return what `EventLog.append` would.

    Raises:
        UnavailableError, InvalidArgument, PartitionFailed, LogCorrupt: not taken.
    """
    offset: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def told(outcome: int | RlmmError) -> None:
        if offset.done():
            return  # the caller has left
        if isinstance(outcome, RlmmError):
            offset.set_exception(outcome)
        else:
            offset.set_result(outcome)

    log.begin_append(partition, value, told)
    return offset


class LogMissing(Exception):
    """There is no log where one was known to be."""


class LogNotBegun(LogMissing):
    """What is to keep the log is there, and nobody has written to it yet."""


class NoTopicId(Exception):
    """The cluster gave the metadata topic no id: its metadata.version is too old."""

    def __init__(self, topic: str) -> None:
        super().__init__(f"topic {topic} has no id: upgrade the cluster's metadata.version")


class LogUnnamed(LogCorrupt):
    """Which log this is can't be read any more; the events are not damaged."""


class LogForeign(LogCorrupt):
    """The log is another cluster's; nothing of it is damaged, and nothing was touched."""


class LogMoved(Exception):
    """The log under a follower's feet changed; each subclass says how."""


class LogTruncated(LogMoved):
    """A tail that this follower had read is gone: its fold is ahead of, or beside, the log."""


class LogTrimmed(LogMoved):
    """The log's start moved beyond the follower's position."""

    def __init__(self, start: int) -> None:
        self.start = start
        super().__init__(f"the log starts at {start} now")


class TopicIdChanged(LogMoved):
    """The topic was deleted and created again under the same name."""

    def __init__(self, topic_id: TopicId) -> None:
        self.topic_id = topic_id
        super().__init__("the metadata topic was recreated")
