"""The two events that nearly every record of a log is, applied in one go.

A new segment of one epoch, and its COPY_SEGMENT_FINISHED right behind the last one: each function
either does exactly what `PartitionCache.start` or `update` would do, or nothing and says so. Random
histories are held against both ways in the tests.
"""

import struct
from typing import Final

from rlmm_daemon.codec import tail as tails
from rlmm_daemon.core.cache import PartitionCache
from rlmm_daemon.domain.ids import SegmentId
from rlmm_daemon.domain.partition_delete import PartitionDeleteState
from rlmm_daemon.domain.segment import SegmentState

_STARTED: Final = int(SegmentState.COPY_SEGMENT_STARTED)
_FINISHED: Final = int(SegmentState.COPY_SEGMENT_FINISHED)
_GONE: Final = PartitionDeleteState.DELETE_PARTITION_FINISHED
#: A tail of one epoch without custom metadata and transaction index, from its end offset on: end
#: offset, broker, epoch count, epoch, its start, size, custom metadata, state.
_TAIL: Final = struct.Struct(">9xqi16xBiqxiBB4x")
_ONE_EPOCH: Final = 2
_NO_CUSTOM_AT: Final = _TAIL.size - 6
_BROKER: Final = struct.Struct(">i")
_BEHIND: Final = bytes((_FINISHED,)) + tails.TXN_INDEX_EMPTY


def start(cache: PartitionCache, segment_id: SegmentId, tail: bytes) -> bool:
    """Apply COPY_SEGMENT_STARTED (`tails.is_common_start`) of a segment that was never seen."""
    if len(tail) != _TAIL.size or cache.delete_state is _GONE:
        return False
    _, broker, count, epoch, _, size, _, _ = _TAIL.unpack(tail)
    segments = cache.segments
    if count != _ONE_EPOCH or segments.sealed is not None or segment_id in segments.changes:
        return False
    cache.writer = broker
    cache.epochs.made(epoch).unreferenced[segment_id] = None
    segments.put(segment_id, tail, is_new=True)
    cache.segments_by_state[_STARTED] += 1
    cache.bytes_by_state[_STARTED] += size
    cache.changes += 1
    return True


def finish(cache: PartitionCache, segment_id: SegmentId, written: bytes, custom: bytes) -> bool:
    """Apply COPY_SEGMENT_FINISHED of a started segment that follows the last one of its epoch."""
    segments = cache.segments
    old = segments.changes.get(segment_id)
    if old is None or len(old) != _TAIL.size or cache.held or segments.sealed is not None:
        return False
    end, _, count, epoch, first, size, no_custom, state = _TAIL.unpack(old)
    index = cache.epochs.get(epoch)
    if (
        count != _ONE_EPOCH
        or no_custom
        or state != _STARTED
        or index is None
        or index.referenced is not None
        or _BROKER.unpack_from(written)[0] != cache.writer
        or segment_id in cache.strays
    ):
        return False
    own, top = index.cover.own, cache.epochs.highest(epoch)
    if (own.starts and own.ends[-1] + 1 != first) or first > end or (top or -1) >= end:
        return False
    segments.put(
        segment_id,
        b"".join((
            old[: tails.BROKER_AT],
            written[:4],
            old[tails.MAX_TIMESTAMP_AT : tails.EVENT_TIMESTAMP_AT],
            written[4:],
            old[tails.EPOCHS_AT : _NO_CUSTOM_AT],
            custom,
            _BEHIND,
        )),
        is_new=False,
    )  # fmt: skip
    if custom != tails.NULL_CUSTOM:
        cache.forget_kept(segment_id)
    own.starts.append(first)
    own.ends.append(end)
    own.ids.append(segment_id)
    own.reach = max(own.reach, end - first)
    index.unreferenced.pop(segment_id, None)
    cache.epochs.set_highest(epoch, end)
    counts, sizes = cache.segments_by_state, cache.bytes_by_state
    counts[_STARTED] -= 1
    counts[_FINISHED] += 1
    sizes[_STARTED] -= size
    sizes[_FINISHED] += size
    cache.changes += 1
    return True
