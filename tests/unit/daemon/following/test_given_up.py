"""Folds that are given up: freed at once, and never ready again."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from rlmm_daemon.core.fold.fold import Fold
from rlmm_daemon.core.readiness.states import PartitionState
from tests.unit.daemon.events import NEIGHBOUR, TP, copied, of, until
from tests.unit.daemon.following.test_mapped import NEVER, filled, found, segments_of


@pytest.fixture
def frozen() -> Iterator[None]:
    """The collector looks at nothing from here on, as in a daemon once its snapshots are loaded."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def folds() -> int:
    """How many there are, frozen ones too."""
    gc.unfreeze()
    return sum(type(each) is Fold for each in gc.get_objects())


@pytest.mark.usefixtures("frozen")
async def test_a_fold_that_is_given_up_is_freed_though_nothing_is_collected(rig):
    await filled(rig)
    async with rig.manager(snapshots=NEVER) as manager:
        manager.replace_assignment([TP, NEIGHBOUR], [])
        await until(lambda: manager.lookups.is_ready(TP) and manager.lookups.is_ready(NEIGHBOUR))
        follower = manager.fleet.followers[of(TP)]
        assert segments_of(manager) == 20
        given_up = weakref.ref(follower.fold)
        follower.rebuild()
        await until(lambda: given_up() is None or follower.fold is not given_up())
        await until(lambda: manager.lookups.is_ready(TP))
        assert segments_of(manager) == 20
        await until(lambda: given_up() is None)


@pytest.mark.usefixtures("frozen")
async def test_snapshots_of_partitions_in_use_leave_no_garbage(rig):
    await filled(rig)
    async with rig.manager(snapshots=NEVER) as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: manager.lookups.is_ready(TP))
        follower = manager.fleet.followers[of(TP)]

        async def written(number: int) -> None:
            await copied(manager, number, 10 * number, 10 * number + 9)
            assert await manager.snapshotter.write(follower) is not None

        for number in range(20, 23):
            await written(number)
        gc.collect()
        before = folds()
        for number in range(23, 43):
            await written(number)
        assert folds() == before


async def test_a_damaged_partition_is_not_ready_before_the_log_was_read_again(rig):
    await filled(rig)
    async with rig.manager(snapshots=NEVER) as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: manager.lookups.is_ready(TP))
        follower = manager.fleet.followers[of(TP)]
        replayed = follower.fold
        replayed.partitions.damaged(replayed.image, "as a test wants it")
        follower.target_known(follower.fold.position, follower.confirmation.question())
        assert follower.state is PartitionState.REPLAYING
        assert not manager.lookups.is_ready(TP)
        await until(lambda: manager.lookups.is_ready(TP))
        assert follower.fold is not replayed
        assert (segments_of(manager), found(manager, 55) is not None) == (20, True)
