"""Views of a fold that only tests need."""

from rlmm_daemon.codec.snapshot_table import PartitionTable
from rlmm_daemon.core.fold.cache import PartitionCache
from rlmm_daemon.core.snapshots.sealing import steps
from rlmm_daemon.domain.ids import LeaderEpoch, SegmentId


def listed_ids(cache: PartitionCache, epoch: LeaderEpoch) -> list[SegmentId]:
    """Return the ids of `list_epoch`."""
    return [cache.segments.pair(ref)[0] for ref in cache._listed(epoch)]


def seal(cache: PartitionCache) -> PartitionTable:
    """Return one user partition's columns, in one go."""
    work = steps(cache)
    while True:
        try:
            next(work)
        except StopIteration as done:
            table: PartitionTable = done.value
            return table
