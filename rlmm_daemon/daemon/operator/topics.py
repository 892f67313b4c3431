"""Sums by topic over all user partitions, and which topics have a label of their own in metrics.

The sums are taken in turns every few seconds, not when somebody asks: whoever asks, however often,
is answered from the last ones.
"""

import asyncio
import heapq
from collections.abc import Generator, Sequence
from itertools import islice
from typing import Final

import msgspec

from rlmm_daemon.core.fold.deferred_free import leave
from rlmm_daemon.daemon.metadata.manager import Manager
from rlmm_daemon.daemon.metadata.tally import COUNTED_AT_ONCE
from rlmm_daemon.domain.ids import TopicId
from rlmm_daemon.domain.segment import SegmentState

#: Between two; where they take long, so many times as long as they took, so that of the loop's time
#: they have a fiftieth at most.
PERIOD_SECONDS: Final = 2.0
PERIOD_SECONDS_MAX: Final = 60.0
_SHARE: Final = 50
#: Topics of one step.
TOPICS_AT_ONCE: Final = 256
#: The label that all topics beyond the bound share; Kafka forbids it as a topic's name.
OTHER: Final = "(other)"
_FINISHED: Final = SegmentState.COPY_SEGMENT_FINISHED


class TopicSums(msgspec.Struct, gc=False):
    """How much there is of one topic; each user partition as it was in its turn."""

    topic: str
    topic_id: TopicId
    #: User partitions that the log names.
    partitions: int = 0
    #: Segments in COPY_SEGMENT_STARTED.
    started: int = 0
    #: And in COPY_SEGMENT_FINISHED, which can be read.
    finished: int = 0
    finished_bytes: int = 0
    #: And in DELETE_SEGMENT_STARTED.
    deleting: int = 0
    #: User partitions that are marked for removal.
    marked: int = 0


def topic_of(partition: str) -> str:
    """Return the topic of a user partition in Kafka's form, `<topicId>:<topic>-<partition>`."""
    return partition.partition(":")[2].rpartition("-")[0]


class Topics:
    """The last sums, for ever taken anew."""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        self._sums = dict[bytes, TopicSums]()
        #: When those were whole; None before the first.
        self.taken_at_ms: int | None = None

    def known(self) -> list[TopicSums]:
        """Return the last ones; empty until the first are whole."""
        return list(self._sums.values())

    async def run(self) -> None:
        """Take the sums again and again."""
        while True:
            began = self._manager.clock.monotonic()
            await self.take()
            took = self._manager.clock.monotonic() - began
            await asyncio.sleep(min(PERIOD_SECONDS_MAX, max(PERIOD_SECONDS, _SHARE * took)))

    async def take(self) -> None:
        """Take the sums once; others have their turn after every few user partitions."""
        turns = self._manager.turns
        # By its id, but for a name that somebody else gave it: a key that no collector looks at.
        sums = dict[bytes, TopicSums]()
        for follower in self._manager.followed():
            at_rest = list(follower.fold.partitions.at_rest())
            for at in range(0, len(at_rest), COUNTED_AT_ONCE):
                for cache in at_rest[at : at + COUNTED_AT_ONCE]:
                    of = cache.partition
                    key = of.topic_id + of.topic.encode(errors="surrogatepass")
                    found = sums.get(key)
                    if found is None:
                        found = sums[key] = TopicSums(topic=of.topic, topic_id=of.topic_id)
                    started, finished, deleting, _ = cache.segments_by_state
                    found.partitions += 1
                    found.started += started
                    found.finished += finished
                    found.finished_bytes += cache.bytes_by_state[_FINISHED]
                    found.deleting += deleting
                    found.marked += cache.delete_state is not None
                await turns.wait()
        former, self._sums = self._sums, sums
        leave(former)
        self.taken_at_ms = self._manager.clock.now_ms()


class TopicLabels:
    """Topic names that are a label of their own: at most `topics_max`, the largest come first.

    A topic keeps its label until it is gone, so that its counters go on.
    """

    def __init__(self, topics_max: int) -> None:
        self._topics_max = topics_max
        self._own = set[str]()

    def of(self, topic: str) -> str:
        """Return the label under which a topic is counted."""
        return topic if topic in self._own else OTHER

    def assigning(self, known: Sequence[TopicSums]) -> Generator[None, None, frozenset[str]]:
        """Take up the topics that there are; return the labels that are over. A few in a step."""
        sizes = dict[str, int]()
        for at in range(0, len(known), TOPICS_AT_ONCE):
            for each in known[at : at + TOPICS_AT_ONCE]:
                sizes[each.topic] = sizes.get(each.topic, 0) + each.finished_bytes
            yield
        gone = frozenset(self._own - sizes.keys())
        self._own -= gone
        room, best = max(0, self._topics_max - len(self._own)), list[tuple[int, str]]()
        waiting = iter(sizes.items())
        while room and (some := list(islice(waiting, TOPICS_AT_ONCE))):
            fresh = [(-size, topic) for topic, size in some if topic not in self._own]
            best = heapq.nsmallest(room, (*best, *fresh))
            yield
        self._own.update(topic for _, topic in best)
        return gone
