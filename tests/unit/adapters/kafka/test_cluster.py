"""The cluster port: a complete answer, or none."""

from typing import Any

import pytest

from rlmm_daemon.adapters.fixed_cluster import FixedCluster
from rlmm_daemon.adapters.kafka.cluster import KafkaCluster
from rlmm_daemon.adapters.kafka.connection import Node
from rlmm_daemon.domain.errors import StorageUnavailable, UnavailableError
from rlmm_daemon.domain.ids import BrokerId, MetadataPartition, TopicId, TopicIdPartition
from rlmm_daemon.ports.cluster import BrokerInfo, TieredTopics

OLD, NEW = TopicId(b"o" * 16), TopicId(b"n" * 16)


class FakeClient:
    """Answers as the brokers would; `known` says which topic ids each of them has heard of."""

    def __init__(self) -> None:
        self.fenced = {1: False, 2: False, 3: True}
        self.known = {1: {OLD}, 2: {OLD}}
        self.silent: set[int] = set()
        self.leaders = {0: 1, 1: 2}
        self.tiered = {"orders": "true", "plain": "false"}
        self.cleanup: dict[str, str] = {}
        self.cluster_ids = {1: "cluster", 2: "cluster"}
        self.topic_error = 0
        self.describe_error = 0
        self.asked: list[str] = []
        #: Who leads the controllers, by question; the last answer stays.
        self.controllers = [(2, 7)]
        self.quorum_error = 0

    async def ask_any(self, request: Any) -> tuple[Node, Any]:
        return Node(1, "h", 1), await self.ask(Node(1, "h", 1), request)

    async def ask(self, node: Node, request: Any) -> Any:
        if node.node_id in self.silent:
            raise StorageUnavailable("silent")
        request.encode()
        name = type(request).__name__
        self.asked.append(name)
        answer: Any = getattr(self, f"on_{name.lower()}")(node, request)
        return request.RESPONSE_TYPE(*answer, {})

    def on_describecluster(self, _: Node, request: Any) -> tuple[Any, ...]:
        assert request.fenced is True
        rows: Any = [(node, "h", node, None, fenced, {}) for node, fenced in self.fenced.items()]
        return 0, self.describe_error, None, 1, "cluster", 1, rows, 0

    def on_metadata(self, node: Node, request: Any) -> tuple[Any, ...]:
        assert request.create is False
        if request.topics is None:
            rows = [self._topic(name, self.topic_error) for name in self.tiered]
        elif request.topics[0][1]:
            rows = [self._topic("meta")]
        else:
            known = self.known[node.node_id]
            rows = [
                (0 if each in known else 100, None, each, False, [], 0, {})
                for each, _, _ in request.topics
            ]
        return 0, [], self.cluster_ids[node.node_id], 1, rows

    def _topic(self, name: str, error: int = 0) -> tuple[Any, ...]:
        partitions: Any = [(0, n, at, 0, [at, 3], [at], [], {}) for n, at in self.leaders.items()]
        return error, name, OLD, False, partitions, 0, {}

    def on_describequorum(self, _: Node, request: Any) -> tuple[Any, ...]:
        assert request.topics[0][0] == "__cluster_metadata"
        leader, epoch = self.controllers[0]
        if len(self.controllers) > 1:
            del self.controllers[0]
        row: Any = (0, self.quorum_error, leader, epoch, 99, [(1, 99, {})], [], {})
        rows: Any = [("__cluster_metadata", [row], {})]
        return 0, rows

    def on_describeconfigs(self, _: Node, request: Any) -> tuple[Any, ...]:
        rows: Any = [
            (0, None, 2, name, [self._setting(name, key) for key in keys], {})
            for _, name, keys, _ in request.resources
        ]
        return 0, rows

    def _setting(self, name: str, key: str) -> tuple[Any, ...]:
        tiering = key == "remote.storage.enable"
        value = self.tiered[name] if tiering else self.cleanup.get(name, "delete")
        return key, value, False, 0, False, [], 0, None, {}


@pytest.fixture
def client() -> FakeClient:
    return FakeClient()


@pytest.fixture
def cluster(client: FakeClient) -> KafkaCluster:
    return KafkaCluster(client, "meta", lambda: OLD)  # type: ignore[arg-type]  # what stands in for it


async def test_every_registered_broker_is_named_fenced_ones_included(cluster):
    assert await cluster.cluster_id() == "cluster"
    brokers = await cluster.brokers()
    assert brokers.keys() == {1, 2, 3}
    assert brokers[BrokerId(3)] == BrokerInfo(broker_id=BrokerId(3), fenced=True)
    assert not brokers[BrokerId(1)].fenced


async def test_a_description_is_kept_until_something_changed(cluster, client):
    await cluster.brokers()
    await cluster.cluster_id()
    assert client.asked == ["DescribeCluster"]
    client.fenced[2] = True
    cluster.refresh()
    assert (await cluster.brokers())[BrokerId(2)].fenced


async def test_an_error_in_a_description_is_an_error(cluster, client):
    client.describe_error = 31
    with pytest.raises(UnavailableError, match="DESCRIBE on the cluster"):
        await cluster.brokers()


async def test_leaders_are_complete_or_not_known(cluster, client):
    assert await cluster.metadata_leaders() == {0: 1, 1: 2}
    client.leaders[1] = -1
    with pytest.raises(StorageUnavailable, match=r"\[1\]"):
        await cluster.metadata_leaders()


async def test_leaders_of_a_recreated_topic_are_not_those_of_the_log(client):
    stale = KafkaCluster(client, "meta", lambda: NEW)
    with pytest.raises(StorageUnavailable, match="another one"):
        await stale.metadata_leaders()


async def test_a_topic_id_is_unknown_only_if_every_live_broker_says_so(cluster, client):
    both = frozenset({OLD, NEW})
    assert await cluster.topic_ids_unknown(both) == {NEW}
    client.known[2].add(NEW)
    assert await cluster.topic_ids_unknown(both) == frozenset()
    client.known = {1: set(), 2: set()}
    assert await cluster.topic_ids_unknown(both) == both


async def test_a_live_broker_that_is_silent_leaves_the_question_open(cluster, client):
    client.silent = {2}
    with pytest.raises(StorageUnavailable):
        await cluster.topic_ids_unknown(frozenset({NEW}))
    client.silent = {3}
    assert await cluster.topic_ids_unknown(frozenset({NEW})) == {NEW}, "a fenced one is not live"


async def test_a_look_names_the_controller_and_how_many_answered(cluster):
    told = await cluster.look(frozenset({OLD, NEW}))
    assert (told.cluster_id, told.controller) == ("cluster", (2, 7))
    assert (told.live, told.registered) == (2, 3)
    assert told.unknown == {NEW}


async def test_a_look_is_not_whole_if_the_controller_changed_in_it(cluster, client):
    client.controllers = [(2, 7), (2, 8)]
    with pytest.raises(StorageUnavailable, match="controller changed"):
        await cluster.look(frozenset({NEW}))


async def test_a_look_is_not_whole_without_a_controller_or_the_right_to_ask(cluster, client):
    client.controllers = [(-1, 7)]
    with pytest.raises(StorageUnavailable, match="no leader"):
        await cluster.look(frozenset({NEW}))
    client.quorum_error = 31
    with pytest.raises(UnavailableError, match="DESCRIBE on the cluster"):
        await cluster.look(frozenset({NEW}))


async def test_a_look_is_not_whole_while_a_live_broker_is_silent(cluster, client):
    client.silent = {2}
    with pytest.raises(StorageUnavailable):
        await cluster.look(frozenset({NEW}))


async def test_the_tiered_partitions_of_a_broker_are_those_that_it_replicates(cluster, client):
    found = await cluster.tiered_topics(BrokerId(2))
    assert found.replicated == {TopicIdPartition(OLD, "orders", 1)}
    assert len((await cluster.tiered_topics(BrokerId(3))).replicated) == 2
    assert client.asked == ["Metadata", "DescribeConfigs"]


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
async def test_a_topic_that_compacts_is_named_and_none_of_its_partitions(cluster, client, policy):
    client.cleanup["orders"] = policy
    found = await cluster.tiered_topics(BrokerId(2))
    assert (found.replicated, found.compacted) == (frozenset(), {OLD})


async def test_a_broker_of_another_cluster_leaves_the_question_open(cluster, client):
    client.cluster_ids[2] = "another"
    with pytest.raises(StorageUnavailable, match="belongs to cluster another"):
        await cluster.topic_ids_unknown(frozenset({NEW}))


async def test_a_topic_that_cannot_be_described_makes_the_whole_answer_an_error(cluster, client):
    client.topic_error = 5
    with pytest.raises(StorageUnavailable, match="describing topic orders"):
        await cluster.tiered_topics(BrokerId(1))


async def test_many_topics_are_asked_for_in_several_requests(cluster, client):
    client.tiered = {f"t{number}": "true" for number in range(1_201)}
    assert len((await cluster.tiered_topics(BrokerId(1))).replicated) == 1_201
    assert client.asked.count("DescribeConfigs") == 3


async def test_a_cluster_of_one_knows_itself():
    fixed = FixedCluster(cluster_id="c", broker_id=BrokerId(7), partition_count=lambda: 2)
    assert await fixed.cluster_id() == "c"
    assert (await fixed.brokers()).keys() == {7}
    assert await fixed.metadata_leaders() == {MetadataPartition(0): 7, MetadataPartition(1): 7}
    assert await fixed.topic_ids_unknown(frozenset({NEW})) == frozenset()
    assert await fixed.tiered_topics(BrokerId(7)) == TieredTopics()
    with pytest.raises(StorageUnavailable):
        await fixed.look(frozenset({NEW}))
