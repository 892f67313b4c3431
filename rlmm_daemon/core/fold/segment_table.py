"""Segment table of a user partition: the record of each segment, and nothing else.

The one place that knows how a segment is stored: as a row of the sealed table that a snapshot left
(`codec.sealed_table`), or, if anything was applied to it since, in a dict from segment id to tail
(`codec.record_suffix`), bytes to bytes, which the garbage collector does not walk.

A dict is moved as it grows, and copied for a listing, so a long one would hold the loop. Once it
has `GENERATION` entries a new one is begun. The older ones are shared with copies of the table,
and copied one at a time if that is written to.
"""

from bisect import bisect_left
from collections.abc import Generator, Iterable, Iterator
from heapq import merge
from itertools import chain, islice
from operator import lt
from typing import TYPE_CHECKING, Final

from rlmm_daemon.codec import record_suffix as tails
from rlmm_daemon.core.fold.deferred_free import leave
from rlmm_daemon.domain.ids import UUID_BYTES, SegmentId

if TYPE_CHECKING:
    from rlmm_daemon.codec.sealed_table import SealedTable

#: Just before a dict would grow to hold so many, for which it would be moved in milliseconds.
GENERATION: Final = 40_000
#: Of the newest generation, what is copied for a listing; a longer one is shared from then on.
COPIED_MAX: Final = 8_192
_START: Final = slice(tails.START_AT, tails.END_AT)
#: Changed segments that are put in order in one go.
_PAGE: Final = 512
#: Of what is looked for in sealed rows: each takes a bisect.
LOOKS_AT_ONCE: Final = 32


class Generation:
    """Changes that were made one after another; each id is in one generation only."""

    __slots__ = ("is_shared", "tails")

    def __init__(self, tails: dict[SegmentId, bytes | None]) -> None:
        self.tails = tails
        #: Whether another table may have it too: then nobody writes to it.
        self.is_shared = False

    def __del__(self) -> None:
        leave(self.tails)


class SegmentTable:
    """Every segment that is not yet DELETE_SEGMENT_FINISHED, by id."""

    __slots__ = ("changes", "count", "gone", "head", "older", "sealed")

    def __init__(self, prefix: bytes, sealed: "SealedTable | None" = None) -> None:
        #: What stands before the segment id in every record of this partition.
        self.head = tails.ENVELOPE + prefix
        self.sealed = sealed
        #: Over the sealed rows, the newest generation; None: that row is gone.
        self.changes: dict[SegmentId, bytes | None] = {}
        #: The generations before, the oldest first.
        self.older: list[Generation] = []
        #: How many there are; whoever writes `changes` itself keeps it.
        self.count = 0 if sealed is None else sealed.rows
        #: How many of the changes only say that a sealed row is gone.
        self.gone = 0

    def __del__(self) -> None:
        leave(self.changes)

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[SegmentId]:
        return (segment_id for segment_id, _ in self.items())

    def items(self) -> Iterator[tuple[SegmentId, bytes]]:
        """Yield ids and present tails, in no order. Nothing is looked up: a row has both."""
        sealed = self.sealed
        if sealed is not None:
            for row in range(sealed.rows):
                if not self.is_changed(segment_id := sealed.id(row)):
                    yield segment_id, sealed.tail(row)
        for tails_by_id in self._generations():
            for segment_id, tail in tails_by_id.items():
                if tail is not None:
                    yield segment_id, tail

    def __contains__(self, segment_id: SegmentId) -> bool:
        return self.get(segment_id) is not None

    def get(self, segment_id: SegmentId) -> bytes | None:
        """Return the segment's tail."""
        tail = self._changed(segment_id)
        if tail is not None or self.sealed is None or self.is_changed(segment_id):
            return tail
        row = self.sealed.row_of(segment_id)
        return None if row < 0 else self.sealed.tail(row)

    def __getitem__(self, segment_id: SegmentId) -> bytes:
        tail = self.get(segment_id)
        if tail is None:
            raise KeyError(segment_id)
        return tail

    def put(self, segment_id: SegmentId, tail: bytes, *, is_new: bool) -> None:
        """Store a segment's present tail; `is_new` says that `get` has none."""
        assert len(segment_id) == UUID_BYTES
        changes = self._to_write(segment_id)
        if is_new:
            self.count += 1
            if segment_id in changes:
                self.gone -= 1
        changes[segment_id] = tail
        self.grown()

    def remove(self, segment_id: SegmentId) -> None:
        """Forget a segment that is there."""
        self.count -= 1
        changes = self._to_write(segment_id)
        if self.sealed is not None and self.sealed.row_of(segment_id) >= 0:
            changes[segment_id] = None
            self.gone += 1
            self.grown()
        else:
            del changes[segment_id]

    def grown(self) -> None:
        """Begin a new generation if this one is long. Whoever writes `changes` itself asks."""
        if len(self.changes) >= GENERATION:
            self._begin_another()

    def is_changed(self, segment_id: SegmentId) -> bool:
        """Whether anything was applied to it over the sealed rows, if only that it is gone."""
        if segment_id in self.changes:
            return True
        return bool(self.older) and any(segment_id in each.tails for each in self.older)

    def _changed(self, segment_id: SegmentId) -> bytes | None:
        """Return a changed segment's tail; None: it is not changed, or gone."""
        tail = self.changes.get(segment_id)
        if tail is None:
            for each in self.older:
                if (tail := each.tails.get(segment_id)) is not None:
                    break
        return tail

    def changed_tails(self, ids: list[SegmentId]) -> list[bytes]:
        """Return the tails of changed segments that are there, which came one after another."""
        for tails_by_id in self._generations():
            if ids[0] in tails_by_id:
                tails = [tail for tail in map(tails_by_id.get, ids) if tail is not None]
                if len(tails) == len(ids):
                    return tails
        return [tail for tail in map(self._changed, ids) if tail is not None]

    def _generations(self) -> list[dict[SegmentId, bytes | None]]:
        return [*(each.tails for each in self.older), self.changes]

    def _begin_another(self) -> None:
        self.older.append(Generation(self.changes))
        self.changes = {}

    def _to_write(self, segment_id: SegmentId) -> dict[SegmentId, bytes | None]:
        """Return the changes that an id is in, or else the newest."""
        if self.older and segment_id not in self.changes:
            for at, each in enumerate(self.older):
                if segment_id in each.tails:
                    if each.is_shared:
                        self.older[at] = Generation(each.tails.copy())
                    return self.older[at].tails
        return self.changes

    def pair(self, ref: SegmentId | int) -> tuple[SegmentId, bytes]:
        """Return id and present tail of a segment, given by id or by its sealed row."""
        if not isinstance(ref, int):
            return ref, self[ref]
        sealed = self.sealed
        assert sealed is not None, "only a sealed table has rows"
        segment_id = sealed.id(ref)
        tail = self._changed(segment_id)
        return segment_id, sealed.tail(ref) if tail is None else tail

    def tail(self, ref: SegmentId | int) -> bytes:
        """Return the present tail of a segment, given by id or by its sealed row."""
        if not isinstance(ref, int):
            return self[ref]
        if self.sealed is not None and not (self.changes or self.older):
            return self.sealed.tail(ref)
        return self.pair(ref)[1]

    def frozen(self) -> "SegmentTable":
        """Return a copy; sealed rows are shared, and so are older generations and all tails."""
        other = SegmentTable(b"", self.sealed)
        if len(self.changes) > COPIED_MAX:
            self._begin_another()
        for each in self.older:
            each.is_shared = True
        other.head, other.older, other.changes = self.head, self.older[:], self.changes.copy()
        other.count, other.gone = self.count, self.gone
        return other

    def record(self, ref: SegmentId | int) -> bytes:
        """Return the segment's whole record: key 0, version 0, its present state."""
        if not isinstance(ref, int) and (tail := self.changes.get(ref)) is not None:
            return self.head + ref + tail  # what nearly every look-up comes to
        return b"".join((self.head, *self.pair(ref)))

    @property
    def in_memory(self) -> int:
        """How many segments are kept beside the sealed rows."""
        return self.changed - self.gone

    @property
    def changed(self) -> int:
        """How many segments are kept beside the sealed rows, or hide one."""
        return sum(map(len, self._generations()))

    def ordered(self) -> list[SegmentId]:
        """Return all ids by start offset, then id. O(n log n), near O(n) if they came in order."""
        return [self.pair(ref)[0] for ref in self.refs()]

    def refs(self) -> Iterator[SegmentId | int]:
        """Yield all segments by start offset, then id; those in sealed rows by row."""
        for run in self.runs():
            if run is not None:
                yield from range(*run) if isinstance(run, tuple) else run

    def runs(self) -> Iterator[tuple[int, int] | list[SegmentId] | None]:
        """Yield ranges of sealed rows, and changed segments between them, by start offset and id.

        All there are: nothing that is gone, nothing twice. None comes between steps that are long.
        """
        pages = yield from self._pages()
        if self.sealed is None:
            yield from pages
            return
        hidden = list[int]()
        for index, segment_id in enumerate(chain.from_iterable(self._generations())):
            if (row := self.sealed.row_of(segment_id)) >= 0:
                hidden.append(row)
            if index % LOOKS_AT_ONCE == LOOKS_AT_ONCE - 1:
                yield None
        hidden.sort()
        yield from self._between(self.sealed, pages, hidden)

    def _pages(self) -> Generator[None, None, Iterable[list[SegmentId]]]:
        """Return the changed segments that are there, by start offset and id.

        They nearly always came in that order, which the offsets alone tell.
        """
        generations = self._generations()
        ids = chain.from_iterable(generations)
        kept = chain.from_iterable(each.values() for each in generations)
        pages, last, in_order = list[list[SegmentId]](), b"", True
        while page := list(islice(ids, _PAGE)):
            # Offsets are never negative, so their big-endian bytes sort as they do.
            starts = [tail[_START] for tail in islice(kept, _PAGE) if tail is not None]
            if self.gone:
                page = [each for each in page if self._changed(each) is not None]
            if not starts:
                continue
            if not all(map(lt, starts, islice(starts, 1, None))):
                page.sort(key=self._changed_place)
                starts = [min(starts), max(starts)]
            in_order, last = in_order and last < starts[0], starts[-1]
            pages.append(page)
            yield
        if in_order:
            pages.reverse()
            return (pages.pop() for _ in range(len(pages)))  # freed one by one
        ordered = merge(*pages, key=self._changed_place)
        return iter(lambda: list(islice(ordered, LOOKS_AT_ONCE)), [])

    def _between(
        self, sealed: "SealedTable", pages: Iterable[list[SegmentId]], hidden: list[int]
    ) -> Iterator[tuple[int, int] | list[SegmentId] | None]:
        """Put changed segments between the rows that are not hidden."""
        last = self._place(sealed.rows - 1) if sealed.rows else b""
        at = cut = looks = 0
        run = list[SegmentId]()
        for segment_id in chain.from_iterable(pages):
            place, row = self._changed_place(segment_id), sealed.rows
            if place <= last:
                looks += 1
                if looks % LOOKS_AT_ONCE == 0:
                    yield None
                row = bisect_left(range(sealed.rows), place, lo=at, key=self._place)
            if row > at or len(run) == _PAGE:
                if run:
                    yield run
                    run = []
                behind = bisect_left(hidden, row, lo=cut)
                yield from _left(at, row, hidden[cut:behind])
                at, cut = row, behind
            run.append(segment_id)
        if run:
            yield run
        yield from _left(at, sealed.rows, hidden[cut:])

    def _changed_place(self, segment_id: SegmentId) -> bytes:
        tail = self._changed(segment_id)
        assert tail is not None, "what is gone has no place"
        return tail[_START] + segment_id

    def _place(self, row: int) -> bytes:
        sealed = self.sealed
        assert sealed is not None, "only a sealed table has rows"
        return sealed.tail(row)[_START] + sealed.id(row)


def _left(low: int, high: int, hidden: list[int]) -> Iterator[tuple[int, int]]:
    """Yield the ranges of low..high-1 between hidden rows."""
    for row in hidden:
        if low < row:
            yield low, row
        low = row + 1
    if low < high:
        yield low, high
