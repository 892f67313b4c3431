"""A thread for each call that blocks, up to their number, and none before it is needed."""

import asyncio
import gc
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from rlmm_daemon.ports import disk_threads
from rlmm_daemon.ports.disk_threads import DiskThreads

COUNT = 3
PATIENCE_SECONDS = 20.0


@pytest.fixture
def threads() -> Iterator[DiskThreads]:
    threads = DiskThreads(COUNT)
    yield threads
    threads.close()


async def test_calls_one_by_one_have_one_thread(threads: DiskThreads) -> None:
    assert len({await threads.run(threading.get_ident) for _ in range(5)}) == 1


@pytest.mark.parametrize("before", [0, 1, 2 * COUNT])
async def test_as_many_calls_block_at_once_as_there_may_be_threads(
    threads: DiskThreads, before: int
) -> None:
    for _ in range(before):
        await threads.run(threading.get_ident)
    together = threading.Barrier(COUNT)
    for _ in range(3):
        calls = [threads.run(lambda: together.wait(PATIENCE_SECONDS)) for _ in range(COUNT)]
        await asyncio.wait(calls)
        assert {call.result() for call in calls} == set(range(COUNT))


async def test_there_are_no_more_threads_than_that(threads: DiskThreads) -> None:
    go_on = threading.Event()
    calls = [threads.run(lambda: (go_on.wait(), threading.get_ident())[1]) for _ in range(10)]
    go_on.set()
    await asyncio.wait(calls)
    assert len({call.result() for call in calls}) <= COUNT


async def test_each_thread_prepares_itself_before_its_first_call() -> None:
    prepared: list[str] = []
    threads = DiskThreads(1, "reader", lambda: prepared.append(threading.current_thread().name))
    assert await threads.run(lambda: list(prepared)) == ["reader-0"]
    assert await threads.run(lambda: list(prepared)) == ["reader-0"]
    threads.close()


async def test_whoever_does_not_wait_for_the_end_is_not_held_up_by_a_call_that_hangs() -> None:
    threads, go_on = DiskThreads(1), threading.Event()
    hangs = threads.run(lambda: go_on.wait(PATIENCE_SECONDS))
    threads.close(wait=False)
    assert not hangs.done()
    with pytest.raises(RuntimeError):
        threads.run(threading.get_ident)
    go_on.set()
    assert await hangs


async def test_threads_end_with_whoever_forgot_to_close_them() -> None:
    threads = DiskThreads(1)
    thread = await threads.run(threading.current_thread)
    del threads
    gc.collect()
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()


@pytest.mark.timeout(PATIENCE_SECONDS)
async def test_a_call_that_hangs_does_not_hold_up_whoever_ends(monkeypatch) -> None:
    monkeypatch.setattr(disk_threads, "CLOSE_SECONDS", 0.02, raising=False)
    threads, over = DiskThreads(COUNT), threading.Event()
    call = threads.run(over.wait)
    threads.close()
    over.set()
    assert await call


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """What calls hang on."""
    monkeypatch.setattr(disk_threads, "RELIEF_SECONDS", 0.01)
    over = threading.Event()
    yield over
    over.set()


async def begun(threads: DiskThreads, over: threading.Event) -> asyncio.Future[int]:
    """Begin a call that hangs."""
    entered = threading.Event()

    def hang() -> int:
        entered.set()
        return over.wait(PATIENCE_SECONDS)

    call = threads.run(hang)
    while not entered.is_set():  # noqa: ASYNC110 - it is set in a thread
        await asyncio.sleep(0)
    return call


@pytest.mark.timeout(PATIENCE_SECONDS)
async def test_calls_that_hang_and_were_left_hold_up_nobody(hanging: threading.Event) -> None:
    threads = DiskThreads(COUNT, "hung")
    for _ in range(2):
        calls = [await begun(threads, hanging) for _ in range(COUNT)]
        waits = threads.run(threading.get_ident)
        for call in calls:
            call.cancel()
        assert await waits
    assert not hanging.is_set()
    hanging.set()
    together = threading.Barrier(COUNT)
    calls = [threads.run(lambda: together.wait(PATIENCE_SECONDS)) for _ in range(COUNT)]
    await asyncio.wait(calls)
    threads.close()
    names = {thread.name for thread in threading.enumerate()}
    assert not {name for name in names if name.startswith("hung-")}, "those that hung end as well"


@pytest.mark.timeout(PATIENCE_SECONDS)
async def test_a_call_that_is_waited_for_is_not_given_up(hanging: threading.Event) -> None:
    threads = DiskThreads(1)
    slow = await begun(threads, hanging)
    waits = threads.run(threading.get_ident)
    threads.relieve(asyncio.get_running_loop())
    assert not threads._given_up
    hanging.set()
    assert await slow
    assert await waits
    threads.close()


@pytest.mark.timeout(PATIENCE_SECONDS)
async def test_so_many_threads_hang_at_most(
    hanging: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_threads, "GIVEN_UP_MAX", 2)
    threads = DiskThreads(1)
    for _ in range(3):
        (await begun(threads, hanging)).cancel()
    last = threads.run(threading.get_ident)
    threads.relieve(asyncio.get_running_loop())
    assert (len(threads._given_up), len(threads._workers)) == (2, 1)
    hanging.set()
    assert await last
    threads.close()


@pytest.mark.timeout(PATIENCE_SECONDS)
async def test_whoever_asks_again_for_what_hangs_keeps_one_thread(hanging: threading.Event) -> None:
    threads, entered = DiskThreads(COUNT), threading.Semaphore(0)

    def hang() -> bool:
        entered.release()
        return hanging.wait(PATIENCE_SECONDS)

    first, beside = (threads.run(hang, about="a file") for _ in range(2))
    for _ in range(2):
        while not entered.acquire(blocking=False):  # noqa: ASYNC110 - it is released in a thread
            await asyncio.sleep(0)
    first.cancel()
    other = threads.run(threading.get_ident, about="another file")
    for _ in range(3):
        with pytest.raises(disk_threads.Hangs, match="a file"):
            threads.run(threading.get_ident, about="a file")
    assert await other
    hanging.set()
    assert await beside
    while True:
        try:
            assert await threads.run(threading.get_ident, about="a file")
            break
        except disk_threads.Hangs:
            await asyncio.sleep(0)
    threads.close()


HANGING_COPY = """
import asyncio
import threading
from rlmm_daemon.ports import threads

threads.LET_GO_SECONDS = 0.01

async def main():
    copying = threads.copying_threads(1, "copy")
    try:
        async with asyncio.timeout(0.01):
            await threads.in_thread(copying, threading.Event().wait)
    except TimeoutError:
        print("left", flush=True)

asyncio.run(main())
"""


def test_a_process_ends_beside_a_copy_whose_disk_hangs() -> None:
    """After SIGTERM as well: else systemd has to kill it."""
    words = [sys.executable, "-c", HANGING_COPY]
    ended = subprocess.run(
        words, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True
    )
    assert ended.stdout == "left\n"
