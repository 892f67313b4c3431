"""The leaders of the metadata topic's partitions, and the check that it is the same topic."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from rlmm_daemon.adapters.kafka.connection.client import KafkaClient
from rlmm_daemon.adapters.kafka.connection.connection import Node
from rlmm_daemon.adapters.kafka.connection.errors import error_of
from rlmm_daemon.adapters.kafka.connection.requests import NO_ID, NO_TAGS, Metadata, TopicError
from rlmm_daemon.domain.errors import StorageUnavailable
from rlmm_daemon.domain.ids import MetadataPartition, TopicId

_UNKNOWN_TOPIC = 3
_LEADER_NOT_AVAILABLE = 5
_UNKNOWN_TOPIC_ID = 100


class Leader(msgspec.Struct, frozen=True):
    """Who leads a partition, and in which leader epoch."""

    node: Node
    epoch: int


class TopicView(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata topic as one answer showed it."""

    cluster_id: str | None
    topic_id: TopicId
    partition_count: int
    leaders: Mapping[int, Leader] = msgspec.field(default_factory=dict)


def metadata_by_name(topic: str) -> Any:
    """Return a question that creates nothing: by default a client's would, where brokers allow."""
    return Metadata([(NO_ID, topic, NO_TAGS)], False, False, NO_TAGS)  # noqa: FBT003 - a struct


def metadata_by_id(topic_id: bytes) -> Any:
    """Return a question whether the topic of that id is there, whatever its name is now."""
    return TopicError([(topic_id, None, NO_TAGS)], False, False, NO_TAGS)  # noqa: FBT003 - a struct


def is_known(answer: Any) -> bool:
    """Return whether the topic that was asked for by id is there."""
    return answer.error not in {None, _UNKNOWN_TOPIC_ID}


class Directory:
    """The newest view of the topic; one question at a time, its answer is everybody's."""

    def __init__(self, client: KafkaClient, topic: str) -> None:
        self._client = client
        self._topic = topic
        self._lock = asyncio.Lock()
        self._view: TopicView | None = None
        self._exists: bool | None = None
        self._refreshed_at = 0.0
        #: Called after an answer that differs from the one before: id, count or a leader.
        self.on_change: list[Callable[[], None]] = []

    @property
    def view(self) -> TopicView | None:
        """The newest answer about an existing topic, None before the first."""
        return self._view

    @property
    def exists(self) -> bool | None:
        """Whether the newest answer knew the topic; None before the first."""
        return self._exists

    def leader(self, partition: MetadataPartition) -> Leader | None:
        """Return who led the partition at the newest answer; None: nobody, or not known."""
        return self._view.leaders.get(partition) if self._view else None

    async def refresh(self) -> TopicView | None:
        """Ask now, or share an answer to a question asked since; None: there is no such topic.

        Raises:
            UnavailableError: no broker answered.
        """
        asked_at = asyncio.get_running_loop().time()
        async with self._lock:
            if self._refreshed_at <= asked_at:
                begun_at = asyncio.get_running_loop().time()
                _, answer = await self._client.ask_any(metadata_by_name(self._topic))
                self._take(answer)
                self._refreshed_at = begun_at
        return self._view if self._exists else None

    async def is_topic(self, node: Node, topic_id: TopicId) -> bool:
        """Return whether that broker knows the topic by this id.

        Asked over the connection on which a question by name was answered just before, it says
        whether that answer was about this topic: a broker learns of a topic's new id before it
        serves the new topic's log.
        """
        return is_known(await self._client.ask(node, metadata_by_id(topic_id)))

    def _take(self, answer: Any) -> None:
        nodes = {row[0]: Node(row[0], row[1], row[2]) for row in answer.brokers}
        self._client.learn(nodes.values())
        if not answer.topics:
            raise StorageUnavailable("the broker's metadata answer names no topic")
        error, _, topic_id, _, partitions, *_ = answer.topics[0]
        if error == _UNKNOWN_TOPIC:
            self._exists = False
            return
        if error not in (0, _LEADER_NOT_AVAILABLE):
            raise error_of(error, f"looking for topic {self._topic}")
        shown = self._view
        before = shown if shown and shown.topic_id == topic_id else None
        self._exists = True
        self._view = TopicView(
            cluster_id=answer.cluster_id,
            topic_id=TopicId(topic_id),
            partition_count=len(partitions),
            leaders=_leaders(partitions, nodes, before.leaders if before else {}),
        )
        if shown is not None and self._view != shown:
            for changed in self.on_change:
                changed()


def _leaders(
    partitions: Any, nodes: Mapping[int, Node], before: Mapping[int, Leader]
) -> dict[int, Leader]:
    """Return the leaders; a broker that lags behind does not take a newer epoch back."""
    found = {}
    for _, index, leader, epoch, *_ in partitions:
        known = before.get(index)
        if known is not None and known.epoch > epoch:
            found[index] = known
        elif leader in nodes:
            found[index] = Leader(nodes[leader], epoch)
    return found
