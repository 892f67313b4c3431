"""A source's blocking reads, on both sides of the storage's seam: in a thread, let go in time."""

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable
from typing import Final, TypeVar

from rlmm_daemon.ports.disk_threads import DiskThreads

#: For a thread to end after a cancel: one read of a disk that works, however busy.
LET_GO_SECONDS: Final = 10.0

#: Of threads that copy: what they read and hash would fill both of two processors, and neither a
#: look-up nor what a producer waits for in the broker may come behind it.
COPY_NICE: Final = 5

T = TypeVar("T")


def copying_threads(count: int, name: str) -> DiskThreads:
    """Return threads that read, hash and write what is copied, and come behind all others."""
    return DiskThreads(count, name, come_behind)


def come_behind() -> None:
    """Have the calling thread give way to all others that want a processor."""
    # On Linux a thread has a niceness of its own, which those that it starts inherit.
    thread = threading.get_native_id()
    with contextlib.suppress(OSError):  # of no consequence for what is copied
        nice = os.getpriority(os.PRIO_PROCESS, thread) + COPY_NICE  # the kernel knows the bound
        os.setpriority(os.PRIO_PROCESS, thread, nice)


async def in_thread(
    threads: DiskThreads, work: Callable[[], T], stop: threading.Event | None = None
) -> T:
    """Run blocking work in one of `threads`; a cancel sets `stop` and waits for the work to end.

    Not for ever: a disk or mount that hangs keeps the thread, never the caller. The work must bear
    that its files are closed then; nobody takes what it comes to.
    """
    future = threads.run(work)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        if stop is not None:
            stop.set()
        await let_go(future)
        raise


async def let_go(future: asyncio.Future[T]) -> None:
    """Wait for a thread, however often the caller is cancelled: it may close the file then.

    One that is not over by then is cancelled: nobody takes what it comes to.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + LET_GO_SECONDS
    while not future.done() and (left := until - loop.time()) > 0:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([future], timeout=left)
    if not future.cancel() and not future.cancelled():
        future.exception()  # retrieved: nobody asks any more
