"""Token buckets: how many bytes per second a direction may move, changeable while it runs."""

import asyncio
from collections.abc import Mapping
from fnmatch import fnmatchcase
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


class Both:
    """Two limits at once. Its own is waited for first, so that nothing of the other is held."""

    def __init__(self, own: TokenBucket, whole: TokenBucket) -> None:
        self._own, self._whole = own, whole

    @property
    def bytes_per_second(self) -> int:
        """A limit in force; 0 for none."""
        return self._own.bytes_per_second or self._whole.bytes_per_second

    async def take(self, size: int) -> None:
        """Return when `size` bytes may move."""
        await self._own.take(size)
        await self._whole.take(size)


class TopicRates:
    """Limits by pattern of topics: those that match the same share it, the first match counts."""

    def __init__(self, rates: Mapping[str, int]) -> None:
        self._buckets = dict[str, TokenBucket]()
        self.set(rates)

    def set(self, rates: Mapping[str, int]) -> None:
        """Change the limits, for transfers in flight too: a pattern that is gone limits nothing."""
        former = self._buckets
        self._buckets = {pattern: former.get(pattern, TokenBucket()) for pattern in rates}
        for pattern, bucket in (former | self._buckets).items():
            bucket.set_rate(rates.get(pattern, 0))

    def pattern_of(self, topic: str) -> str | None:
        """Return the pattern that a topic is limited by; None: it is not."""
        return next((each for each in self._buckets if fnmatchcase(topic, each)), None)

    def with_whole(self, topic: str, whole: TokenBucket) -> "TokenBucket | Both":
        """Return what a copy of the topic takes from."""
        pattern = self.pattern_of(topic)
        return whole if pattern is None else Both(self._buckets[pattern], whole)
