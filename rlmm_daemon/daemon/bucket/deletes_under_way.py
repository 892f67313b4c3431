"""Segments whose objects are being deleted here: none of them is put back meanwhile.

Of two who delete one segment the slower may still ask the storage when the faster has ended it in
the log. And what was asked may be carried out later than it is answered, also what an earlier
process asked that left the rest to this one.
"""

from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Final

from rlmm_daemon.daemon.base.bounded import Bounded
from rlmm_daemon.domain.ids import SegmentId

#: Segments of which it is remembered that their objects were deleted here.
ASKED_MAX: Final = 65_536


class DeletesUnderWay:
    """How many delete which segment, of all in this process."""

    def __init__(self) -> None:
        self._counts: Counter[SegmentId] = Counter()
        self._asked: Bounded[SegmentId, None] = Bounded(ASKED_MAX)

    def __contains__(self, segment_id: object) -> bool:
        return segment_id in self._counts

    def asked(self, segment_id: SegmentId) -> bool:
        """Whether the storage was asked to delete its objects, by this process."""
        return segment_id in self._asked

    @contextmanager
    def these(self, segment_ids: Collection[SegmentId]) -> Iterator[None]:
        """Count segments while the block, which judges them first, deletes their objects."""
        self._counts.update(segment_ids)
        for segment_id in segment_ids:
            self._asked[segment_id] = None
        try:
            yield
        finally:
            self._counts -= Counter(segment_ids)
