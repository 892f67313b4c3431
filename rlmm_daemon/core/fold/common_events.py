"""Common events (a copy begins, a copy is finished), applied in one go, or both at once.

A new segment of one epoch, and its COPY_SEGMENT_FINISHED right behind the last one: each function
either does exactly what `PartitionCache.start` and `update` would do, or nothing and says so. The
tests hold random histories against both ways. A cold start is little else than this, so it is
written for speed: the record is unpacked where it stands, and nothing is called that can be read.
"""

import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from rlmm_daemon.codec import record_suffix as tails
from rlmm_daemon.core.fold.cache import PartitionCache
from rlmm_daemon.core.fold.segment_table import GENERATION
from rlmm_daemon.domain.ids import UUID_BYTES, SegmentId
from rlmm_daemon.domain.partition_delete import PartitionDeleteState
from rlmm_daemon.domain.segment import SegmentState

if TYPE_CHECKING:
    from rlmm_daemon.core.fold.user_partitions import Sleeping

_STARTED: Final = int(SegmentState.COPY_SEGMENT_STARTED)
_FINISHED: Final = int(SegmentState.COPY_SEGMENT_FINISHED)
_GONE: Final = PartitionDeleteState.DELETE_PARTITION_FINISHED
_ONE_EPOCH: Final = 2
_VARINT_TOP: Final = 0x80
#: A record that adds a segment of one epoch without custom metadata, from its id up to its tags:
#: id, tags, start offset, end offset, broker, epoch count, epoch, its start, tags, size, custom
#: metadata, state.
_ADDED: Final = struct.Struct(">16sBqqi16xBiqBiBB")
#: A tail like that, as far as a finish asks: end offset, broker, epoch count, epoch, its start,
#: size, custom metadata, state.
_TAIL: Final = struct.Struct(">9xqi16xBiqxiBB")
_NO_TAGS: Final = b"\x00"
_WITH_TXN_INDEX: Final = _TAIL.size + len(_NO_TAGS)
_WITHOUT_TXN_INDEX: Final = _TAIL.size + len(tails.TXN_INDEX_EMPTY)
_ENDS: Final = (tails.TXN_INDEX_EMPTY, _NO_TAGS)
_COMMON_BYTES: Final = (_WITH_TXN_INDEX, _WITHOUT_TXN_INDEX)
assert _ADDED.size == UUID_BYTES + _TAIL.size
#: An update, from its segment id on: id, tags, broker, event timestamp, custom metadata's length.
_UPDATED: Final = struct.Struct(">16sBi8sB")
_UPDATED_BEHIND_ID: Final = struct.Struct(">Bi8sB")
_CUSTOM_AT: Final = _UPDATED.size - 1
_CUSTOM_IN_TAIL: Final = _TAIL.size - 2
_HEADER_BYTES: Final = 3
_ADD: Final = b"\x01\x00\x00"
_UPDATE: Final = b"\x01\x01\x00"
#: Of a TopicIdPartitionEntry behind its name.
_BEHIND_NAME_BYTES: Final = UUID_BYTES + 5

#: Caches by the prefix of their records.
Caches = Mapping[bytes, "PartitionCache | Sleeping"]


def run(caches: Caches, rows: Sequence[tuple[int, bytes | None]], begin: int, end: int) -> int:
    """Apply rows[begin:end] up to the first that is no such event; return where that stands."""
    at = begin
    while at < end:
        value = rows[at][1]
        if value is None or len(value) <= _HEADER_BYTES:
            return at
        behind = value[_HEADER_BYTES] + (_HEADER_BYTES + _BEHIND_NAME_BYTES)
        cache = caches.get(value[_HEADER_BYTES:behind])
        if type(cache) is not PartitionCache:
            return at
        kind = value[:_HEADER_BYTES]
        if kind == _ADD:
            update = rows[at + 1][1] if at + 1 < end else None
            if update is not None and copied(cache, value, update, behind):
                at += 2
                continue
            if not start(cache, value, behind):
                return at
        elif kind != _UPDATE or not finish(cache, value, behind):
            return at
        at += 1
    return at


def copied(cache: PartitionCache, value: bytes, update: bytes, at: int) -> bool:
    """Apply a key 0 record whose prefix ends at `at`, and the key 1 record behind it.

    What `start` and then `finish` would come to, where no snapshot has anything of the partition.
    A segment that is in no table is in no epoch's sets and nothing of it is kept; a partition whose
    deletion is finished has no epochs. So neither is looked at.
    """
    id_end = at + UUID_BYTES
    tags_at, custom_at = at + _ADDED.size, at + _CUSTOM_AT
    segments, epochs = cache.segments, cache.epochs
    if (
        not update.startswith(value[_HEADER_BYTES:id_end], _HEADER_BYTES)
        or update[:_HEADER_BYTES] != _UPDATE
        or len(value) <= tags_at
        or len(update) <= custom_at + 2
        or segments.sealed is not None
    ):
        return False
    (
        segment_id, tags, start_offset, end_offset, broker, count, epoch, first, epoch_tags, size,
        no_custom, state,
    ) = _ADDED.unpack_from(value, at)  # fmt: skip
    update_tags, finished_by, written_ms, custom = _UPDATED_BEHIND_ID.unpack_from(update, id_end)
    state_at, behind, index = custom_at + (custom or 1), value[tags_at:], epochs.indexes.get(epoch)
    if (
        count != _ONE_EPOCH
        or tags
        or epoch_tags
        or no_custom
        or state
        or behind not in _ENDS
        or not 0 <= start_offset <= end_offset
        or update_tags
        or finished_by != broker
        or custom >= _VARINT_TOP
        or len(update) != state_at + 2
        or update[state_at] != _FINISHED
        or update[state_at + 1]
        or index is None
        or index.referenced is not None
        or cache.held
        or epochs.due
        or segment_id in segments.changes
        or (segments.older and segments.is_changed(segment_id))
    ):
        return False
    own, top = index.cover.own, epochs.highests.get(epoch)
    ends = own.ends
    if (
        (ends and ends[-1] + 1 != first)
        or first > end_offset
        or (top is not None and top >= end_offset)
    ):
        return False
    segments.changes[segment_id] = b"".join(
        (
            value[id_end : id_end + tails.EVENT_TIMESTAMP_AT],
            written_ms,
            value[id_end + tails.EPOCHS_AT : tags_at - 2],
            update[custom_at : state_at + 1],
            behind,
        )
    )
    segments.count += 1
    if len(segments.changes) >= GENERATION:
        segments.grown()
    own.starts.append(first)
    ends.append(end_offset)
    own.ids.append(segment_id)
    if behind == _NO_TAGS:
        own.txn.append(first)
    own.reach = max(own.reach, end_offset - first)
    epochs.highests[epoch] = end_offset
    cache.writer = broker
    cache.segments_by_state[_FINISHED] += 1
    cache.bytes_by_state[_FINISHED] += size
    cache.changes += 2
    return True


def start(cache: PartitionCache, value: bytes, at: int) -> bool:
    """Apply a key 0 record whose prefix ends at `at`: COPY_SEGMENT_STARTED of an unseen segment."""
    tags_at = at + _ADDED.size
    if len(value) <= tags_at or cache.delete_state is _GONE:
        return False
    (
        segment_id, tags, start_offset, end_offset, broker, count, epoch, _, epoch_tags, size,
        custom, state,
    ) = _ADDED.unpack_from(value, at)  # fmt: skip
    behind, segments = value[tags_at:], cache.segments
    if (
        count != _ONE_EPOCH
        or tags
        or epoch_tags
        or custom
        or state
        or behind not in _ENDS
        or not 0 <= start_offset <= end_offset
        or cache.epochs.due
        or segment_id in segments.changes
        or (segments.older and segments.is_changed(segment_id))
        or (segments.sealed is not None and segments.sealed.row_of(segment_id) >= 0)
    ):
        return False
    index = cache.epochs.indexes.get(epoch) or cache.epochs.made(epoch)
    index.unreferenced[segment_id] = None
    segments.changes[segment_id] = value[at + UUID_BYTES :]
    segments.count += 1
    if len(segments.changes) >= GENERATION:
        segments.grown()
    cache.writer = broker
    cache.segments_by_state[_STARTED] += 1
    cache.bytes_by_state[_STARTED] += size
    cache.changes += 1
    return True


def finish(cache: PartitionCache, value: bytes, at: int) -> bool:
    """Apply a key 1 record whose prefix ends at `at`: COPY_SEGMENT_FINISHED of a started segment.

    One that follows the last one of its epoch, told by the broker that began it.
    """
    custom_at = at + _CUSTOM_AT
    if len(value) <= custom_at + 2:
        return False
    found, tags, broker, written_ms, custom = _UPDATED.unpack_from(value, at)
    state_at = custom_at + (custom or 1)
    segments, epochs = cache.segments, cache.epochs
    segment_id = SegmentId(found)
    old = segments.changes.get(segment_id)
    if (
        old is None
        or tags
        or custom >= _VARINT_TOP
        or len(value) != state_at + 2
        or value[state_at] != _FINISHED
        or value[state_at + 1]
        or len(old) not in _COMMON_BYTES
        or cache.held
        or epochs.due
    ):
        return False
    end, began_by, count, epoch, first, size, no_custom, state = _TAIL.unpack_from(old)
    index = epochs.indexes.get(epoch)
    if (
        count != _ONE_EPOCH
        or no_custom
        or state != _STARTED
        or index is None
        or index.referenced is not None
        or not broker == began_by == cache.writer
        or segment_id in cache.strays
    ):
        return False
    cover, own = index.cover, index.cover.own
    ends = own.ends
    if segments.sealed is None:
        last, top = ends[-1] if ends else None, epochs.highests.get(epoch)
    else:
        span = cover.last()
        last, top = span[1] if span else None, epochs.highest(epoch)
    if (last is not None and last + 1 != first) or first > end or (top is not None and top >= end):
        return False
    segments.changes[segment_id] = (
        old[: tails.EVENT_TIMESTAMP_AT]
        + written_ms
        + old[tails.EPOCHS_AT : _CUSTOM_IN_TAIL]
        + value[custom_at : state_at + 1]
        + old[_TAIL.size :]
    )
    if custom:
        cache.kept.forget(segment_id)
    if segments.sealed is None:
        own.starts.append(first)
        ends.append(end)
        own.ids.append(segment_id)
        if len(old) == _WITH_TXN_INDEX:
            own.txn.append(first)
        own.reach = max(own.reach, end - first)
    else:  # the own cover's last piece may lie anywhere
        cover.append((first, end, segment_id), end, has_txn_index=len(old) == _WITH_TXN_INDEX)
    index.unreferenced.pop(segment_id, None)
    epochs.highests[epoch] = end
    counts, sizes = cache.segments_by_state, cache.bytes_by_state
    counts[_STARTED] -= 1
    counts[_FINISHED] += 1
    sizes[_STARTED] -= size
    sizes[_FINISHED] += size
    cache.changes += 1
    return True
