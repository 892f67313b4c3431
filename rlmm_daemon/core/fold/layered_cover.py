"""A cover over a sealed one: what changed lies in a cover of its own, the rest stays in the file.

A piece that is about to change, and its neighbours, are first taken over into the own cover; from
then on the sealed piece does not count. So the own cover decides every change with the same rules
as ever, and nothing is converted: a change costs what it touches, however large the table is.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from rlmm_daemon.core.fold.cover import Cover, Facts, Piece
from rlmm_daemon.core.fold.taken import Taken
from rlmm_daemon.domain.ids import SegmentId

if TYPE_CHECKING:
    from rlmm_daemon.codec.sealed_table import SealedEpoch

_NOTHING = Taken(0)


class LayeredCover:
    """The disjoint pieces of one epoch, some of them in a sealed table."""

    __slots__ = ("own", "sealed", "taken")

    def __init__(self, sealed: "SealedEpoch | None" = None) -> None:
        self.own = Cover()
        self.sealed = sealed
        self.taken = _NOTHING if sealed is None else Taken(len(sealed.starts))
        if sealed is not None:
            self.own.reach = sealed.reach

    def locate(self, offset: int) -> SegmentId | int | None:
        """Return who answers for `offset`: an id, or the row of a sealed piece. Two bisects."""
        own = self.own
        at = bisect_right(own.starts, offset) - 1
        if at >= 0 and offset <= own.ends[at]:
            return own.ids[at]
        sealed = self.sealed
        if sealed is None:
            return None
        at = bisect_right(sealed.starts, offset) - 1
        if at < 0 or offset > sealed.ends[at] or (self.taken.count and at in self.taken):
            return None
        return sealed.rows[at]

    def find(self, offset: int) -> SegmentId | None:
        """Return who answers for `offset`."""
        found = self.locate(offset)
        if isinstance(found, int):
            assert self.sealed is not None, "only sealed pieces have rows"
            return self.sealed.table.id(found)
        return found

    def until(self, offset: int) -> int:
        """Return the last offset for which the one that answers for `offset` answers as well."""
        own, sealed = self.own, self.sealed
        at = bisect_right(own.starts, offset) - 1
        if at >= 0 and offset <= own.ends[at]:
            return own.ends[at]
        assert sealed is not None, "somebody answers for it"
        return sealed.ends[bisect_right(sealed.starts, offset) - 1]

    def touching(self, low: int, high: int) -> list[SegmentId]:
        """Return who answers for any of the offsets low..high."""
        found: list[SegmentId] = []
        while low <= high:
            if (owner := self.find(low)) is not None:
                found.append(owner)
                low = self.until(low) + 1
            else:
                low = self._next_start(low, high)
        return found

    def _next_start(self, low: int, high: int) -> int:
        """Return where the first piece behind `low` starts; behind `high` if none does up to it."""
        own = self.own.starts
        at = bisect_right(own, low)
        found = own[at] if at < len(own) else high + 1
        if self.sealed is not None:
            first = bisect_right(self.sealed.starts, low)
            begin, _ = next(self.taken.left(first, self.taken.size), (self.taken.size, 0))
            if begin < self.taken.size:
                found = min(found, self.sealed.starts[begin])
        return min(found, high + 1)

    def __len__(self) -> int:
        return len(self.own.starts) + self.taken.size - self.taken.count

    def last(self) -> tuple[int, int] | None:
        """Return the first and last offset of the last piece."""
        own, sealed = self.own, self.sealed
        found = (own.starts[-1], own.ends[-1]) if own.starts else None
        if sealed is not None and (at := self.taken.before(self.taken.size)) >= 0:
            here = (sealed.starts[at], sealed.ends[at])
            found = here if found is None else max(found, here)
        return found

    @property
    def reach(self) -> int:
        """No part painted here was longer."""
        return self.own.reach

    def append(self, piece: Piece, segment_end: int, *, has_txn_index: bool) -> None:
        """Add a piece behind all others; what an ordinary COPY_SEGMENT_FINISHED costs."""
        self.own.append(piece, segment_end, has_txn_index=has_txn_index)

    def paint(self, piece: Piece, facts: Facts) -> bool:
        """Put a piece on top; True if it hid anything of another segment."""
        self.take_over(piece[0], piece[1], facts)
        return self.own.paint(piece, facts)

    def lift(self, piece: Piece, beneath: Iterable[Piece], facts: Facts) -> None:
        """Take a segment's part away; `beneath` are the other parts there, topmost first."""
        self.take_over(piece[0], piece[1], facts)
        self.own.lift(piece, beneath, facts)

    def take_over(self, start: int, end: int, facts: Facts) -> None:
        """Make the own cover hold all pieces that touch start..end, and both neighbours."""
        sealed, taken = self.sealed, self.taken
        if sealed is None or taken.count == taken.size:
            return
        low = bisect_right(sealed.starts, start) - 1
        if low < 0 or sealed.ends[low] < start:
            low += 1
        high = bisect_right(sealed.starts, end, lo=low)
        low = max(0, taken.before(low))
        high = min(taken.size, taken.behind(high) + 1)
        for first, behind in list(taken.left(low, high)):
            self._take(first, behind, facts)

    def _take(self, first: int, behind: int, facts: Facts) -> None:
        sealed = self.sealed
        assert sealed is not None, "there is something to take over"
        rows, ident = sealed.rows, sealed.table.id
        pieces = [
            (sealed.starts[at], sealed.ends[at], ident(rows[at])) for at in range(first, behind)
        ]
        self.own.insert(pieces, facts)
        self.taken.add(first, behind)

    # Walks.

    def next_with_txn_index(self, offset: int, facts: Facts) -> SegmentId | None:
        """Return the first segment with a non-empty transaction index on Kafka's walk.

        The walk goes from the segment at `offset` to the one at its segment's end + 1, and ends in
        nothing at the first offset without one. Within a layer, pieces that follow one another are
        passed in one bisect.
        """
        while True:
            found, following = self._walk(offset, facts)
            if found is not None or following is None:
                return found
            # Epochs that lie outside their segment's own range would lead Kafka in a circle.
            if following <= offset:
                return None
            offset = following

    def _walk(self, offset: int, facts: Facts) -> tuple[SegmentId | None, int | None]:
        """Return the answer, or else where to go on; neither at the walk's end."""
        found, at = self.own.walk(offset)
        if found is None and at is None:
            return self._walk_sealed(offset, facts)
        if found is not None:
            return found, None
        assert at is not None, "a walk ends at a piece"
        return None, facts(self.own.ids[at])[0] + 1

    def _walk_sealed(self, offset: int, facts: Facts) -> tuple[SegmentId | None, int | None]:
        sealed = self.sealed
        if sealed is None:
            return None, None
        at = bisect_right(sealed.starts, offset) - 1
        if at < 0 or offset > sealed.ends[at] or at in self.taken:
            return None, None
        behind = next(self.taken.left(at, self.taken.size))[1]
        first_txn = _first(sealed.txn, at, behind)
        first_break = _first(sealed.breaks, at, behind)
        if first_txn < behind and first_txn <= first_break:
            return sealed.table.id(sealed.rows[first_txn]), None
        stop = min(first_break, behind - 1)
        return None, facts(sealed.table.id(sealed.rows[stop]))[0] + 1

    # The whole.

    def runs(self) -> Iterator[tuple[bool, int, int]]:
        """Yield (sealed?, low, high): ranges of pieces of either layer, ascending together."""
        own, sealed = self.own.starts, self.sealed
        at = 0
        if sealed is not None:
            for low, high in self.taken.left(0, self.taken.size):
                first = low
                while first < high:
                    behind = bisect_left(own, sealed.starts[first], lo=at)
                    if behind > at:
                        yield False, at, behind
                        at = behind
                    stop = (
                        bisect_left(sealed.starts, own[at], lo=first, hi=high)
                        if at < len(own)
                        else high
                    )
                    yield True, first, stop
                    first = stop
        if at < len(own):
            yield False, at, len(own)

    def owners(self) -> Iterator[Sequence[SegmentId | int]]:
        """Yield who owns the pieces, ascending, in runs: ids, or rows of sealed pieces."""
        for is_sealed, low, high in self.runs():
            if is_sealed:
                assert self.sealed is not None, "a sealed run"
                yield self.sealed.rows[low:high]
            else:
                yield self.own.ids[low:high]

    def refs(self) -> list[SegmentId | int]:
        """Return who owns the pieces, ascending: ids, or rows of sealed pieces."""
        return list(chain.from_iterable(self.owners()))

    def frozen(self) -> "LayeredCover":
        """Return a copy that knows who owns the pieces; what is sealed is shared."""
        other = LayeredCover(self.sealed)
        other.own.starts, other.own.ids = self.own.starts[:], self.own.ids[:]
        other.taken = self.taken.copy()
        return other

    def ids(self) -> list[SegmentId]:
        """Return who owns the pieces, ascending; not to be changed."""
        sealed = self.sealed
        if sealed is None:
            return self.own.ids
        found: list[SegmentId] = []
        for is_sealed, low, high in self.runs():
            if is_sealed:
                found += map(sealed.table.id, sealed.rows[low:high])
            else:
                found += self.own.ids[low:high]
        return found

    def items(self) -> Iterator[tuple[int, SegmentId]]:
        """Yield where each piece starts and who owns it, ascending."""
        for is_sealed, low, high in self.runs():
            sealed = self.sealed if is_sealed else None
            if sealed is not None:
                rows = map(sealed.table.id, sealed.rows[low:high])
                yield from zip(sealed.starts[low:high], rows, strict=True)
            else:
                yield from zip(self.own.starts[low:high], self.own.ids[low:high], strict=True)

    def starts(self) -> "array[int]":
        """Return where the pieces start, ascending; not to be changed."""
        sealed = self.sealed
        if sealed is None:
            return self.own.starts
        found = array("q")
        for is_sealed, low, high in self.runs():
            if is_sealed:
                found.frombytes(sealed.starts[low:high].tobytes())
            else:
                found += self.own.starts[low:high]
        return found


def _first(column: memoryview, at: int, otherwise: int) -> int:
    """Return the first number in an ascending column that is `at` or more and below `otherwise`."""
    found = bisect_left(column, at)
    return min(column[found], otherwise) if found < len(column) else otherwise
