"""The marks on the way to a user partition's removal (KIP-405, RemotePartitionDeleteMetadata)."""

import enum
from dataclasses import dataclass

from rlmm_daemon.domain.ids import BrokerId, TopicIdPartition


class PartitionDeleteState(enum.IntEnum):
    """`RemotePartitionDeleteState`; the number is the wire form."""

    DELETE_PARTITION_MARKED = 0
    DELETE_PARTITION_STARTED = 1
    DELETE_PARTITION_FINISHED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionDelete:
    """What one api key 2 record says."""

    partition: TopicIdPartition
    broker_id: BrokerId
    event_timestamp_ms: int
    state: PartitionDeleteState
