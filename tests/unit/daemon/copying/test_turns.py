"""Turns of copies: topics that share a limit go one after another, and keep no other's turn."""

import asyncio

from rlmm_daemon.daemon.copying.turns import Turns
from tests.unit.daemon.events import until


async def test_copies_of_one_lane_hold_one_turn_and_others_go_on():
    turns = Turns(2, {"slow-1": "slow-*", "slow-2": "slow-*"}.get)
    inside, let_go = list[str](), asyncio.Event()

    async def copy(topic: str) -> None:
        async with turns.of(topic):
            inside.append(topic)
            if topic != "quick":
                await let_go.wait()

    async with asyncio.TaskGroup() as group:
        for topic in ("slow-1", "slow-2", "slow-1", "quick", "quick"):
            group.create_task(copy(topic))
        await until(lambda: inside.count("quick") == 2)
        assert inside == ["slow-1", "quick", "quick"]
        let_go.set()
    assert inside[3:] == ["slow-2", "slow-1"], "in the order in which they came"
    assert not turns._lanes, "nothing is kept of topics that are gone"
