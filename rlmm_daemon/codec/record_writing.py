"""Writer of records in Kafka's normal form; every field's range is checked on the way.

`codec.records` is the front door and says what normal form means.
"""

import enum
import struct
from typing import Final, TypeVar, assert_never

from rlmm_daemon.codec.primitives import INT8, INT32, INT64, STRING_BYTES_MAX, read_uvarint, uvarint
from rlmm_daemon.domain.errors import InvalidArgument
from rlmm_daemon.domain.event import Event
from rlmm_daemon.domain.ids import UUID_BYTES, Offset, TopicIdPartition
from rlmm_daemon.domain.partition_delete import PartitionDelete, PartitionDeleteState
from rlmm_daemon.domain.segment import (
    SegmentMetadata,
    SegmentSnapshot,
    SegmentState,
    SegmentUpdate,
)

Record = Event | SegmentSnapshot

FRAME_VERSION: Final = 1
RECORD_VERSION: Final = 0
TXN_INDEX_EMPTY_TAG: Final = 0
_NO_TAGS: Final = b"\x00"
_TXN_INDEX_EMPTY: Final = bytes((1, TXN_INDEX_EMPTY_TAG, 1, 1))


class ApiKey(enum.IntEnum):
    """Which of the four records a value holds."""

    SEGMENT_METADATA = 0
    SEGMENT_METADATA_UPDATE = 1
    PARTITION_DELETE = 2
    SEGMENT_SNAPSHOT = 3


def encode(record: Record) -> bytes:
    """Return the normal form of a record, byte for byte what Kafka's serializer writes.

    Raises:
        InvalidArgument: a field is out of its range, or breaks a rule that `decode` holds.
    """
    match record:
        case SegmentUpdate():
            return b"".join((
                _ENVELOPES[ApiKey.SEGMENT_METADATA_UPDATE],
                _segment_id_entry(record),
                _EVENT.pack(record.broker_id, record.event_timestamp_ms),
                _nullable_bytes(record.custom_metadata),
                _state(SegmentState, record.state),
                _NO_TAGS,
            ))  # fmt: skip
        case SegmentMetadata():
            _refuse(offsets_fault(record.start_offset, record.end_offset))
            return b"".join((
                _ENVELOPES[ApiKey.SEGMENT_METADATA], _segment_id_entry(record), *_body(record)
            ))  # fmt: skip
        case PartitionDelete():
            return b"".join((
                _ENVELOPES[ApiKey.PARTITION_DELETE],
                _partition_entry(record.partition),
                _EVENT.pack(record.broker_id, record.event_timestamp_ms),
                _state(PartitionDeleteState, record.state),
                _NO_TAGS,
            ))  # fmt: skip
        case SegmentSnapshot():
            return b"".join((
                _ENVELOPES[ApiKey.SEGMENT_SNAPSHOT],
                _uuid("segment id", record.segment_id),
                *_body(record),
            ))  # fmt: skip
        case _:
            assert_never(record)


def merge(segment: bytes, update: SegmentUpdate) -> bytes:
    """Return a key 0 record after an update, spliced; as `SegmentMetadata.with_update` says.

    `segment` must be in normal form (asserted only by its envelope). Broker, event time, custom
    metadata and state come from the update, null included; all else is kept byte for byte.

    Raises:
        InvalidArgument: as `encode`.

    Source: RemoteLogSegmentMetadata.createWithUpdates.
    """
    assert segment.startswith(_ENVELOPES[ApiKey.SEGMENT_METADATA]), "not a key 0 in normal form"
    name_size, name_at = read_uvarint(segment, len(_ENVELOPES[0]), what="topic name")
    broker_at = name_at + name_size - 1 + _BEFORE_BROKER_BYTES
    event_at = broker_at + INT32.size + INT64.size
    count, epochs_at = read_uvarint(segment, event_at + INT64.size, what="epochs")
    custom_at = epochs_at + (count - 1) * EPOCH_BYTES + INT32.size
    size, custom_bytes_at = read_uvarint(segment, custom_at, what="custom metadata")
    state_at = custom_bytes_at + max(size - 1, 0)
    event = _EVENT.pack(update.broker_id, update.event_timestamp_ms)
    return b"".join((
        segment[:broker_at],
        event[: INT32.size],
        segment[broker_at + INT32.size : event_at],
        event[INT32.size :],
        segment[event_at + INT64.size : custom_at],
        _nullable_bytes(update.custom_metadata),
        _state(SegmentState, update.state),
        segment[state_at + INT8.size :],
    ))  # fmt: skip


_S = TypeVar("_S", SegmentState, PartitionDeleteState)


class _Layout:
    """A Struct whose faults name the field."""

    __slots__ = ("_fields", "_struct", "size")

    def __init__(self, layout: str, *fields: str) -> None:
        self._struct = struct.Struct(f">{layout}")
        self._fields = tuple(zip(fields, layout, strict=True))
        self.size = self._struct.size

    def pack(self, *values: int) -> bytes:
        try:
            return self._struct.pack(*values)
        except struct.error as error:
            raise self._fault(*values) from error

    def _fault(self, *values: object) -> InvalidArgument:
        for (field, code), value in zip(self._fields, values, strict=True):
            bits = 8 * struct.calcsize(f">{code}")
            if type(value) is not int or not -(1 << bits - 1) <= value < 1 << bits - 1:
                return InvalidArgument(f"{field} {value!r} is not an int{bits}")
        raise AssertionError(values)


_PARTITION: Final = _Layout("i", "partition")
_EVENT: Final = _Layout("iq", "broker id", "event timestamp")
_OFFSETS: Final = _Layout(
    "qqiqq", "start offset", "end offset", "broker id", "max timestamp", "event timestamp"
)
_EPOCH: Final = _Layout("iq", "leader epoch", "leader epoch's offset")
_SIZE: Final = _Layout("i", "segment size")
EPOCH_BYTES: Final = _EPOCH.size + len(_NO_TAGS)
#: In a key 0 record in normal form: from the end of the topic name to the broker id.
_BEFORE_BROKER_BYTES: Final = UUID_BYTES + INT32.size + 1 + UUID_BYTES + 1 + 2 * INT64.size
_ENVELOPES: Final = tuple(bytes((FRAME_VERSION, key, RECORD_VERSION)) for key in ApiKey)


def _refuse(fault: str | None) -> None:
    if fault:
        raise InvalidArgument(fault)


def offsets_fault(start: Offset, end: Offset) -> str | None:
    """Return what RemoteLogSegmentMetadata's constructor would object to."""
    if start < 0:
        return f"start offset {start} is negative"
    if end < start:
        return f"end offset {end} is less than start offset {start}"
    return None


def _uuid(what: str, uuid: bytes) -> bytes:
    if len(uuid) != UUID_BYTES:
        raise InvalidArgument(f"{what} is {len(uuid)} bytes long, not {UUID_BYTES}")
    return uuid


def _partition_entry(partition: TopicIdPartition) -> bytes:
    try:
        name = partition.topic.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"topic name {partition.topic!r} has no UTF-8 form") from error
    if len(name) > STRING_BYTES_MAX:
        raise InvalidArgument(f"topic name of {len(name)} bytes: {STRING_BYTES_MAX} are the most")
    number = _PARTITION.pack(partition.partition)
    return uvarint(len(name) + 1) + name + _uuid("topic id", partition.topic_id) + number + _NO_TAGS


def _segment_id_entry(record: SegmentMetadata | SegmentUpdate) -> bytes:
    return _partition_entry(record.partition) + _uuid("segment id", record.segment_id) + _NO_TAGS


def _nullable_bytes(value: bytes | None) -> bytes:
    return b"\x00" if value is None else uvarint(len(value) + 1) + value


def _state(kind: type[_S], state: _S) -> bytes:
    try:
        return bytes((kind(state),))
    except ValueError as error:
        raise InvalidArgument(f"state {state!r} is unknown") from error


def _body(record: SegmentMetadata | SegmentSnapshot) -> tuple[bytes, ...]:
    epochs = record.segment_leader_epochs
    _refuse(None if epochs else "leader epochs are empty")
    return (
        _OFFSETS.pack(
            record.start_offset,
            record.end_offset,
            record.broker_id,
            record.max_timestamp_ms,
            record.event_timestamp_ms,
        ),
        uvarint(len(epochs) + 1),
        *(_EPOCH.pack(epoch, epochs[epoch]) + _NO_TAGS for epoch in sorted(epochs)),
        _SIZE.pack(record.segment_size_bytes),
        _nullable_bytes(record.custom_metadata),
        _state(SegmentState, record.state),
        _TXN_INDEX_EMPTY if record.txn_index_empty else _NO_TAGS,
    )
