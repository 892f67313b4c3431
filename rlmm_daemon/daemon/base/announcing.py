"""Announcements of a broker, in the order in which they came, long ones in steps.

Fifty thousand user partitions at once would hold the loop for a tenth of a second and more.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, Final, TypeVar

from rlmm_daemon.daemon.base.fair_scheduler import FairScheduler

#: User partitions that one step takes up, in a millisecond or so.
STEP: Final = 256
T = TypeVar("T")
CreateTask = Callable[[Coroutine[Any, Any, Exception | None]], "asyncio.Task[Exception | None]"]


class Announcing:
    """The queue of announcements that need more than one step.

    What was begun is done, also where its connection is gone meanwhile: half of an announcement
    would be neither what was before nor what the broker said.
    """

    def __init__(self, turns: FairScheduler, create_task: CreateTask) -> None:
        self._turns, self._create_task = turns, create_task
        #: The last of those that are not through.
        self._last: asyncio.Task[Exception | None] | None = None

    def begin(self, steps: Iterator[None], *, short: bool) -> asyncio.Task[Exception | None] | None:
        """Take up an announcement, at once if it is `short` and no other is under way.

        Returns what ends with it, with the bug that it met if any; None: it was taken up.
        """
        if self._last is not None and self._last.done():
            self._last = None
        if short and self._last is None:
            for _ in steps:
                pass
            return None
        self._last = self._create_task(self._do(steps, self._last))
        return self._last

    async def _do(
        self, steps: Iterator[None], before: asyncio.Task[Exception | None] | None
    ) -> Exception | None:
        if before is not None:
            await asyncio.wait([before])
        try:
            for _ in steps:
                await self._turns.wait()
        except Exception as error:  # noqa: BLE001 - its request is answered with it
            return error
        return None


def pieces(whole: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield a sequence in pieces of one step."""
    for at in range(0, len(whole), STEP):
        yield whole[at : at + STEP]
