"""Finished segments of each metadata partition, counted in the background for the presence file."""

import asyncio
from typing import Final, NamedTuple

from rlmm_daemon.core.fold.user_partitions import Sleeping
from rlmm_daemon.core.readiness.states import PartitionState
from rlmm_daemon.daemon.following.follower import Follower
from rlmm_daemon.daemon.metadata.manager import Manager
from rlmm_daemon.domain.ids import MetadataPartition  # noqa: TC001  # as every other module
from rlmm_daemon.domain.segment import SegmentState

COUNT_SECONDS: Final = 30.0
#: User partitions that are counted without giving way: some milliseconds.
COUNTED_AT_ONCE: Final = 2_000
_FINISHED: Final = SegmentState.COPY_SEGMENT_FINISHED


class LiveCount(NamedTuple):
    """At least so many segments were COPY_SEGMENT_FINISHED when the log was read to an offset."""

    segments: int
    next_offset: int


class LiveCounts:
    """The last count of each followed metadata partition."""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        #: Of those that are ready; a count stays as long as its log is the same.
        self.known: dict[MetadataPartition, LiveCount] = {}

    async def run(self) -> None:
        """Count again and again, for ever."""
        while True:
            await self.count()
            await asyncio.sleep(COUNT_SECONDS)

    async def count(self) -> None:
        """Count once; a partition whose log moves on meanwhile is left for the next time."""
        found: dict[MetadataPartition, LiveCount] = {}
        for follower in self._manager.followed():
            if follower.state is PartitionState.READY:
                counted = await _counted(follower)
                if counted is not None:
                    found[follower.partition] = counted
        self.known = found


async def _counted(follower: Follower) -> LiveCount | None:
    fold, segments = follower.fold, 0
    position, at_rest = fold.position, [*fold.partitions.at_rest()]
    for begin in range(0, len(at_rest), COUNTED_AT_ONCE):
        for cache in at_rest[begin : begin + COUNTED_AT_ONCE]:
            # Each event that was put aside may have ended one.
            aside = cache.aside_events if isinstance(cache, Sleeping) else 0
            segments += max(cache.segments_by_state[_FINISHED] - aside, 0)
        await asyncio.sleep(0)
        if fold is not follower.fold or fold.position != position:
            if begin + COUNTED_AT_ONCE < len(at_rest):
                return None
            break
    return LiveCount(segments=segments, next_offset=position)
