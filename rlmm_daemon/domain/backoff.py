"""Exponential back-off: longer waits after each failure, never in step with others."""

from collections.abc import Callable

import msgspec


class Backoff(msgspec.Struct):
    """Doubles up to its most, jittered over the upper half; progress sets it back."""

    least_seconds: float
    most_seconds: float
    #: Between 0 and 1, drawn anew each time: `random.Random().random`.
    luck: Callable[[], float]
    failures: int = 0

    def next(self) -> float:
        """Return how many seconds to wait after one more failure."""
        wait = self.bound
        self.failures += 1
        return wait * (0.5 + self.luck() / 2)

    @property
    def bound(self) -> float:
        """The seconds that the next wait has at most."""
        return min(self.least_seconds * 2.0 ** min(self.failures, 30), self.most_seconds)

    def reset(self) -> None:
        """There was progress."""
        self.failures = 0


def full() -> float:
    """Return the luck of who waits all of each bound: nobody else waits for the same."""
    return 1.0
