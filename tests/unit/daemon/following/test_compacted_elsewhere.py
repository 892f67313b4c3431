"""A quorum's log that another daemon compacted, which had read more of it than this one."""

from collections.abc import AsyncGenerator

import msgspec
import pytest

from rlmm_daemon.core.readiness.states import PartitionState
from rlmm_daemon.daemon.operator.methods import Operator
from rlmm_daemon.domain.segment import SegmentState
from rlmm_daemon.ports.event_log import LogBatch
from tests.unit.daemon.conftest import SoleLog
from tests.unit.daemon.events import TP, copied, of, ready, started, until, updated

#: Behind the events of the first segment, of which the end alone stays, and of the second.
COMPACTED_TO = 6


class CompactedLog(SoleLog):
    """It says what a quorum's says of a compacted checkpoint."""

    compacted_to = 0

    async def follow(self, partition, from_offset, *, epoch) -> AsyncGenerator[LogBatch, None]:
        position, form = from_offset, -1 if from_offset else None
        async for batch in super().follow(partition, from_offset, epoch=epoch):
            there = type(self).compacted_to
            dropped = there if position < there else 0
            form = dropped if form is None else form
            lacking = dropped not in (0, form)
            position = batch.next_offset
            yield msgspec.structs.replace(batch, dropped_to=dropped, lacking=lacking)


@pytest.fixture
def log_of(rig, monkeypatch):
    monkeypatch.setattr(CompactedLog, "compacted_to", 0)
    rig.log_of = CompactedLog


def compact(rig, monkeypatch) -> None:
    """Another daemon deletes the first segment, copies a second one, and compacts the log."""
    for value in (
        updated(1, SegmentState.DELETE_SEGMENT_STARTED),
        updated(1, SegmentState.DELETE_SEGMENT_FINISHED),
        started(2, 10, 19),
        updated(2),
    ):
        rig.store.put(of(TP), value)
    partition = rig.store.partition(of(TP))
    partition.lose(0, 3)
    partition.lost = ()
    monkeypatch.setattr(CompactedLog, "compacted_to", COMPACTED_TO)


@pytest.mark.usefixtures("log_of")
async def test_a_daemon_whose_snapshot_is_older_makes_its_fold_anew_and_misses_nothing(
    rig, monkeypatch
):
    async with rig.manager() as manager:
        await ready(manager)
        await copied(manager, 1, 0, 9)
        assert await Operator(manager).snapshot_now(None)
    compact(rig, monkeypatch)
    async with rig.manager() as manager:
        await ready(manager)
        follower = manager.fleet.followers[of(TP)]
        assert follower.failure is None
        assert follower.fold.position == COMPACTED_TO
        assert follower.went_on_from == 0


@pytest.mark.usefixtures("log_of")
async def test_a_running_daemon_that_had_not_read_so_much_does_so_too(rig, monkeypatch):
    async with rig.manager() as manager:
        await ready(manager)
        await copied(manager, 1, 0, 9)
        rig.store.pause()
        compact(rig, monkeypatch)
        before = manager.fleet.followers[of(TP)].fold
        rig.store.resume()
        follower = manager.fleet.followers[of(TP)]
        await until(lambda: follower.fold is not before)
        await until(lambda: follower.state is PartitionState.READY)
        assert follower.fold.position == COMPACTED_TO
        live = [
            cache.segments_by_state[SegmentState.COPY_SEGMENT_FINISHED]
            for cache in follower.fold.partitions.values()
        ]
        assert live == [1], "the second one alone"
