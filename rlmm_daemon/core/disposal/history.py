"""The state of one segment after its events: `core.fold.cache`'s rules for a segment seen alone.

Spark groups events by segment and folds each group here; a test holds it to the cache over random
histories. Events that the life cycle refuses change nothing, as in the fold.
"""

from collections.abc import Iterable, Mapping

import msgspec

from rlmm_daemon.core.fold.lifecycle import legal
from rlmm_daemon.domain.segment import SegmentState as S


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a segment; those that only a COPY_SEGMENT_STARTED knows are None elsewhere."""

    offset: int
    state: S
    event_ms: int
    #: Of the `.log`.
    log_size: int | None = None
    start_offset: int | None = None
    topic: str | None = None
    #: From custom metadata that is ours; None where there is none.
    layout: int | None = None
    sizes: Mapping[str, int] | None = None
    #: A DELETE_SEGMENT_STARTED that only meant an unfinished copy.
    only_if_started: bool = False


class Segment(msgspec.Struct, kw_only=True):
    """A segment behind its last event. `state` None: no legal event was found."""

    state: S | None = None
    #: Some event names it, be it one that the life cycle refuses.
    named: bool = False
    event_ms: int = 0
    held: bool = False
    log_size: int = 0
    start_offset: int = 0
    topic: str = ""
    #: None: the custom metadata is not ours, so its objects may lie under any layout.
    layout: int | None = None
    sizes: Mapping[str, int] = msgspec.field(default_factory=dict)


def last_word(events: Iterable[Told]) -> Segment:
    """Return the segment that events, in log order, leave behind.

    Beyond the cache, a deleted segment stays as DELETE_SEGMENT_FINISHED: its objects must be gone.
    """
    segment = Segment()
    for event in events:
        _apply(segment, event)
    return segment


def _apply(segment: Segment, event: Told) -> None:
    segment.named = True
    # A segment that is gone may begin anew: `rlmm log repair` puts held ones back so.
    before = None if segment.state is S.DELETE_SEGMENT_FINISHED else segment.state
    # Only a record of its own begins a segment, and it says COPY_SEGMENT_STARTED (Kafka's rule).
    begins = event.state is S.COPY_SEGMENT_STARTED
    if begins != (event.log_size is not None) or not legal(before, event.state):
        return
    if event.only_if_started and before is S.COPY_SEGMENT_FINISHED:
        segment.held = True
    if event.log_size is not None:
        segment.log_size = event.log_size
        segment.start_offset = event.start_offset or 0
        segment.topic = event.topic or ""
        if before is None:
            segment.layout, segment.sizes = None, {}
    elif event.state is S.COPY_SEGMENT_FINISHED:
        segment.held = False
    if event.sizes is not None:
        segment.layout, segment.sizes = event.layout, event.sizes
    segment.state = event.state
    segment.event_ms = event.event_ms
