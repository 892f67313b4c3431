"""Segment ids that were used before: no copy begins under them again.

A delete that a storage has not answered may still be carried out, and would take what a later copy
stored under the same keys. The log keeps nothing of what is deleted, so of an id that it lacks it
can't be told after a restart, nor by another daemon, whether it was ever used. A broker gives each
of its attempts an id of its own.
"""

from collections.abc import Callable
from typing import Final

from rlmm_daemon.daemon.base.bounded import Bounded
from rlmm_daemon.daemon.base.segment_log import SegmentLog, decode_segment, same_segment
from rlmm_daemon.domain.errors import IllegalTransition, InvalidArgument, SegmentNotFound
from rlmm_daemon.domain.ids import SegmentId
from rlmm_daemon.domain.segment import SegmentMetadata, SegmentState

#: Segments whose deletion was applied that are remembered.
DELETED_MAX: Final = 65_536

_ANOTHER: Final = "copy the segment under a new id"


class UsedIds:
    """The segments whose deletion this daemon has applied, or has gone on with."""

    def __init__(self, asked: Callable[[SegmentId], bool] = lambda _: False) -> None:
        """`asked`: whether the storage was asked to delete what lies under an id."""
        self._asked = asked
        self._deleted: Bounded[SegmentId, None] = Bounded(DELETED_MAX)

    def deleted(self, segment_id: SegmentId) -> None:
        """Its DELETE_SEGMENT_STARTED was applied: it was finished, or is rolled back."""
        self._deleted[segment_id] = None

    def require_new(self, segment_id: SegmentId) -> None:
        """Return if nothing is known of a deletion under this id.

        Raises:
            IllegalTransition: something is.
        """
        if segment_id in self._deleted or self._asked(segment_id):
            raise IllegalTransition(
                f"a copy under this id was deleted or rolled back; {_ANOTHER}",
                reason="segment_id_used",
            )


async def finished_before(log: SegmentLog, given: SegmentMetadata) -> bytes:
    """Return the record of what was finished under an id, for whoever repeats a copy.

    Raises:
        SegmentNotFound, IllegalTransition, InvalidArgument: nothing was, or another segment.
    """
    async with log.keep_followed(given.partition):
        found = await log.segment(given.partition, given.segment_id)
    if found is None:
        raise SegmentNotFound(
            "the log has no copy under this id: none was begun, or it was deleted or rolled back; "
            f"{_ANOTHER}"
        )
    state, record = found
    if state is not SegmentState.COPY_SEGMENT_FINISHED:
        raise IllegalTransition(
            f"no copy under this id runs here, and the log has it as {state.name}; {_ANOTHER}",
            state=state.name,
        )
    if not same_segment(given, decode_segment(record)):
        raise InvalidArgument("the log holds another segment under this id")
    return record
