"""Comparison of two folds of a metadata partition, as look-ups would see them."""

from rlmm_daemon.core.fold.cache import PartitionCache
from rlmm_daemon.core.fold.fold import Fold
from rlmm_daemon.domain.ids import LeaderEpoch, TopicIdPartition


def first_difference(one: Fold, other: Fold) -> TopicIdPartition | None:
    """Return a user partition of which two folds answer differently; None: there is none."""
    named: set[TopicIdPartition] = {*one.partitions, *other.partitions}
    for partition in sorted(named, key=str):
        if _answers(one.cache(partition)) != _answers(other.cache(partition)):
            return partition
    return None


def _answers(cache: PartitionCache | None) -> tuple[object, ...] | None:
    """Return all that look-ups, deletions and holds go by; None of a partition that has nothing."""
    if cache is None:
        return None
    epochs = cache.highest_offsets
    found = (
        cache.delete_state,
        cache.list_all(),
        epochs,
        [cache.list_epoch(LeaderEpoch(epoch)) for epoch in sorted(epochs)],
        cache.strays,
        cache.held_records(),
    )
    return found if any(found[1:]) or found[0] is not None else None
