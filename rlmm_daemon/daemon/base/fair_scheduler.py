"""Fair scheduling of long works: of all under way, one does a step in each turn of the loop.

If each of five did one in every turn, a look-up that comes in would wait for five steps.
"""

import asyncio
import os
from collections import deque
from typing import Final

from rlmm_daemon.core.fold import deferred_free

#: So often somebody looks whether anything was left to be freed, and for so long in one turn.
LEFT_SECONDS: Final = 0.25
SLICE_SECONDS: Final = 0.0003


class FairScheduler:
    """The queue of one loop's long works: who has done a step waits until the others had theirs."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        #: Whether somebody was given a turn that he has not begun.
        self._given = False
        self._answered = False

    def answered(self) -> None:
        """Somebody was answered who may wait for this very processor: let him run first."""
        self._answered = True

    async def wait(self, *, yields: bool = True) -> None:
        """Return in a later turn of the loop, in which nobody else returns from here.

        With `yields`, whoever was answered in the turns before gets the processor first, if he
        waits for this one. The kernel would leave it to a thread that never sleeps until a tick or
        two later, and the broker's thread that was woken on the same processor would have its
        answer and not run. A work that soon waits by itself does without: on a busy machine it
        would be milliseconds until the loop runs again. So does a turn in which nobody was
        answered: Linux charges a whole slice for it, 3 ms, and who gives away what is left of one
        after a tenth of it is left a tenth of his share beside other processes.
        """
        future: asyncio.Future[None] | None = None
        try:
            if self._given:
                future = asyncio.get_running_loop().create_future()
                self._waiting.append(future)
                await future
            else:
                self._given = True
                await asyncio.sleep(0)
            if yields and self._answered:
                self._answered = False
                os.sched_yield()
        finally:
            if future is None or not future.cancelled():  # else it was not ours to pass on
                self._pass_on()

    def _pass_on(self) -> None:
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)
                return
        self._given = False


async def keep_freeing(turns: FairScheduler) -> None:
    """Free what is left of long containers, for ever."""
    loop = asyncio.get_running_loop()
    with deferred_free.freed():
        while True:
            await asyncio.sleep(LEFT_SECONDS)
            until = loop.time() + SLICE_SECONDS
            while deferred_free.free_some():
                if loop.time() >= until:
                    await turns.wait()
                    until = loop.time() + SLICE_SECONDS
