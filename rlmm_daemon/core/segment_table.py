"""What is kept of each segment of one user partition: its record, and nothing beside it.

The one place that knows how a segment is stored. Now: a dict from segment id to tail
(`codec.tail`), bytes to bytes, which the garbage collector does not walk. A table mapped from a
snapshot with an overlay for what changed since can stand behind the same methods.
"""

from collections.abc import Iterator
from typing import Final

from rlmm_daemon.codec import tail as tails
from rlmm_daemon.domain.ids import UUID_BYTES, SegmentId

_START: Final = slice(tails.START_AT, tails.END_AT)


class SegmentTable:
    """Every segment that is not yet DELETE_SEGMENT_FINISHED, by id."""

    __slots__ = ("_tails", "head")

    def __init__(self, prefix: bytes) -> None:
        #: What stands before the segment id in every record of this partition.
        self.head = tails.ENVELOPE + prefix
        self._tails: dict[SegmentId, bytes] = {}

    def __len__(self) -> int:
        return len(self._tails)

    def __iter__(self) -> Iterator[SegmentId]:
        return iter(self._tails)

    def __contains__(self, segment_id: SegmentId) -> bool:
        return segment_id in self._tails

    def get(self, segment_id: SegmentId) -> bytes | None:
        """Return the segment's tail."""
        return self._tails.get(segment_id)

    def __getitem__(self, segment_id: SegmentId) -> bytes:
        return self._tails[segment_id]

    def put(self, segment_id: SegmentId, tail: bytes) -> None:
        """Store a segment's present tail."""
        assert len(segment_id) == UUID_BYTES
        self._tails[segment_id] = tail

    def remove(self, segment_id: SegmentId) -> None:
        """Forget a segment that is there."""
        del self._tails[segment_id]

    def record(self, segment_id: SegmentId) -> bytes:
        """Return the segment's whole record: key 0, version 0, its present state."""
        return b"".join((self.head, segment_id, self._tails[segment_id]))

    def ordered(self) -> list[SegmentId]:
        """Return all ids by start offset, then id. O(n log n), near O(n) if they came in order."""
        stored = self._tails
        # Offsets are never negative, so their big-endian bytes sort as they do.
        return sorted(stored, key=lambda segment_id: stored[segment_id][_START] + segment_id)
