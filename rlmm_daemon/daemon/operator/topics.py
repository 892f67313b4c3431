"""Sums by topic over all user partitions, and which topics have a label of their own in metrics.

The sums are taken in turns every few seconds, not when somebody asks: whoever asks, however often,
is answered from the last ones.
"""

import asyncio
from collections.abc import Iterable, Mapping
from operator import add
from typing import Final

import msgspec

from rlmm_daemon.daemon.metadata.manager import Manager
from rlmm_daemon.daemon.metadata.tally import COUNTED_AT_ONCE
from rlmm_daemon.domain.ids import TopicId
from rlmm_daemon.domain.segment import SegmentState

#: Between two; where they take long, so many times as long as they took, so that of the loop's time
#: they have a fiftieth at most.
PERIOD_SECONDS: Final = 2.0
PERIOD_SECONDS_MAX: Final = 60.0
_SHARE: Final = 50
#: The label that all topics beyond the bound share; Kafka forbids it as a topic's name.
OTHER: Final = "(other)"
_FINISHED: Final = SegmentState.COPY_SEGMENT_FINISHED


class TopicSums(msgspec.Struct):
    """How much there is of one topic; each user partition as it was in its turn."""

    topic: str
    topic_id: TopicId
    #: User partitions that the log names.
    partitions: int = 0
    #: By `SegmentState`.
    segments: list[int] = msgspec.field(default_factory=lambda: [0] * len(SegmentState))
    #: Of segments in COPY_SEGMENT_FINISHED.
    finished_bytes: int = 0
    #: User partitions that are marked for removal.
    marked: int = 0

    @property
    def finished(self) -> int:
        """Segments that can be read."""
        return self.segments[_FINISHED]


def topic_of(partition: str) -> str:
    """Return the topic of a user partition in Kafka's form, `<topicId>:<topic>-<partition>`."""
    return partition.partition(":")[2].rpartition("-")[0]


class Topics:
    """The last sums, for ever taken anew."""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        #: Empty until the first ones are whole.
        self.sums: Mapping[tuple[str, TopicId], TopicSums] = {}
        #: When those were whole; None before the first.
        self.taken_at_ms: int | None = None

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
        sums = dict[tuple[str, TopicId], TopicSums]()
        for follower in self._manager.followed():
            at_rest = list(follower.fold.partitions.at_rest())
            for at in range(0, len(at_rest), COUNTED_AT_ONCE):
                for cache in at_rest[at : at + COUNTED_AT_ONCE]:
                    of = cache.partition
                    found = sums.get((of.topic, of.topic_id))
                    if found is None:
                        found = TopicSums(topic=of.topic, topic_id=of.topic_id)
                        sums[of.topic, of.topic_id] = found
                    found.partitions += 1
                    found.segments = list(map(add, found.segments, cache.segments_by_state))
                    found.finished_bytes += cache.bytes_by_state[_FINISHED]
                    found.marked += cache.delete_state is not None
                await turns.wait()
        self.sums = sums
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

    def assign(self, sums: Iterable[TopicSums]) -> frozenset[str]:
        """Take up the topics that there are; return the labels that are over."""
        sizes = dict[str, int]()
        for each in sums:
            sizes[each.topic] = sizes.get(each.topic, 0) + each.finished_bytes
        gone = frozenset(self._own - sizes.keys())
        self._own -= gone
        waiting = sorted(sizes.keys() - self._own, key=lambda topic: (-sizes[topic], topic))
        self._own.update(waiting[: max(0, self._topics_max - len(self._own))])
        return gone
