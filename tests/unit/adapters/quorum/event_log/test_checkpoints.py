"""Checkpoints of a quorum's log: made while it is written, begun from, and given to who lags."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from rlmm_daemon.adapters.quorum.event_log import QuorumLog, checkpointed
from rlmm_daemon.adapters.quorum.event_log.chunks import Chunks
from rlmm_daemon.adapters.quorum.files.snapshot_writer import SnapshotWriter
from rlmm_daemon.codec.kraft import checkpoint
from rlmm_daemon.codec.kraft.checkpoint_records import (
    Event,
    Founded,
    PartitionAt,
    Starts,
    pack,
)
from rlmm_daemon.codec.kraft.record_key import GRANT, RecordKey, pack_key
from rlmm_daemon.core.raft.inputs import Answered, Input, Unanswered
from rlmm_daemon.core.raft.log_facts import LogPoint
from rlmm_daemon.core.raft.voters import VotersAt, VoterSet
from rlmm_daemon.domain.errors import LogCorrupt, OutcomeUnknown, RlmmError
from rlmm_daemon.ports.event_log import NO_EPOCH
from tests.contract.event_log import P0, P1, first, read
from tests.support.quorum import CALM, Quorum, quorum_of_ours
from tests.unit.adapters.quorum.event_log.test_log import OPTIONS, log_at, numbered, until

#: None is made but by the test.
NEVER = OPTIONS
ALWAYS = msgspec.structs.replace(OPTIONS, checkpoint_bytes_min=1, checkpoint_factor=0.0)
SOME = msgspec.structs.replace(OPTIONS, checkpoint_bytes_min=2000, checkpoint_factor=1.0)


async def make(log: QuorumLog) -> LogPoint:
    return await log.checkpointer.make(log._node)


async def filled(log: QuorumLog, count: int, begin: int = 0) -> list[tuple[int, bytes]]:
    """Append so many to the first partition, and one to the second for each."""
    added = []
    for value in numbered(count, begin):
        added.append((await log.append(P0, value), value))
        await log.append(P1, value * 3)
    return added


@asynccontextmanager
async def alone(home: Path) -> AsyncIterator[Quorum]:
    async with quorum_of_ours(home, voters=1, observers=1) as quorum:
        await quorum.stop(1)
        await quorum.stop(2)
        yield quorum


async def test_the_log_begins_where_the_last_checkpoint_but_one_ends(tmp_path: Path) -> None:
    async with alone(tmp_path) as quorum:
        async with log_at(quorum, 1, NEVER) as log:
            await log.open(create=True)
            written = await filled(log, 10)
            one = await make(log)
            assert log._node.log.start == 0
            written += await filled(log, 10, 10)
            two = await make(log)
            assert (log._node.log.start, log._node.log.snapshots) == (one.end, (one, two))
            written += await filled(log, 10, 20)
            three = await make(log)
            assert (log._node.log.start, log._node.log.snapshots) == (two.end, (two, three))
            assert log.facts()["checkpoint"] == {"epoch": three.epoch, "end": three.end}
            written += await filled(log, 10, 30)
            for begin in (0, 5, 10, 29, 30, 35):
                assert await read(log, P0, begin, 40) == written[begin:]
            assert len(await read(log, P1, 0, 40)) == 40
            epoch = log.folding.fold.epochs[0].entries[0][0]
        async with log_at(quorum, 1, NEVER) as log:
            await log.open(create=False)
            assert await read(log, P0, 0, 40) == written
            assert (await log.epoch_end(P0, epoch)).end_offset == 40
            assert await log.append(P0, b"on") == 40
            await make(log)
            assert await read(log, P0, 0, 41) == [*written, (40, b"on")]


async def test_an_unbounded_stream_of_events_leaves_a_bounded_log(tmp_path: Path) -> None:
    async with alone(tmp_path) as quorum, log_at(quorum, 1, SOME) as log:
        await log.open(create=True)
        written = await filled(log, 200)
        await until(lambda: log.checkpointer.counts.made >= 3)
        assert log._node.log.start > 0
        assert len(log._node.log.snapshots) == 2
        assert log.folding.bytes_since < 3 * log.folding.checkpoint_bytes
        assert await read(log, P0, 0, 200) == written


async def test_it_is_due_by_what_was_written_since_and_by_the_last_ones_size(
    tmp_path: Path,
) -> None:
    async with alone(tmp_path) as quorum, log_at(quorum, 1, NEVER) as log:
        await log.open(create=True)
        await filled(log, 3)
        checkpointer, folding = log.checkpointer, log.folding
        checkpointer._options = msgspec.structs.replace(NEVER, checkpoint_bytes_min=10_000)
        for since, last, due in (
            (9_999, 0, False),
            (10_001, 0, True),
            (10_001, 20_000, False),
            (20_001, 20_000, True),
        ):
            folding.bytes_since, folding.checkpoint_bytes = since, last
            assert checkpointer.is_due == due


async def test_followers_go_on_across_checkpoints_that_are_made(tmp_path: Path) -> None:
    async with alone(tmp_path) as quorum, log_at(quorum, 1, ALWAYS) as log:
        await log.open(create=True)
        seen: list[list[tuple[int, bytes | None]]] = [[], [], []]

        async def follow(begin: int, found: list[tuple[int, bytes | None]]) -> None:
            async with aclosing(log.follow(P0, begin, epoch=NO_EPOCH)) as batches:
                async for batch in batches:
                    found += batch.records
                    if batch.next_offset >= 100:
                        return

        await filled(log, 20)
        async with asyncio.TaskGroup() as tasks:
            for begin, found in zip((0, 7, 20), seen, strict=True):
                tasks.create_task(follow(begin, found))
            written = await filled(log, 80, 20)
        whole = [*((n, value) for n, value in enumerate(numbered(20))), *written]
        assert seen == [whole, whole[7:], whole[20:]]
        await until(lambda: log.checkpointer.counts.made >= 2)


async def test_an_observer_that_joins_late_begins_with_the_checkpoint(tmp_path: Path) -> None:
    async with alone(tmp_path) as quorum, log_at(quorum, 1, NEVER) as log:
        await log.open(create=True)
        written = await filled(log, 10)
        point = await make(log)
        written += await filled(log, 3, 10)
        await quorum.forget(2)
        async with log_at(quorum, 2, NEVER) as late:
            identity = await late.open(create=False)
            assert identity == log.identity
            assert late._node.log.start == point.end
            assert await read(late, P0, 0, 13) == written
            assert await read(late, P0, 4, 13) == written[4:]
            assert await late.append(P0, b"its own") == 13
            assert late.folding.fold.ends == log.folding.fold.ends
            assert late.folding.fold.submitters.keys() == log.folding.fold.submitters.keys()


def deaf(log: QuorumLog, patch: pytest.MonkeyPatch) -> None:
    """Keep a running replica from the quorum's log; what it submits arrives."""

    asking = log._node._asking
    take = asking._take

    def lost(happened: Input) -> None:
        take(Unanswered(happened.serial) if isinstance(happened, Answered) else happened)

    patch.setattr(asking, "_take", lost)


async def overtake(log: QuorumLog) -> LogPoint:
    """Write two checkpoints, so that the log begins where the first one ends."""
    point = await make(log)
    await log.append(P1, b"between")
    await make(log)
    assert log._node.log.start == point.end
    return point


@asynccontextmanager
async def two(home: Path) -> AsyncIterator[tuple[QuorumLog, QuorumLog]]:
    """Return the log of a quorum of one, and an observer's."""
    async with alone(home) as quorum:
        quorum.timing = CALM
        async with log_at(quorum, 1, NEVER) as log, log_at(quorum, 2, NEVER) as late:
            await log.open(create=True)
            await late.open(create=False)
            yield log, late


async def test_a_running_replica_that_lags_is_given_a_checkpoint_and_followers_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever they stand: behind what it holds, inside, at its end, and where it holds nothing."""
    async with two(tmp_path) as (log, late):
        written = await filled(log, 5)
        assert await read(late, P0, 0, 5) == written
        followers = [late.follow(P0, begin, epoch=NO_EPOCH) for begin in (0, 3, 5)]
        found = [list((await first(each)).records) for each in followers]
        with monkeypatch.context() as patch:
            deaf(late, patch)
            written += await filled(log, 5, 5)
            await overtake(log)
            written += await filled(log, 2, 10)
        await until(lambda: late._node.log.start > 0)
        for each, records in zip(followers, found, strict=True):
            while not records or records[-1][0] < 11:
                records.extend((await first(each)).records)
            await each.aclose()
        assert found == [written, written[3:], written[5:]]
        assert await read(late, P0, 8, 12) == written[8:]
        assert late.folding.fold.ends == log.folding.fold.ends
        assert [each.entries for each in late.folding.fold.epochs] == [
            each.entries for each in log.folding.fold.epochs
        ]


async def test_what_a_checkpoint_hides_is_unknown_and_what_follows_lands_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two(tmp_path) as (log, late):
        await late.append(P0, b"before")
        told: list[int | RlmmError] = []
        with monkeypatch.context() as patch:
            deaf(late, patch)
            late.begin_append(P0, b"hidden", told.append)
            await until(lambda: log.folding.fold.ends[0] == 2)
            await overtake(log)
        await until(lambda: bool(told))
        assert isinstance(told[0], OutcomeUnknown)
        assert await late.append(P0, b"after") == 2
        assert [value for _, value in await read(late, P0, 0, 3)] == [
            b"before",
            b"hidden",
            b"after",
        ]
        assert len(told) == 1


async def test_a_submitter_that_another_one_replaced_behind_a_checkpoint_repeats_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two(tmp_path) as (log, late):
        await late.append(P0, b"before")
        known = log.folding.fold.submitters[2].incarnation
        told: list[int | RlmmError] = []
        with monkeypatch.context() as patch:
            deaf(late, patch)
            late.begin_append(P0, b"hidden", told.append)
            await until(lambda: log.folding.fold.ends[0] == 2)
            taken = pack_key(RecordKey(GRANT, 2, known + 1, 0)), b"somebody else's."
            await log._node.submit([taken])
            await overtake(log)
        await until(lambda: bool(told))
        assert isinstance(told[0], OutcomeUnknown)
        assert await late.append(P0, b"after") == 2
        assert len(await read(late, P0, 0, 3)) == 3


async def test_a_disk_without_room_for_a_checkpoint_costs_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = msgspec.structs.replace(ALWAYS, checkpoint_again_seconds=0.01)
    async with alone(tmp_path) as quorum, log_at(quorum, 1, options) as log:
        with monkeypatch.context() as patch:

            async def full(*_: object) -> None:
                raise OSError("no room")

            patch.setattr(SnapshotWriter, "put", full)
            await log.open(create=True)
            written = await filled(log, 5)
            await until(lambda: log.checkpointer.counts.failed >= 2)
            assert log.checkpointer.counts.trouble == "no room"
        counts = log.checkpointer.counts
        await until(lambda: counts.made > 0 and counts.trouble is None)
        assert await read(log, P0, 0, 5) == written


async def test_one_that_is_fetched_stays(tmp_path: Path) -> None:
    async with alone(tmp_path) as quorum, log_at(quorum, 1, NEVER) as log:
        await log.open(create=True)
        points = []
        for number in range(2):
            await filled(log, 2, 2 * number)
            points.append(await make(log))
        await filled(log, 2, 4)
        log._node.snapshots.note_fetched(points[0])
        points.append(await make(log))
        assert log._node.log.snapshots == tuple(points)
        assert log._node.log.start == points[0].end


# Files that are none.

COUNTERS: list[object] = [Founded(2), PartitionAt(0, 3, 0), PartitionAt(1, 0, 0)]
POINT = LogPoint(1, 9)


def reader(*rows: list[object]) -> tuple[Callable[..., Awaitable[tuple[int, bytes]]], bytes]:
    """Return how a checkpoint of these batches is read, and its bytes."""
    builder = checkpoint.Builder(POINT, timestamp_ms=1)
    data = builder.begin(VotersAt(-1, VoterSet(), 0), last_timestamp_ms=1)
    for records in rows:
        data += builder.data([each if isinstance(each, tuple) else pack(each) for each in records])  # type: ignore[arg-type]  # a pair stays as it is
    data += builder.end()

    async def read_piece(point: LogPoint, position: int, bytes_max: int) -> tuple[int, bytes]:
        assert point == POINT
        return len(data), data[position : position + bytes_max]

    return read_piece, data


def events(*offsets: int, starts: tuple[int, ...] = (0, 0)) -> list[object]:
    return [Starts(starts), *(Event(0, offset, b"%d" % offset) for offset in offsets)]


async def rows_of(*batches: list[object]) -> list[tuple[int, bytes | None]]:
    read_piece, _ = reader(*batches)
    loaded = await checkpointed.load(read_piece, POINT)
    chunks = Chunks(no_log, read_piece, chunk_bytes=1, cache_bytes=1)
    chunks.stand_on(loaded.source, loaded.chunks, loaded.fold.ends, applied=0)
    found: list[tuple[int, bytes | None]] = []
    at = 0
    while at < loaded.fold.ends[0]:
        stretch = await chunks.stretch(0, at)
        found += stretch.rows
        assert stretch.next_offset > at
        at = stretch.next_offset
    return found


async def no_log(_begin: int, _end: int) -> bytes:
    raise AssertionError("it is all in the checkpoint")


async def test_gaps_of_a_compacted_checkpoint_are_passed_over() -> None:
    dropped: list[object] = [Founded(2), PartitionAt(0, 9, 8, 5), PartitionAt(1, 0, 0)]
    batches = (dropped, events(1, 2), events(5, starts=(4, 0)), events(8, starts=(7, 0)))
    assert [offset for offset, _ in await rows_of(*batches)] == [1, 2, 5, 8]
    for later in (events(5, 8, starts=(4, 0)), events(8, starts=(8, 0))):
        assert await rows_of(dropped, later) == [
            (each.offset, each.value) for each in later if isinstance(each, Event)
        ]
    all_gone: list[object] = [Founded(2), PartitionAt(0, 9, 9, 9), PartitionAt(1, 0, 0)]
    assert await rows_of(all_gone) == []


@pytest.mark.parametrize(
    "batches",
    [
        pytest.param([COUNTERS, events(0, 1)], id="an end is missing"),
        pytest.param([COUNTERS, events(1, 2)], id="a beginning is missing"),
        pytest.param([COUNTERS, events(0, 2)], id="one is missing"),
        pytest.param([COUNTERS, events(0, 1, 2, 3)], id="one too many"),
        pytest.param([COUNTERS, events(0, 2, 1)], id="another order"),
        pytest.param([COUNTERS, events(0, 1), events(2, starts=(1, 0))], id="other starts"),
        pytest.param([COUNTERS, events(2, starts=(2, 0)), events(0, 1)], id="starts descend"),
        pytest.param([COUNTERS, events(0, 1, 2, starts=(0,))], id="another count"),
        pytest.param([COUNTERS, [*events(0, 1, 2), Event(2, 0, b"")]], id="another partition"),
        pytest.param([COUNTERS, [*events(0, 1, 2), Starts((0, 0))]], id="starts inside"),
        pytest.param([COUNTERS, [*events(0, 1, 2), (None, b"of ours")]], id="foreign inside"),
        pytest.param([COUNTERS], id="no events"),
        pytest.param([COUNTERS[:2], events(0, 1, 2)], id="a counter is missing"),
        pytest.param([[(None, b"state")]], id="another log's"),
        pytest.param([events(0, 1, 2)], id="no counters"),
        pytest.param([], id="nothing"),
    ],
)
async def test_a_checkpoint_that_does_not_hold_together_is_refused(
    batches: list[list[object]],
) -> None:
    with pytest.raises(LogCorrupt):
        await rows_of(*batches)
