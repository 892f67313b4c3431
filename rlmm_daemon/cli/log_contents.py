"""Event logs opened by an offline command: what they hold, and events appended and read back.

An event here is what changed the fold of its metadata partition, in normal form: neither a
tombstone, nor garbage, nor what every broker rejects. So nothing that Kafka's own metadata manager
would die of is ever written on.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import msgspec

from rlmm_daemon.adapters.clock import SystemClock
from rlmm_daemon.adapters.disk import LocalDisk
from rlmm_daemon.codec import records
from rlmm_daemon.config import Config, EmbeddedLog
from rlmm_daemon.core.fold import Fold
from rlmm_daemon.core.outcome import Applied
from rlmm_daemon.domain.errors import InvalidArgument, RlmmError
from rlmm_daemon.domain.ids import MetadataPartition, SegmentId, TopicIdPartition
from rlmm_daemon.domain.segment import SegmentState, SegmentUpdate
from rlmm_daemon.ports.event_log import NO_EPOCH, EventLog, LogRange
from rlmm_daemon.wiring import adapters

KAFKA: Final = "kafka"
#: Appends in flight; each partition's are in order.
_IN_FLIGHT: Final = 64
#: A leader may be elected just now.
_LEADER_SECONDS: Final = 30.0
_PAUSE_SECONDS: Final = 0.2


@dataclass(slots=True, kw_only=True)
class Contents:
    """One metadata partition of a log, read to its end."""

    fold: Fold
    events: list[bytes] = field(default_factory=list)
    #: Every segment whose COPY_SEGMENT_FINISHED was applied, gone ones included.
    finished: set[tuple[TopicIdPartition, SegmentId]] = field(default_factory=set)
    start: int = 0
    passed_over: int = 0


@asynccontextmanager
async def opened(config: Config, name: str, count: int | None) -> AsyncIterator[EventLog]:
    """Open the log that `name` means: `kafka` of the configuration, or an embedded directory.

    An absent one is made if `count`, its number of partitions, is given.

    Raises:
        InvalidArgument: the configuration has no [event_log.kafka].
        RlmmError, LogMissing: it can't be opened.
    """
    disk = LocalDisk()
    try:
        async with asyncio.TaskGroup() as group:
            log = adapters.event_log_of(
                _config_of(config, name, count),
                disk,
                SystemClock(),
                random.Random(),  # noqa: S311 - names and jitter
                lambda work, task: group.create_task(work, name=task),
            )
            try:
                await log.open(create=count is not None)
                yield log
            finally:
                await log.close()
    finally:
        disk.close()


def _config_of(config: Config, name: str, count: int | None) -> Config:
    """Return the configuration with that log in place of its own."""
    if name != KAFKA:
        log = EmbeddedLog(single_broker=True, directory=name, partition_count=count or 50)
        return msgspec.structs.replace(config, event_log=log)
    if isinstance(config.event_log, EmbeddedLog):
        raise InvalidArgument("the configuration's [event_log] is not of kind kafka")
    if count is None:
        return config
    kafka = config.event_log.kafka
    admin = msgspec.structs.replace(kafka.admin, partition_count=count)
    changed = msgspec.structs.replace(kafka, admin=admin)
    return msgspec.structs.replace(
        config, event_log=msgspec.structs.replace(config.event_log, kafka=changed)
    )


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
    found = Contents(fold=Fold(number, count_of(log)), start=known.start)
    at = known.start
    if at >= known.end:
        return found
    async with aclosing(log.follow(number, at, epoch=NO_EPOCH)) as batches:
        async for batch in batches:
            for offset, value in batch.records:
                _take(found, offset, value)
            if batch.next_offset >= known.end:
                break
    return found


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
    if not isinstance(outcome, Applied) or value is None:
        found.passed_over += 1
        return
    found.events.append(records.normalise(value))
    event = outcome.event
    if isinstance(event, SegmentUpdate) and event.state is SegmentState.COPY_SEGMENT_FINISHED:
        found.finished.add((event.partition, event.segment_id))


async def append_all(log: EventLog, number: MetadataPartition, values: Sequence[bytes]) -> None:
    """Append events in order; an unknown outcome ends it, and asking again goes on from there.

    Raises:
        RlmmError: not all of them are in the log.
    """
    for begin in range(0, len(values), _IN_FLIGHT):
        async with asyncio.TaskGroup() as group:
            for value in values[begin : begin + _IN_FLIGHT]:
                group.create_task(log.append(number, value))


def first_of(group: BaseExceptionGroup[RlmmError]) -> RlmmError:
    """Return one error of a group of ours: a command shows one."""
    inner = group.exceptions[0]
    return first_of(inner) if isinstance(inner, BaseExceptionGroup) else inner
