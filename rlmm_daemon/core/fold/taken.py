"""Rows of a sealed column that do not count any more: sorted, disjoint ranges."""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator


class Taken:
    """A set of indexes below `size`, kept as ranges: changes come in runs, at both ends."""

    __slots__ = ("_highs", "_lows", "count", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        #: How many are in the set.
        self.count = 0
        self._lows = array("Q")
        self._highs = array("Q")

    def copy(self) -> "Taken":
        """Return an equal set."""
        other = Taken(self.size)
        other.count = self.count
        other._lows, other._highs = self._lows[:], self._highs[:]
        return other

    def __contains__(self, index: int) -> bool:
        at = bisect_right(self._lows, index) - 1
        return at >= 0 and index < self._highs[at]

    def add(self, low: int, high: int) -> None:
        """Take low..high-1, of which some may be taken already."""
        if low >= high:
            return
        first = bisect_left(self._highs, low)
        behind = bisect_right(self._lows, high)
        if first < behind:
            low = min(low, self._lows[first])
            high = max(high, self._highs[behind - 1])
            self.count -= sum(self._highs[at] - self._lows[at] for at in range(first, behind))
        self._lows[first:behind] = array("Q", [low])
        self._highs[first:behind] = array("Q", [high])
        self.count += high - low

    def before(self, index: int) -> int:
        """Return the last index below `index` that is left, or -1."""
        index -= 1
        at = bisect_right(self._lows, index) - 1
        return self._lows[at] - 1 if at >= 0 and index < self._highs[at] else index

    def behind(self, index: int) -> int:
        """Return the first index from `index` on that is left, or `size`."""
        at = bisect_right(self._lows, index) - 1
        return self._highs[at] if at >= 0 and index < self._highs[at] else index

    def left(self, low: int, high: int) -> Iterator[tuple[int, int]]:
        """Yield the ranges within low..high-1 that are left, ascending."""
        while (low := self.behind(low)) < high:
            at = bisect_left(self._lows, low)
            end = min(high, self._lows[at]) if at < len(self._lows) else high
            yield low, end
            low = end

    def ranges(self) -> Iterator[tuple[int, int]]:
        """Yield the ranges that are taken, ascending."""
        yield from zip(self._lows, self._highs, strict=True)
