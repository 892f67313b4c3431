"""Threads for calls that block, cheap to hand over to: a queue in, one wake-up of the loop out.

An executor of the standard library makes two futures and takes several locks for each call, which
for a write that the disk has taken in a tenth of a millisecond is most of what it costs.

A call that its caller has left may hang, with its disk, for ever. Where others wait for a thread,
such a one is given up, and another stands in for it.
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
#: Between two looks whether calls wait behind such as nobody waits for.
RELIEF_SECONDS: Final = 1.0
#: Threads that may be given up at one time. What hangs beyond them holds up all others.
GIVEN_UP_MAX: Final = 32

T = TypeVar("T")


class Hangs(Exception):
    """An earlier call about the same thing was left, and has not ended."""


class _Job(NamedTuple):
    call: Callable[[], Any]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    #: What becomes of a result that nobody waits for any more.
    unwanted: Callable[[Any], None] | None
    #: What the call is about, if that may hang by itself.
    about: str | None


class _Worker:
    """A thread, and what it is at."""

    __slots__ = ("given_up", "job", "thread")

    def __init__(self) -> None:
        self.job: _Job | None = None
        #: Another stands in for it: it ends behind its call.
        self.given_up = False
        self.thread: threading.Thread

    def is_about(self, what: str) -> bool:
        """Whether it is at a call about this."""
        job = self.job
        return job is not None and job.about == what

    @property
    def is_left(self) -> bool:
        """Whether it is at a call that nobody waits for."""
        job = self.job
        return job is not None and job.future.done()


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
        self._workers: list[_Worker] = []
        self._given_up: list[_Worker] = []
        self._started = 0
        #: One for each thread without a call, as long as more may be started. No lock is as cheap.
        self._idle: deque[None] = deque(maxlen=count)
        #: The loop that looks after calls that wait.
        self._looking: asyncio.AbstractEventLoop | None = None
        self._closed = False
        # Whoever forgets `close` leaves no threads behind.
        weakref.finalize(self, _end, self._queue, count + GIVEN_UP_MAX).atexit = False

    def run(
        self,
        call: Callable[[], T],
        *,
        unwanted: Callable[[T], None] | None = None,
        about: str | None = None,
    ) -> asyncio.Future[T]:
        """Return a future of the call's result; cancelling it does not stop the call.

        `unwanted` is given a result whose future was cancelled, or whose loop is gone. `about`:
        whoever asks for one thing that hangs again and again keeps one thread, not all.

        Raises:
            Hangs: a call about the same thing was left, and has not ended.
        """
        if self._closed:
            raise RuntimeError("the disk's threads have ended")
        if about is not None and self._hangs(about):
            raise Hangs(about)
        loop = asyncio.get_running_loop()
        if self._idle:
            self._idle.pop()
        elif len(self._workers) < self._count:
            self._start()
        if len(self._workers) == self._count and self._looking is not loop:
            self._look_again(loop)
        future: asyncio.Future[T] = loop.create_future()
        self._queue.put(_Job(call, loop, future, unwanted, about))
        return future

    def _hangs(self, about: str) -> bool:
        workers = (*self._workers, *self._given_up)
        return any(each.is_left and each.is_about(about) for each in workers)

    def close(self, *, wait: bool = True) -> None:
        """Return once the calls that were taken are over and the threads have ended.

        In five seconds at most, and without `wait` at once: a disk or mount that hangs must not
        hold up whoever ends.
        """
        self._closed = True
        workers = [*self._workers, *self._given_up]  # of these one may just have come back
        _end(self._queue, len(workers))
        if wait:
            until = time.monotonic() + CLOSE_SECONDS
            for worker in workers:
                worker.thread.join(max(0.0, until - time.monotonic()))
        self._workers.clear()

    def _start(self) -> None:
        worker = _Worker()
        # Daemonic: a call that hangs does not keep the process, as little as a crash would.
        worker.thread = threading.Thread(
            target=_work,
            args=(self._queue, self._idle, self._first, worker),
            name=f"{self._name}-{self._started}",
            daemon=True,
        )
        worker.thread.start()
        self._started += 1
        self._workers.append(worker)

    def _look_again(self, loop: asyncio.AbstractEventLoop) -> None:
        self._looking = loop
        loop.call_later(RELIEF_SECONDS, _relieve, weakref.ref(self), loop)

    def relieve(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let others stand in for threads whose calls were left, as long as calls wait."""
        self._looking = None
        if self._closed or not self._queue.qsize():
            return
        self._look_again(loop)
        self._given_up = [each for each in self._given_up if each.thread.is_alive()]
        room = min(self._queue.qsize(), GIVEN_UP_MAX - len(self._given_up))
        for worker in [each for each in self._workers if each.is_left][: max(0, room)]:
            worker.given_up = True
            self._workers.remove(worker)
            self._given_up.append(worker)
            self._start()


def _relieve(pool: "weakref.ref[DiskThreads]", loop: asyncio.AbstractEventLoop) -> None:
    threads = pool()  # held by the timer it would outlive whoever forgot it
    if threads is not None:
        threads.relieve(loop)


def _end(queue: "SimpleQueue[_Job | None]", count: int) -> None:
    for _ in range(count):
        queue.put(None)


def _work(
    queue: "SimpleQueue[_Job | None]",
    idle: deque[None],
    first: Callable[[], None],
    worker: _Worker,
) -> None:
    first()
    while (job := queue.get()) is not None:
        worker.job = job
        result, failure = None, None
        try:
            result = job.call()
        except BaseException as error:  # noqa: BLE001 - it is raised where the call is awaited
            failure = error
        worker.job = None
        if not worker.given_up:
            idle.append(None)
        try:
            job.loop.call_soon_threadsafe(_settle, job, result, failure)
        except RuntimeError:  # the loop is closed
            _discard(job, result, failure)
        del job, result, failure  # nothing is kept alive while the thread waits
        if worker.given_up:
            return


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
