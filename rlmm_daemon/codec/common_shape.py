"""Fast reader for the common shape of records: precompiled Structs, else the general codec.

`read` either returns exactly what `codec.records` would read, or None for "take the long way", and
never raises. What it does read is in normal form already, so its bytes may be kept as they are.
Common means: version 0, every varint in one byte, no tag but TxnIndexEmpty, epochs ascending.
"""

import struct
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final

from rlmm_daemon.domain.ids import (
    UUID_BYTES,
    BrokerId,
    LeaderEpoch,
    Offset,
    SegmentId,
    TopicId,
)
from rlmm_daemon.domain.ids import TopicIdPartition as Partition
from rlmm_daemon.domain.partition_delete import PartitionDelete, PartitionDeleteState
from rlmm_daemon.domain.segment import (
    CustomMetadata,
    SegmentMetadata,
    SegmentSnapshot,
    SegmentState,
    SegmentUpdate,
)

#: Enough for every partition of a broker; names here are under 127 bytes, so under 2 MiB in all.
_PARTITIONS_MAX: Final = 8192
_VARINT_TOP: Final = 0x80
_UPDATE_KIND: Final = b"\x01\x01\x00"
#: Of an update, between the partition's name and the segment's id: topic id, partition, no tags.
_BEFORE_ID_BYTES: Final = UUID_BYTES + 5

# A trailing B is a tag count (0) or the one-byte length varint that follows in the record.
_UPDATE: Final = struct.Struct(">16siB16sBiqB")
_DELETE: Final = struct.Struct(">16siBiq")
_SEGMENT: Final = struct.Struct(">16siB16sB")
_SNAPSHOT_ID: Final = struct.Struct(">16s")
_BODY: Final = struct.Struct(">qqiqqB")
_EPOCH: Final = struct.Struct(">iqB")
_SIZE: Final = struct.Struct(">iB")

_SEGMENT_TAILS: Final = {bytes((s, 0)): (s, False) for s in SegmentState} | {
    bytes((s, 1, 0, 1, 1)): (s, True) for s in SegmentState
}
_UPDATE_TAILS: Final = {bytes((s, 0)): s for s in SegmentState}
_DELETE_TAILS: Final = {bytes((s, 0)): s for s in PartitionDeleteState}

_Body = tuple[
    Offset, Offset, BrokerId, int, int, Mapping[LeaderEpoch, Offset], int,
    CustomMetadata | None, SegmentState, bool,
]  # fmt: skip


class _Uncommon(Exception):
    """Take the long way."""


def read(
    value: bytes,
) -> SegmentMetadata | SegmentUpdate | PartitionDelete | SegmentSnapshot | None:
    """Return the record, or None when it is not in the common shape (valid or not)."""
    reader = _READERS.get(value[:3])
    if reader is None:
        return None
    try:
        return reader(value)
    except (struct.error, LookupError, ValueError, _Uncommon):
        return None


def updated(normal: bytes) -> SegmentId | None:
    """Return the segment of an update in normal form; None: it is none, or has a long name."""
    if normal[:3] != _UPDATE_KIND or normal[3] >= _VARINT_TOP:
        return None
    at = 3 + normal[3] + _BEFORE_ID_BYTES
    return SegmentId(normal[at : at + UUID_BYTES])


@lru_cache(_PARTITIONS_MAX)
def _partition(name: bytes, topic_id: bytes, number: int) -> Partition:
    return Partition(TopicId(topic_id), name.decode("utf-8"), number)


def _name(value: bytes) -> tuple[bytes, int]:
    size = value[3]
    if not 0 < size < _VARINT_TOP:
        raise _Uncommon
    return value[4 : 3 + size], 3 + size


def _custom(value: bytes, at: int, size: int) -> tuple[CustomMetadata | None, bytes]:
    if size == 0:
        return None, value[at:]
    if size >= _VARINT_TOP:
        raise _Uncommon
    behind = at + size - 1
    return CustomMetadata(value[at:behind]), value[behind:]


def _update(value: bytes) -> SegmentUpdate:
    name, at = _name(value)
    topic_id, number, tags, segment_id, more_tags, broker_id, timestamp_ms, size = (
        _UPDATE.unpack_from(value, at)
    )
    custom, tail = _custom(value, at + _UPDATE.size, size)
    if tags or more_tags:
        raise _Uncommon
    return SegmentUpdate(
        partition=_partition(name, topic_id, number),
        segment_id=segment_id,
        broker_id=broker_id,
        event_timestamp_ms=timestamp_ms,
        custom_metadata=custom,
        state=_UPDATE_TAILS[tail],
    )


def _delete(value: bytes) -> PartitionDelete:
    name, at = _name(value)
    topic_id, number, tags, broker_id, timestamp_ms = _DELETE.unpack_from(value, at)
    if tags:
        raise _Uncommon
    return PartitionDelete(
        partition=_partition(name, topic_id, number),
        broker_id=broker_id,
        event_timestamp_ms=timestamp_ms,
        state=_DELETE_TAILS[value[at + _DELETE.size :]],
    )


def _segment(value: bytes) -> SegmentMetadata:
    name, at = _name(value)
    topic_id, number, tags, segment_id, more_tags = _SEGMENT.unpack_from(value, at)
    start, end, broker_id, max_ms, event_ms, epochs, size, custom, state, txn_empty = _body(
        value, at + _SEGMENT.size
    )
    if tags or more_tags or not 0 <= start <= end:
        raise _Uncommon
    return SegmentMetadata(
        partition=_partition(name, topic_id, number),
        segment_id=segment_id,
        start_offset=start,
        end_offset=end,
        broker_id=broker_id,
        max_timestamp_ms=max_ms,
        event_timestamp_ms=event_ms,
        segment_leader_epochs=epochs,
        segment_size_bytes=size,
        custom_metadata=custom,
        state=state,
        txn_index_empty=txn_empty,
    )


def _snapshot(value: bytes) -> SegmentSnapshot:
    (segment_id,) = _SNAPSHOT_ID.unpack_from(value, 3)
    start, end, broker_id, max_ms, event_ms, epochs, size, custom, state, txn_empty = _body(
        value, 3 + _SNAPSHOT_ID.size
    )
    return SegmentSnapshot(
        segment_id=SegmentId(segment_id),
        start_offset=start,
        end_offset=end,
        broker_id=broker_id,
        max_timestamp_ms=max_ms,
        event_timestamp_ms=event_ms,
        segment_leader_epochs=epochs,
        segment_size_bytes=size,
        custom_metadata=custom,
        state=state,
        txn_index_empty=txn_empty,
    )


def _body(value: bytes, at: int) -> _Body:
    start, end, broker_id, max_ms, event_ms, count = _BODY.unpack_from(value, at)
    at += _BODY.size
    behind = at + _EPOCH.size * (count - 1)
    if count == 2:  # noqa: PLR2004  # one epoch (count + 1 on the wire) is by far the usual case
        epoch, offset, tags = _EPOCH.unpack_from(value, at)
        if tags:
            raise _Uncommon
        epochs = {epoch: offset}
    else:
        epochs = _epochs(value[at:behind], count)
    size, custom_size = _SIZE.unpack_from(value, behind)
    custom, tail = _custom(value, behind + _SIZE.size, custom_size)
    return start, end, broker_id, max_ms, event_ms, epochs, size, custom, *_SEGMENT_TAILS[tail]


def _epochs(encoded: bytes, count: int) -> dict[LeaderEpoch, Offset]:
    """Return the epochs of a wire count; a short slice fails here or in the field behind it."""
    if not 1 < count < _VARINT_TOP:
        raise _Uncommon
    epochs = {}
    last = None
    for epoch, offset, tags in _EPOCH.iter_unpack(encoded):
        if tags or (last is not None and epoch <= last):
            raise _Uncommon
        epochs[epoch] = offset
        last = epoch
    return epochs


_Reader = Callable[[bytes], SegmentMetadata | SegmentUpdate | PartitionDelete | SegmentSnapshot]
_READERS: Final[Mapping[bytes, _Reader]] = {
    b"\x01\x00\x00": _segment,
    _UPDATE_KIND: _update,
    b"\x01\x02\x00": _delete,
    b"\x01\x03\x00": _snapshot,
}
