"""Token buckets: how many bytes per second a direction may move, changeable while it runs."""

import asyncio
from typing import Final

#: What may be saved up, as seconds of the rate: a burst no longer than that.
BURST_SECONDS: Final = 1.0
#: A change of the rate is seen by those who wait after so long at the latest.
NAP_SECONDS_MAX: Final = 1.0
NAP_SECONDS_MIN: Final = 0.001


class TokenBucket:
    """Tokens are bytes. Debt is allowed, so that one large take never waits for ever."""

    def __init__(self, bytes_per_second: int = 0) -> None:
        """0: no limit."""
        self._rate = bytes_per_second
        self._tokens = float(bytes_per_second) * BURST_SECONDS
        self._at: float | None = None
        #: First come, first served: naps alone would let whoever took last take again.
        self._turn = asyncio.Lock()

    @property
    def bytes_per_second(self) -> int:
        """The limit in force; 0 for none."""
        return self._rate

    def set_rate(self, bytes_per_second: int) -> None:
        """Change the limit for those who wait too. Saved tokens and debts shrink to fit."""
        self._rate = bytes_per_second
        most = bytes_per_second * BURST_SECONDS
        self._tokens = max(-most, min(self._tokens, most))

    async def take(self, size: int) -> None:
        """Return when `size` bytes may move: at once while there is a token left."""
        if not self._rate:
            return
        async with self._turn:
            while self._rate and not self._try(size):
                nap = (1 - self._tokens) / self._rate
                await asyncio.sleep(min(max(nap, NAP_SECONDS_MIN), NAP_SECONDS_MAX))

    def _try(self, size: int) -> bool:
        now = asyncio.get_running_loop().time()
        since = 0.0 if self._at is None else now - self._at
        self._at = now
        self._tokens = min(self._tokens + since * self._rate, self._rate * BURST_SECONDS)
        if self._tokens < 1:
            return False
        self._tokens -= size
        return True
