"""Event logs opened by an offline command: what they hold, and events appended and read back.

An event here is what changed the fold of its metadata partition, in normal form: neither a
tombstone, nor garbage, nor what every broker rejects. So nothing that Kafka's own metadata manager
would die of is ever written on.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from rlmm_daemon.codec import records
from rlmm_daemon.codec.state_files import Position
from rlmm_daemon.config import Config, EmbeddedLog, KafkaLog, QuorumLog
from rlmm_daemon.core.fold.fold import Fold
from rlmm_daemon.core.fold.outcome import Applied, Outcome, Rejected, Repeated
from rlmm_daemon.daemon.cleaner.directories import BROKERS_OWN
from rlmm_daemon.domain.errors import (
    InvalidArgument,
    RlmmError,
    SegmentNotFound,
    UnavailableError,
)
from rlmm_daemon.domain.ids import MetadataPartition, SegmentId, TopicId, TopicIdPartition
from rlmm_daemon.domain.partition_delete import PartitionDelete
from rlmm_daemon.domain.segment import SegmentMetadata, SegmentState, SegmentUpdate
from rlmm_daemon.ports.event_log import (
    NO_EPOCH,
    EventLog,
    LogMissing,
    LogRange,
    begun,
    ranges_joined,
)
from rlmm_daemon.wiring import adapters
from rlmm_daemon.wiring.log_alone import log_alone

KAFKA: Final = "kafka"
#: As a log's name; a directory of that name is `./quorum`.
QUORUM: Final = "quorum"
#: Names of logs that are no directories.
NAMED: Final = (KAFKA, QUORUM)
#: Appends in flight; each partition's are in order.
_IN_FLIGHT: Final = 64
#: A leader may be elected just now.
_LEADER_SECONDS: Final = 30.0
_PAUSE_SECONDS: Final = 0.2

Key = tuple[TopicIdPartition, SegmentId]


class Contents(msgspec.Struct, kw_only=True):
    """One metadata partition of a log, read to its end."""

    fold: Fold
    events: list[bytes] = msgspec.field(default_factory=list)
    #: Every segment whose COPY_SEGMENT_FINISHED was applied, gone ones too -> its first offset.
    finished: dict[Key, int] = msgspec.field(default_factory=dict)
    #: Every segment of which a delete is there, also where the log lost what came before -> the
    #: last one's offset.
    ended: dict[Key, int] = msgspec.field(default_factory=dict)
    #: User partitions that are marked for removal, likewise.
    marked: set[TopicIdPartition] = msgspec.field(default_factory=set)
    #: Every user partition that ever was -> the last mark's offset.
    marks: dict[TopicIdPartition, int] = msgspec.field(default_factory=dict)
    start: int = 0
    #: What is read up to, and the leader epoch of the last batch.
    position: int = 0
    epoch: int = NO_EPOCH
    #: Offsets from the start on whose records are gone, and nobody knows that they were no events.
    gaps: tuple[LogRange, ...] = ()
    #: Compactions dropped events before this offset: of segments that are gone, ends included.
    dropped_to: int = 0
    passed_over: int = 0

    def lacks(self, key: Key, *, since: int) -> bool:
        """Whether the log neither holds a segment that was known to be finished nor ended it.

        What lies before `since` had been read by whoever knew it: an end there was that of an
        earlier copy under its id. 0: of another log; any finish and any end counts then.
        """
        partition, segment_id = key
        if not since:
            ended = key in self.ended or partition in self.marked
            return not ended and key not in self.finished
        if max(self.ended.get(key, -1), self.marks.get(partition, -1)) >= since:
            return False
        cache = self.fold.cache(partition)
        there = None if cache is None else cache.state(segment_id)
        return there is not SegmentState.COPY_SEGMENT_FINISHED

    def lost(self) -> tuple[LogRange, ...]:
        """Return the offsets whose events may be lost, those before the start included."""
        head = LogRange(start=0, end=self.start)
        return ranges_joined([head, *self.gaps])


def may_be_there(name: str) -> bool:
    """Return whether a log can be opened to see; a directory that is absent would be made."""
    return name in NAMED or Path(name).is_dir()


def require_there(option: str, name: str) -> None:
    """Make sure that a log to be read is there, before anything is made.

    Raises:
        InvalidArgument: the directory is absent.
    """
    if not may_be_there(name):
        raise InvalidArgument(f"{option} {name}: there is no such directory", path=name)


def require_one_cluster(named: Mapping[str, str | None]) -> None:
    """Make sure that logs, snapshots and configuration are one cluster's, as far as they say.

    Raises:
        InvalidArgument: two of them name different ones.
    """
    known = {what: cluster for what, cluster in named.items() if cluster is not None}
    if len(set(known.values())) > 1:
        told = ", ".join(f"{what}: {cluster!r}" for what, cluster in known.items())
        raise InvalidArgument(f"these are of different clusters: {told}")


@asynccontextmanager
async def opened(config: Config, name: str, count: int | None) -> AsyncIterator[EventLog]:
    """Open the log that `name` means: `kafka` or `quorum` of the configuration, or a directory.

    An absent one is made if `count`, its number of partitions, is given. In a quorum this process
    stands in for the daemon: it runs its replica, and votes.

    Raises:
        InvalidArgument: the configuration has no [event_log.kafka], or no [event_log.quorum]; the
            directory is a broker's.
        RlmmError, LogMissing: it can't be opened.
    """
    if name not in NAMED and count is not None:
        _refuse_brokers(name)
    chosen = _config_of(config, name, count)
    async with log_alone(chosen, votes=name == QUORUM) as log:
        quorum = adapters.as_quorum_log(chosen, log)
        applied = None if quorum is None else lambda: quorum.folding.applied
        await _open(log, create=count is not None, applied=applied)
        yield log


async def _open(log: EventLog, *, create: bool, applied: Callable[[], int] | None) -> None:
    """Open a log; a replica of a large one as often as it has read on meanwhile."""
    while True:
        before = 0 if applied is None else applied()
        try:
            await log.open(create=create)
        except UnavailableError:
            if applied is None or applied() <= before:
                raise
        else:
            return


def _refuse_brokers(directory: str) -> None:
    """Make no log in a log directory: a broker starts with nothing there but its partitions."""
    if Path(directory, BROKERS_OWN).exists():
        raise InvalidArgument(f"{directory} is a broker's log directory: {BROKERS_OWN} is there")


async def topic_of(config: Config, name: str) -> TopicId | None:
    """Return the id of the log that `name` means, None if there is none; nothing is made.

    Raises:
        RlmmError: it can't be opened.
    """
    found: TopicId | None = None
    with suppress(InvalidArgument):
        require_there("--to", name)
        try:
            async with opened(config, name, None) as log:
                assert log.identity is not None, "open"
                found = log.identity.topic_id
        except* LogMissing:
            found = None
    return found


def _config_of(config: Config, name: str, count: int | None) -> Config:
    """Return the configuration with that log in place of its own."""
    chosen = config.event_log
    if name == KAFKA:
        if not isinstance(chosen, KafkaLog):
            raise _of_another_kind(KAFKA)
        if count is None:
            return config
        admin = replace(chosen.kafka.admin, partition_count=count)
        chosen = replace(chosen, kafka=replace(chosen.kafka, admin=admin))
    elif name == QUORUM:
        if not isinstance(chosen, QuorumLog):
            raise _of_another_kind(QUORUM)
        if count is None:
            return config
        chosen = replace(chosen, quorum=replace(chosen.quorum, partition_count=count))
    else:
        chosen = EmbeddedLog(single_broker=True, directory=name, partition_count=count or 50)
    return replace(config, event_log=chosen)


def _of_another_kind(kind: str) -> InvalidArgument:
    return InvalidArgument(f"the configuration's [event_log] is not of kind {kind}")


def count_of(log: EventLog) -> int:
    """Return the number of partitions of an open log."""
    assert log.identity is not None, "open"
    return log.identity.partition_count


async def contents(log: EventLog, number: MetadataPartition) -> Contents:
    """Read a partition from its start to the end that it has now.

    Raises:
        RlmmError, LogMoved: it can't be read.
    """
    known = await _range(log, number)
    found = Contents(fold=Fold(number, count_of(log)), start=known.start, position=known.start)
    await _read(log, number, found, known.end)
    return found


async def holds(log: EventLog, number: MetadataPartition, read: Position) -> bool:
    """Whether a log holds what had been read of it up to a position."""
    if not read.next_offset:
        return True
    found = await log.epoch_end(number, read.leader_epoch)
    return found.epoch == read.leader_epoch and found.end_offset >= read.next_offset


async def read_on(log: EventLog, number: MetadataPartition, found: Contents) -> None:
    """Read what was appended since, to the end that the partition has now.

    Raises:
        RlmmError, LogMoved: it can't be read.
    """
    await _read(log, number, found, (await _range(log, number)).end)


async def _read(log: EventLog, number: MetadataPartition, found: Contents, end: int) -> None:
    if found.position >= end:
        return
    async with aclosing(log.follow(number, found.position, epoch=found.epoch)) as batches:
        async for batch in batches:
            for offset, value in batch.records:
                _take(found, offset, value)
            found.gaps = ranges_joined([*found.gaps, *batch.unvouched])
            found.dropped_to = max(found.dropped_to, batch.dropped_to)
            found.position = max(found.position, batch.next_offset)
            found.epoch = batch.leader_epoch
            if found.position >= end:
                return


async def _range(log: EventLog, number: MetadataPartition) -> LogRange:
    """Return where a partition starts and ends, as soon as its leader says so."""
    loop = asyncio.get_running_loop()
    over = loop.time() + _LEADER_SECONDS
    while True:
        ranges = await log.end_offsets([number])
        if number in ranges:
            return ranges[number]
        if loop.time() >= over:
            raise InvalidArgument(f"the end of metadata partition {number} is not known now")
        await asyncio.sleep(_PAUSE_SECONDS)


def _take(found: Contents, offset: int, value: bytes | None) -> None:
    outcome = found.fold.apply(offset, value)
    _note_deletes(found, outcome, offset)
    if not isinstance(outcome, Applied) or value is None:
        found.passed_over += 1
        return
    found.events.append(records.normalise(value))
    event = outcome.event
    if isinstance(event, SegmentUpdate) and event.state is SegmentState.COPY_SEGMENT_FINISHED:
        found.finished.setdefault((event.partition, event.segment_id), offset)


def _note_deletes(found: Contents, outcome: Outcome, offset: int) -> None:
    """Note deletes, also those whose segment the log does not have: it lost what came before."""
    if not isinstance(outcome, Applied | Rejected | Repeated):
        return
    unknown = isinstance(outcome, Repeated) or (
        isinstance(outcome, Rejected) and isinstance(outcome.error, SegmentNotFound)
    )
    match outcome.event:
        case (
            SegmentUpdate(
                state=SegmentState.DELETE_SEGMENT_STARTED | SegmentState.DELETE_SEGMENT_FINISHED
            ) as update
        ) if isinstance(outcome, Applied) or unknown:
            found.ended[update.partition, update.segment_id] = offset
        case PartitionDelete() as mark:
            found.marked.add(mark.partition)
            found.marks[mark.partition] = offset
        case SegmentMetadata() as begun if isinstance(outcome, Applied):
            found.marked.discard(begun.partition)  # a new life of that partition
        case _:
            pass


async def append_all(log: EventLog, number: MetadataPartition, values: Sequence[bytes]) -> set[int]:
    """Append events in order and return their offsets.

    An unknown outcome ends it, and asking again goes on from there.

    Raises:
        RlmmError: not all of them are in the log.
    """
    offsets = set[int]()
    for begin in range(0, len(values), _IN_FLIGHT):
        waiting, refused = list[asyncio.Future[int]](), list[RlmmError]()
        for value in values[begin : begin + _IN_FLIGHT]:
            try:
                waiting.append(begun(log, number, value))
            except RlmmError as error:
                refused.append(error)
                break  # nothing may come behind what is not in the log
        if waiting:
            await asyncio.wait(waiting)
        offsets.update([each.result() for each in waiting])  # the first that failed raises
        if refused:
            raise refused[0]
    return offsets


def first_of(group: BaseExceptionGroup[RlmmError]) -> RlmmError:
    """Return one error of a group of ours: a command shows one."""
    inner = group.exceptions[0]
    return first_of(inner) if isinstance(inner, BaseExceptionGroup) else inner
