"""Of all long works that are under way, one does a step in each turn of the loop."""

import asyncio
import os

import pytest

from rlmm_daemon.core.fold import deferred_free
from rlmm_daemon.daemon.base import fair_scheduler as turns_module
from rlmm_daemon.daemon.base.fair_scheduler import FairScheduler, keep_freeing


async def stepped(turns: FairScheduler, name: str, steps: int, done: list[str]) -> None:
    for _ in range(steps):
        await turns.wait()
        done.append(name)


async def test_several_works_take_turns_and_nobody_is_left_out():
    turns, done, at_once = FairScheduler(), list[str](), list[int]()
    async with asyncio.TaskGroup() as tasks:
        works = [tasks.create_task(stepped(turns, name, 20, done)) for name in "abc"]
        while not all(work.done() for work in works):
            before = len(done)
            await asyncio.sleep(0)
            at_once.append(len(done) - before)
    assert max(at_once) == 1
    assert "".join(done) == "abc" * 20


async def test_a_work_alone_has_every_turn():
    turns, done, idle = FairScheduler(), list[str](), 0
    async with asyncio.TaskGroup() as tasks:
        work = tasks.create_task(stepped(turns, "a", 20, done))
        while not work.done():
            before = len(done)
            await asyncio.sleep(0)
            idle += len(done) == before
    assert len(done) == 20
    assert idle <= 3


async def test_the_next_step_lets_whoever_was_answered_run_first(monkeypatch):
    said: list[str] = []
    monkeypatch.setattr(os, "sched_yield", lambda: said.append("yield"))
    turns = FairScheduler()
    for name in "ab":
        turns.answered()
        turns.answered()
        await stepped(turns, name, 2, said)
    assert said == ["yield", "a", "a", "yield", "b", "b"]


async def test_a_work_that_soon_waits_by_itself_keeps_the_processor(monkeypatch):
    monkeypatch.setattr(os, "sched_yield", lambda: pytest.fail("it was given up"))
    turns, at = FairScheduler(), list[int]()
    turns.answered()

    async def step(number: int) -> None:
        await turns.wait(yields=False)
        at.append(number)

    async with asyncio.TaskGroup() as tasks:
        for number in range(3):
            tasks.create_task(step(number))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(at) <= 1, "one in a turn all the same"
    assert at == [0, 1, 2]


async def test_steps_keep_the_processor_while_nobody_is_answered(monkeypatch):
    """Linux takes a whole slice of three milliseconds from who gives away a tenth of one."""
    said: list[str] = []
    monkeypatch.setattr(os, "sched_yield", lambda: said.append("yield"))
    await stepped(FairScheduler(), "a", 3, said)
    assert said == ["a"] * 3


async def test_whoever_is_cancelled_holds_up_nobody_and_gives_no_second_turn():
    """In the queue, with a turn that he has not begun, and alone."""
    for turns_until_then in range(6):
        turns, done, at_once = FairScheduler(), list[str](), list[int]()
        async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
            works = {name: tasks.create_task(stepped(turns, name, 9, done)) for name in "abcd"}
            for _ in range(turns_until_then):
                await asyncio.sleep(0)
            for name in "ab":
                works[name].cancel()
            while not all(work.done() for work in works.values()):
                before = len(done)
                await asyncio.sleep(0)
                at_once.append(len(done) - before)
        assert done.count("c") == done.count("d") == 9
        assert max(at_once) == 1
        async with asyncio.timeout(30):
            await turns.wait()
            await turns.wait()


async def test_what_was_left_is_freed_in_turns(monkeypatch):
    monkeypatch.setattr(turns_module, "LEFT_SECONDS", 0)
    monkeypatch.setattr(turns_module, "SLICE_SECONDS", 0)
    steps = 50
    left = [object()] * (steps * deferred_free.AT_ONCE)
    turns = 0
    async with asyncio.TaskGroup() as tasks:
        freeing = tasks.create_task(keep_freeing(FairScheduler()))
        await asyncio.sleep(0)
        deferred_free.leave(left)
        while left:
            before = len(left)
            await asyncio.sleep(0)
            assert before - len(left) <= deferred_free.AT_ONCE
            turns += 1
        freeing.cancel()
    assert turns >= steps
