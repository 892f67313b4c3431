"""Segments whose objects are being deleted here: none of them is put back meanwhile.

Of two who delete one segment the slower may still ask the storage when the faster has ended it in
the log.
"""

from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from rlmm_daemon.domain.ids import SegmentId


class DeletesUnderWay:
    """How many delete which segment, of all in this process."""

    def __init__(self) -> None:
        self._counts: Counter[SegmentId] = Counter()

    def __contains__(self, segment_id: object) -> bool:
        return segment_id in self._counts

    @contextmanager
    def these(self, segment_ids: Collection[SegmentId]) -> Iterator[None]:
        """Count segments while the block, which judges them first, deletes their objects."""
        self._counts.update(segment_ids)
        try:
            yield
        finally:
            self._counts -= Counter(segment_ids)
