"""A cluster of one broker, known from the configuration: what stands beside an embedded log."""

from collections.abc import Callable, Mapping

from rlmm_daemon.domain.errors import StorageUnavailable
from rlmm_daemon.domain.ids import BrokerId, MetadataPartition, TopicId
from rlmm_daemon.ports.cluster import BrokerInfo, ClusterLook, TieredTopics


class FixedCluster:
    """Knows itself and nothing else; what it would have to ask somebody for, it does not claim."""

    def __init__(
        self, *, cluster_id: str, broker_id: BrokerId, partition_count: Callable[[], int]
    ) -> None:
        self._cluster_id = cluster_id
        self._broker_id = broker_id
        self._partition_count = partition_count

    async def cluster_id(self) -> str:
        """Return the configured id."""
        return self._cluster_id

    async def brokers(self) -> Mapping[BrokerId, BrokerInfo]:
        """Return the one broker."""
        return {self._broker_id: BrokerInfo(broker_id=self._broker_id, fenced=False)}

    async def metadata_leaders(self) -> Mapping[MetadataPartition, BrokerId]:
        """Return the one broker as the leader of every partition of the log."""
        return {
            MetadataPartition(number): self._broker_id for number in range(self._partition_count())
        }

    async def topic_ids_unknown(
        self,
        topic_ids: frozenset[TopicId],  # noqa: ARG002 - the port's word
    ) -> frozenset[TopicId]:
        """Return none: nobody was asked, so nothing is known to be gone."""
        return frozenset()

    async def look(self, topic_ids: frozenset[TopicId]) -> ClusterLook:
        """Refuse: there is nobody to ask."""
        raise StorageUnavailable(f"no cluster was asked about {len(topic_ids)} topics")

    async def tiered_topics(
        self,
        broker_id: BrokerId,  # noqa: ARG002 - the port's word
    ) -> TieredTopics:
        """Return none: only the broker's announcement says what it holds."""
        return TieredTopics()

    def refresh(self) -> None:
        """Do nothing: what is configured does not change."""
