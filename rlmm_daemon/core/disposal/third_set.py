"""Finished segments that no listing shows (the third set): which one may go, if any.

Retention walks Kafka's listings, so what is in none of them is never deleted by anybody. It may go
once the referenced segments alone hold all its offsets, epoch by epoch; whether these are stored,
whoever deletes has to look. One at a time per partition, judged again just before the append: two
that cover each other are never both judged by the other.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection

from rlmm_daemon.codec import record_suffix as tails
from rlmm_daemon.core.fold.cache import PartitionCache
from rlmm_daemon.core.fold.epoch_index import EpochIndex
from rlmm_daemon.domain.ids import SegmentId
from rlmm_daemon.domain.segment import SegmentState


def removable(
    cache: PartitionCache, waits: Callable[[SegmentId], bool] = lambda _: False
) -> SegmentId | None:
    """Return one segment of the third set that may be deleted and does not wait, or None."""
    for index in cache.epochs.values():
        for segment_id in index.third:
            if not waits(segment_id) and holders(cache, segment_id) is not None:
                return segment_id
    return None


def may_go(cache: PartitionCache, segment_id: SegmentId, stored: Collection[SegmentId]) -> bool:
    """Return whether a segment is listed nowhere, and referenced ones of these hold its offsets."""
    found = holders(cache, segment_id)
    return found is not None and found.issubset(stored)


def holders(cache: PartitionCache, segment_id: SegmentId) -> frozenset[SegmentId] | None:
    """Return the referenced segments that hold all offsets of one that is listed nowhere.

    None: it may not go. O(segments that overlap it) in each of its epochs.
    """
    if cache.state(segment_id) is not SegmentState.COPY_SEGMENT_FINISHED:
        return None
    found = set[SegmentId]()
    for epoch, start, end in tails.spans(cache.segments[segment_id]):
        index = cache.epochs.get(epoch)
        if index is None or segment_id not in index.third:
            return None
        owners = _covering(cache, index, epoch, start, end=end)
        if owners is None:
            return None
        found.update(owners)
    return frozenset(found)


def _covering(
    cache: PartitionCache, index: EpochIndex, epoch: int, start: int, *, end: int
) -> list[SegmentId] | None:
    """Return the referenced segments that hold an epoch from `start` to `end`; None: not all."""
    keys, owners = index.referenced_keys(), index.referenced_ids()
    low = bisect_left(keys, start - index.cover.reach)
    found, wanted = list[SegmentId](), start
    for at in range(low, bisect_right(keys, end)):
        if wanted > end or keys[at] > wanted:
            break
        owner_end = _end_in(cache, owners[at], epoch)
        if owner_end >= wanted:
            found.append(owners[at])
            wanted = owner_end + 1
    return found if wanted > end else None


def _end_in(cache: PartitionCache, segment_id: SegmentId, epoch: int) -> int:
    tail = cache.segments[segment_id]
    assert tails.state_of(tail) == SegmentState.COPY_SEGMENT_FINISHED, "referenced is finished"
    return next((end for own, _, end in tails.spans(tail) if own == epoch), -1)
