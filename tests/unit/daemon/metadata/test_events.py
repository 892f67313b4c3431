"""A segment that is being removed as a stuck copy: who may still write about it, and when."""

import asyncio

import pytest

from rlmm_daemon.codec.custom_metadata import ONLY_IF_STARTED
from rlmm_daemon.core.fold.outcome import Applied
from rlmm_daemon.daemon.base.caller import Caller
from rlmm_daemon.domain.errors import IllegalTransition, NotReady, TimedOut
from rlmm_daemon.domain.segment import SegmentState
from tests.unit.daemon.events import TP, of, segment_id, started, until, updated

BROKER = Caller.BROKER
STARTED, FINISHED, DELETE_STARTED, _ = SegmentState
ID = segment_id(1)


def is_started(cache) -> bool:
    return cache.state(ID) is STARTED


async def begun(manager) -> None:
    manager.replace_assignment([TP], [])
    await until(lambda: manager.lookups.is_ready(TP))
    await manager.events.add(started(1, 0, 9), BROKER)


async def test_updates_are_refused_inside_the_fence_and_accepted_after_it(rig):
    async with rig.manager() as manager:
        await begun(manager)
        async with manager.events.fence(TP, ID, 30):
            with pytest.raises(IllegalTransition):
                await manager.events.update(updated(1), BROKER)
            with pytest.raises(IllegalTransition):
                async with manager.events.fence(TP, ID, 30):
                    pass
        await manager.events.update(updated(1), BROKER)


async def test_an_update_in_flight_ends_before_the_block_runs(rig):
    async with rig.manager() as manager:
        await begun(manager)
        rig.store.pause()
        async with asyncio.TaskGroup() as group:
            finishing = group.create_task(manager.events.update(updated(1), BROKER))
            await until(lambda: manager.fleet.followers[of(TP)].writer.in_flight == 1)
            group.create_task(_resume_later(rig))
            async with manager.events.fence(TP, ID, 30):
                assert finishing.done()
                with pytest.raises(IllegalTransition):
                    await manager.events.update_if(
                        updated(1, DELETE_STARTED), is_started, inside=True
                    )


async def _resume_later(rig) -> None:
    await asyncio.sleep(0.1)
    rig.store.resume()


async def test_what_another_daemon_wrote_is_folded_before_the_block_runs(rig):
    async with rig.manager() as manager:
        await begun(manager)
        rig.store.put(of(TP), updated(1))
        async with manager.events.fence(TP, ID, 30):
            cache = manager.fleet.followers[of(TP)].fold.partitions[TP]
            assert cache.state(ID) is FINISHED


async def test_a_log_that_does_not_tell_its_end_lets_nobody_in(rig):
    async with rig.manager() as manager:
        await begun(manager)
        rig.store.pause()
        with pytest.raises((NotReady, TimedOut)):
            async with manager.events.fence(TP, ID, 0.2):
                pytest.fail("nobody may come in")
        rig.store.resume()
        await manager.events.update(updated(1), BROKER)


async def test_its_own_apply_says_what_the_delete_replaced(rig):
    async with rig.manager() as manager:
        await begun(manager)
        record = updated(1, DELETE_STARTED, custom=ONLY_IF_STARTED)
        async with manager.events.fence(TP, ID, 30):
            outcome = await manager.events.update_if(record, is_started, inside=True)
        assert isinstance(outcome, Applied)
        assert outcome.previous_state is STARTED
        assert not manager.events.is_held(TP, ID)


async def test_a_finish_that_slips_in_between_is_held(rig):
    """Another daemon's append lands between the judgement and ours."""
    async with rig.manager() as manager:
        await begun(manager)

        def slip(cache) -> bool:
            rig.store.put(of(TP), updated(1))
            return is_started(cache)

        record = updated(1, DELETE_STARTED, custom=ONLY_IF_STARTED)
        async with manager.events.fence(TP, ID, 30):
            outcome = await manager.events.update_if(record, slip, inside=True)
        assert isinstance(outcome, Applied)
        assert outcome.previous_state is FINISHED
        assert manager.events.is_held(TP, ID)
