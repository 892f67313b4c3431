"""The loop itself: time jumps, orders are legal, ends are raised between steps, sets keep order."""

import asyncio
import os
import random
import subprocess
import sys
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from tests.simulation.loop import (
    CallbackFailed,
    Crash,
    Deadlock,
    Order,
    SimLoop,
    SimTask,
    StepLimit,
    ended,
)

Main = Callable[[], Coroutine[Any, Any, Any]]
ROOT = Path(__file__).parents[2]


def run(main: Main, *, seed: object = 0, order: Order = Order.FIFO, **options: Any) -> Any:
    with ended(SimLoop(rng=random.Random(f"{seed}"), order=order, **options)) as loop:
        return loop.run_until_complete(main())


def outcomes(main: Main, order: Order, seeds: int = 30) -> list[Any]:
    return [run(main, seed=seed, order=order) for seed in range(seeds)]


def test_an_hour_of_sleep_takes_one_jump():
    async def main() -> float:
        started = asyncio.get_running_loop().time()
        await asyncio.sleep(3600)
        return asyncio.get_running_loop().time() - started

    assert run(main) == pytest.approx(3600, abs=0.001)


def test_timeout_task_group_queue_and_event_are_asyncio_s_own():
    async def main() -> list[int]:
        queue: asyncio.Queue[int] = asyncio.Queue(maxsize=1)
        seen: list[int] = []

        async def produce() -> None:
            for number in range(3):
                await queue.put(number)

        async def consume() -> None:
            while len(seen) < 3:
                seen.append(await queue.get())

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(produce())
            tasks.create_task(consume())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60):
                await asyncio.Event().wait()
        return seen

    assert run(main, order=Order.BATCH) == [0, 1, 2]


async def _start_order() -> list[int]:
    started: list[int] = []

    async def child(number: int) -> None:
        started.append(number)

    async with asyncio.TaskGroup() as tasks:
        for number in range(5):
            tasks.create_task(child(number))
    return started


async def _wake_order() -> list[int]:
    woken: list[int] = []
    event = asyncio.Event()

    async def waiter(number: int) -> None:
        await event.wait()
        woken.append(number)

    async with asyncio.TaskGroup() as tasks:
        for number in range(5):
            tasks.create_task(waiter(number))
        await asyncio.sleep(1)
        event.set()
    return woken


async def _callback_order() -> list[int]:
    called: list[int] = []
    loop = asyncio.get_running_loop()
    for number in range(5):
        loop.call_soon(called.append, number)
    await asyncio.sleep(1)
    return called


@pytest.mark.parametrize(
    ("scenario", "order", "shuffled"),
    [
        (_start_order, Order.FIFO, False),
        (_start_order, Order.WAKEUPS, False),
        (_start_order, Order.BATCH, True),
        (_wake_order, Order.FIFO, False),
        (_wake_order, Order.WAKEUPS, True),
        (_wake_order, Order.BATCH, True),
        (_callback_order, Order.FIFO, False),
        (_callback_order, Order.WAKEUPS, False),
        (_callback_order, Order.BATCH, False),
    ],
)
def test_an_order_shuffles_what_asyncio_leaves_open_and_nothing_else(
    scenario: Main, order: Order, *, shuffled: bool
):
    results = outcomes(scenario, order)
    assert all(sorted(result) == list(range(5)) for result in results)
    assert any(result != list(range(5)) for result in results) is shuffled


def test_a_crash_comes_before_the_step_and_no_task_can_catch_it():
    caught: list[BaseException] = []

    async def main() -> None:
        try:
            for _ in range(100):
                await asyncio.sleep(1)
        except BaseException as error:
            caught.append(error)
            raise

    with ended(SimLoop(rng=random.Random(1), crash_at=7)) as loop:
        with pytest.raises(Crash):
            loop.run_until_complete(main())
        assert loop.steps == 7
        assert caught == []  # only abandon() unwinds it


def test_abandon_closes_every_task_once_even_those_that_await_while_dying():
    ended_tasks: list[str] = []

    async def stubborn() -> None:
        try:
            await asyncio.sleep(10)
        finally:
            ended_tasks.append("stubborn")
            await asyncio.sleep(10)

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(stubborn())
            tasks.create_task(stubborn())
            await asyncio.sleep(5)

    loop = SimLoop(rng=random.Random(1), crash_at=6)
    with pytest.raises(Crash):
        loop.run_until_complete(main())
    loop.abandon()
    assert ended_tasks == ["stubborn", "stubborn"]
    assert loop.is_closed()
    assert asyncio.all_tasks(loop) == set()


def test_a_deadlock_names_where_each_task_waits():
    async def forgotten() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Deadlock, match=r"forgotten:\d+ > Event.wait"):
        run(forgotten)


def test_a_busy_loop_ends_at_the_step_limit_and_moves_the_clock():
    async def main() -> None:
        for _ in range(1000):
            await asyncio.sleep(0)

    with pytest.raises(StepLimit):
        run(main, steps_max=500)


def test_a_failed_callback_fails_the_run():
    async def main() -> None:
        asyncio.get_running_loop().call_soon(lambda: 1 // 0)
        await asyncio.sleep(1)

    with pytest.raises(CallbackFailed, match="ZeroDivisionError"):
        run(main)


def test_threads_are_refused():
    async def main() -> None:
        with pytest.raises(RuntimeError, match="threads are not simulated"):
            await asyncio.to_thread(print)

    run(main)


def test_invariants_are_checked_after_each_step():
    checked: list[int] = []

    async def main() -> None:
        await asyncio.sleep(1)
        await asyncio.sleep(1)

    with ended(SimLoop(rng=random.Random(1))) as loop:
        loop.after_step = lambda: checked.append(loop.steps)
        loop.run_until_complete(main())
        assert checked == list(range(1, loop.steps + 1))


def test_coarse_timers_may_fire_early_as_uvloop_s_do():
    async def main() -> float:
        await asyncio.sleep(0.0004)
        return asyncio.get_running_loop().time()

    assert run(main, coarse_timers=True) < 0.0004
    assert run(main) >= 0.0004


def test_a_dropped_async_generator_is_closed_by_the_loop():
    closed: list[bool] = []

    async def numbers() -> Any:
        try:
            while True:
                yield 1
        finally:
            await asyncio.sleep(0)
            closed.append(True)

    async def main() -> None:
        async for _ in numbers():
            break
        await asyncio.sleep(1)

    run(main)
    assert closed == [True]


def test_tasks_hash_by_their_number():
    async def main() -> list[int]:
        tasks = {asyncio.current_task(), *_sleepers(20)}
        numbers = [task.seq for task in tasks if isinstance(task, SimTask)]
        await asyncio.sleep(2)
        return numbers

    def _sleepers(count: int) -> list[asyncio.Task[None]]:
        loop = asyncio.get_running_loop()
        return [loop.create_task(asyncio.sleep(1)) for _ in range(count)]

    assert run(main) == list(range(1, 22))


_ABORT_ORDER = """
import asyncio, random
from tests.simulation.loop import Order, SimLoop
log = []
async def child(n):
    try:
        await asyncio.sleep(100)
    finally:
        log.append(n)
async def fail():
    await asyncio.sleep(1)
    raise OSError
async def main():
    try:
        async with asyncio.TaskGroup() as tasks:
            for n in range(40):
                tasks.create_task(child(n))
            tasks.create_task(fail())
    except* OSError:
        pass
loop = SimLoop(rng=random.Random("7"), order=Order.BATCH)
loop.run_until_complete(main())
print(loop.trace, log)
"""


def test_aborted_task_groups_have_one_order_in_every_process():
    def output(hash_seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-c", _ABORT_ORDER]
        return subprocess.check_output(command, env=environment, text=True, cwd=ROOT)

    assert output("1") == output("2")


def test_the_same_seed_gives_the_same_trace_and_another_another():
    def trace(seed: int) -> int:
        with ended(SimLoop(rng=random.Random(f"{seed}"), order=Order.BATCH)) as loop:
            work: Awaitable[Any] = _wake_order()
            loop.run_until_complete(work)
            return loop.trace

    assert trace(3) == trace(3)
    assert len({trace(seed) for seed in range(10)}) > 1
