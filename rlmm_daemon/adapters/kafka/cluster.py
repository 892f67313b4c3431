"""The cluster as its brokers tell it; an answer that is not complete is an error.

Two views are kept for a little less than `VIEW_SECONDS` (or until `refresh` is called): the
registered brokers, and the topics with `remote.storage.enable`. Leaders and unknown topic ids are
asked for each time, since they are what a delete is decided by.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec

from rlmm_daemon.adapters.kafka.connection import KafkaClient, Node
from rlmm_daemon.adapters.kafka.connection.directory import metadata_by_name
from rlmm_daemon.adapters.kafka.connection.errors import error_of
from rlmm_daemon.adapters.kafka.connection.requests import (
    NO_TAGS,
    DescribeCluster,
    DescribeConfigs,
    DescribeQuorum,
    Metadata,
)
from rlmm_daemon.domain.errors import StorageUnavailable
from rlmm_daemon.domain.ids import BrokerId, MetadataPartition, TopicId, TopicIdPartition
from rlmm_daemon.ports.cluster import BrokerInfo, ClusterLook, TieredTopics

VIEW_SECONDS: Final = 29.0
_BROKERS: Final = 1
_TOPIC_RESOURCE: Final = 2
_UNKNOWN_TOPIC_ID: Final = 100
_QUORUM_TOPIC: Final = "__cluster_metadata"
_TIERED: Final = "remote.storage.enable"
_CLEANUP: Final = "cleanup.policy"
#: Topics named in one request: a cluster may have a hundred thousand.
_CHUNK: Final = 500
#: A partition whose replica is offline, or that has no leader, is described all the same.
_DESCRIBED: Final = frozenset({0, 5, 9})


class _Broker(msgspec.Struct, frozen=True):
    node: Node
    fenced: bool


class KafkaCluster:
    """Asks over the connections that the client shares for questions."""

    def __init__(
        self, client: KafkaClient, metadata_topic: str, topic_id: Callable[[], TopicId | None]
    ) -> None:
        """`topic_id` is the one that the log opened: leaders of another topic are none of ours."""
        self._client = client
        self._topic = metadata_topic
        self._topic_id = topic_id
        self._lock = asyncio.Lock()
        self._cluster_id: str | None = None
        self._brokers: dict[BrokerId, _Broker] = {}
        self._brokers_until = 0.0
        self._replicas: dict[TopicIdPartition, frozenset[int]] = {}
        self._compacted: frozenset[TopicId] = frozenset()
        self._replicas_until = 0.0

    def refresh(self) -> None:
        """Let the next questions ask the brokers: something is known to have changed."""
        self._brokers_until = self._replicas_until = 0.0

    async def cluster_id(self) -> str:
        """Return the cluster's own id."""
        await self._described()
        if not self._cluster_id:
            raise StorageUnavailable("the brokers did not name their cluster")
        return self._cluster_id

    async def brokers(self) -> Mapping[BrokerId, BrokerInfo]:
        """Return every registered broker; DescribeCluster 2 (Kafka 4.0) lists the fenced ones."""
        described = await self._described()
        return {
            broker_id: BrokerInfo(broker_id=broker_id, fenced=broker.fenced)
            for broker_id, broker in described.items()
        }

    async def metadata_leaders(self) -> Mapping[MetadataPartition, BrokerId]:
        """Return the leaders; a partition without one makes the answer incomplete."""
        _, answer = await self._client.ask_any(metadata_by_name(self._topic))
        error, _, topic_id, _, partitions, *_ = answer.topics[0]
        if error:
            raise error_of(error, f"looking for topic {self._topic}")
        if self._topic_id() not in (None, topic_id):
            raise StorageUnavailable(f"topic {self._topic} is another one than the log opened")
        leaders = {MetadataPartition(row[1]): BrokerId(row[2]) for row in partitions}
        without = sorted(number for number, leader in leaders.items() if leader < 0)
        if without or not leaders:
            raise StorageUnavailable(f"partitions {without} of {self._topic} have no leader")
        return leaders

    async def topic_ids_unknown(self, topic_ids: frozenset[TopicId]) -> frozenset[TopicId]:
        """Return what every live broker calls unknown; one that does not answer is an error.

        "Every": a broker that lags behind the controller may not have heard of a new topic yet,
        and none of them would say so.
        """
        self._brokers_until = 0.0
        live = [each.node for each in (await self._described()).values() if not each.fenced]
        if not live:
            raise StorageUnavailable("no live broker is registered")
        unknown = topic_ids
        for node in live:
            if not unknown:
                break
            unknown &= await self._unknown_to(node, unknown)
        return unknown

    async def look(self, topic_ids: frozenset[TopicId]) -> ClusterLook:
        """Return what every live broker says; another controller at the end is no whole answer.

        The brokers name no controller: what Metadata calls so is one of themselves, drawn anew
        each time. So the quorum's leader is asked for, which needs DESCRIBE on the cluster.
        """
        before = await self._controller()
        unknown = await self.topic_ids_unknown(topic_ids)
        brokers = self._brokers
        if await self._controller() != before:
            raise StorageUnavailable("the controller changed in the middle of a look")
        assert self._cluster_id is not None, "the brokers were described"
        return ClusterLook(
            cluster_id=self._cluster_id,
            controller=before,
            live=sum(not each.fenced for each in brokers.values()),
            registered=len(brokers),
            unknown=unknown,
        )

    async def _controller(self) -> tuple[int, int]:
        """Return the leader of the controllers' quorum, and its epoch."""
        request = DescribeQuorum([(_QUORUM_TOPIC, [(0, NO_TAGS)], NO_TAGS)], NO_TAGS)
        _, answer = await self._client.ask_any(request)
        rows = [row for _, partitions, _ in answer.topics for row in partitions]
        for error in (answer.error, *(row[1] for row in rows)):
            if error:
                raise error_of(error, "asking for the controller")
        if len(rows) != 1 or rows[0][2] < 0:
            raise StorageUnavailable("the controllers have no leader")
        return rows[0][2], rows[0][3]

    async def tiered_topics(self, broker_id: BrokerId) -> TieredTopics:
        """Return the tiered partitions with a replica at that broker, and what compacts."""
        async with self._lock:
            now = asyncio.get_running_loop().time()
            if now >= self._replicas_until:
                self._replicas, self._compacted = await self._tiered()
                self._replicas_until = now + VIEW_SECONDS
        mine = (at for at, held_by in self._replicas.items() if broker_id in held_by)
        return TieredTopics(replicated=frozenset(mine), compacted=self._compacted)

    async def _described(self) -> dict[BrokerId, _Broker]:
        async with self._lock:
            now = asyncio.get_running_loop().time()
            if now >= self._brokers_until:
                request = DescribeCluster(False, _BROKERS, True, NO_TAGS)  # noqa: FBT003 - a struct
                _, answer = await self._client.ask_any(request)
                if answer.error or not answer.brokers:
                    raise error_of(answer.error, "describing the cluster", answer.message)
                self._cluster_id = answer.cluster_id
                self._brokers = {
                    BrokerId(row[0]): _Broker(Node(row[0], row[1], row[2]), row[4])
                    for row in answer.brokers
                }
                self._brokers_until = now + VIEW_SECONDS
            return self._brokers

    async def _unknown_to(self, node: Node, topic_ids: frozenset[TopicId]) -> frozenset[TopicId]:
        found: set[TopicId] = set()
        for chunk in _chunks(sorted(topic_ids)):
            rows = [(topic_id, None, NO_TAGS) for topic_id in chunk]
            request = Metadata(rows, False, False, NO_TAGS)  # noqa: FBT003 - a struct
            answer = await self._client.ask(node, request)
            if answer.cluster_id != self._cluster_id:
                raise StorageUnavailable(f"{node} belongs to cluster {answer.cluster_id}")
            if len(answer.topics) != len(chunk):
                raise StorageUnavailable(f"{node} answered for {len(answer.topics)} topics only")
            found |= {TopicId(row[2]) for row in answer.topics if row[0] == _UNKNOWN_TOPIC_ID}
        return frozenset(found)

    async def _tiered(
        self,
    ) -> tuple[dict[TopicIdPartition, frozenset[int]], frozenset[TopicId]]:
        """Return who replicates which partition of the tiered topics, and which of them compact."""
        node, answer = await self._client.ask_any(Metadata(None, False, False, NO_TAGS))  # noqa: FBT003 - a struct
        compacts = await self._tiered_names(node, sorted(row[1] for row in answer.topics))
        found, compacted = {}, set()
        for error, name, topic_id, _, partitions, *_ in answer.topics:
            if name not in compacts:
                continue
            if error:
                raise error_of(error, f"describing topic {name}")
            if compacts[name]:
                compacted.add(TopicId(topic_id))
                continue
            for row in partitions:
                if row[0] not in _DESCRIBED:
                    raise error_of(row[0], f"describing partition {row[1]} of {name}")
                found[TopicIdPartition(TopicId(topic_id), name, row[1])] = frozenset(row[4])
        return found, frozenset(compacted)

    async def _tiered_names(self, node: Node, names: list[str]) -> dict[str, bool]:
        """Return the topics with remote storage, each with whether it compacts."""
        tiered: dict[str, bool] = {}
        for chunk in _chunks(names):
            rows = [(_TOPIC_RESOURCE, name, [_TIERED, _CLEANUP], NO_TAGS) for name in chunk]
            request = DescribeConfigs(rows, False, False, NO_TAGS)  # noqa: FBT003 - a struct
            answer = await self._client.ask(node, request)
            if len(answer.results) != len(chunk):
                raise StorageUnavailable(f"{node} described {len(answer.results)} topics only")
            for error, message, _, name, configs, *_ in answer.results:
                if error:
                    raise error_of(error, f"reading the settings of topic {name}", message)
                settings = {row[0]: row[1] or "" for row in configs}
                if settings.get(_TIERED) == "true":
                    tiered[name] = "compact" in settings.get(_CLEANUP, "")
        return tiered


def _chunks(items: list[Any]) -> Iterator[list[Any]]:
    for begin in range(0, len(items), _CHUNK):
        yield items[begin : begin + _CHUNK]
