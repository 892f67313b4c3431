"""A rate per second, shared by all tasks."""

import asyncio
from collections.abc import Callable


class RateLimit:
    """Spends time in advance: whoever takes more than is left waits before the work, not after."""

    def __init__(self, per_second: float, monotonic: Callable[[], float]) -> None:
        """`per_second` 0: no limit."""
        self._per_second, self._monotonic = per_second, monotonic
        self._free_at = monotonic()

    async def take(self, count: int) -> None:
        """Return when `count` more may be done."""
        if not self._per_second:
            return
        now = self._monotonic()
        begin = max(now, self._free_at)
        self._free_at = begin + count / self._per_second
        if begin > now:
            await asyncio.sleep(begin - now)
