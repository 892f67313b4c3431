"""Turns of copies: so many at once, and of topics that share a limit one at a time.

A copy that waits for a limit of its own would keep a turn from those that wait for none.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary


class Turns:
    """Of one copier; first come, first served within a lane."""

    def __init__(self, parallel_max: int, lane_of: Callable[[str], str | None]) -> None:
        """`lane_of` names what a topic shares its limit with; None: it has none of its own."""
        self._all = asyncio.Semaphore(parallel_max)
        self._lane_of = lane_of
        self._lanes: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def of(self, topic: str) -> AsyncIterator[None]:
        """Hold a turn of a topic's copy."""
        lane = self._lane_of(topic)
        if lane is None:
            async with self._all:
                yield
            return
        lock = self._lanes.get(lane) or self._lanes.setdefault(lane, asyncio.Lock())
        async with lock, self._all:
            yield
