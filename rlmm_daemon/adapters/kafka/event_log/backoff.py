"""Waiting longer after each failure, never in step with others."""

import random

import msgspec


class Backoff(msgspec.Struct):
    """Exponential, jittered over its upper half, capped; progress sets it back."""

    least_seconds: float
    most_seconds: float
    luck: random.Random
    failures: int = 0

    def next(self) -> float:
        """Return how long to wait after one more failure."""
        exponent = min(self.failures, 30)
        self.failures += 1
        wait = min(self.least_seconds * 2.0**exponent, self.most_seconds)
        return wait * (0.5 + self.luck.random() / 2)

    def reset(self) -> None:
        """There was progress."""
        self.failures = 0
