"""Proof beside a mark that the topic id is gone."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, Protocol

from rlmm_daemon.core.disposal.steps import Proof
from rlmm_daemon.daemon.cleaner.directories import topic_ids_on_disk
from rlmm_daemon.daemon.cleaner.together import Together
from rlmm_daemon.daemon.metadata.assignment import Assignment
from rlmm_daemon.domain.errors import RlmmError
from rlmm_daemon.domain.ids import TopicId
from rlmm_daemon.ports.cluster import Cluster
from rlmm_daemon.ports.disk import Disk

ASK_SECONDS: Final = 30.0


class TopicProof(Protocol):
    """Whoever can tell whether a topic id is gone."""

    async def prove(self, topic_ids: Collection[TopicId]) -> Mapping[TopicId, Proof]:
        """Return an answer for each id; never raises for a cluster that does not answer."""


class JoinedProof:
    """Asks about all topics at once that are wanted while an earlier question is under way."""

    def __init__(self, proof: TopicProof) -> None:
        self._together = Together(proof.prove)

    async def prove(self, topic_ids: Collection[TopicId]) -> Mapping[TopicId, Proof]:
        """Return answers that were asked for from now on."""
        return {each: await self._together.of(each) for each in topic_ids}


class SharedProof:
    """One answer for all partitions of a topic that is there; that one is gone is asked anew."""

    def __init__(self, proof: TopicProof, monotonic: Callable[[], float], seconds: float) -> None:
        """`seconds`: how old an answer may be."""
        self._proof, self._monotonic, self._seconds = proof, monotonic, seconds
        #: Topic id -> when it was not gone, the oldest first.
        self._not_gone: dict[TopicId, tuple[float, Proof]] = {}

    async def prove(self, topic_ids: Collection[TopicId]) -> Mapping[TopicId, Proof]:
        """Ask of those about which nothing is known."""
        self._forget()
        known = {each: self._not_gone[each][1] for each in topic_ids if each in self._not_gone}
        asked = [each for each in topic_ids if each not in known]
        found = await self._proof.prove(asked) if asked else {}
        now = self._monotonic()
        for each, proof in found.items():
            self._not_gone.pop(each, None)
            if proof is not Proof.GONE:
                self._not_gone[each] = now, proof
        return {**known, **found}

    def _forget(self) -> None:
        until = self._monotonic() - self._seconds
        for each, (at, _) in list(self._not_gone.items()):
            if at > until:
                return
            del self._not_gone[each]


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
    """Without a cluster to ask: gone is what the one broker announces not and has not on its disks.

    Before its announcement nothing is proven, since "nobody announces it" would be true of all. The
    announcement alone proves nothing either: a broker that starts is greeted before it knows its
    partitions, and announces none of them until it does; one whose disk failed goes on without
    that disk's. Their directories were there all along.
    """

    def __init__(self, assignment: Assignment, disk: Disk, log_dirs: Sequence[str]) -> None:
        """`log_dirs`: the broker's; without any nothing is proven."""
        self._assignment, self._disk, self._log_dirs = assignment, disk, log_dirs

    async def prove(self, topic_ids: Collection[TopicId]) -> Mapping[TopicId, Proof]:
        """Look at the disks, then at the present announcement."""
        absent = await self._absent(frozenset(topic_ids) - self._announced())
        if not self._assignment.gate_open:
            return dict.fromkeys(topic_ids, Proof.UNKNOWN)
        announced = self._announced()
        return {
            each: Proof.ALIVE if each in announced else absent.get(each, Proof.UNKNOWN)
            for each in topic_ids
        }

    async def _absent(self, topic_ids: frozenset[TopicId]) -> Mapping[TopicId, Proof]:
        """Return what the disks prove of ids that nobody announces."""
        if not topic_ids or not self._log_dirs:
            return dict.fromkeys(topic_ids, Proof.UNKNOWN)
        try:
            async with asyncio.timeout(ASK_SECONDS):
                on_disk = await topic_ids_on_disk(self._disk, self._log_dirs)
        except (RlmmError, TimeoutError):
            return dict.fromkeys(topic_ids, Proof.UNKNOWN)
        return {each: Proof.ALIVE if each in on_disk else Proof.GONE for each in topic_ids}

    def _announced(self) -> frozenset[TopicId]:
        return frozenset(partition.topic_id for partition in self._assignment.announced)
