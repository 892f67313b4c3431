"""The marks on the way to a user partition's removal (KIP-405, RemotePartitionDeleteMetadata)."""

import enum

import msgspec

from rlmm_daemon.domain.ids import BrokerId, TopicIdPartition


class PartitionDeleteState(enum.IntEnum):
    """`RemotePartitionDeleteState`; the number is the wire form."""

    DELETE_PARTITION_MARKED = 0
    DELETE_PARTITION_STARTED = 1
    DELETE_PARTITION_FINISHED = 2


class PartitionDelete(msgspec.Struct, frozen=True, kw_only=True):
    """What one api key 2 record says."""

    partition: TopicIdPartition
    broker_id: BrokerId
    event_timestamp_ms: int
    state: PartitionDeleteState
