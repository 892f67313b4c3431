"""Time in the simulation: the loop's virtual seconds, and a wall clock that may jump."""

import bisect
import random
from typing import Final

from tests.simulation.loop import SimLoop

#: 2026-01-01T00:00:00Z, where every world begins.
EPOCH_MS: Final = 1_767_225_600_000


class SimClock:
    """`ports.clock.Clock`. The wall clock follows the loop, plus the jumps drawn beforehand."""

    def __init__(self, loop: SimLoop, rng: random.Random, *, jumps: int = 0) -> None:
        self._loop = loop
        self._times = sorted(rng.uniform(0, 600) for _ in range(jumps))
        self._offsets_ms = [0] + [rng.randint(-3_600_000, 3_600_000) for _ in range(jumps)]

    def now_ms(self) -> int:
        now = self._loop.time()
        return EPOCH_MS + int(now * 1000) + self._offsets_ms[bisect.bisect(self._times, now)]

    def monotonic(self) -> float:
        return self._loop.time()
