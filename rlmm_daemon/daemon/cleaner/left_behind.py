"""Segments of topics that are gone, beside somebody else's storage manager: told of, not removed.

The broker deletes a topic's segments once. A deletion that broke off leaves events in the log and
objects in a storage that this daemon does not know, so nobody comes back to them.
"""

import asyncio
from typing import Any, Final

import msgspec

from rlmm_daemon.core.disposal.steps import Proof
from rlmm_daemon.core.readiness.states import PartitionState
from rlmm_daemon.daemon.cleaner.proof import TopicProof
from rlmm_daemon.daemon.metadata.manager import Manager
from rlmm_daemon.domain.ids import TopicId, uuid_text
from rlmm_daemon.domain.segment import SegmentState

#: Topics that nobody announces here, of which one command asks.
TOPICS_MAX: Final = 1_000
#: For metadata partitions that nobody followed before the question.
READY_SECONDS: Final = 5.0
#: Partitions that are looked at before others get a turn.
_TURN: Final = 256
_DELETING: Final = SegmentState.DELETE_SEGMENT_STARTED


class _Topic(msgspec.Struct):
    """What a topic id has in the log."""

    name: str
    partitions: int = 0
    segments: int = 0
    bytes: int = 0
    #: Segments whose delete was begun.
    deleting: int = 0


class LeftBehind:
    """Looks through what this daemon follows, and asks which of those topics are gone."""

    def __init__(self, manager: Manager, proof: TopicProof) -> None:
        self._manager, self._proof = manager, proof

    async def rows(self) -> dict[str, Any]:
        """Return what `rlmm cleanup` shows where there is no cleaner."""
        await self._until_ready()
        found = await self._unannounced()
        asked = sorted(found)[:TOPICS_MAX]
        proofs = await self._proof.prove(asked)
        return {
            "left": [
                _row(each, found[each], proofs[each])
                for each in asked
                if proofs[each] is not Proof.ALIVE
            ],
            "not_asked": len(found) - len(asked),
            "not_ready": sorted(
                follower.partition
                for follower in self._manager.followed()
                if follower.state is not PartitionState.READY
            ),
        }

    async def _until_ready(self) -> None:
        """Give those that are followed for this question time to read the log."""
        try:
            async with asyncio.timeout(READY_SECONDS):
                for follower in self._manager.followed():
                    while follower.state is not PartitionState.READY and follower.failure is None:
                        await follower.changed.wait()
        except TimeoutError:
            return  # the answer says which are not

    async def _unannounced(self) -> dict[TopicId, _Topic]:
        announced = {partition.topic_id for partition in self._manager.assignment.announced}
        topics: dict[TopicId, _Topic] = {}
        for follower in self._manager.followed():
            for index, cache in enumerate(list(follower.fold.partitions.at_rest())):
                if index % _TURN == _TURN - 1:
                    await asyncio.sleep(0)
                partition = cache.partition
                segments = sum(cache.segments_by_state)
                if not segments or partition.topic_id in announced:
                    continue
                topic = topics.setdefault(partition.topic_id, _Topic(partition.topic))
                topic.partitions += 1
                topic.segments += segments
                topic.bytes += sum(cache.bytes_by_state)
                topic.deleting += cache.segments_by_state[_DELETING]
        return topics


def _row(topic_id: TopicId, topic: _Topic, proof: Proof) -> dict[str, Any]:
    return {
        "topic": topic.name,
        "topic_id": uuid_text(topic_id),
        "gone": proof is Proof.GONE,
        "partitions": topic.partitions,
        "segments": topic.segments,
        "deletes_begun": topic.deleting,
        "bytes": topic.bytes,
    }
