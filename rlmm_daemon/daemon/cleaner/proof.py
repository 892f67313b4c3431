"""The second fact beside a mark: that the topic id is gone."""

import asyncio
from collections.abc import Collection, Mapping
from typing import Final, Protocol

from rlmm_daemon.core.disposal.steps import Proof
from rlmm_daemon.daemon.assignment import Assignment
from rlmm_daemon.domain.errors import RlmmError
from rlmm_daemon.domain.ids import TopicId
from rlmm_daemon.ports.cluster import Cluster

ASK_SECONDS: Final = 30.0


class TopicProof(Protocol):
    """Whoever can tell whether a topic id is gone."""

    async def prove(self, topic_ids: Collection[TopicId]) -> Mapping[TopicId, Proof]:
        """Return an answer for each id; never raises for a cluster that does not answer."""
        ...


class ClusterProof:
    """Gone is what every live broker answers UNKNOWN_TOPIC_ID for, and this broker announces not.

    A partial answer proves nothing about any of the ids asked for.
    """

    def __init__(self, cluster: Cluster, assignment: Assignment) -> None:
        self._cluster, self._assignment = cluster, assignment

    async def prove(self, topic_ids: Collection[TopicId]) -> Mapping[TopicId, Proof]:
        """Ask every live broker."""
        if not topic_ids:
            return {}
        try:
            async with asyncio.timeout(ASK_SECONDS):
                unknown = await self._cluster.topic_ids_unknown(frozenset(topic_ids))
        except (RlmmError, TimeoutError):
            return dict.fromkeys(topic_ids, Proof.UNKNOWN)
        gone = unknown - {partition.topic_id for partition in self._assignment.announced}
        return {each: Proof.GONE if each in gone else Proof.ALIVE for each in topic_ids}


class AnnouncedProof:
    """Without a cluster to ask: gone is what the one broker has announced without.

    Before its announcement nothing is proven, since "nobody announces it" would be true of all.
    """

    def __init__(self, assignment: Assignment) -> None:
        self._assignment = assignment

    async def prove(self, topic_ids: Collection[TopicId]) -> Mapping[TopicId, Proof]:
        """Look at the present announcement."""
        if not self._assignment.gate_open:
            return dict.fromkeys(topic_ids, Proof.UNKNOWN)
        announced = {partition.topic_id for partition in self._assignment.announced}
        return {each: Proof.ALIVE if each in announced else Proof.GONE for each in topic_ids}
