"""Offsets of the event log, read on whatever machine a Spark task runs.

The log is the daemon's own, found by its configuration: Kafka's through the same adapter that the
daemon uses, the embedded one by its files, which are read beside a running daemon and never
written. Secrets are read here, from the files that the configuration names.
"""

import asyncio
import queue
import threading
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any, Final, Protocol, TypeVar, runtime_checkable

import msgspec
import pyarrow as pa

from rlmm_daemon.config import Config, EmbeddedLog
from rlmm_daemon.domain.errors import UnavailableError
from rlmm_daemon.domain.ids import MetadataPartition, uuid_text
from rlmm_daemon.ports.event_log import (
    NO_EPOCH,
    EpochEnd,
    EventLog,
    LogBatch,
    LogIdentity,
    LogMoved,
    LogRange,
    ranges_within,
)
from rlmm_daemon.reconcile.errors import Incomplete
from rlmm_daemon.reconcile.read import log_files, snapshots
from rlmm_daemon.reconcile.read.event_rows import ROWS_PER_BATCH, EventRows
from rlmm_daemon.reconcile.read.log_files import Records
from rlmm_daemon.wiring.log_alone import log_alone

#: Of one question to the log.
ASK_SECONDS: Final = 120.0
#: Of a partition without a leader, until it has one: to say where it ends, or to go on with.
VIEW_SECONDS: Final = 60.0
PAUSE_SECONDS: Final = 1.0
#: Of one to the files of an embedded log, which are read from the first to the last.
FILES_SECONDS: Final = 3_600.0
#: Without a single record from a log that has more; an answer without one is as good as none.
SILENT_SECONDS: Final = 120.0
#: What is there is handed on so often, so that a slow log is not taken for a silent one.
_HAND_SECONDS: Final = 5.0
_BATCHES_AHEAD: Final = 3
NEVER_COMPACTED: Final = (0, 0)
_T = TypeVar("_T")


class LogSlice(msgspec.Struct, frozen=True, kw_only=True):
    """Offsets [begin, end) of one metadata partition."""

    number: int
    begin: int
    end: int
    partition_count: int
    #: Of the log that told its end, as text; "": of whichever there is.
    topic_id: str = ""
    #: Of the metadata partition when the log told its end, as `LogView` has it; None: it does not
    #: matter. What was dropped since may be the end of what another slice has as begun.
    compacted: tuple[int, int] | None = None
    #: A snapshot that stands for these offsets, where the log has them no more.
    snapshot: str | None = None
    #: When that was made, in ms since 1970.
    snapshot_ms: int | None = None


class LogView(msgspec.Struct, frozen=True, kw_only=True):
    """What the log said of itself at one moment."""

    identity: LogIdentity
    #: A partition that is missing here did not answer.
    ranges: Mapping[int, LogRange]
    #: How often each metadata partition was compacted, and up to which offset; not those that
    #: never were.
    compactions: Mapping[int, tuple[int, int]] = msgspec.field(default_factory=dict)
    #: The metadata topic's own `cleanup.policy`; "": it has none, or did not tell it.
    cleanup_policy: str = ""


def view(config: Config) -> LogView:
    """Return identity and ranges as they are now.

    Raises:
        Incomplete: the log can't be opened.
    """
    return asyncio.run(_bounded(config, _view(config)))


def epoch_ends(
    config: Config, asked: Iterable[tuple[int, int]]
) -> Mapping[tuple[int, int], EpochEnd]:
    """Return what the log says of each (metadata partition, epoch); not of one that is silent."""
    return asyncio.run(_bounded(config, _epoch_ends(config, asked)))


def slices(
    config: Config, seen: LogView, offsets_max: int, directories: Iterable[str] = ()
) -> list[LogSlice]:
    """Return slices that together are the log up to the ends that were seen.

    Of a partition whose head is gone the first one is a snapshot, if a directory has one that may
    stand for it; else it begins where the log does, and `guards` will say so.
    """
    count = seen.identity.partition_count
    topic_id = uuid_text(seen.identity.topic_id)
    covered = snapshots.covers(
        directories, seen.identity, seen.ranges, lambda asked: epoch_ends(config, asked)
    )
    parts = [
        LogSlice(
            number=number,
            begin=0,
            end=cover.header.next_offset,
            partition_count=count,
            snapshot=cover.path,
            snapshot_ms=cover.header.created_at_ms,
        )
        for number, cover in sorted(covered.items())
    ]
    for number, known in sorted(seen.ranges.items()):
        first = covered[number].header.next_offset if number in covered else known.start
        parts += [
            LogSlice(
                number=number,
                begin=begin,
                end=min(begin + offsets_max, known.end),
                partition_count=count,
                topic_id=topic_id,
                compacted=seen.compactions.get(number, NEVER_COMPACTED),
            )
            for begin in range(first, known.end, offsets_max)
        ]
    return parts


def read(config: Config, part: LogSlice) -> Iterator[pa.RecordBatch]:
    """Yield the slice's records as rows, its READ row last.

    Raises:
        Incomplete: a part of it can't be read.
    """
    if part.snapshot is not None:
        yield from snapshots.rows(part.snapshot, part.number, part.end, part.partition_count)
        return
    # Spark asks for batches from plain Python, the log answers on a loop: a thread of its own keeps
    # one loop alive for the whole slice, at most a few batches ahead.
    ready: queue.Queue[Any] = queue.Queue(maxsize=_BATCHES_AHEAD)
    stop = threading.Event()
    pump = threading.Thread(target=_pump, args=(config, part, ready, stop), daemon=True)
    pump.start()
    try:
        while not isinstance(step := ready.get(timeout=SILENT_SECONDS), _End):
            yield step
        if step.error is not None:
            raise step.error
    except queue.Empty as error:
        raise Incomplete("the log did not answer", seconds=SILENT_SECONDS) from error
    finally:
        stop.set()


@runtime_checkable
class _Settled(Protocol):
    """A log that is a topic with settings."""

    #: As last read; empty where that was refused.
    settings: Mapping[str, str]


class _End(msgspec.Struct, frozen=True):
    error: Exception | None


def _pump(config: Config, part: LogSlice, ready: "queue.Queue[Any]", stop: threading.Event) -> None:
    try:
        asyncio.run(_collect(config, part, ready, stop))
    except Exception as error:  # noqa: BLE001 - it is raised again where the batches are awaited
        _hand(ready, _End(error), stop)
    else:
        _hand(ready, _End(None), stop)


async def _collect(
    config: Config, part: LogSlice, ready: "queue.Queue[Any]", stop: threading.Event
) -> None:
    rows = EventRows(part.number, part.partition_count)
    handed = time.monotonic()
    async with aclosing(_records(config, part)) as source:
        async for found in source:
            for offset, value in found.pairs:
                rows.add(offset, value)
            for gap in found.lost:
                rows.lost(gap.start, gap.end)
            due = len(rows) and time.monotonic() >= handed + _HAND_SECONDS
            if due or len(rows) >= ROWS_PER_BATCH:
                handed = time.monotonic()
                await asyncio.to_thread(_hand, ready, rows.take(), stop)
            if stop.is_set():
                return
    rows.read_through(part.begin, part.end)
    await asyncio.to_thread(_hand, ready, rows.take(), stop)


def _hand(ready: "queue.Queue[Any]", step: Any, stop: threading.Event) -> None:
    while not stop.is_set():
        try:
            ready.put(step, timeout=1.0)
        except queue.Full:
            continue
        return


async def _records(config: Config, part: LogSlice) -> AsyncGenerator[Records, None]:
    if isinstance(config.event_log, EmbeddedLog):
        _check(part, await log_files.identity(config))
        await _check_compactions(config, part)
        async for found in log_files.records(config, part.number, part.begin, part.end):
            yield found
        await _check_compactions(config, part)
        return
    position, epoch, failing_since = part.begin, NO_EPOCH, 0.0
    async with opened(config) as log:
        _check(part, log.identity)
        # A partition that has no leader for a moment is followed again, with the epoch in which
        # it was left: one that was cut meanwhile has moved.
        while position < part.end:
            try:
                batches = log.follow(_number(part), position, epoch=epoch)
                async with aclosing(batches) as stream:
                    async for answer in stream:
                        yield _within(answer, part)
                        position, epoch = answer.next_offset, answer.leader_epoch
                        failing_since = 0.0
                        if position >= part.end:
                            return
            except LogMoved as error:
                raise Incomplete(f"metadata partition {part.number}: {error}") from error
            except UnavailableError:
                failing_since = failing_since or time.monotonic()
                if time.monotonic() >= failing_since + VIEW_SECONDS:
                    raise
                await asyncio.sleep(PAUSE_SECONDS)


async def _check_compactions(config: Config, part: LogSlice) -> None:
    """Make sure that all slices are read from one and the same form of the log."""
    now = await log_files.compactions(config, [part.number])
    if part.compacted not in (None, now.get(part.number, NEVER_COMPACTED)):
        raise Incomplete(
            f"metadata partition {part.number}: the log was compacted while it was read; "
            "the next run reads it anew"
        )


def _within(answer: LogBatch, part: LogSlice) -> Records:
    pairs = [pair for pair in answer.records if pair[0] < part.end]
    limits = LogRange(start=part.begin, end=part.end)
    return Records(pairs, ranges_within(answer.unvouched, limits))


def _check(part: LogSlice, identity: LogIdentity | None) -> None:
    """Make sure that it is still the log that told where the slice ends."""
    if part.topic_id and (identity is None or uuid_text(identity.topic_id) != part.topic_id):
        raise Incomplete(f"metadata partition {part.number}: the log was made anew meanwhile")


async def _view(config: Config) -> LogView:
    if isinstance(config.event_log, EmbeddedLog):
        # Before the ends: what is compacted in between is met by the first slice of it.
        whose = await log_files.identity(config)
        count = whose.partition_count if whose else 0
        compacted = await log_files.compactions(config, range(count))
        identity, ranges = await log_files.ranges(config)
        return LogView(
            identity=identity,
            ranges=ranges,
            compactions=compacted,
        )
    async with opened(config) as log:
        assert log.identity is not None, "open"
        numbers = [MetadataPartition(n) for n in range(log.identity.partition_count)]
        ranges = await _ranges(log, numbers)
        settings = log.settings if isinstance(log, _Settled) else {}
        policy = settings.get("cleanup.policy", "")
        return LogView(identity=log.identity, ranges=ranges, cleanup_policy=policy)


async def _ranges(log: EventLog, numbers: list[MetadataPartition]) -> dict[int, LogRange]:
    """Return the range of each partition; one without a leader for a moment is asked again."""
    found = dict(await log.end_offsets(numbers))
    until = time.monotonic() + VIEW_SECONDS
    while (left := [n for n in numbers if n not in found]) and time.monotonic() < until:
        await asyncio.sleep(PAUSE_SECONDS)
        found |= await log.end_offsets(left)
    return {int(number): each for number, each in found.items()}


async def _epoch_ends(
    config: Config, asked: Iterable[tuple[int, int]]
) -> Mapping[tuple[int, int], EpochEnd]:
    pairs = sorted(set(asked))
    if isinstance(config.event_log, EmbeddedLog):
        return await log_files.epoch_ends(config, pairs)
    until = time.monotonic() + VIEW_SECONDS
    async with opened(config) as log, asyncio.TaskGroup() as tasks:
        ends = {
            (number, epoch): tasks.create_task(
                _epoch_end(log, MetadataPartition(number), epoch, until), name="epoch"
            )
            for number, epoch in pairs
        }
    told = {pair: end.result() for pair, end in ends.items()}
    return {pair: end for pair, end in told.items() if end is not None}


async def _epoch_end(
    log: EventLog, number: MetadataPartition, epoch: int, until: float
) -> EpochEnd | None:
    """Return it, None of a partition that stays silent."""
    with suppress(UnavailableError):
        return await answered(lambda: log.epoch_end(number, epoch), until)
    return None


async def answered(ask: Callable[[], Awaitable[_T]], until: float) -> _T:
    """Ask, and again until then: a partition may have no leader for a moment, a broker be down.

    Raises:
        UnavailableError: the last answer.
    """
    while True:
        try:
            return await ask()
        except UnavailableError:
            if time.monotonic() >= until:
                raise
        await asyncio.sleep(PAUSE_SECONDS)


@asynccontextmanager
async def opened(config: Config) -> AsyncIterator[EventLog]:
    """Yield the configured log, open; it is never made.

    Raises:
        RlmmError, LogMissing: it can't be opened.
    """
    async with log_alone(config) as log:
        await log.open(create=False)
        yield log


def _number(part: LogSlice) -> MetadataPartition:
    return MetadataPartition(part.number)


async def _bounded(config: Config, work: Coroutine[Any, Any, _T]) -> _T:
    seconds = FILES_SECONDS if isinstance(config.event_log, EmbeddedLog) else ASK_SECONDS
    async with asyncio.timeout(seconds):
        return await work
