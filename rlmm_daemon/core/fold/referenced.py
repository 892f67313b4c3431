"""Kafka's `offsetToId` of one epoch, where it is not simply the cover: start -> segment.

Over sealed columns only what changed is kept here, as in `core.fold.layered_cover`.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rlmm_daemon.core.fold.taken import Taken
from rlmm_daemon.domain.ids import SegmentId

if TYPE_CHECKING:
    from rlmm_daemon.codec.sealed_table import SealedEpoch, SealedTable
    from rlmm_daemon.core.fold.layered_cover import LayeredCover


class Referenced:
    """A sorted map; a key is in one layer only."""

    __slots__ = ("_keys", "_owners", "_sealed", "_sealed_keys", "_sealed_rows", "_taken")

    def __init__(self) -> None:
        self._keys = array("q")
        self._owners: list[SegmentId] = []
        self._sealed: SealedTable | None = None
        self._sealed_keys: memoryview | array[int] = array("q")
        self._sealed_rows: memoryview | array[int] = array("I")
        self._taken = Taken(0)

    @classmethod
    def of_cover(cls, cover: "LayeredCover") -> "Referenced":
        """Return what Kafka's map is while it is the cover."""
        found = cls()
        found._keys, found._owners = cover.own.starts[:], cover.own.ids[:]
        if (sealed := cover.sealed) is not None:
            found._seal(sealed.table, sealed.starts, sealed.rows)
            found._taken = cover.taken.copy()
        return found

    @classmethod
    def of_sealed(cls, epoch: "SealedEpoch") -> "Referenced":
        """Return what a sealed table has apart from the cover."""
        found = cls()
        found._seal(epoch.table, epoch.keys, epoch.key_rows)
        return found

    @classmethod
    def of(cls, keys: "array[int]", owners: list[SegmentId]) -> "Referenced":
        """Return a map of its own."""
        found = cls()
        found._keys, found._owners = keys, owners
        return found

    def frozen(self) -> "Referenced":
        """Return a copy; what is sealed is shared."""
        found = Referenced()
        found._keys, found._owners = self._keys[:], self._owners[:]
        found._sealed, found._taken = self._sealed, self._taken.copy()
        found._sealed_keys, found._sealed_rows = self._sealed_keys, self._sealed_rows
        return found

    def _seal(self, table: "SealedTable", keys: memoryview, rows: memoryview) -> None:
        self._sealed, self._sealed_keys, self._sealed_rows = table, keys, rows
        self._taken = Taken(len(keys))

    def __len__(self) -> int:
        return len(self._keys) + self._taken.size - self._taken.count

    def last(self) -> tuple[int, SegmentId] | None:
        """Return the greatest key and its segment."""
        at = self._taken.before(self._taken.size)
        if at >= 0 and (not self._keys or self._sealed_keys[at] > self._keys[-1]):
            return self._sealed_keys[at], self._sealed_id(at)
        return (self._keys[-1], self._owners[-1]) if self._keys else None

    def get(self, key: int) -> SegmentId | None:
        """Return the segment at exactly this key."""
        at = bisect_left(self._keys, key)
        if at < len(self._keys) and self._keys[at] == key:
            return self._owners[at]
        at = self._sealed_at(key)
        return None if at < 0 else self._sealed_id(at)

    def put(self, key: int, segment_id: SegmentId) -> None:
        """Set the segment at a key."""
        self.remove(key)
        at = bisect_left(self._keys, key)
        self._keys.insert(at, key)
        self._owners.insert(at, segment_id)

    def remove(self, key: int) -> None:
        """Forget a key, if it is there."""
        at = bisect_left(self._keys, key)
        if at < len(self._keys) and self._keys[at] == key:
            del self._keys[at], self._owners[at]
        elif (sealed_at := self._sealed_at(key)) >= 0:
            self._taken.add(sealed_at, sealed_at + 1)

    def between(self, low: int, high: int) -> Iterator[SegmentId]:
        """Yield the segments with keys in low..high."""
        first = bisect_left(self._keys, low)
        yield from self._owners[first : bisect_left(self._keys, high + 1, lo=first)]
        first = bisect_left(self._sealed_keys, low)
        behind = bisect_left(self._sealed_keys, high + 1, lo=first)
        for begin, end in self._taken.left(first, behind):
            yield from map(self._sealed_id, range(begin, end))

    def items(self) -> Iterator[tuple[int, SegmentId]]:
        """Yield all, ascending."""
        for key, ref in self.refs():
            if isinstance(ref, int):
                assert self._sealed is not None, "only a sealed table has rows"
                yield key, self._sealed.id(ref)
            else:
                yield key, ref

    def refs(self) -> Iterator[tuple[int, SegmentId | int]]:
        """Yield all, ascending, with ids or rows of the sealed table."""
        at = 0
        for low, high in self._taken.left(0, self._taken.size):
            for index in range(low, high):
                key = self._sealed_keys[index]
                while at < len(self._keys) and self._keys[at] < key:
                    yield self._keys[at], self._owners[at]
                    at += 1
                yield key, self._sealed_rows[index]
        yield from zip(self._keys[at:], self._owners[at:], strict=True)

    def equals(self, cover: "LayeredCover") -> bool | None:
        """Whether the cover's pieces are exactly these; None if that would take a long walk."""
        if len(self) != len(cover):
            return False
        sealed = cover.sealed
        if sealed is None and self._sealed is None:
            return self._owners == cover.own.ids and self._keys == cover.own.starts
        if sealed is None or self._sealed_keys is not sealed.starts:
            return None
        # What either has taken is compared one by one; all else is the same columns.
        mine = dict(zip(self._keys, self._owners, strict=True))
        theirs = dict(zip(cover.own.starts, cover.own.ids, strict=True))
        for taken, other, into in (
            (self._taken, cover.taken, theirs),
            (cover.taken, self._taken, mine),
        ):
            for low, high in taken.ranges():
                for begin, end in other.left(low, high):
                    for index in range(begin, end):
                        into[self._sealed_keys[index]] = self._sealed_id(index)
        return mine == theirs

    def _sealed_at(self, key: int) -> int:
        at = bisect_left(self._sealed_keys, key)
        there = at < len(self._sealed_keys) and self._sealed_keys[at] == key
        return at if there and at not in self._taken else -1

    def _sealed_id(self, at: int) -> SegmentId:
        assert self._sealed is not None, "only sealed keys have rows"
        return self._sealed.id(self._sealed_rows[at])
