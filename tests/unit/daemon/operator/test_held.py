"""A daemon that holds a segment alarms, deletes nothing, and can put it back."""

import pytest

from rlmm_daemon.codec import records
from rlmm_daemon.codec.custom_metadata import ONLY_IF_STARTED
from rlmm_daemon.core.readiness.states import FailureReason
from rlmm_daemon.daemon.base.caller import Caller
from rlmm_daemon.daemon.operator.mending import _put_back
from rlmm_daemon.daemon.operator.methods import Operator
from rlmm_daemon.domain.errors import HistoryLost, InvalidArgument
from rlmm_daemon.domain.ids import BrokerId
from rlmm_daemon.domain.segment import SegmentState, SegmentUpdate
from tests.unit.daemon.events import TP, of, segment_id, started, until, updated
from tests.unit.daemon.metadata.test_previous_state import FakeBucket

BROKER = Caller.BROKER


def stuck_delete(number: int) -> bytes:
    return records.encode(
        SegmentUpdate(
            partition=TP,
            segment_id=segment_id(number),
            broker_id=BrokerId(1),
            event_timestamp_ms=3000,
            custom_metadata=ONLY_IF_STARTED,
            state=SegmentState.DELETE_SEGMENT_STARTED,
        )
    )


async def test_a_held_segment_fails_its_partition_until_it_was_put_back(rig):
    async with rig.manager() as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: manager.lookups.is_ready(TP))
        await manager.events.add(started(1, 0, 9), BROKER)
        await manager.events.update(updated(1), BROKER)
        await manager.log.append(of(TP), stuck_delete(1))
        follower = manager.fleet.followers[of(TP)]
        await until(lambda: follower.failure is not None)
        assert follower.failure.reason is FailureReason.HISTORY_LOST
        assert follower.failure.command(of(TP)) == f"rlmm log repair {of(TP)}"
        assert manager.events.is_held(TP, segment_id(1))
        with pytest.raises(HistoryLost):
            manager.lookups.remote_log_segment_metadata(TP, 0, 5, BROKER)
        for record in _put_back(follower.fold):
            await manager.log.append(of(TP), record)
        await until(lambda: manager.lookups.is_ready(TP))
        assert manager.lookups.remote_log_segment_metadata(TP, 0, 5, BROKER) is not None
        assert not manager.events.is_held(TP, segment_id(1))


async def test_to_accept_a_loss_where_segments_are_merely_held_is_refused_and_leaves_no_hold(rig):
    bucket = FakeBucket()
    async with rig.manager(bucket=bucket) as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: manager.lookups.is_ready(TP))
        await manager.events.add(started(1, 0, 9), BROKER)
        await manager.events.update(updated(1), BROKER)
        await manager.log.append(of(TP), stuck_delete(1))
        follower = manager.fleet.followers[of(TP)]
        await until(lambda: follower.alarmed)
        for everything in (False, True):
            with pytest.raises(InvalidArgument, match="nothing is missing"):
                await Operator(manager).partition_accept_loss(
                    None if everything else of(TP), everything=everything
                )
        with pytest.raises(InvalidArgument, match=f"rlmm log repair {of(TP)}"):
            await Operator(manager).partition_accept_loss(of(TP), everything=False)
        assert bucket.accepted == []
        assert follower.alarmed, "the alarm stands"
