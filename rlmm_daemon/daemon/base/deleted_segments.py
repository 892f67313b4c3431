"""Segments whose deletion began: nothing of them is cached or read again."""

from collections.abc import Callable
from typing import Final

from rlmm_daemon.daemon.base.bounded import Bounded
from rlmm_daemon.domain.errors import SegmentNotFound
from rlmm_daemon.domain.ids import SegmentId, TopicIdPartition

#: Outlives any read that had passed the fold's check before.
REMEMBERED_MAX: Final = 65_536


class DeletedSegments:
    """Told of each DELETE_SEGMENT_STARTED, tells the caches, and remembers it for late fills."""

    def __init__(self, *, remembered_max: int = REMEMBERED_MAX) -> None:
        self._ids: Bounded[SegmentId, None] = Bounded(remembered_max)
        self._listeners: list[Callable[[SegmentId], None]] = []

    def listen(self, forget: Callable[[SegmentId], None]) -> None:
        """Have a cache told, in the order of listening; what it is told must not block."""
        self._listeners.append(forget)

    def started(self, partition: TopicIdPartition, segment_id: SegmentId) -> None:
        """Take the manager's word; called in the loop, blocks on nothing."""
        del partition  # a segment's id is unique
        self._ids[segment_id] = None
        for forget in self._listeners:
            forget(segment_id)

    def is_back(self, segment_id: SegmentId) -> None:
        """Take the fold's word that it is finished: an order of an operator put it back."""
        self._ids.pop(segment_id, None)

    def __contains__(self, segment_id: SegmentId) -> bool:
        """Return whether its deletion is known to have begun."""
        return segment_id in self._ids

    def check(self, segment_id: SegmentId) -> None:
        """Return if the segment is not known to be going.

        Raises:
            SegmentNotFound: its deletion began.
        """
        if segment_id in self:
            raise SegmentNotFound("the segment is being deleted", state="DELETE_SEGMENT_STARTED")
