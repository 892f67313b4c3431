"""Finished segments that no listing shows (the third set): which one may go, if any.

Retention walks Kafka's listings, so what is in none of them is never deleted by anybody. It may go
once the referenced segments alone hold all its offsets, epoch by epoch. One at a time per
partition, judged again just before the append: two that cover each other are never both judged by
the other.
"""

from bisect import bisect_left, bisect_right

from rlmm_daemon.codec import record_suffix as tails
from rlmm_daemon.core.fold.cache import PartitionCache
from rlmm_daemon.core.fold.epoch_index import EpochIndex
from rlmm_daemon.domain.ids import SegmentId
from rlmm_daemon.domain.segment import SegmentState


def removable(cache: PartitionCache) -> SegmentId | None:
    """Return one segment of the third set that may be deleted, or None."""
    for index in cache.epochs.values():
        for segment_id in index.third:
            if may_go(cache, segment_id):
                return segment_id
    return None


def may_go(cache: PartitionCache, segment_id: SegmentId) -> bool:
    """Return whether a segment is listed nowhere, and others that are referenced hold its offsets.

    O(segments that overlap it) in each of its epochs.
    """
    if cache.state(segment_id) is not SegmentState.COPY_SEGMENT_FINISHED:
        return False
    parts = tails.spans(cache.segments[segment_id])
    return all(
        (index := cache.epochs.get(epoch)) is not None
        and segment_id in index.third
        and _covered(cache, index, epoch, start, end=end)
        for epoch, start, end in parts
    )


def _covered(cache: PartitionCache, index: EpochIndex, epoch: int, start: int, *, end: int) -> bool:
    """Return whether referenced segments hold every offset from `start` to `end` in an epoch."""
    keys, owners = index.referenced_keys(), index.referenced_ids()
    low = bisect_left(keys, start - index.cover.reach)
    wanted = start
    for at in range(low, bisect_right(keys, end)):
        if wanted > end or keys[at] > wanted:
            break
        owner_end = _end_in(cache, owners[at], epoch)
        wanted = max(wanted, owner_end + 1)
    return wanted > end


def _end_in(cache: PartitionCache, segment_id: SegmentId, epoch: int) -> int:
    tail = cache.segments[segment_id]
    assert tails.state_of(tail) == SegmentState.COPY_SEGMENT_FINISHED, "referenced is finished"
    return next((end for own, _, end in tails.spans(tail) if own == epoch), -1)
