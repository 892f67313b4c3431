"""The JSON form of a record: Kafka's schema names in lowerCamelCase, nested as in the schemas.

    {"type": "RemotePartitionDeleteMetadataRecord", "version": 0, "data": {...}}

Uuids are Kafka's text, custom metadata is standard base64 or null, states are numbers, leader
epochs ascend. Version is that of the normal form, since tags of newer versions are not kept.
"""

from typing import Final, assert_never

import msgspec

from rlmm_daemon.codec.records import RECORD_VERSION, Record
from rlmm_daemon.domain.errors import InvalidArgument, Malformed
from rlmm_daemon.domain.ids import (
    BrokerId,
    LeaderEpoch,
    Offset,
    SegmentId,
    TopicId,
    TopicIdPartition,
    uuid_bytes,
    uuid_text,
)
from rlmm_daemon.domain.partition_delete import PartitionDelete, PartitionDeleteState
from rlmm_daemon.domain.segment import (
    CustomMetadata,
    SegmentMetadata,
    SegmentSnapshot,
    SegmentState,
    SegmentUpdate,
)


class _Node(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    pass


class _TopicIdPartition(_Node):
    name: str
    id: str
    partition: int


class _SegmentId(_Node):
    topic_id_partition: _TopicIdPartition
    id: str


class _Epoch(_Node):
    leader_epoch: int
    offset: int


class _Segment(_Node):
    remote_log_segment_id: _SegmentId
    start_offset: int
    end_offset: int
    broker_id: int
    max_timestamp_ms: int
    event_timestamp_ms: int
    segment_leader_epochs: list[_Epoch]
    segment_size_in_bytes: int
    custom_metadata: bytes | None
    remote_log_segment_state: SegmentState
    txn_index_empty: bool = False


class _Snapshot(_Node):
    segment_id: str
    start_offset: int
    end_offset: int
    broker_id: int
    max_timestamp_ms: int
    event_timestamp_ms: int
    segment_leader_epochs: list[_Epoch]
    segment_size_in_bytes: int
    custom_metadata: bytes | None
    remote_log_segment_state: SegmentState
    txn_index_empty: bool = False


class _Update(_Node):
    remote_log_segment_id: _SegmentId
    broker_id: int
    event_timestamp_ms: int
    custom_metadata: bytes | None
    remote_log_segment_state: SegmentState


class _Delete(_Node):
    topic_id_partition: _TopicIdPartition
    broker_id: int
    event_timestamp_ms: int
    remote_partition_delete_state: PartitionDeleteState


class _Envelope(msgspec.Struct, tag_field="type", forbid_unknown_fields=True):
    version: int


class _SegmentRecord(_Envelope, tag="RemoteLogSegmentMetadataRecord"):
    data: _Segment


class _UpdateRecord(_Envelope, tag="RemoteLogSegmentMetadataUpdateRecord"):
    data: _Update


class _DeleteRecord(_Envelope, tag="RemotePartitionDeleteMetadataRecord"):
    data: _Delete


class _SnapshotRecord(_Envelope, tag="RemoteLogSegmentMetadataSnapshotRecord"):
    data: _Snapshot


_Json = _SegmentRecord | _UpdateRecord | _DeleteRecord | _SnapshotRecord
_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(_Json)


def dumps(record: Record) -> bytes:
    """Return the record's JSON, one line of UTF-8 without a newline at its end."""
    return _encoder.encode(_to_json(record))


def loads(text: bytes | str) -> Record:
    """Return the record that `dumps` made this of; txnIndexEmpty may be absent, nothing else.

    Ranges that JSON does not show (int32, offsets in order) are left to `records.encode`.

    Raises:
        Malformed: not JSON, or not this shape; the message holds the path, for example
            `$.data.startOffset`.
        InvalidArgument: a uuid, a version other than 0, a leader epoch given twice.
    """
    try:
        parsed = _decoder.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise Malformed(str(error)) from error
    if parsed.version != RECORD_VERSION:
        raise InvalidArgument(f"version {parsed.version}: only {RECORD_VERSION} is written")
    return _from_json(parsed)


def _to_json(record: Record) -> _Json:
    match record:
        case SegmentMetadata():
            return _SegmentRecord(RECORD_VERSION, _segment(record))
        case SegmentUpdate():
            return _UpdateRecord(RECORD_VERSION, _update(record))
        case PartitionDelete():
            return _DeleteRecord(RECORD_VERSION, _delete(record))
        case SegmentSnapshot():
            return _SnapshotRecord(RECORD_VERSION, _snapshot(record))
        case _:
            assert_never(record)


def _from_json(parsed: _Json) -> Record:
    match parsed:
        case _SegmentRecord(data=segment):
            return _read_segment(segment)
        case _UpdateRecord(data=update):
            return _read_update(update)
        case _DeleteRecord(data=delete):
            return _read_delete(delete)
        case _SnapshotRecord(data=snapshot):
            return _read_snapshot(snapshot)
        case _:
            assert_never(parsed)


def _partition(partition: TopicIdPartition) -> _TopicIdPartition:
    return _TopicIdPartition(
        name=partition.topic, id=uuid_text(partition.topic_id), partition=partition.partition
    )


def _segment_id(record: SegmentMetadata | SegmentUpdate) -> _SegmentId:
    return _SegmentId(
        topic_id_partition=_partition(record.partition), id=uuid_text(record.segment_id)
    )


def _epochs(record: SegmentMetadata | SegmentSnapshot) -> list[_Epoch]:
    ascending = sorted(record.segment_leader_epochs.items())
    return [_Epoch(leader_epoch=epoch, offset=offset) for epoch, offset in ascending]


def _segment(record: SegmentMetadata) -> _Segment:
    return _Segment(
        remote_log_segment_id=_segment_id(record),
        start_offset=record.start_offset,
        end_offset=record.end_offset,
        broker_id=record.broker_id,
        max_timestamp_ms=record.max_timestamp_ms,
        event_timestamp_ms=record.event_timestamp_ms,
        segment_leader_epochs=_epochs(record),
        segment_size_in_bytes=record.segment_size_bytes,
        custom_metadata=record.custom_metadata,
        remote_log_segment_state=record.state,
        txn_index_empty=record.txn_index_empty,
    )


def _snapshot(record: SegmentSnapshot) -> _Snapshot:
    return _Snapshot(
        segment_id=uuid_text(record.segment_id),
        start_offset=record.start_offset,
        end_offset=record.end_offset,
        broker_id=record.broker_id,
        max_timestamp_ms=record.max_timestamp_ms,
        event_timestamp_ms=record.event_timestamp_ms,
        segment_leader_epochs=_epochs(record),
        segment_size_in_bytes=record.segment_size_bytes,
        custom_metadata=record.custom_metadata,
        remote_log_segment_state=record.state,
        txn_index_empty=record.txn_index_empty,
    )


def _update(record: SegmentUpdate) -> _Update:
    return _Update(
        remote_log_segment_id=_segment_id(record),
        broker_id=record.broker_id,
        event_timestamp_ms=record.event_timestamp_ms,
        custom_metadata=record.custom_metadata,
        remote_log_segment_state=record.state,
    )


def _delete(record: PartitionDelete) -> _Delete:
    return _Delete(
        topic_id_partition=_partition(record.partition),
        broker_id=record.broker_id,
        event_timestamp_ms=record.event_timestamp_ms,
        remote_partition_delete_state=record.state,
    )


def _read_partition(node: _TopicIdPartition) -> TopicIdPartition:
    return TopicIdPartition(TopicId(uuid_bytes(node.id)), node.name, node.partition)


def _read_custom(custom: bytes | None) -> CustomMetadata | None:
    return None if custom is None else CustomMetadata(custom)


def _read_epochs(nodes: list[_Epoch]) -> dict[LeaderEpoch, Offset]:
    epochs = {LeaderEpoch(node.leader_epoch): Offset(node.offset) for node in nodes}
    if len(epochs) < len(nodes):
        raise InvalidArgument("segmentLeaderEpochs names a leader epoch twice")
    return dict(sorted(epochs.items()))


def _read_segment(node: _Segment) -> SegmentMetadata:
    return SegmentMetadata(
        partition=_read_partition(node.remote_log_segment_id.topic_id_partition),
        segment_id=SegmentId(uuid_bytes(node.remote_log_segment_id.id)),
        start_offset=Offset(node.start_offset),
        end_offset=Offset(node.end_offset),
        broker_id=BrokerId(node.broker_id),
        max_timestamp_ms=node.max_timestamp_ms,
        event_timestamp_ms=node.event_timestamp_ms,
        segment_leader_epochs=_read_epochs(node.segment_leader_epochs),
        segment_size_bytes=node.segment_size_in_bytes,
        custom_metadata=_read_custom(node.custom_metadata),
        state=node.remote_log_segment_state,
        txn_index_empty=node.txn_index_empty,
    )


def _read_snapshot(node: _Snapshot) -> SegmentSnapshot:
    return SegmentSnapshot(
        segment_id=SegmentId(uuid_bytes(node.segment_id)),
        start_offset=Offset(node.start_offset),
        end_offset=Offset(node.end_offset),
        broker_id=BrokerId(node.broker_id),
        max_timestamp_ms=node.max_timestamp_ms,
        event_timestamp_ms=node.event_timestamp_ms,
        segment_leader_epochs=_read_epochs(node.segment_leader_epochs),
        segment_size_bytes=node.segment_size_in_bytes,
        custom_metadata=_read_custom(node.custom_metadata),
        state=node.remote_log_segment_state,
        txn_index_empty=node.txn_index_empty,
    )


def _read_update(node: _Update) -> SegmentUpdate:
    return SegmentUpdate(
        partition=_read_partition(node.remote_log_segment_id.topic_id_partition),
        segment_id=SegmentId(uuid_bytes(node.remote_log_segment_id.id)),
        broker_id=BrokerId(node.broker_id),
        event_timestamp_ms=node.event_timestamp_ms,
        custom_metadata=_read_custom(node.custom_metadata),
        state=node.remote_log_segment_state,
    )


def _read_delete(node: _Delete) -> PartitionDelete:
    return PartitionDelete(
        partition=_read_partition(node.topic_id_partition),
        broker_id=BrokerId(node.broker_id),
        event_timestamp_ms=node.event_timestamp_ms,
        state=node.remote_partition_delete_state,
    )
