"""Processor time against size: repeated measurements of a workload, and the exponent of its curve.

Processor time, because whatever else the machine does is no growth of ours. Of several repeats the
least counts: noise only adds.
"""

import gc
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

#: A total may grow so much faster than its size.
EXPONENT_MAX: Final = 1.1
#: A point is repeated until it took so long in all, at least and at most so often.
SECONDS_EACH: Final = 0.1
REPEATS: Final = (2, 10)


@dataclass(slots=True)
class Cost:
    """What one operation cost in all, and its longest step, which holds the loop."""

    #: Or whatever else the unit says.
    seconds: float = math.inf
    hold: float = 0.0
    unit: str = "s"

    def each(self, size: int) -> str:
        """Return the part of one of `size` things, in words: microseconds, if it is a time."""
        if self.unit == "s":
            return f"{self.seconds / size * 1e6:.3g} us"
        return f"{self.seconds / size:.3g} {self.unit}"


class Watch:
    """Measures the steps of one repeat: all together, or each by itself for the longest."""

    def __init__(self, *, each: bool) -> None:
        self.each = each
        self.costs: dict[str, Cost] = {}

    def steps(self, what: str, work: Iterable[object]) -> None:
        """Do the work of an iterator, each of whose items is the end of a step."""
        if self.each:
            self.costs[what] = Cost(hold=_longest(work))
            return
        begun = time.process_time()
        deque(work, maxlen=0)
        self.costs[what] = Cost(time.process_time() - begun)

    def once(self, what: str, work: Callable[[], object]) -> None:
        """Do work that is one step."""
        self.steps(what, (work() for _ in range(1)))

    def told(self, what: str, cost: Cost) -> None:
        """Take up what the workload measured itself."""
        self.costs[what] = cost


def _longest(work: Iterable[object]) -> float:
    longest, steps, now = 0.0, iter(work), time.thread_time
    while True:
        begun = now()
        try:
            next(steps)
        except StopIteration:
            return longest
        longest = max(longest, now() - begun)


Workload = Callable[[int, Watch], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """A workload, and the sizes that it is measured at."""

    workload: Workload
    of: str
    sizes: Sequence[int]
    quick: Sequence[int]
    #: Whether the longest step is one that holds a daemon's loop, and so has a budget.
    holds: bool = True


@dataclass(slots=True)
class Curve:
    """Costs of one operation by size."""

    of: str
    what: str
    holds: bool = True
    points: dict[int, Cost] = field(default_factory=dict)

    @property
    def exponent(self) -> float:
        """The slope of a straight line through the points, both axes logarithmic."""
        xs = [math.log(size) for size in self.points]
        ys = [math.log(max(cost.seconds, 1e-9)) for cost in self.points.values()]
        x, y = sum(xs) / len(xs), sum(ys) / len(ys)
        above = sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True))
        return above / sum((a - x) ** 2 for a in xs)

    @property
    def largest(self) -> tuple[int, Cost]:
        """The greatest size and its cost."""
        return max(self.points.items())


def measure(growth: Growth, size: int, *, holds: bool) -> Mapping[str, Cost]:
    """Return the least cost of each operation of a workload at one size."""
    least: dict[str, Cost] = {}
    fewest, most = REPEATS
    begun, repeats = time.process_time(), 0
    while repeats < fewest or (repeats < most and time.process_time() - begun < SECONDS_EACH):
        for what, cost in _repeat(growth, size, each=False).items():
            known = least.setdefault(what, Cost(unit=cost.unit))
            known.seconds = min(known.seconds, cost.seconds)
        repeats += 1
    for what, cost in _repeat(growth, size, each=True).items() if holds else ():
        least[what].hold = cost.hold
    return least


def _repeat(growth: Growth, size: int, *, each: bool) -> Mapping[str, Cost]:
    watch = Watch(each=each)
    gc.collect()
    gc.disable()  # its pauses belong to nobody's curve; the daemon freezes what lives long
    try:
        growth.workload(size, watch)
    finally:
        gc.enable()
    return watch.costs


def curves(growth: Growth, *, quick: bool) -> list[Curve]:
    """Return a curve for each operation of a workload."""
    found: dict[str, Curve] = {}
    for size in growth.quick if quick else growth.sizes:
        for what, cost in measure(growth, size, holds=not quick).items():
            curve = found.setdefault(what, Curve(growth.of, what, holds=growth.holds))
            curve.points[size] = cost
    return list(found.values())
