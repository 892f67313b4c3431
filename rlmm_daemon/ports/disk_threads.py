"""Threads for calls that block, cheap to hand over to: a queue in, one wake-up of the loop out.

An executor of the standard library makes two futures and takes several locks for each call, which
for a write that the disk has taken in a tenth of a millisecond is most of what it costs.
"""

import asyncio
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Final, NamedTuple, TypeVar

#: How long whoever ends waits for calls. One that takes longer does not come back: a disk hangs.
CLOSE_SECONDS: Final = 5.0

T = TypeVar("T")


class _Job(NamedTuple):
    call: Callable[[], Any]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    #: What becomes of a result that nobody waits for any more.
    unwanted: Callable[[Any], None] | None


class DiskThreads:
    """Runs calls in threads of its own, each started at the first call that finds none idle.

    To start one takes a thread's turn and back, which on a busy machine is long.
    """

    def __init__(
        self, count: int, name: str = "disk", first: Callable[[], None] = lambda: None
    ) -> None:
        """`first` is called by each thread before anything else."""
        self._count, self._name, self._first = count, name, first
        self._queue: SimpleQueue[_Job | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        #: One for each thread without a call, as long as more may be started. No lock is as cheap.
        self._idle: deque[None] = deque(maxlen=count)
        self._closed = False
        # Whoever forgets `close` leaves no threads behind.
        weakref.finalize(self, _end, self._queue, count).atexit = False

    def run(
        self, call: Callable[[], T], *, unwanted: Callable[[T], None] | None = None
    ) -> asyncio.Future[T]:
        """Return a future of the call's result; cancelling it does not stop the call.

        `unwanted` is given a result whose future was cancelled, or whose loop is gone.
        """
        if self._closed:
            raise RuntimeError("the disk's threads have ended")
        if self._idle:
            self._idle.pop()
        elif len(self._threads) < self._count:
            self._start()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._queue.put(_Job(call, loop, future, unwanted))
        return future

    def close(self, *, wait: bool = True) -> None:
        """Return once the calls that were taken are over and the threads have ended.

        In five seconds at most, and without `wait` at once: a disk or mount that hangs must not
        hold up whoever ends.
        """
        self._closed = True
        _end(self._queue, len(self._threads))
        if wait:
            until = time.monotonic() + CLOSE_SECONDS
            for thread in self._threads:
                thread.join(max(0.0, until - time.monotonic()))
        self._threads.clear()

    def _start(self) -> None:
        # Daemonic: a call that hangs does not keep the process, as little as a crash would.
        thread = threading.Thread(
            target=_work,
            args=(self._queue, self._idle, self._first),
            name=f"{self._name}-{len(self._threads)}",
            daemon=True,
        )
        thread.start()
        self._threads.append(thread)


def _end(queue: "SimpleQueue[_Job | None]", count: int) -> None:
    for _ in range(count):
        queue.put(None)


def _work(queue: "SimpleQueue[_Job | None]", idle: deque[None], first: Callable[[], None]) -> None:
    first()
    while (job := queue.get()) is not None:
        result, failure = None, None
        try:
            result = job.call()
        except BaseException as error:  # noqa: BLE001 - it is raised where the call is awaited
            failure = error
        idle.append(None)
        try:
            job.loop.call_soon_threadsafe(_settle, job, result, failure)
        except RuntimeError:  # the loop is closed
            _discard(job, result, failure)
        del job, result, failure  # nothing is kept alive while the thread waits


def _settle(job: _Job, result: Any, failure: BaseException | None) -> None:
    if job.future.done():
        _discard(job, result, failure)
    elif failure is not None:
        job.future.set_exception(failure)
    else:
        job.future.set_result(result)


def _discard(job: _Job, result: Any, failure: BaseException | None) -> None:
    if failure is None and job.unwanted is not None:
        job.unwanted(result)
