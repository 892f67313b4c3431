"""The cluster beside a quorum: its leader owns the log; brokers say all else, or nobody does."""

from collections.abc import Mapping

import pytest

from rlmm_daemon.adapters.quorum.cluster import QuorumCluster
from rlmm_daemon.domain.errors import StorageUnavailable
from rlmm_daemon.domain.ids import BrokerId, MetadataPartition, TopicId
from rlmm_daemon.ports.cluster import BrokerInfo, Cluster, ClusterLook, TieredTopics

GONE = frozenset({TopicId(b"g" * 16)})
LOOK = ClusterLook(cluster_id="c", controller=(1, 1), live=1, registered=1, unknown=GONE)
BROKERS = {BrokerId(7): BrokerInfo(broker_id=BrokerId(7), fenced=False)}


class Brokers:
    """Brokers of a cluster that answer each question."""

    def __init__(self, cluster_id: str) -> None:
        self._cluster_id = cluster_id
        self.refreshed = 0

    async def cluster_id(self) -> str:
        return self._cluster_id

    async def brokers(self) -> Mapping[BrokerId, BrokerInfo]:
        return BROKERS

    async def metadata_leaders(self) -> Mapping[MetadataPartition, BrokerId]:
        raise AssertionError("they keep no metadata topic")

    async def topic_ids_unknown(self, topic_ids: frozenset[TopicId]) -> frozenset[TopicId]:
        return topic_ids & GONE

    async def look(self, topic_ids: frozenset[TopicId]) -> ClusterLook:
        assert topic_ids
        return LOOK

    async def tiered_topics(self, broker_id: BrokerId) -> TieredTopics:
        assert broker_id == 7
        return TieredTopics(compacted=GONE)

    def refresh(self) -> None:
        self.refreshed += 1


def cluster(brokers: Cluster | None, leader: int | None = 2) -> QuorumCluster:
    return QuorumCluster(brokers, cluster_id="c", leader=lambda: leader, partition_count=lambda: 3)


async def test_the_quorums_leader_leads_every_metadata_partition() -> None:
    assert await cluster(None).metadata_leaders() == {0: 2, 1: 2, 2: 2}
    with pytest.raises(StorageUnavailable, match="no leader of the quorum is heard"):
        await cluster(None, leader=None).metadata_leaders()


async def test_brokers_say_who_is_there_and_what_is_gone() -> None:
    brokers = Brokers("c")
    asked = cluster(brokers)
    assert await asked.cluster_id() == "c"
    assert await asked.brokers() == BROKERS
    assert await asked.topic_ids_unknown(GONE) == GONE
    assert await asked.look(GONE) == LOOK
    assert (await asked.tiered_topics(BrokerId(7))).compacted == GONE
    asked.refresh()
    assert brokers.refreshed == 1


@pytest.mark.parametrize(
    ("brokers", "why"),
    [(None, r"no \[event_log.quorum.brokers\]"), (Brokers("another"), "leads to cluster another")],
)
async def test_nobody_or_anothers_brokers_prove_nothing(brokers: Cluster | None, why: str) -> None:
    asked = cluster(brokers)
    for question in (
        asked.brokers,
        lambda: asked.topic_ids_unknown(GONE),
        lambda: asked.look(GONE),
        lambda: asked.tiered_topics(BrokerId(7)),
    ):
        with pytest.raises(StorageUnavailable, match=why):
            await question()
    asked.refresh()
