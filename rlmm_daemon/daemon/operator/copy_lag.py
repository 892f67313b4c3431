"""Closed segments of the broker that wait to be copied, by topic: how far the tier is behind.

A look lists the directories of the partitions that the broker leads, below its `log_dirs`, now and
then and in turns. It tells what the broker has not handed over yet, which nobody else here knows.
"""

import asyncio
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import msgspec

from rlmm_daemon.core.closed_segments import ClosedSegment, closed, waiting
from rlmm_daemon.core.fold.user_partitions import Sleeping
from rlmm_daemon.core.readiness.states import PartitionState
from rlmm_daemon.daemon.metadata.manager import Manager
from rlmm_daemon.domain.errors import InvalidArgument, RlmmError
from rlmm_daemon.domain.ids import TopicIdPartition, require_topic_name

#: Between two looks; where one takes long, so many times as long as it took.
PERIOD_SECONDS: Final = 10.0
PERIOD_SECONDS_MAX: Final = 300.0
_SHARE: Final = 50
#: Partitions of a step: a thread lists their directories in a few milliseconds.
_AT_ONCE: Final = 32
_LOG: Final = re.compile(r"(\d{20})\.log")


class TopicLag(msgspec.Struct):
    """What waits of one topic, of the partitions that this broker leads."""

    segments: int = 0
    bytes: int = 0
    #: Since when the one that waits longest was seen to wait, by the monotonic clock.
    since: float | None = None


class CopyLag:
    """The last look, for ever taken anew."""

    def __init__(self, manager: Manager, log_dirs: Sequence[str]) -> None:
        """`log_dirs` are the broker's; without any nothing is known."""
        self._manager, self._log_dirs = manager, tuple(log_dirs)
        self._topics = dict[str, TopicLag]()
        #: Start offset -> since when a segment was seen to wait.
        self._since = dict[TopicIdPartition, dict[int, float]]()
        #: What was finished when it was asked for last; it only grows.
        self._tiered = dict[TopicIdPartition, int]()
        #: Partitions of the last look of which nothing could be told; None: there was none yet.
        self.untold: int | None = None

    def known(self) -> Mapping[str, TopicLag]:
        """Return what waits, by topic, of the last look; topics of which nothing waits, too."""
        return self._topics

    def seconds(self, lag: TopicLag) -> float:
        """Return how long some segment has been seen to wait; 0: none does."""
        return 0.0 if lag.since is None else self._manager.clock.monotonic() - lag.since

    def facts(self, topics_max: int = 5) -> dict[str, Any] | None:
        """Return sums for status, and the topics of which most waits; None: not known yet."""
        if self.untold is None:
            return None
        behind = [(topic, lag) for topic, lag in self._topics.items() if lag.segments]
        behind.sort(key=lambda each: (-each[1].bytes, each[0]))
        return {
            "segments": sum(lag.segments for _, lag in behind),
            "bytes": sum(lag.bytes for _, lag in behind),
            "seconds": round(max((self.seconds(lag) for _, lag in behind), default=0.0), 1),
            "topics": [
                {
                    "topic": topic,
                    "segments": lag.segments,
                    "bytes": lag.bytes,
                    "seconds": round(self.seconds(lag), 1),
                }
                for topic, lag in behind[:topics_max]
            ],
            "untold_partitions": self.untold,
        }

    async def run(self) -> None:
        """Look again and again; ends at once without `log_dirs`."""
        while self._log_dirs:
            began = self._manager.clock.monotonic()
            if self._manager.assignment.gate_open:
                await self.look()
            took = self._manager.clock.monotonic() - began
            await asyncio.sleep(min(PERIOD_SECONDS_MAX, max(PERIOD_SECONDS, _SHARE * took)))

    async def look(self) -> None:
        """Look once at what the broker leads."""
        led = [each for each, leads in self._manager.assignment.announced.items() if leads]
        topics, untold = dict[str, TopicLag](), 0
        since, self._since = self._since, {}
        self._tiered = {each: self._tiered[each] for each in led if each in self._tiered}
        for at in range(0, len(led), _AT_ONCE):
            some = led[at : at + _AT_ONCE]
            found = await self._manager.state.disk.compute(partial(self._listed, some))
            for partition, segments in zip(some, found, strict=True):
                left = None if segments is None else await self._waiting(partition, segments)
                if left is None:
                    untold += 1
                    continue
                lag = topics.setdefault(partition.topic, TopicLag())
                self._add(lag, partition, left, since.get(partition, {}))
            await self._manager.turns.wait()
        self._topics, self.untold = topics, untold

    def _listed(self, partitions: Sequence[TopicIdPartition]) -> list[list[ClosedSegment] | None]:
        """Return the closed segments of each; None: it can't be told. Blocks."""
        return [self._closed(each) for each in partitions]

    def _closed(self, partition: TopicIdPartition) -> list[ClosedSegment] | None:
        with suppress(InvalidArgument, OSError):
            require_topic_name(partition.topic)  # a broker's word becomes a path
            name = f"{partition.topic}-{partition.partition}"
            for log_dir in self._log_dirs:
                with suppress(FileNotFoundError), os.scandir(f"{log_dir}/{name}") as entries:
                    logs = ((each, _LOG.fullmatch(each.name)) for each in entries)
                    return closed([(int(of[1]), each.stat().st_size) for each, of in logs if of])
        return None

    async def _waiting(
        self, partition: TopicIdPartition, segments: Sequence[ClosedSegment]
    ) -> list[ClosedSegment] | None:
        left = waiting(segments, self._tiered.get(partition, -1))
        if left:  # else nobody has to be asked
            await self._manager.turns.wait()  # a table may be read through for it
            tiered = self._tiered_to(partition)
            if tiered is None:
                return None
            self._tiered[partition] = tiered
            left = waiting(left, tiered)
        return left

    def _tiered_to(self, partition: TopicIdPartition) -> int | None:
        """Return the last offset that is finished, -1 for none; None: nobody can tell now.

        In the newest leader epoch that has any: an older one may have a higher offset, of a tail
        that was cut off when leaders changed.
        """
        fleet = self._manager.fleet
        number = None if fleet.follow_set is None else fleet.follow_set.of(partition)
        follower = None if number is None else fleet.followers.get(number)
        if follower is None or follower.state is not PartitionState.READY:
            return None
        partitions = follower.fold.partitions
        resting = partitions.peek(partition)
        if isinstance(resting, Sleeping) and resting.is_long_unread:
            return None  # whoever asks for it by name reads it in turns
        try:
            highest = partitions.newest_highest(partition)
        except RlmmError:  # of a damaged table whoever asks for the partition hears
            return None
        return -1 if highest is None else highest

    def _add(
        self,
        lag: TopicLag,
        partition: TopicIdPartition,
        left: Sequence[ClosedSegment],
        before: Mapping[int, float],
    ) -> None:
        if not left:
            return
        now = self._manager.clock.monotonic()
        since = {each.start_offset: before.get(each.start_offset, now) for each in left}
        self._since[partition] = since
        lag.segments += len(left)
        lag.bytes += sum(each.size_bytes for each in left)
        oldest = min(since.values())
        lag.since = oldest if lag.since is None else min(lag.since, oldest)
