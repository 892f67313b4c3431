"""What looks at every user partition looks at a few in each turn of the loop."""

import asyncio
from types import SimpleNamespace

import pytest

from rlmm_daemon.daemon.metadata import tally
from rlmm_daemon.daemon.metadata.manager import Manager
from rlmm_daemon.daemon.operator.methods import Operator
from rlmm_daemon.daemon.operator.standing import Standing
from rlmm_daemon.domain.ids import TopicIdPartition
from tests.unit.daemon.events import TP, of, until
from tests.unit.daemon.following.test_mapped import NEVER

MANY = 40 * tally.COUNTED_AT_ONCE
MANY_AT_ONCE = 2 * tally.COUNTED_AT_ONCE
#: All in the metadata partition that is followed.
NAMED = [
    tp for n in range(4 * MANY) if of(tp := TopicIdPartition(TP.topic_id, "many", n)) == of(TP)
][:MANY]


class Looked:
    """A user partition at rest that counts how often anybody looks at it, or at another."""

    looks = 0
    delete_state = None
    segments = SimpleNamespace(in_memory=1)
    bytes_by_state = (0, 10, 0, 0)

    @property
    def segments_by_state(self) -> list[int]:
        Looked.looks += 1
        return [0, 1, 0, 0]


async def status(manager: Manager) -> None:
    found = await Standing(manager).status()
    assert found["user_partitions"] == found["segments"]["COPY_SEGMENT_FINISHED"] == MANY
    assert found["segment_bytes"] == 10 * MANY
    assert found["memory"]["segments_in_memory"] == MANY


async def partitions(manager: Manager) -> None:
    (row,) = await Standing(manager).partitions()
    assert row["user_partitions"] == row["segments"] == MANY


async def user_partitions(manager: Manager) -> None:
    found = [each async for each in Operator(manager).user_partitions(None)]
    numbers = [each.partition.partition for each in found if each.segments]
    assert numbers == [each.partition for each in NAMED]


async def one_of_them(manager: Manager) -> None:
    assert await Operator(manager).resolve(f"many-{NAMED[-1].partition}") == [NAMED[-1]]


@pytest.mark.parametrize("question", [status, partitions, user_partitions, one_of_them])
async def test_a_question_about_everything_gives_way_to_others(rig, question):
    async with rig.manager(snapshots=NEVER) as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: manager.lookups.is_ready(TP))
        fold = manager.fleet.followers[of(TP)].fold
        fold.partitions._all.update((each, Looked()) for each in NAMED)
        most, turns, Looked.looks = 0, 0, 0
        asked = asyncio.get_running_loop().create_task(question(manager))
        while not asked.done():
            before = Looked.looks
            await asyncio.sleep(0)
            most, turns = max(most, Looked.looks - before), turns + 1
        await asked
        fold.partitions._all.clear()
        assert most <= 3 * MANY_AT_ONCE  # a row of user partitions looks at three states
        assert turns >= MANY // MANY_AT_ONCE


async def test_leaders_are_counted_as_roles_change(rig):
    async with rig.manager(snapshots=NEVER) as manager:
        one, two, three = (TopicIdPartition(TP.topic_id, "some", n) for n in range(3))
        manager.replace_assignment([one, two], [three])
        assert manager.assignment.leads == 2
        manager.on_partition_leadership_changes([three], [two])
        manager.on_partition_leadership_changes([three], [two])
        assert manager.assignment.leads == 2
        manager.on_stop_partitions([one, one, two])
        assert manager.assignment.leads == 1
        manager.replace_assignment([], [])
        assert manager.assignment.leads == 0
