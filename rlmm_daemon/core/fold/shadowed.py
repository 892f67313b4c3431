"""Finished segments of one epoch that Kafka's referenced set has lost, found by their offsets.

A deletion asks which of them lie beneath what it takes away. They are kept in classes by length,
each sorted by start: then a few bisects find all that touch a range, however long others are.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from rlmm_daemon.core.fold.cover import Piece
from rlmm_daemon.domain.ids import SegmentId


class Shadowed:
    """Parts by offset. Empty ones are left out: they cover nothing."""

    __slots__ = ("_classes",)

    def __init__(self) -> None:
        #: Bits of a part's length -> starts, ascending, and whose they are.
        self._classes: dict[int, tuple[array[int], list[SegmentId]]] = {}

    def add(self, part: Piece) -> None:
        """Take up a part that is not there."""
        start, end, segment_id = part
        if start > end:
            return
        bits = (end - start).bit_length()
        starts, ids = self._classes.setdefault(bits, (array("q"), []))
        at = bisect_right(starts, start)
        starts.insert(at, start)
        ids.insert(at, segment_id)

    def discard(self, part: Piece) -> None:
        """Forget a part, if it is there."""
        start, end, segment_id = part
        starts, ids = self._classes.get((end - start).bit_length(), (array("q"), []))
        low = bisect_left(starts, start)
        for at in range(low, bisect_right(starts, start, lo=low)):
            if ids[at] == segment_id:
                del starts[at], ids[at]
                return

    def touching(self, low: int, high: int) -> Iterator[SegmentId]:
        """Yield whose parts may touch low..high: all that do, and few that do not."""
        for bits, (starts, ids) in self._classes.items():
            first = bisect_right(starts, low - (1 << bits))
            yield from ids[first : bisect_right(starts, high, lo=first)]
