"""Events of one metadata partition that a checkpoint of a quorum's log keeps.

What folds to the same is decided as for the embedded log (`compaction`). But a
checkpoint may be given to a daemon whose snapshot, list of lost segments or presence file is older:
it knows segments as finished that were deleted since, and would take them for lost, or bring them
back. So the last event of each segment that is gone stays: its id, at its offset.
"""

from collections.abc import Iterator

from rlmm_daemon.core.snapshots.compaction import Offsets, Survivors, ended_by
from rlmm_daemon.domain.ids import MetadataPartition


class Kept:
    """The partition's beginning is put in event by event; then the offsets that stay are known."""

    def __init__(self, partition: MetadataPartition, partition_count: int) -> None:
        self._survivors = Survivors(partition, partition_count)
        self._ends = Offsets()

    def take(self, offset: int, value: bytes | None) -> None:
        """Put the next event in."""
        if ended_by(self._survivors.take(offset, value)):
            self._ends.add(offset)

    def settle(self) -> Iterator[None]:
        """Drop what nothing needs; a step for each user partition."""
        return self._survivors.settle()

    def __contains__(self, offset: int) -> bool:
        """Whether the event of an offset stays; to be asked after `settle`."""
        return offset in self._survivors or offset in self._ends
