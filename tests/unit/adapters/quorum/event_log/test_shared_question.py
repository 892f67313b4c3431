"""Questions that are shared: few are sent, and none answers who came after it was."""

import asyncio

import pytest

from rlmm_daemon.adapters.quorum.event_log.shared_question import SharedQuestion
from rlmm_daemon.domain.errors import StorageUnavailable


class Leader:
    def __init__(self) -> None:
        self.sent: list[asyncio.Future[int]] = []

    async def ask(self) -> int:
        self.sent.append(asyncio.get_running_loop().create_future())
        return await self.sent[-1]


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_who_comes_while_a_question_is_under_way_shares_the_next_one() -> None:
    leader = Leader()
    question = SharedQuestion(leader.ask)
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        early = tasks.create_task(question.answer())
        await settle()
        late = [tasks.create_task(question.answer()) for _ in range(50)]
        await settle()
        assert len(leader.sent) == 1
        leader.sent[0].set_result(7)
        await settle()
        assert early.result() == 7
        assert not any(each.done() for each in late)
        leader.sent[1].set_result(9)
    assert [each.result() for each in late] == [9] * 50
    assert len(leader.sent) == 2


def begun(question: SharedQuestion, count: int) -> list[asyncio.Future[int]]:
    """Ask so often; of several, the first one asks alone, and the others share one question."""
    return [asyncio.ensure_future(question.answer()) for _ in range(count)]  # noqa: TID251 - the test awaits them all


async def test_what_a_question_met_is_told_to_all_and_the_next_one_is_sent() -> None:
    leader = Leader()
    question = SharedQuestion(leader.ask)
    early, *shared = begun(question, 4)
    await settle()
    leader.sent[0].set_result(1)
    await settle()
    leader.sent[1].set_exception(StorageUnavailable("no leader"))
    assert await early == 1
    for each in shared:
        with pytest.raises(StorageUnavailable, match="no leader"):
            await each
    (late,) = begun(question, 1)
    await settle()
    leader.sent[2].set_result(3)
    assert await late == 3


@pytest.mark.parametrize("is_sent", [False, True])
async def test_one_that_asks_for_all_and_leaves_lets_them_ask_again(*, is_sent: bool) -> None:
    leader = Leader()
    question = SharedQuestion(leader.ask)
    early, leaves, stays = begun(question, 3)
    await settle()
    if is_sent:
        leader.sent[0].set_result(1)
        await settle()
    leaves.cancel()
    with pytest.raises(StorageUnavailable, match="has left"):
        await stays
    (again,) = begun(question, 1)
    if not is_sent:
        leader.sent[0].set_result(1)
    await settle()
    leader.sent[-1].set_result(5)
    assert (await early, await again) == (1, 5)


async def test_one_that_shares_may_leave_alone() -> None:
    leader = Leader()
    question = SharedQuestion(leader.ask)
    early, asks, leaves, stays = begun(question, 4)
    await settle()
    leaves.cancel()
    await settle()
    for answer in (1, 4):
        leader.sent[-1].set_result(answer)
        await settle()
    assert (await early, await asks, await stays) == (1, 4, 4)
