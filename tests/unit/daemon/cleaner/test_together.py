"""Many who want to know, few questions: each answer was asked for after its caller wanted it."""

import asyncio
from collections.abc import Collection, Mapping
from contextlib import suppress

import pytest

from rlmm_daemon.daemon.cleaner.together import Together
from rlmm_daemon.domain.errors import StorageUnavailable


class Slow:
    """Answers how many questions there were, once it is let."""

    def __init__(self) -> None:
        self.asked = list[list[str]]()
        self.is_asked, self.may_answer = asyncio.Event(), asyncio.Event()
        self.fails = False

    async def ask(self, keys: Collection[str]) -> Mapping[str, int]:
        self.asked.append(list(keys))
        self.is_asked.set()
        count = len(self.asked)
        await self.may_answer.wait()
        if self.fails:
            raise StorageUnavailable("not now")
        return dict.fromkeys(keys, count)


@pytest.fixture
def slow() -> Slow:
    return Slow()


async def begin(
    group: asyncio.TaskGroup, together: Together[str, int], *keys: str
) -> list[asyncio.Task[int]]:
    """Return once each of them asks, or waits for its turn to."""
    begun = asyncio.Semaphore(0)

    async def one(key: str) -> int:
        begun.release()  # nobody else has a turn before this one has to wait
        return await together.of(key)

    tasks = [group.create_task(one(key)) for key in keys]
    for _ in tasks:
        await begun.acquire()
    return tasks


async def test_whoever_comes_while_a_question_is_under_way_shares_the_next_one(slow):
    together = Together(slow.ask)
    async with asyncio.TaskGroup() as group:
        first = await begin(group, together, "a")
        later = await begin(group, together, "a", "b", "b")
        slow.may_answer.set()
    assert [each.result() for each in first + later] == [1, 2, 2, 2]
    assert slow.asked == [["a"], ["a", "b"]]


async def test_what_goes_wrong_goes_wrong_for_all_who_asked(slow):
    together = Together(slow.ask)
    slow.fails = True
    slow.may_answer.set()
    answers = await asyncio.wait_for(
        _settled(together.of("a"), together.of("b"), together.of("c")), 30
    )
    assert [type(each) for each in answers] == [StorageUnavailable] * 3
    slow.fails = False
    assert await together.of("a") == len(slow.asked)


async def _settled(*asking):
    answers = []
    async with asyncio.TaskGroup() as group:

        async def one(each) -> None:
            try:
                answers.append(await each)
            except StorageUnavailable as error:
                answers.append(error)

        for each in asking:
            group.create_task(one(each))
    return answers


async def test_who_leaves_while_asking_leaves_the_question_to_the_next(slow):
    together = Together(slow.ask)
    async with asyncio.TaskGroup() as group:
        (leader,) = await begin(group, together, "a")
        waiting = await begin(group, together, "b", "c")
        (leaver,) = await begin(group, together, "d")
        leader.cancel()
        leaver.cancel()
        with suppress(asyncio.CancelledError):
            await leader
        slow.may_answer.set()
    assert [each.result() for each in waiting] == [2, 2]
    assert slow.asked == [["a"], ["b", "c"]], "whoever has left is not asked for"


async def test_who_leaves_a_question_of_others_too_leaves_it_to_one_of_them(slow):
    together = Together(slow.ask)
    async with asyncio.TaskGroup() as group:
        (first,) = await begin(group, together, "a")
        leader, *waiting = await begin(group, together, "b", "c", "d")
        slow.is_asked.clear()
        slow.may_answer.set()
        slow.may_answer.clear()  # the first question only
        await first
        async with asyncio.timeout(30):
            await slow.is_asked.wait()
        leader.cancel()
        slow.may_answer.set()
    assert [each.result() for each in waiting] == [3, 3]
    assert slow.asked == [["a"], ["b", "c", "d"], ["c", "d"]]
