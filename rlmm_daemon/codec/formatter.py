"""A record as Kafka's own console consumer prints it (RemoteLogMetadataFormatter).

One line each, so that the two can be compared with `diff`:

    partition: 7, offset: 42, value: RemoteLogSegmentMetadata{remoteLogSegmentId=...}

Source: RemoteLogMetadataSerde.RemoteLogMetadataFormatter and the `toString` of what it prints.
"""

from collections.abc import Mapping
from typing import assert_never

from rlmm_daemon.codec import records
from rlmm_daemon.domain.errors import Malformed
from rlmm_daemon.domain.ids import LeaderEpoch, Offset, SegmentId, TopicIdPartition, uuid_text
from rlmm_daemon.domain.partition_delete import PartitionDelete
from rlmm_daemon.domain.segment import SegmentMetadata, SegmentSnapshot, SegmentUpdate


def line(partition: int, offset: int, value: bytes | None) -> str:
    """Return the line for one record of the metadata topic, without its end.

    What Kafka's formatter dies of (a tombstone, garbage) is shown as `null` or as its hex.
    """
    return f"partition: {partition}, offset: {offset}, value: {_value(value)}"


def _value(value: bytes | None) -> str:
    if value is None:
        return "null"
    try:
        return text(records.decode(value))
    except Malformed:
        return value.hex()


def text(record: records.Record) -> str:
    """Return the `toString` of the Kafka object that a record decodes to."""
    match record:
        case SegmentMetadata():
            fields = {
                "remoteLogSegmentId": _segment(record.partition, record.segment_id),
                "startOffset": record.start_offset,
                "endOffset": record.end_offset,
                "brokerId": record.broker_id,
                "maxTimestampMs": record.max_timestamp_ms,
                "eventTimestampMs": record.event_timestamp_ms,
                "segmentLeaderEpochs": _epochs(record.segment_leader_epochs),
                "segmentSizeInBytes": record.segment_size_bytes,
                "customMetadata": _custom(record.custom_metadata),
                "state": record.state.name,
                "txnIdxEmpty": _boolean(record.txn_index_empty),
            }
            return _object("RemoteLogSegmentMetadata", fields)
        case SegmentUpdate():
            fields = {
                "remoteLogSegmentId": _segment(record.partition, record.segment_id),
                "customMetadata": _custom(record.custom_metadata),
                "state": record.state.name,
                "eventTimestampMs": record.event_timestamp_ms,
                "brokerId": record.broker_id,
            }
            return _object("RemoteLogSegmentMetadataUpdate", fields)
        case PartitionDelete():
            fields = {
                "topicPartition": record.partition,
                "state": record.state.name,
                "eventTimestampMs": record.event_timestamp_ms,
                "brokerId": record.broker_id,
            }
            return _object("RemotePartitionDeleteMetadata", fields)
        case SegmentSnapshot():
            # Kafka's own leaves the broker and the event's time out.
            fields = {
                "segmentId": uuid_text(record.segment_id),
                "startOffset": record.start_offset,
                "endOffset": record.end_offset,
                "maxTimestampMs": record.max_timestamp_ms,
                "segmentLeaderEpochs": _epochs(record.segment_leader_epochs),
                "segmentSizeInBytes": record.segment_size_bytes,
                "customMetadata": _custom(record.custom_metadata),
                "state": record.state.name,
                "txnIdxEmpty": _boolean(record.txn_index_empty),
            }
            return _object("RemoteLogSegmentMetadataSnapshot", fields)
        case _:
            assert_never(record)


def _object(name: str, fields: Mapping[str, object]) -> str:
    return f"{name}{{{', '.join(f'{key}={value}' for key, value in fields.items())}}}"


def _segment(partition: TopicIdPartition, segment_id: SegmentId) -> str:
    return f"RemoteLogSegmentId{{topicIdPartition={partition}, id={uuid_text(segment_id)}}}"


def _epochs(epochs: Mapping[LeaderEpoch, Offset]) -> str:
    return f"{{{', '.join(f'{epoch}={offset}' for epoch, offset in epochs.items())}}}"


def _custom(custom: bytes | None) -> str:
    if custom is None:
        return "Optional.empty"
    return f"Optional[CustomMetadata{{{len(custom)} bytes}}]"


def _boolean(value: bool) -> str:  # noqa: FBT001 - one value, rendered
    return "true" if value else "false"
