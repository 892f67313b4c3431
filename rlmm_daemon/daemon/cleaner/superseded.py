"""Copies that their broker gave up: it began another one of the partition after them.

A broker copies a partition's segments one after another, by ascending offsets. What is compared is
the time of the other segment's last event: of a copy that was finished since, nothing else is kept.
"""

import asyncio
from collections.abc import Collection, Iterator
from itertools import islice
from typing import Final

from rlmm_daemon.codec import record_suffix as tails
from rlmm_daemon.core.fold.cache import PartitionCache
from rlmm_daemon.daemon.base.bounded import Bounded
from rlmm_daemon.domain.ids import BrokerId, SegmentId, TopicIdPartition
from rlmm_daemon.domain.segment import SegmentState

#: Segments that are looked at before others get a turn: half a millisecond.
WALK_AT_ONCE: Final = 256
#: Walks that a change cut off, in one pass; the next pass tries again.
WALKS_MAX: Final = 10
#: User partitions whose answer is remembered.
REMEMBERED_MAX: Final = 1_000

_Answer = tuple[PartitionCache, int, frozenset[SegmentId], frozenset[SegmentId]]


class Superseded:
    """One walk over a partition's segments answers for all its copies, until something changes."""

    def __init__(self) -> None:
        self._answers: Bounded[TopicIdPartition, _Answer] = Bounded(REMEMBERED_MAX)

    async def of(
        self, cache: PartitionCache, broker_id: BrokerId, copies: Collection[SegmentId]
    ) -> frozenset[SegmentId]:
        """Return which of these copies a later one of the same broker shows as given up."""
        asked = frozenset(copies)
        if not asked:
            return frozenset()
        known = self._answers.get(cache.partition)
        if known is None or known[0] is not cache or known[1:3] != (cache.changes, asked):
            changes = cache.changes
            found = await _walk(cache, broker_id, asked)
            if found is None:
                self._answers.pop(cache.partition, None)
                return frozenset()
            known = cache, changes, asked, found
        self._answers[cache.partition] = known
        return known[3]


async def _walk(
    cache: PartitionCache, broker_id: BrokerId, asked: frozenset[SegmentId]
) -> frozenset[SegmentId] | None:
    """Return the answer; None: the segments changed too often meanwhile."""
    targets = [(i, tail) for i in asked if (tail := cache.segments.get(i)) is not None]
    if not targets:
        return frozenset()
    oldest_ms = min(tails.event_ms_of(tail) for _, tail in targets)
    for _ in range(WALKS_MAX):
        later = list[tuple[int, int]]()
        rest = iter(cache.segments.items())
        try:
            while some := list(islice(rest, WALK_AT_ONCE)):
                later += _later(some, broker_id, oldest_ms)
                await asyncio.sleep(0)
        except RuntimeError:  # the dict that was walked has changed
            continue
        return frozenset(i for i, tail in targets if _is_superseded(tail, later))
    return None


def _later(
    some: list[tuple[SegmentId, bytes]], broker_id: BrokerId, oldest_ms: int
) -> Iterator[tuple[int, int]]:
    """Yield start offset and time of that broker's copies that are later than the oldest asked."""
    for _, tail in some:
        if (
            tails.state_of(tail) <= SegmentState.COPY_SEGMENT_FINISHED
            and tails.broker_of(tail) == broker_id
            and (event_ms := tails.event_ms_of(tail)) > oldest_ms
        ):
            yield tails.start_of(tail), event_ms


def _is_superseded(tail: bytes, later: list[tuple[int, int]]) -> bool:
    begun, begun_ms = tails.start_of(tail), tails.event_ms_of(tail)
    return any(start >= begun and event_ms > begun_ms for start, event_ms in later)
