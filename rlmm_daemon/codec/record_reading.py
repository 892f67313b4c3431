"""General reader of records: every valid form, and a reason for every invalid one.

`codec.records` is the front door; it tries `common_shape` first. What is accepted here is what
Kafka's serde and its domain constructors accept, plus record version 1.
"""

import struct
from collections.abc import Callable, Mapping
from typing import Final, TypedDict, TypeVar

from rlmm_daemon.codec.primitives import INT8, INT32, INT64, Cursor
from rlmm_daemon.codec.record_writing import (
    EPOCH_BYTES,
    FRAME_VERSION,
    TXN_INDEX_EMPTY_TAG,
    ApiKey,
    Record,
    offsets_fault,
)
from rlmm_daemon.domain.errors import Malformed
from rlmm_daemon.domain.ids import (
    BrokerId,
    LeaderEpoch,
    Offset,
    SegmentId,
    TopicId,
    TopicIdPartition,
)
from rlmm_daemon.domain.partition_delete import PartitionDelete, PartitionDeleteState
from rlmm_daemon.domain.segment import (
    CustomMetadata,
    SegmentMetadata,
    SegmentSnapshot,
    SegmentState,
    SegmentUpdate,
)

#: The newest record version that is read (KIP-1266).
RECORD_VERSION_MAX: Final = 1
_ENVELOPE_MAX: Final = 0x7FFF
#: So many are read in one go if they are as they nearly always are.
_EPOCHS_PLAIN_MIN: Final = 16
_EPOCH: Final = struct.Struct(">iqB")
#: Two offsets, the broker, two times.
_BEFORE_EPOCHS_BYTES: Final = 8 + 8 + 4 + 8 + 8


def read_any(value: bytes) -> Record:
    """Return the record that all of `value` is.

    Raises:
        Malformed: as `codec.records.decode` says.
    """
    cursor = Cursor(value)
    record = _BODIES[read_envelope(cursor)](cursor)
    cursor.finish()
    return record


def read_envelope(cursor: Cursor) -> ApiKey:
    """Return which record follows, and pass the envelope.

    Raises:
        Malformed: another frame version, an unknown api key, a record version too new.
    """
    at = cursor.position
    frame_version = cursor.uvarint("frame version", _ENVELOPE_MAX)
    if frame_version != FRAME_VERSION:
        raise cursor.fail(f"frame version is {frame_version}, only {FRAME_VERSION} is known", at)
    at = cursor.position
    key = cursor.uvarint("api key", _ENVELOPE_MAX)
    if key not in _API_KEYS:
        raise cursor.fail(f"api key {key} is unknown", at)
    at = cursor.position
    version = cursor.uvarint("record version", _ENVELOPE_MAX)
    if version > RECORD_VERSION_MAX:
        raise cursor.fail(f"record version {version} is newer than {RECORD_VERSION_MAX}", at)
    return ApiKey(key)


def leader_epochs_claimed(value: bytes) -> int:
    """Return how many leader epochs a record claims, 0 for one that has none; reads no epoch.

    Raises:
        Malformed: nothing whole stands before the count, or the rest can't hold so many.
    """
    cursor = Cursor(value)
    key = read_envelope(cursor)
    if key is ApiKey.SEGMENT_METADATA:
        _read_segment_id(cursor)
    elif key is ApiKey.SEGMENT_SNAPSHOT:
        cursor.uuid("segment id")
    else:
        return 0
    cursor.take(_BEFORE_EPOCHS_BYTES, "the offsets and times")
    return cursor.array_length("leader epochs", element_bytes_min=EPOCH_BYTES)


def _read_partition(cursor: Cursor) -> TopicIdPartition:
    name = cursor.string("topic name")
    topic_id = TopicId(cursor.uuid("topic id"))
    partition = TopicIdPartition(topic_id, name, cursor.number(INT32, "partition"))
    cursor.skip_tags("TopicIdPartitionEntry")
    return partition


def _read_segment_id(cursor: Cursor) -> tuple[TopicIdPartition, SegmentId]:
    partition = _read_partition(cursor)
    segment_id = SegmentId(cursor.uuid("segment id"))
    cursor.skip_tags("RemoteLogSegmentIdEntry")
    return partition, segment_id


_S = TypeVar("_S", SegmentState, PartitionDeleteState)


def _read_state(cursor: Cursor, kind: type[_S]) -> _S:
    at = cursor.position
    number = cursor.number(INT8, "state")
    try:
        return kind(number)
    except ValueError as error:
        raise cursor.fail(f"state {number} is unknown", at) from error


def _read_custom(cursor: Cursor) -> CustomMetadata | None:
    custom = cursor.nullable_bytes("custom metadata")
    return None if custom is None else CustomMetadata(custom)


def _read_epochs(cursor: Cursor) -> Mapping[LeaderEpoch, Offset]:
    """Return the epochs ascending; of a repeated epoch the last one wins, as in Kafka's TreeMap."""
    epochs: dict[LeaderEpoch, Offset] = {}
    count = cursor.array_length("leader epochs", element_bytes_min=EPOCH_BYTES)
    if (plain := _plain_epochs(cursor, count)) is not None:
        return plain
    for _ in range(count):
        epoch = LeaderEpoch(cursor.number(INT32, "leader epoch"))
        epochs[epoch] = Offset(cursor.number(INT64, "leader epoch's offset"))
        cursor.skip_tags("SegmentLeaderEpochEntry")
    if not epochs:
        raise cursor.fail("leader epochs are empty")
    return dict(sorted(epochs.items()))


def _plain_epochs(cursor: Cursor, count: int) -> Mapping[LeaderEpoch, Offset] | None:
    """Return epochs that are many and have no tags, in one go; None: take the long way."""
    if count < _EPOCHS_PLAIN_MIN:
        return None
    begin = cursor.position
    encoded = cursor.take(count * EPOCH_BYTES, "leader epochs")
    if encoded[EPOCH_BYTES - 1 :: EPOCH_BYTES].count(0) != count:
        cursor.position = begin
        return None
    epochs = {LeaderEpoch(each): Offset(at) for each, at, _ in _EPOCH.iter_unpack(encoded)}
    return dict(sorted(epochs.items()))


class _Body(TypedDict):
    """The fields that api keys 0 and 3 share."""

    start_offset: Offset
    end_offset: Offset
    broker_id: BrokerId
    max_timestamp_ms: int
    event_timestamp_ms: int
    segment_leader_epochs: Mapping[LeaderEpoch, Offset]
    segment_size_bytes: int
    custom_metadata: CustomMetadata | None
    state: SegmentState
    txn_index_empty: bool


def _read_body(cursor: Cursor) -> _Body:
    return _Body(  # evaluated in the order written, which is the wire's
        start_offset=Offset(cursor.number(INT64, "start offset")),
        end_offset=Offset(cursor.number(INT64, "end offset")),
        broker_id=BrokerId(cursor.number(INT32, "broker id")),
        max_timestamp_ms=cursor.number(INT64, "max timestamp"),
        event_timestamp_ms=cursor.number(INT64, "event timestamp"),
        segment_leader_epochs=_read_epochs(cursor),
        segment_size_bytes=cursor.number(INT32, "segment size"),
        custom_metadata=_read_custom(cursor),
        state=_read_state(cursor, SegmentState),
        txn_index_empty=_read_txn_index_empty(cursor),
    )


def _read_txn_index_empty(cursor: Cursor) -> bool:
    """Pass the record's tags and return TxnIndexEmpty; any byte but 0 is true, as in Kafka."""
    empty = False
    for tag, encoded in cursor.tags("record"):
        if tag == TXN_INDEX_EMPTY_TAG:
            if len(encoded) != 1:
                raise cursor.fail(f"TxnIndexEmpty is {len(encoded)} bytes long, not 1")
            empty = encoded != b"\x00"
    return empty


def _read_segment(cursor: Cursor) -> SegmentMetadata:
    partition, segment_id = _read_segment_id(cursor)
    body = _read_body(cursor)
    if fault := offsets_fault(body["start_offset"], body["end_offset"]):
        raise Malformed(fault)
    return SegmentMetadata(partition=partition, segment_id=segment_id, **body)


def _read_update(cursor: Cursor) -> SegmentUpdate:
    partition, segment_id = _read_segment_id(cursor)
    update = SegmentUpdate(
        partition=partition,
        segment_id=segment_id,
        broker_id=BrokerId(cursor.number(INT32, "broker id")),
        event_timestamp_ms=cursor.number(INT64, "event timestamp"),
        custom_metadata=_read_custom(cursor),
        state=_read_state(cursor, SegmentState),
    )
    cursor.skip_tags("record")
    return update


def _read_delete(cursor: Cursor) -> PartitionDelete:
    delete = PartitionDelete(
        partition=_read_partition(cursor),
        broker_id=BrokerId(cursor.number(INT32, "broker id")),
        event_timestamp_ms=cursor.number(INT64, "event timestamp"),
        state=_read_state(cursor, PartitionDeleteState),
    )
    cursor.skip_tags("record")
    return delete


def _read_snapshot(cursor: Cursor) -> SegmentSnapshot:
    # Kafka's class checks no offsets here, so neither do we.
    segment_id = SegmentId(cursor.uuid("segment id"))
    return SegmentSnapshot(segment_id=segment_id, **_read_body(cursor))


_BODIES: Final[Mapping[ApiKey, Callable[[Cursor], Record]]] = {
    ApiKey.SEGMENT_METADATA: _read_segment,
    ApiKey.SEGMENT_METADATA_UPDATE: _read_update,
    ApiKey.PARTITION_DELETE: _read_delete,
    ApiKey.SEGMENT_SNAPSHOT: _read_snapshot,
}
_API_KEYS: Final = frozenset(ApiKey)
assert _BODIES.keys() == _API_KEYS, "every api key has a reader"
