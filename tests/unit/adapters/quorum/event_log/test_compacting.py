"""Checkpoints that drop what nothing needs, and who reads the log then."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from rlmm_daemon.adapters.quorum.event_log import QuorumLog
from rlmm_daemon.adapters.quorum.event_log.compacting import Allowed
from rlmm_daemon.adapters.quorum.event_log.folding import Captured
from rlmm_daemon.codec import records
from rlmm_daemon.core.fold.fold import Fold
from rlmm_daemon.core.partitioner import metadata_partition
from rlmm_daemon.core.quorum_log.checkpoint import Dropped
from rlmm_daemon.domain.ids import MetadataPartition
from rlmm_daemon.ports.event_log import NO_EPOCH, Compactable, LogBatch
from tests.contract.event_log import first
from tests.support.compacting import steady
from tests.unit.adapters.quorum.event_log.test_checkpoints import alone, make, two
from tests.unit.adapters.quorum.event_log.test_log import OPTIONS, log_at, until
from tests.unit.core.snapshots.test_compaction import life, state_of
from tests.unit.core.world import FINISHED, FOO

P0 = metadata_partition(FOO.topic_id, FOO.partition, 2)
P1 = MetadataPartition(1 - P0)
SOON = msgspec.structs.replace(OPTIONS, compact_events_min=1, compact_factor=0.0)


def row(count: int, begin: int = 0) -> list[bytes]:
    """Return the events of segments in a row, of which the last one lives."""
    lives = [life(n, 10 * n, 10 * n + 9) for n in range(begin, begin + count - 1)]
    last = begin + count - 1
    lives.append(life(last, 10 * last, 10 * last + 9, upto=FINISHED))
    return [records.encode(event) for each in lives for event in each]


async def written(log: QuorumLog, values: list[bytes], end: int = 0) -> int:
    for value in values:
        assert await log.append(P0, value) == end
        end += 1
        await log.append(P1, b"other")
    return end


async def compact(log: QuorumLog, upto: int) -> None:
    assert isinstance(log, Compactable)
    done = await log.compact(P0, upto, turn=lambda: asyncio.sleep(0), steady=steady)
    assert done is None
    await make(log)


async def batches_of(
    log: QuorumLog, end: int, begin: int = 0
) -> tuple[list[tuple[int, bytes | None]], list[LogBatch]]:
    found = list[LogBatch]()
    async with asyncio.timeout(30), aclosing(log.follow(P0, begin, epoch=NO_EPOCH)) as batches:
        async for batch in batches:
            found.append(batch)
            if batch.next_offset >= end:
                break
    return [each for batch in found for each in batch.records], found


def folded(rows: list[tuple[int, bytes | None]], end: int) -> object:
    fold = Fold(P0, 2)
    for offset, value in rows:
        fold.apply(offset, value)
    fold.advance(end, 0)
    return state_of(fold)


@asynccontextmanager
async def compacting(home: Path) -> AsyncIterator[QuorumLog]:
    async with alone(home) as quorum, log_at(quorum, 1, SOON) as log:
        await log.open(create=True)
        yield log


async def test_what_is_gone_goes_and_all_that_is_read_folds_to_the_same(tmp_path: Path) -> None:
    async with alone(tmp_path) as quorum:
        async with log_at(quorum, 1, SOON) as log:
            await log.open(create=True)
            values = row(30)
            end = await written(log, values)
            before, _ = await batches_of(log, end)
            size = log.folding.bytes_since
            await compact(log, end)
            rows, batches = await batches_of(log, end)
            assert len(rows) == 30 + 1  # an end of each that is gone, and two of who lives
            assert folded(rows, end) == folded(before, end)
            assert {batch.dropped_to for batch in batches} == {end}
            assert not any(batch.lacking or batch.unvouched for batch in batches)
            assert log.checkpointer.counts.bytes < 2 * size / 3
            assert log.folding.dropped == {P0: Dropped(end, len(values) - 31)}
            assert len(await others(log, end)) == end
            later = await written(log, row(3, 30), end)
            assert await log.append(P0, b"on") == later
            await make(log)
        async with log_at(quorum, 1, SOON) as log:
            await log.open(create=False)
            rows, _ = await batches_of(log, later + 1)
            assert [offset for offset, _ in rows[31:]] == list(range(end, later + 1))
            await compact(log, later)
            again, _ = await batches_of(log, later + 1)
            assert folded(again, later + 1) == folded(rows, later + 1)
            assert len(again) < len(rows)


async def others(log: QuorumLog, end: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    async with aclosing(log.follow(P1, 0, epoch=NO_EPOCH)) as batches:
        while len(found) < end:
            found += [value for _, value in (await first(batches)).records]
    return found


async def test_nothing_goes_that_the_daemon_did_not_allow(tmp_path: Path) -> None:
    async with compacting(tmp_path) as log:
        values = row(10)
        end = await written(log, values)
        await make(log)
        assert log.folding.dropped == {}
        upto = 8
        await log.append(P1, b"more")
        await compact(log, upto)
        rows, _ = await batches_of(log, end)
        kept = [offset for offset, _ in rows]
        assert kept[-(end - upto) :] == list(range(upto, end))
        assert log.folding.dropped[P0].to == upto


async def read_until(batches: AsyncGenerator[LogBatch, None], position: int) -> LogBatch:
    while (batch := await first(batches)).next_offset < position:
        pass
    return batch


async def test_whoever_had_read_more_than_nothing_and_less_is_told_to_begin_anew(
    tmp_path: Path,
) -> None:
    """From a snapshot, or since before the compaction; who began at the start reads on."""
    async with compacting(tmp_path) as log:
        end = await written(log, row(40))
        early = log.follow(P0, 0, epoch=NO_EPOCH)
        stood = (await first(early)).next_offset
        assert 0 < stood < end
        await compact(log, end)
        lacking = await first(early)
        assert lacking.lacking
        assert lacking.dropped_to == end
        _, batches = await batches_of(log, end, begin=stood)
        assert batches[0].lacking
        _, batches = await batches_of(log, end + 1 - 1, begin=0)
        assert len(batches) > 1
        assert not any(batch.lacking for batch in batches)
        at_end = log.follow(P0, end, epoch=NO_EPOCH)
        await log.append(P0, b"next")
        found = await first(at_end)
        assert (found.lacking, found.dropped_to, found.next_offset) == (False, 0, end + 1)
        for each in (early, at_end):
            await each.aclose()


async def test_a_replica_that_is_given_a_compacted_checkpoint_goes_on(tmp_path: Path) -> None:
    async with two(tmp_path) as (log, late):
        log.checkpointer.allowed._options = SOON
        end = await written(log, row(10))
        await until(lambda: late.folding.fold.ends[P0] == end)
        await log.compact(P0, end, turn=lambda: asyncio.sleep(0), steady=steady)
        await make(log)
        await log.append(P1, b"between")
        await make(log)
        expected, _ = await batches_of(log, end)
        more = await written(log, row(2, 10), end)
        await late.append(P0, b"its own")
        mine, _ = await batches_of(late, more + 1)
        assert folded(mine[:-1], more) == folded(
            [*expected, *((end + at, value) for at, value in enumerate(row(2, 10)))], more
        )


@pytest.mark.parametrize(
    ("upto", "dropped", "due"),
    [
        pytest.param({0: 99}, {}, {}, id="too little"),
        pytest.param({0: 100}, {}, {0: 100}, id="enough"),
        pytest.param({0: 301}, {}, {}, id="more than there is"),
        pytest.param({0: 200}, {0: Dropped(150, 100)}, {}, id="too little since"),
        pytest.param({0: 250}, {0: Dropped(150, 100)}, {0: 250}, id="enough since"),
        pytest.param({0: 250}, {0: Dropped(150, 10)}, {0: 250}, id="and beside what is left"),
        pytest.param({0: 100, 1: 300, 2: 120}, {}, {1: 300}, id="the largest one only"),
        pytest.param({0: 100, 1: 120}, {}, {0: 100, 1: 120}, id="as many as there is room for"),
    ],
)
def test_what_is_due(
    upto: dict[int, int], dropped: dict[int, Dropped], due: dict[int, int]
) -> None:
    options = msgspec.structs.replace(
        OPTIONS, compact_events_min=100, compact_factor=0.5, compact_events_max=300
    )
    allowed = Allowed(options)
    for partition, offset in upto.items():
        allowed.allow(partition, offset)
    captured = Captured(
        end=9, timestamp_ms=1, counters=[], ends=[300] * 3, dropped=dropped, chunks=[], bytes=0
    )
    assert allowed.due(captured) == due
    assert not set(allowed.due(captured)) & set(due), "not again before there is more"
