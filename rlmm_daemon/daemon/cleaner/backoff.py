"""Waits after failures, by key: doubled with each further one, jittered, bounded."""

import random
from collections.abc import Callable, Hashable
from typing import Final

import msgspec

from rlmm_daemon.daemon.base.bounded import Bounded

#: Keys remembered; beyond it the oldest is tried again sooner than it would be.
KEYS_MAX: Final = 10_000


class _Failed(msgspec.Struct):
    times: int
    until: float
    message: str


class KeyBackoff:
    """Failures of many small pieces of work."""

    def __init__(
        self,
        monotonic: Callable[[], float],
        rng: random.Random,
        *,
        seconds_min: float,
        seconds_max: float,
    ) -> None:
        self._monotonic, self._rng = monotonic, rng
        self._min, self._max = seconds_min, seconds_max
        self._failed: Bounded[Hashable, _Failed] = Bounded(KEYS_MAX)

    def __len__(self) -> int:
        return len(self._failed)

    def waits(self, key: Hashable) -> bool:
        """Return whether this key's pause is not over."""
        failed = self._failed.get(key)
        return failed is not None and failed.until > self._monotonic()

    def left(self, key: Hashable) -> float:
        """Return the seconds until a key may be tried again."""
        failed = self._failed.get(key)
        return 0.0 if failed is None else max(0.0, failed.until - self._monotonic())

    def message(self, key: Hashable) -> str | None:
        """Return what a key last failed of; None too for one that merely waits."""
        failed = self._failed.get(key)
        return None if failed is None or not failed.times else failed.message

    def failed(self, key: Hashable, message: str) -> None:
        """Note a failure, and let the key wait."""
        before = self._failed.get(key)
        times = 1 if before is None else before.times + 1
        seconds = min(self._max, self._min * 2 ** min(times - 1, 30))
        until = self._monotonic() + seconds * self._rng.uniform(0.5, 1.0)
        self._failed[key] = _Failed(times, until, message)

    def wait(self, key: Hashable, seconds: float, message: str) -> None:
        """Let a key wait without having failed."""
        self._failed[key] = _Failed(0, self._monotonic() + seconds, message)

    def succeeded(self, key: Hashable) -> None:
        """Forget a key's failures."""
        self._failed.pop(key, None)
