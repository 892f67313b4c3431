"""What `rlmm log restore` takes from a daemon's snapshots."""

from pathlib import Path

from rlmm_daemon.domain.segment import SegmentState
from rlmm_daemon.offline.log_restoring import known_to
from tests.unit.daemon.events import TP, copied, of, segment_id, until, updated
from tests.unit.daemon.following.test_mapped import BROKER, NEVER


async def two_generations(rig) -> Path:
    """Leave a snapshot of two segments, and a newer one in which the first was deleted."""
    async with rig.manager(snapshots=NEVER) as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: manager.lookups.is_ready(TP))
        follower = manager.fleet.followers[of(TP)]
        await copied(manager, 1, 0, 9)
        await copied(manager, 2, 10, 19)
        assert await manager.snapshotter.write(follower) is not None
        await manager.events.update(updated(1, SegmentState.DELETE_SEGMENT_STARTED), BROKER)
        await manager.events.update(updated(1, SegmentState.DELETE_SEGMENT_FINISHED), BROKER)
        assert await manager.snapshotter.write(follower) is not None
    return Path(rig.directory, "a", "snapshots")


async def test_what_was_deleted_between_two_generations_is_not_brought_back(rig):
    directory = await two_generations(rig)
    assert len(list(directory.glob("*.snapshot"))) == 2
    assert set(known_to([str(directory)]).segments) == {(TP, segment_id(2))}
