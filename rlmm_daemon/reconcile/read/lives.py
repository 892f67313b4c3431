"""A segment whose events are gone, as the events that it must have had.

Snapshots and exports hold folded segments; everything behind them takes events.
"""

from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from rlmm_daemon.codec import records
from rlmm_daemon.domain.segment import SegmentMetadata, SegmentState, SegmentUpdate

S = SegmentState
#: Before every offset of the log, in the order of a segment's life.
BEGUN: Final = -4
FINISHED: Final = -3
DELETING: Final = -2
DELETED: Final = -1


def life(segment: SegmentMetadata, state: SegmentState) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, record) for each event that a segment in this state has behind it."""
    begun = replace(segment, state=S.COPY_SEGMENT_STARTED, custom_metadata=None)
    yield BEGUN, records.encode(begun)
    if state in {S.COPY_SEGMENT_FINISHED, S.DELETE_SEGMENT_STARTED}:
        yield FINISHED, update(segment, S.COPY_SEGMENT_FINISHED)
    if state is S.DELETE_SEGMENT_STARTED:
        yield DELETING, update(segment, S.DELETE_SEGMENT_STARTED)


def update(segment: SegmentMetadata, state: SegmentState) -> bytes:
    """Return the record of one later event."""
    return records.encode(
        SegmentUpdate(
            partition=segment.partition,
            segment_id=segment.segment_id,
            broker_id=segment.broker_id,
            event_timestamp_ms=segment.event_timestamp_ms,
            custom_metadata=segment.custom_metadata,
            state=state,
        )
    )
