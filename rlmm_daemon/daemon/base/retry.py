"""Exponential back-off with jitter for what the storage could not do just now."""

import asyncio
import random
from typing import Final

from rlmm_daemon.domain.backoff import Backoff
from rlmm_daemon.domain.errors import UnavailableError

BACK_OFF_SECONDS: Final = 0.05
BACK_OFF_SECONDS_MAX: Final = 5.0
#: Without any new byte; the caller's own deadline is usually shorter.
STALL_SECONDS_MAX: Final = 300.0


class Retry:
    """The pauses of one piece of work, bounded by `stall_seconds_max` in all."""

    def __init__(
        self,
        rng: random.Random,
        *,
        first_seconds: float = BACK_OFF_SECONDS,
        stall_seconds_max: float = STALL_SECONDS_MAX,
    ) -> None:
        self._backoff = Backoff(first_seconds, BACK_OFF_SECONDS_MAX, rng.random)
        self._stall_seconds_max = stall_seconds_max
        self._waited = 0.0

    def progressed(self) -> None:
        """Begin anew: something came."""
        self._backoff.reset()
        self._waited = 0.0

    async def pause(self, error: UnavailableError) -> None:
        """Wait before the next attempt.

        Raises:
            UnavailableError: the one given, when it was waited for long enough, or when it says
                itself (`retry` False) that only a person can help: wrong keys, no such bucket.
        """
        if error.fields.get("retry") is False or self._waited >= self._stall_seconds_max:
            raise error
        seconds = self._backoff.next()
        await asyncio.sleep(seconds)
        self._waited += seconds
