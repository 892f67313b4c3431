"""Pieces of one epoch, each with the finished segment that answers for it: the last on top.

Segments are painted in the order in which they finished, so that the piece under an offset is the
one that finished last of all that cover it, and a look-up is one bisect. Taking a segment away
shows what lies beneath, which the caller names. Ordinary uploads never overlap: then a piece is a
segment's whole part in the epoch, and painting is an append.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable

from rlmm_daemon.core.fold.deferred_free import leave
from rlmm_daemon.domain.ids import SegmentId

#: Id -> (the segment's own end offset, whether its transaction index is non-empty).
Facts = Callable[[SegmentId], tuple[int, bool]]
#: (first offset, last offset, who answers there)
Piece = tuple[int, int, SegmentId]


class Cover:
    """The pieces, ascending, and two lists of piece starts for the transaction index walk."""

    __slots__ = ("breaks", "ends", "ids", "reach", "starts", "txn")

    def __init__(self) -> None:
        self.starts = array("q")
        self.ends = array("q")
        self.ids: list[SegmentId] = []
        #: Starts of pieces whose segment has a non-empty transaction index.
        self.txn = array("q")
        #: Starts of pieces whose segment's end + 1 is not simply where the next piece starts.
        self.breaks = array("q")
        #: No part painted here was longer; bounds the search for what lies beneath.
        self.reach = 0

    def __del__(self) -> None:
        leave(self.ids)

    def append(self, piece: Piece, segment_end: int, *, has_txn_index: bool) -> None:
        """Add a piece behind all others; what an ordinary COPY_SEGMENT_FINISHED costs."""
        start, end, segment_id = piece
        if self.starts and self.ends[-1] + 1 != start:
            last = self.starts[-1]
            if not self.breaks or self.breaks[-1] != last:
                self.breaks.append(last)
        self.starts.append(start)
        self.ends.append(end)
        self.ids.append(segment_id)
        self.reach = max(self.reach, end - start)
        if segment_end != end:
            self.breaks.append(start)
        if has_txn_index:
            self.txn.append(start)

    def paint(self, piece: Piece, facts: Facts) -> bool:
        """Put a piece on top; True if it hid anything of another segment."""
        start, end, segment_id = piece
        assert start <= end
        self.reach = max(self.reach, end - start)
        low, high = self._touching(start, end)
        pieces = [piece]
        hidden = any(owner != segment_id for owner in self.ids[low:high])
        if low < high:
            if self.starts[low] < start:
                pieces.insert(0, (self.starts[low], start - 1, self.ids[low]))
            if self.ends[high - 1] > end:
                pieces.append((end + 1, self.ends[high - 1], self.ids[high - 1]))
        self._splice(low, high, pieces, facts)
        return hidden

    def lift(self, piece: Piece, beneath: Iterable[Piece], facts: Facts) -> None:
        """Take a segment's part away; `beneath` are the other parts there, topmost first."""
        start, end, segment_id = piece
        low, high = self._touching(start, end)
        if low == high:
            return
        if high - low == 1 and self.ids[low] == segment_id:
            beneath = tuple(beneath)
            if not beneath:
                self._take_out(low, facts)
                return
        kept: list[Piece] = []
        gaps: list[tuple[int, int]] = []
        for at in range(low, high):
            if self.ids[at] == segment_id:
                gaps.append((self.starts[at], self.ends[at]))
            else:
                kept.append((self.starts[at], self.ends[at], self.ids[at]))
        if gaps:
            self._splice(low, high, sorted(kept + _fill(gaps, beneath)), facts)

    def _take_out(self, at: int, facts: Facts) -> None:
        """Remove one piece and leave a gap: what nearly every DELETE_SEGMENT_STARTED costs."""
        start = self.starts[at]
        del self.starts[at], self.ends[at], self.ids[at]
        _discard(self.txn, start)
        _discard(self.breaks, start)
        if at:  # the one before has another successor now
            before = self.starts[at - 1]
            _discard(self.breaks, before)
            if self._breaks_at(at - 1, facts(self.ids[at - 1])[0]):
                _insert(self.breaks, [before])

    def insert(self, pieces: list[Piece], facts: Facts) -> None:
        """Add pieces where there are none, ascending; they are not joined."""
        at = bisect_left(self.starts, pieces[0][0])
        self.starts[at:at] = array("q", [piece[0] for piece in pieces])
        self.ends[at:at] = array("q", [piece[1] for piece in pieces])
        self.ids[at:at] = [piece[2] for piece in pieces]
        with_txn = [start for start, _, segment_id in pieces if facts(segment_id)[1]]
        _insert(self.txn, with_txn)
        # What lay before them has another successor now.
        first = max(0, at - 1)
        behind = at + len(pieces)
        _cut(self.breaks, self.starts[first], self.starts[behind - 1])
        _insert(self.breaks, self._broken(first, behind, facts))

    def walk(self, offset: int) -> tuple[SegmentId | None, int | None]:
        """Go on from `offset` to the first segment with a non-empty transaction index.

        Returns it, or the index of the piece behind which the walk has to look for itself; neither
        if no piece holds `offset`. Pieces that follow one another are passed in one bisect.
        """
        at = bisect_right(self.starts, offset) - 1
        if at < 0 or offset > self.ends[at]:
            return None, None
        here = self.starts[at]
        found = bisect_left(self.txn, here)
        stop = bisect_left(self.breaks, here)
        broken = self.breaks[stop] if stop < len(self.breaks) else self.starts[-1]
        if found < len(self.txn) and self.txn[found] <= broken:
            return self.ids[bisect_left(self.starts, self.txn[found])], None
        return None, bisect_left(self.starts, broken)

    def _touching(self, start: int, end: int) -> tuple[int, int]:
        low = bisect_right(self.starts, start) - 1
        if low < 0 or self.ends[low] < start:
            low += 1
        return low, bisect_right(self.starts, end, lo=low)

    def _splice(self, low: int, high: int, pieces: list[Piece], facts: Facts) -> None:
        """Replace pieces low..high-1; neighbours that became one are joined."""
        if low:
            low -= 1
            pieces.insert(0, (self.starts[low], self.ends[low], self.ids[low]))
        if high < len(self.starts):
            pieces.append((self.starts[high], self.ends[high], self.ids[high]))
            high += 1
        pieces = _joined(pieces)
        if low < high:
            first, last = self.starts[low], self.starts[high - 1]
            _cut(self.txn, first, last)
            _cut(self.breaks, first, last)
        self.starts[low:high] = array("q", [piece[0] for piece in pieces])
        self.ends[low:high] = array("q", [piece[1] for piece in pieces])
        self.ids[low:high] = [piece[2] for piece in pieces]
        # The piece before the window keeps its start, end and successor's start, but the last
        # piece of the window may have a new successor: none, or one with the same start as before.
        behind = low + len(pieces)
        with_txn = [self.starts[at] for at in range(low, behind) if facts(self.ids[at])[1]]
        _insert(self.txn, with_txn)
        _insert(self.breaks, self._broken(low, behind, facts))

    def _broken(self, low: int, high: int, facts: Facts) -> list[int]:
        return [
            self.starts[at]
            for at in range(low, high)
            if self._breaks_at(at, facts(self.ids[at])[0])
        ]

    def _breaks_at(self, at: int, segment_end: int) -> bool:
        if segment_end != self.ends[at]:
            return True
        return at + 1 < len(self.starts) and self.starts[at + 1] != segment_end + 1


def _fill(gaps: list[tuple[int, int]], beneath: Iterable[Piece]) -> list[Piece]:
    pieces: list[Piece] = []
    for start, end, segment_id in beneath:
        if not gaps:
            break
        left: list[tuple[int, int]] = []
        for first, last in gaps:
            low, high = max(first, start), min(last, end)
            if low > high:
                left.append((first, last))
                continue
            pieces.append((low, high, segment_id))
            left += [gap for gap in ((first, low - 1), (high + 1, last)) if gap[0] <= gap[1]]
        gaps = left
    return pieces


def _joined(pieces: list[Piece]) -> list[Piece]:
    joined: list[Piece] = []
    for piece in pieces:
        start, end, segment_id = piece
        if joined and joined[-1][2] == segment_id and joined[-1][1] + 1 == start:
            joined[-1] = (joined[-1][0], end, segment_id)
        else:
            joined.append(piece)
    return joined


def _cut(column: "array[int]", first: int, last: int) -> None:
    del column[bisect_left(column, first) : bisect_right(column, last)]


def _discard(column: "array[int]", value: int) -> None:
    at = bisect_left(column, value)
    if at < len(column) and column[at] == value:
        del column[at]


def _insert(column: "array[int]", values: list[int]) -> None:
    if values:
        at = bisect_left(column, values[0])
        column[at:at] = array("q", values)
