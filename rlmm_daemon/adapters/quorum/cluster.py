"""The cluster beside a quorum's log: its brokers are asked, and its leader owns the log."""

from collections.abc import Callable, Mapping

from rlmm_daemon.domain.errors import StorageUnavailable
from rlmm_daemon.domain.ids import BrokerId, MetadataPartition, TopicId
from rlmm_daemon.ports.cluster import BrokerInfo, Cluster, ClusterLook, TieredTopics


class QuorumCluster:
    """Who leads every metadata partition is the quorum's word, all else that of the brokers."""

    def __init__(
        self,
        brokers: Cluster | None,
        *,
        cluster_id: str,
        leader: Callable[[], int | None],
        partition_count: Callable[[], int],
    ) -> None:
        """`brokers`: None where nobody is asked, so that nothing is known of them.

        `leader` is None while this replica does not hear one.
        """
        self._brokers = brokers
        self._cluster_id = cluster_id
        self._leader = leader
        self._partition_count = partition_count

    async def cluster_id(self) -> str:
        """Return the cluster's own id, of which the quorum is."""
        return self._cluster_id if self._brokers is None else await self._brokers.cluster_id()

    async def brokers(self) -> Mapping[BrokerId, BrokerInfo]:
        """Return what the brokers say."""
        return await (await self._asked()).brokers()

    async def metadata_leaders(self) -> Mapping[MetadataPartition, BrokerId]:
        """Return the quorum's leader as that of every partition: one log holds them all."""
        leader = self._leader()
        if leader is None:
            raise StorageUnavailable("no leader of the quorum is heard")
        return {
            MetadataPartition(number): BrokerId(leader) for number in range(self._partition_count())
        }

    async def topic_ids_unknown(self, topic_ids: frozenset[TopicId]) -> frozenset[TopicId]:
        """Return those that every live broker calls unknown."""
        return await (await self._asked()).topic_ids_unknown(topic_ids)

    async def look(self, topic_ids: frozenset[TopicId]) -> ClusterLook:
        """Return what every live broker says."""
        return await (await self._asked()).look(topic_ids)

    async def tiered_topics(self, broker_id: BrokerId) -> TieredTopics:
        """Return what the brokers say of it."""
        return await (await self._asked()).tiered_topics(broker_id)

    def refresh(self) -> None:
        """Let the next questions ask the brokers: something is known to have changed."""
        if self._brokers is not None:
            self._brokers.refresh()

    async def _asked(self) -> Cluster:
        """Return the brokers, once they are known to be of the quorum's cluster.

        Another cluster's would call every topic of this one unknown.
        """
        if self._brokers is None:
            raise StorageUnavailable(
                "no broker is asked about the cluster: there is no [event_log.quorum.brokers]"
            )
        found = await self._brokers.cluster_id()
        if found != self._cluster_id:
            raise StorageUnavailable(
                f"[event_log.quorum.brokers] leads to cluster {found}, and the quorum is of "
                f"{self._cluster_id}"
            )
        return self._brokers
