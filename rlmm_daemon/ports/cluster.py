"""What the daemon may ask the Kafka cluster; a partial answer is an error, never a small answer."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from rlmm_daemon.domain.ids import BrokerId, MetadataPartition, TopicId, TopicIdPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerInfo:
    """One registered broker; a fenced one is registered but serves nothing."""

    broker_id: BrokerId
    fenced: bool


class Cluster(Protocol):
    """The cluster that this daemon's broker belongs to.

    Raises (every method):
        UnavailableError: no complete answer right now.
    """

    async def cluster_id(self) -> str:
        """Return the cluster's own id."""
        ...

    async def brokers(self) -> Mapping[BrokerId, BrokerInfo]:
        """Return every registered broker, fenced ones included."""
        ...

    async def metadata_leaders(self) -> Mapping[MetadataPartition, BrokerId]:
        """Return who leads each partition of the metadata topic."""
        ...

    async def topic_ids_unknown(self, topic_ids: frozenset[TopicId]) -> frozenset[TopicId]:
        """Return those ids that every live broker calls unknown."""
        ...

    async def tiered_partitions(self, broker_id: BrokerId) -> frozenset[TopicIdPartition]:
        """Return the partitions with `remote.storage.enable` that this broker replicates."""
        ...
