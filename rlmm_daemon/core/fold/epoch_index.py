"""Segments of a leader epoch: Kafka's two sets, a third one, and who answers look-ups.

Kafka's two sets decide listings and are kept exactly, with their odd corners (a finished segment
can drop out of both: that one goes to the third set). Look-ups ask the cover instead. As long as no
two finished segments overlap, the cover *is* Kafka's referenced set, and only it is kept.
Source: RemoteLogLeaderEpochState, RemoteLogMetadataCache.
"""

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING

from rlmm_daemon.core.fold.cover import Facts, Piece
from rlmm_daemon.core.fold.deferred_free import leave
from rlmm_daemon.core.fold.layered_cover import LayeredCover
from rlmm_daemon.core.fold.referenced import Referenced
from rlmm_daemon.core.fold.shadowed import Shadowed
from rlmm_daemon.domain.ids import SegmentId

if TYPE_CHECKING:
    from rlmm_daemon.codec.sealed_table import SealedEpoch

#: Id -> its part in this epoch if it is finished and live, else None.
PartOf = Callable[[SegmentId], Piece | None]


class EpochIndex:
    """What one epoch holds while it holds anything, over what a sealed table says of it."""

    __slots__ = (
        "_ranks",
        "_sealed",
        "_shadowed",
        "_third",
        "_unreferenced",
        "cover",
        "referenced",
    )

    def __init__(self, sealed: "SealedEpoch | None" = None) -> None:
        self._sealed = sealed
        self.cover = LayeredCover(sealed)
        #: Kafka's `offsetToId`; None while it is exactly the cover.
        self.referenced: Referenced | None = None
        if sealed is not None and not sealed.plain:
            self.referenced = Referenced.of_sealed(sealed)
        # The sets below are small but for a partition that is being deleted whole, so they are
        # taken out of the sealed table as a whole when one is first asked for.
        self._unreferenced: dict[SegmentId, None] | None = None
        self._third: dict[SegmentId, None] | None = None
        self._ranks: dict[SegmentId, int] | None = None
        #: The finished ones of the two sets before, where the cover alone does not do; None: not
        #: looked for yet.
        self._shadowed: Shadowed | None = None

    def __del__(self) -> None:
        leave(self._unreferenced)

    @property
    def unreferenced(self) -> dict[SegmentId, None]:
        """Kafka's `unreferencedSegmentIds`, in the order in which they came."""
        if self._unreferenced is None:
            self._unreferenced = dict.fromkeys(self._unsealed("unreferenced"))
        return self._unreferenced

    @unreferenced.setter
    def unreferenced(self, ids: dict[SegmentId, None]) -> None:
        self._unreferenced = ids

    @property
    def third(self) -> dict[SegmentId, None]:
        """Finished, but in neither of Kafka's sets."""
        if self._third is None:
            self._third = dict.fromkeys(self._unsealed("third"))
        return self._third

    @third.setter
    def third(self, ids: dict[SegmentId, None]) -> None:
        self._third = ids

    @property
    def ranks(self) -> dict[SegmentId, int]:
        """Segments that hid another when they finished, in that order, numbers ascending.

        All others overlap none but these, and lie below them.
        """
        if self._ranks is None:
            ranked = self._unsealed("ranked")
            self._ranks = {segment_id: rank for rank, segment_id in enumerate(ranked, start=1)}
        return self._ranks

    @ranks.setter
    def ranks(self, ranks: dict[SegmentId, int]) -> None:
        self._ranks = ranks

    def _unsealed(self, column: str) -> Iterable[SegmentId]:
        sealed = self._sealed
        return () if sealed is None else map(sealed.table.id, getattr(sealed, column))

    @property
    def is_empty(self) -> bool:
        """Whether no segment is left in any set."""
        if self.unreferenced or self.third:
            return False
        return not len(self.cover if self.referenced is None else self.referenced)

    @property
    def listed(self) -> int:
        """How many segments Kafka's two sets hold."""
        return len(self.cover if self.referenced is None else self.referenced) + len(
            self.unreferenced
        )

    def frozen(self) -> "EpochIndex":
        """Return a copy that lists what is listed now; what is sealed is shared."""
        other = EpochIndex()
        other.cover = self.cover.frozen()
        other.referenced = None if self.referenced is None else self.referenced.frozen()
        other.unreferenced = self.unreferenced.copy()
        return other

    @property
    def is_plain(self) -> bool:
        """Whether the cover is known to be exactly Kafka's referenced set."""
        return self.referenced is None

    def referenced_ids(self) -> list[SegmentId]:
        """Return Kafka's referenced set, ascending; not to be changed."""
        if self.referenced is None:
            return self.cover.ids()
        return [segment_id for _, segment_id in self.referenced.items()]

    def referenced_keys(self) -> "array[int]":
        """Return where in this epoch each referenced segment starts; not to be changed."""
        if self.referenced is None:
            return self.cover.starts()
        return array("q", [key for key, _ in self.referenced.refs()])

    def referenced_refs(self) -> list[SegmentId | int]:
        """Return Kafka's referenced set, ascending: ids, or rows of the sealed table."""
        if self.referenced is None:
            return self.cover.refs()
        return [ref for _, ref in self.referenced.refs()]

    def touching(self, low: int, high: int, part_of: PartOf) -> list[SegmentId]:
        """Return the finished segments whose parts have any of the offsets low..high.

        To be asked only where the cover alone does not do: else no two of them touch.
        """
        assert self.referenced is not None, "the cover tells it"
        parts = self._beneath((low, high, SegmentId(b"")), part_of)
        return [owner for start, end, owner in parts if start <= high and end >= low]

    def finish(
        self,
        piece: Piece,
        highest: int | None,
        own: tuple[int, bool],
        part_of: PartOf,
        facts: Facts,
    ) -> bool:
        """Apply COPY_SEGMENT_FINISHED; False if everything was so already.

        `highest` is the epoch's highest offset before this event, `own` the segment's own facts.
        """
        start, end, segment_id = piece
        cover = self.cover
        if self.referenced is None and start <= end:
            last = cover.last()
            if last is None or last[1] < start:
                cover.append(piece, own[0], has_txn_index=own[1])
                self.unreferenced.pop(segment_id, None)
                return True
            done = self._finish_among(piece, highest, facts)
            if done is not None:
                return done
        if self.referenced is None:
            self.referenced, self._shadowed = Referenced.of_cover(cover), Shadowed()
        moved = self._reference(self.referenced, piece, highest, part_of)
        if start <= end and cover.paint(piece, facts):
            self.ranks.pop(segment_id, None)
            self.ranks[segment_id] = next(reversed(self.ranks.values()), 0) + 1
            moved = True
        return moved

    def start_delete(self, piece: Piece, part_of: PartOf, facts: Facts) -> None:
        """Apply DELETE_SEGMENT_STARTED, from any state before it."""
        start, end, segment_id = piece
        if self.referenced is not None and self.referenced.get(start) == segment_id:
            self.referenced.remove(start)
        self.third.pop(segment_id, None)
        self.unreferenced[segment_id] = None
        self.ranks.pop(segment_id, None)
        if self._shadowed is not None:
            self._shadowed.discard(piece)
        if start <= end:
            self.cover.lift(piece, self._beneath(piece, part_of), facts)
        self._converge()

    def _finish_among(self, piece: Piece, highest: int | None, facts: Facts) -> bool | None:
        """Finish without overlap but not at the end; None if it does overlap something."""
        start, end, segment_id = piece
        cover = self.cover
        cover.take_over(start, end, facts)
        own = cover.own
        at = bisect_left(own.starts, start)
        last = cover.last()
        if at < len(own.starts) and own.ids[at] == segment_id:
            # Kafka would take the last one out and put it in again.
            is_last = last is not None and last[0] == own.starts[at]
            return False if is_last or _above(highest, end) else None
        if at and own.ends[at - 1] >= start:
            return None
        if at < len(own.starts) and (own.starts[at] <= end or not _above(highest, end)):
            return None
        cover.paint(piece, facts)
        self.unreferenced.pop(segment_id, None)
        return True

    def _reference(
        self, referenced: Referenced, piece: Piece, highest: int | None, part_of: PartOf
    ) -> bool:
        """Apply RemoteLogLeaderEpochState's rule to Kafka's two sets; True if they changed."""
        start, end, segment_id = piece
        moved = segment_id in self.unreferenced or segment_id in self.third
        while (last := referenced.last()) and last[0] >= start and not _above(highest, end):
            # "If there are segments which are overlapping and shorter, they are unreferenced."
            key, owner = last
            referenced.remove(key)
            self.unreferenced[owner] = None
            self._shadow(owner, part_of)
            moved = moved or owner != segment_id
        former = referenced.get(start)
        if former != segment_id:
            if former is not None:
                # Kafka's map forgets the former owner without a trace.
                self.third[former] = None
                self._shadow(former, part_of)
                moved = True
            referenced.put(start, segment_id)
        self.unreferenced.pop(segment_id, None)
        self.third.pop(segment_id, None)
        if self._shadowed is not None:
            self._shadowed.discard(piece)
        return moved

    def _shadow(self, segment_id: SegmentId, part_of: PartOf) -> None:
        """Note that a segment left the referenced set, unless that was not looked for yet."""
        if self._shadowed is not None and (part := part_of(segment_id)) is not None:
            self._shadowed.add(part)

    def _beneath(self, piece: Piece, part_of: PartOf) -> Iterator[Piece]:
        """Yield other finished segments' parts that touch the piece, topmost first."""
        if self.referenced is None:
            return
        if self._shadowed is None:
            self._shadowed = Shadowed()
            for segment_id in chain(self.third, self.unreferenced):
                self._shadow(segment_id, part_of)
        start, end, but = piece
        within = self.referenced.between(start - self.cover.reach, end)
        candidates = chain(within, self._shadowed.touching(start, end))
        parts = [part_of(segment_id) for segment_id in candidates if segment_id != but]
        live = [part for part in parts if part is not None and part[0] <= part[1]]
        yield from sorted(live, key=lambda part: -self.ranks.get(part[2], 0))

    def _converge(self) -> None:
        """Keep the cover alone again once nothing overlaps and every live part is referenced."""
        if (
            self.referenced is not None
            and not (self.ranks or self.third)
            and self.referenced.equals(self.cover)
        ):
            self.referenced = self._shadowed = None


def _above(highest: int | None, end: int) -> bool:
    return highest is not None and highest > end
