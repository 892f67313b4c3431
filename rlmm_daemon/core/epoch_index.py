"""One leader epoch of one user partition: Kafka's two sets, a third one, and who answers look-ups.

Kafka's two sets decide listings and are kept exactly, with their odd corners (a finished segment
can drop out of both: that one goes to the third set). Look-ups ask the cover instead. As long as no
two finished segments overlap, the cover *is* Kafka's referenced set, and only it is kept.
Source: RemoteLogLeaderEpochState, RemoteLogMetadataCache.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from rlmm_daemon.core.cover import Cover, Facts, Piece
from rlmm_daemon.domain.ids import SegmentId

if TYPE_CHECKING:
    from array import array

#: Id -> its part in this epoch if it is finished and live, else None.
PartOf = Callable[[SegmentId], Piece | None]


class EpochIndex:
    """What one epoch holds while it holds anything."""

    __slots__ = ("_keys", "_owners", "cover", "ranks", "third", "unreferenced")

    def __init__(self) -> None:
        self.cover = Cover()
        #: Kafka's `unreferencedSegmentIds`, in the order in which they came.
        self.unreferenced: dict[SegmentId, None] = {}
        #: Finished, but in neither of Kafka's sets.
        self.third: dict[SegmentId, None] = {}
        #: Segments that hid another when they finished, in that order, numbers ascending. All
        #: others overlap none but these, and lie below them.
        self.ranks: dict[SegmentId, int] = {}
        #: Kafka's `offsetToId`, ascending; None while it is exactly the cover.
        self._keys: array[int] | None = None
        self._owners: list[SegmentId] = []

    @property
    def is_empty(self) -> bool:
        """Whether no segment is left in any set."""
        return not (self.unreferenced or self.third or self.referenced_ids())

    @property
    def is_plain(self) -> bool:
        """Whether the cover is exactly Kafka's referenced set."""
        return self._keys is None

    def referenced_ids(self) -> list[SegmentId]:
        """Return Kafka's referenced set, ascending; not to be changed."""
        return self.cover.ids if self._keys is None else self._owners

    def referenced_keys(self) -> "array[int]":
        """Return where in this epoch each referenced segment starts; not to be changed."""
        return self.cover.starts if self._keys is None else self._keys

    def restore_referenced(self, keys: "array[int]", owners: list[SegmentId]) -> None:
        """Set Kafka's referenced set apart from the cover, as a snapshot stored it."""
        self._keys, self._owners = keys, owners

    def finish(
        self, piece: Piece, highest: int | None, own: tuple[int, bool], facts: Facts
    ) -> bool:
        """Apply COPY_SEGMENT_FINISHED; False if everything was so already.

        `highest` is the epoch's highest offset before this event, `own` the segment's own facts.
        """
        start, end, segment_id = piece
        cover = self.cover
        if self._keys is None and start <= end:
            if not cover.starts or cover.ends[-1] < start:
                cover.append(piece, own[0], has_txn_index=own[1])
                self.unreferenced.pop(segment_id, None)
                return True
            done = self._finish_among(piece, highest, facts)
            if done is not None:
                return done
        self._diverge()
        moved = self._reference(start, end, segment_id, highest)
        if start <= end and cover.paint(piece, facts):
            self.ranks.pop(segment_id, None)
            self.ranks[segment_id] = next(reversed(self.ranks.values()), 0) + 1
            moved = True
        return moved

    def start_delete(self, piece: Piece, part_of: PartOf, facts: Facts) -> None:
        """Apply DELETE_SEGMENT_STARTED, from any state before it."""
        start, end, segment_id = piece
        if self._keys is not None:
            keys, owners = self._keys, self._owners
            at = bisect_left(keys, start)
            if at < len(keys) and keys[at] == start and owners[at] == segment_id:
                del keys[at], owners[at]
        self.third.pop(segment_id, None)
        self.unreferenced[segment_id] = None
        self.ranks.pop(segment_id, None)
        if start <= end:
            plain = self._keys is None
            beneath = [] if plain else self._beneath(start, end, segment_id, part_of)
            self.cover.lift(piece, beneath, facts)
        self._converge()

    def _finish_among(self, piece: Piece, highest: int | None, facts: Facts) -> bool | None:
        """Finish without overlap but not at the end; None if it does overlap something."""
        start, end, segment_id = piece
        cover = self.cover
        at = bisect_left(cover.starts, start)
        last = at == len(cover.starts) - 1
        if at < len(cover.starts) and cover.ids[at] == segment_id:
            # Kafka would take the last one out and put it in again.
            return False if last or _above(highest, end) else None
        if at and cover.ends[at - 1] >= start:
            return None
        if at < len(cover.starts) and (cover.starts[at] <= end or not _above(highest, end)):
            return None
        cover.paint(piece, facts)
        self.unreferenced.pop(segment_id, None)
        return True

    def _reference(self, start: int, end: int, segment_id: SegmentId, highest: int | None) -> bool:
        """Apply RemoteLogLeaderEpochState's rule to Kafka's two sets; True if they changed."""
        keys, owners = self._keys, self._owners
        assert keys is not None
        moved = segment_id in self.unreferenced or segment_id in self.third
        while keys and keys[-1] >= start and not _above(highest, end):
            # "If there are segments which are overlapping and shorter, they are unreferenced."
            owner = owners.pop()
            keys.pop()
            self.unreferenced[owner] = None
            moved = moved or owner != segment_id
        at = bisect_left(keys, start)
        if at < len(keys) and keys[at] == start:
            if owners[at] != segment_id:
                # Kafka's map forgets the former owner without a trace.
                self.third[owners[at]] = None
                owners[at] = segment_id
                moved = True
        else:
            keys.insert(at, start)
            owners.insert(at, segment_id)
        self.unreferenced.pop(segment_id, None)
        self.third.pop(segment_id, None)
        return moved

    def _beneath(self, start: int, end: int, but: SegmentId, part_of: PartOf) -> list[Piece]:
        """Return other finished segments' parts that touch start..end, topmost first."""
        keys, owners = self.referenced_keys(), self.referenced_ids()
        low = bisect_left(keys, start - self.cover.reach)
        high = bisect_left(keys, end + 1, lo=low)
        candidates: Iterable[SegmentId] = (*owners[low:high], *self.third, *self.unreferenced)
        parts = [part_of(segment_id) for segment_id in candidates if segment_id != but]
        live = [part for part in parts if part is not None and part[0] <= part[1]]
        return sorted(live, key=lambda part: -self.ranks.get(part[2], 0))

    def _diverge(self) -> None:
        if self._keys is None:
            self._keys = self.cover.starts[:]
            self._owners = self.cover.ids[:]

    def _converge(self) -> None:
        """Keep the cover alone again once nothing overlaps and every live part is referenced."""
        if (
            self._keys is not None
            and not (self.ranks or self.third)
            and len(self._keys) == len(self.cover.starts)
            and self._owners == self.cover.ids
            and self._keys == self.cover.starts
        ):
            self._keys, self._owners = None, []


def _above(highest: int | None, end: int) -> bool:
    return highest is not None and highest > end
