"""Validation of a write before the log is asked; Kafka never asks.

What is refused here would be dropped by every broker after it was acknowledged. A repeat of what
the fold holds already succeeds and appends nothing, because callers retry after a lost answer.
The caller first waits for appends in flight of the same segment.
"""

from typing import Final, assert_never

from rlmm_daemon.codec import record_suffix as tails
from rlmm_daemon.codec import records
from rlmm_daemon.codec.record_writing import EPOCH_BYTES, Record
from rlmm_daemon.core.fold.cache import PartitionCache
from rlmm_daemon.core.fold.lifecycle import (
    illegal,
    illegal_partition_delete,
    legal,
    legal_partition_delete,
)
from rlmm_daemon.core.fold.outcome import ACCEPT, REPEAT, Verdict
from rlmm_daemon.domain.errors import IllegalTransition, InvalidArgument, SegmentNotFound
from rlmm_daemon.domain.event import Event
from rlmm_daemon.domain.ids import uuid_text
from rlmm_daemon.domain.partition_delete import PartitionDelete
from rlmm_daemon.domain.segment import SegmentMetadata, SegmentState, SegmentUpdate

#: What a broker's own metadata manager can append at its defaults (`max.request.size`,
#: `max.message.bytes`), and what the embedded log takes.
RECORD_BYTES_MAX: Final = 1024 * 1024
#: Reading takes some 1.5 us per leader epoch, in one step, so a record of this many holds the loop
#: for about 0.03 s; it is put into the epochs some at a time. Kafka itself has no bound but the
#: size (80,000). An epoch is in a segment only if the partition was led anew and written to, and
#: the segment was not rolled, in between: this many are a fail-over and a return of the preferred
#: leader each five minutes (`leader.imbalance.check.interval.seconds`) for four weeks in one
#: segment; by default it is rolled after one (`segment.ms`). A log that holds more all the same is
#: folded like any other.
LEADER_EPOCHS_MAX: Final = 16_384


def read_offered(value: bytes) -> tuple[Record, bytes]:
    """Return what a caller wants written, and its normal form; bounded before it is decoded.

    Raises:
        InvalidArgument: more bytes or leader epochs than anybody has to write.
        Malformed: not a record.
    """
    if len(value) > RECORD_BYTES_MAX:
        raise InvalidArgument(
            f"a record of {len(value)} bytes is over the limit of {RECORD_BYTES_MAX}"
        )
    if len(value) > LEADER_EPOCHS_MAX * EPOCH_BYTES:
        claimed = records.leader_epochs_claimed(value)
        if claimed > LEADER_EPOCHS_MAX:
            raise InvalidArgument(
                f"a segment of {claimed} leader epochs is over the limit of {LEADER_EPOCHS_MAX}"
            )
    return records.decode_normal(value)


def validate(cache: PartitionCache | None, event: Event) -> Verdict:
    """Return whether to append an event of this user partition, or that it is a repeat.

    Raises:
        InvalidArgument: a state that this method of the SPI does not take, a field out of range.
        IllegalTransition: the life cycle does not allow it now.
        SegmentNotFound: an update of a segment that is not there.
    """
    match event:
        case SegmentMetadata():
            return _validate_start(cache, event)
        case SegmentUpdate():
            return _validate_update(cache, event)
        case PartitionDelete():
            before = None if cache is None else cache.delete_state
            if not legal_partition_delete(before, event.state):
                raise illegal_partition_delete(before, event.state)
            return REPEAT if before is event.state else ACCEPT
        case _:
            assert_never(event)


def _validate_start(cache: PartitionCache | None, event: SegmentMetadata) -> Verdict:
    if event.state is not SegmentState.COPY_SEGMENT_STARTED:
        raise InvalidArgument("a new segment's state must be COPY_SEGMENT_STARTED")
    stored = None if cache is None else cache.segments.get(event.segment_id)
    if cache is None or stored is None:
        return ACCEPT
    before = cache.state(event.segment_id)
    assert before is not None
    if not legal(before, event.state):
        raise illegal(event.segment_id, before, event.state)
    offered = records.encode(event)[len(cache.segments.head) + len(event.segment_id) :]
    if _but_event_time(offered) != _but_event_time(stored):
        raise IllegalTransition(
            f"segment {uuid_text(event.segment_id)} was started with other metadata",
            segment_id=uuid_text(event.segment_id),
            before=before.name,
            after=event.state.name,
        )
    return REPEAT


def _but_event_time(tail: bytes) -> tuple[bytes, bytes]:
    return tail[: tails.EVENT_TIMESTAMP_AT], tail[tails.EPOCHS_AT :]


def _validate_update(cache: PartitionCache | None, event: SegmentUpdate) -> Verdict:
    if event.state is SegmentState.COPY_SEGMENT_STARTED:
        raise InvalidArgument("an update cannot say COPY_SEGMENT_STARTED")
    stored = None if cache is None else cache.segments.get(event.segment_id)
    if cache is None or stored is None:
        # Never seen and already deleted look alike, and are alike to one who wants it gone.
        if event.state is SegmentState.DELETE_SEGMENT_FINISHED:
            return REPEAT
        raise SegmentNotFound(segment_id=uuid_text(event.segment_id))
    before = SegmentState(tails.state_of(stored))
    if not legal(before, event.state):
        raise illegal(event.segment_id, before, event.state)
    offered = event.custom_metadata
    if before is event.state and (offered is None or offered == tails.custom_of(stored)):
        return REPEAT
    return ACCEPT
