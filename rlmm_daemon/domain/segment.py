"""A remote log segment's metadata and its life cycle's states (KIP-405)."""

import enum
from collections.abc import Mapping
from typing import NewType

import msgspec
from msgspec.structs import replace

from rlmm_daemon.domain.ids import BrokerId, LeaderEpoch, Offset, SegmentId, TopicIdPartition

#: Opaque to Kafka; None and b"" are different things on the wire.
CustomMetadata = NewType("CustomMetadata", bytes)


class SegmentState(enum.IntEnum):
    """`RemoteLogSegmentState`; the number is the wire form."""

    COPY_SEGMENT_STARTED = 0
    COPY_SEGMENT_FINISHED = 1
    DELETE_SEGMENT_STARTED = 2
    DELETE_SEGMENT_FINISHED = 3


class SegmentMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """`RemoteLogSegmentMetadata`: what one api key 0 record says, any state included."""

    partition: TopicIdPartition
    segment_id: SegmentId
    start_offset: Offset
    #: Inclusive.
    end_offset: Offset
    #: Who wrote the last event of this segment.
    broker_id: BrokerId
    #: The largest record timestamp in the segment; -1 when it has none.
    max_timestamp_ms: int
    event_timestamp_ms: int
    #: Epoch -> its first offset inside this segment. Ascending, never empty.
    segment_leader_epochs: Mapping[LeaderEpoch, Offset]
    segment_size_bytes: int
    custom_metadata: CustomMetadata | None = None
    state: SegmentState = SegmentState.COPY_SEGMENT_STARTED
    #: Tag 0 (KIP-1058, 4.0+).
    txn_index_empty: bool = False

    def with_update(self, update: "SegmentUpdate") -> "SegmentMetadata":
        """Return this segment after `update`; absent custom metadata erases what was there.

        Source: RemoteLogSegmentMetadata.createWithUpdates.
        """
        assert update.segment_id == self.segment_id
        return replace(
            self,
            broker_id=update.broker_id,
            event_timestamp_ms=update.event_timestamp_ms,
            custom_metadata=update.custom_metadata,
            state=update.state,
        )


class SegmentUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """`RemoteLogSegmentMetadataUpdate`: what one api key 1 record says."""

    partition: TopicIdPartition
    segment_id: SegmentId
    broker_id: BrokerId
    event_timestamp_ms: int
    custom_metadata: CustomMetadata | None = None
    state: SegmentState


class SegmentSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """`RemoteLogSegmentMetadataSnapshotRecord` (key 3): names no partition, so never applied."""

    segment_id: SegmentId
    start_offset: Offset
    end_offset: Offset
    broker_id: BrokerId
    max_timestamp_ms: int
    event_timestamp_ms: int
    segment_leader_epochs: Mapping[LeaderEpoch, Offset] = msgspec.field(default_factory=dict)
    segment_size_bytes: int
    custom_metadata: CustomMetadata | None = None
    state: SegmentState
    txn_index_empty: bool = False
