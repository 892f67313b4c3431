"""A read that is held is let go by what it waits for, not by a clock."""

import asyncio

from rlmm_daemon.daemon.base.caller import Caller
from tests.unit.daemon.events import TP, of, until

BROKER, OPERATOR = Caller.BROKER, Caller.OPERATOR
PATIENCE_SECONDS = 20.0


async def test_one_that_was_asked_before_the_log_was_open(rig):
    rig.heartbeat_seconds = 2 * PATIENCE_SECONDS
    async with rig.manager() as manager, asyncio.timeout(PATIENCE_SECONDS):
        manager.replace_assignment([TP], [])
        await manager.lookups.until_readable(TP, BROKER, 2 * PATIENCE_SECONDS)
        assert manager.lookups.is_ready(TP)


async def test_one_that_was_asked_before_the_announcement(rig):
    rig.heartbeat_seconds = 2 * PATIENCE_SECONDS
    async with rig.manager() as manager, asyncio.timeout(PATIENCE_SECONDS):
        await manager.lookups.until_readable(TP, OPERATOR, PATIENCE_SECONDS)
        async with asyncio.TaskGroup() as group:
            held = group.create_task(
                manager.lookups.until_readable(TP, BROKER, 2 * PATIENCE_SECONDS)
            )
            await asyncio.sleep(0)
            manager.replace_assignment([TP], [])
            await held
        assert manager.lookups.is_ready(TP)


async def test_one_that_was_asked_before_its_follower_was_there(rig):
    rig.heartbeat_seconds = 2 * PATIENCE_SECONDS
    async with rig.manager() as manager, asyncio.timeout(PATIENCE_SECONDS):
        await until(lambda: manager.fleet.follow_set is not None)
        assert of(TP) not in manager.fleet.followers
        await manager.lookups.until_readable(TP, OPERATOR, 2 * PATIENCE_SECONDS)
        assert manager.lookups.is_ready(TP, OPERATOR)
