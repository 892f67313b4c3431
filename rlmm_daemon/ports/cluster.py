"""Questions to the Kafka cluster; a partial answer is an error, never a small answer."""

from collections.abc import Mapping
from typing import Protocol

import msgspec

from rlmm_daemon.domain.ids import BrokerId, MetadataPartition, TopicId, TopicIdPartition


class BrokerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One registered broker; a fenced one is registered but serves nothing."""

    broker_id: BrokerId
    fenced: bool


class TieredTopics(msgspec.Struct, frozen=True, kw_only=True):
    """The topics with `remote.storage.enable`, as far as one broker is concerned."""

    #: Partitions that the broker replicates, those of compacted topics left out.
    replicated: frozenset[TopicIdPartition] = frozenset()
    #: Topics that compact: KIP-405 does not support them.
    compacted: frozenset[TopicId] = frozenset()


class ClusterLook(msgspec.Struct, frozen=True, kw_only=True):
    """What every live broker said of some topic ids, under one controller from first to last."""

    cluster_id: str
    #: Who leads the controllers, and in which epoch.
    controller: tuple[int, int]
    #: Brokers that answered: all that are not fenced.
    live: int
    registered: int
    #: Ids that each of them calls unknown.
    unknown: frozenset[TopicId]


class Cluster(Protocol):
    """The cluster that this daemon's broker belongs to.

    Raises (every method):
        UnavailableError: no complete answer right now.
    """

    async def cluster_id(self) -> str:
        """Return the cluster's own id."""

    async def brokers(self) -> Mapping[BrokerId, BrokerInfo]:
        """Return every registered broker, fenced ones included."""

    async def metadata_leaders(self) -> Mapping[MetadataPartition, BrokerId]:
        """Return who leads each partition of the metadata topic."""

    async def topic_ids_unknown(self, topic_ids: frozenset[TopicId]) -> frozenset[TopicId]:
        """Return those ids that every live broker calls unknown."""

    async def look(self, topic_ids: frozenset[TopicId]) -> ClusterLook:
        """Ask every live broker about topic ids, and say under which controller they answered."""

    async def tiered_topics(self, broker_id: BrokerId) -> TieredTopics:
        """Return what has `remote.storage.enable`, and what of it this broker replicates."""

    def refresh(self) -> None:
        """Let the next questions ask the brokers: something is known to have changed."""
