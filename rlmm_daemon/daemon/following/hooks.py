"""Subscriptions to what the folds of a manager apply."""

from collections.abc import Callable
from typing import Final

import msgspec

from rlmm_daemon.codec.common_shape import updated
from rlmm_daemon.core.fold.outcome import Applied, Deferred, Outcome
from rlmm_daemon.daemon.base.segment_log import DeleteStarted
from rlmm_daemon.daemon.following.snapshots import WrittenSnapshot
from rlmm_daemon.domain.errors import RlmmError
from rlmm_daemon.domain.ids import MetadataPartition, SegmentId, TopicIdPartition
from rlmm_daemon.domain.segment import SegmentState, SegmentUpdate

_DELETE_STARTED: Final = int(SegmentState.DELETE_SEGMENT_STARTED)

OnApplied = Callable[[MetadataPartition, Outcome], None]


class ManagerHooks(msgspec.Struct):
    """Each is called in the loop and returns at once.

    Most of a log are copies that began or were finished. They are folded in run by run, and their
    outcomes are not even made while nobody is in `every`.
    """

    #: What became of each record but for copies that came in a run.
    applied: list[OnApplied] = msgspec.field(default_factory=list)
    #: How many copies came in a run.
    copies: list[Callable[[MetadataPartition, int], None]] = msgspec.field(default_factory=list)
    #: What became of each record whatsoever.
    every: list[OnApplied] = msgspec.field(default_factory=list)
    #: Which segments' DELETE_SEGMENT_STARTED were applied.
    delete_started: list[DeleteStarted] = msgspec.field(default_factory=list)
    #: Which segments' DELETE_SEGMENT_STARTED was put aside, since their user partition sleeps.
    delete_put_aside: list[DeleteStarted] = msgspec.field(default_factory=list)
    snapshot_written: list[Callable[[WrittenSnapshot], None]] = msgspec.field(default_factory=list)

    def tell(self, partition: MetadataPartition, outcome: Outcome) -> None:
        """A record was applied."""
        deleting = self.delete_put_aside if isinstance(outcome, Deferred) else self.delete_started
        if deleting and (deleted := _delete_started(outcome)) is not None:
            for told in deleting:
                told(*deleted)
        for applied in self.applied:
            applied(partition, outcome)
        for applied in self.every:
            applied(partition, outcome)

    def tell_copies(self, partition: MetadataPartition, count: int) -> None:
        """A run of copies was applied."""
        for copies in self.copies:
            copies(partition, count)

    def tell_snapshot_written(self, written: WrittenSnapshot) -> None:
        """A snapshot is on the disk."""
        for snapshot_written in self.snapshot_written:
            snapshot_written(written)


def _delete_started(outcome: Outcome) -> tuple[TopicIdPartition, SegmentId] | None:
    """Return the segment whose DELETE_SEGMENT_STARTED this is, decoding next to nothing else.

    It was applied, or put aside; what was rejected deletes nothing.
    """
    if not isinstance(outcome, Applied | Deferred) or outcome.value[-2] != _DELETE_STARTED:
        return None  # in normal form an update's state stands before its empty tags
    if isinstance(outcome, Applied) and (segment_id := updated(outcome.value)) is not None:
        return outcome.partition, segment_id
    try:
        event = outcome.event
    except RlmmError:
        return None  # put aside unread, and no event after all
    if not isinstance(event, SegmentUpdate) or event.state != _DELETE_STARTED:
        return None
    return outcome.partition, event.segment_id
