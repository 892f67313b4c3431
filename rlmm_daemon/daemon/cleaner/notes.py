"""Progress of the cleaner, for people: where each removal stands, and what is not deleted yet."""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

import msgspec
import structlog

from rlmm_daemon.core.disposal.steps import CopyStep, DeleteStep, PartitionStep
from rlmm_daemon.core.explain.facts import StuckFacts
from rlmm_daemon.daemon.base.bounded import Bounded
from rlmm_daemon.domain.ids import SegmentId, TopicIdPartition, uuid_text

logger = structlog.get_logger(__name__)

#: User partitions that are remembered; the rest is found again by the next pass.
NOTED_MAX: Final = 10_000


class RemovalNote(msgspec.Struct):
    """One marked user partition."""

    step: PartitionStep
    #: When it came to this step.
    since_ms: int
    #: Segments that this daemon finished deleting.
    deleted: int = 0
    #: What the last try failed of; None while it goes well.
    error: str | None = None
    error_at_ms: int = 0


class StuckNote(msgspec.Struct):
    """What the last pass found in one user partition: by step, how many and the oldest of them."""

    copies: dict[CopyStep, StuckFacts] = msgspec.field(default_factory=dict)
    deletes: dict[DeleteStep, StuckFacts] = msgspec.field(default_factory=dict)
    #: What ending one of them, or an unlisted segment, last failed of.
    error: str | None = None


class Notes:
    """Written by the passes, read by `status`, `cleanup` and `explain`."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self.removals: Bounded[TopicIdPartition, RemovalNote] = Bounded(NOTED_MAX)
        self.stuck: Bounded[TopicIdPartition, StuckNote] = Bounded(NOTED_MAX)
        #: Segments whose deletion this daemon ended, by why.
        self.deleted: Counter[str] = Counter()
        self.failures = 0
        #: What keeps a purge of an existing topic's partition from being done.
        self.orders: Bounded[TopicIdPartition, str] = Bounded(NOTED_MAX)
        #: What was logged of a partition last, so that each trouble is logged once.
        self._logged: Bounded[TopicIdPartition, str] = Bounded(NOTED_MAX)

    def step(self, partition: TopicIdPartition, step: PartitionStep) -> bool:
        """Note where a removal stands; True if that is new."""
        note = self.removals.get(partition)
        if step is PartitionStep.REST:
            return self.removals.pop(partition, None) is not None
        if note is None:
            self.removals[partition] = RemovalNote(step, self._now_ms())
            return True
        if note.step is step:
            return False
        note.step, note.since_ms = step, self._now_ms()
        return True

    def failed(self, partition: TopicIdPartition, message: str) -> None:
        """Note what a try failed of."""
        self.failures += 1
        note = self.removals.get(partition)
        if note is not None:
            note.error, note.error_at_ms = message, self._now_ms()
        if self._logged.pop(partition, None) != message:
            logger.warning("not deleted", partition=str(partition), error=message)
        self._logged[partition] = message

    def went_well(self, partition: TopicIdPartition) -> None:
        """Forget an earlier failure."""
        note = self.removals.get(partition)
        if note is not None:
            note.error = None

    def finished(self, partition: TopicIdPartition, why: str, count: int = 1) -> None:
        """Count segments whose deletion ended."""
        self.deleted[why] += count
        self._logged.pop(partition, None)
        note = self.removals.get(partition)
        if note is not None:
            note.deleted += count

    def found(self, partition: TopicIdPartition, note: StuckNote) -> None:
        """Note what a pass found in a partition, nothing included."""
        if note.copies or note.deletes or note.error:
            self.stuck[partition] = note
        else:
            self.stuck.pop(partition, None)

    def order(self, partition: TopicIdPartition, error: str | None) -> None:
        """Note what keeps an order from being done; None: nothing does."""
        if error is not None:
            self.orders[partition] = error
        else:
            self.orders.pop(partition, None)

    def hanging(self) -> Counter[tuple[str, str]]:
        """Return how many segments hang, by kind and step, without what every copy goes through."""
        counts: Counter[tuple[str, str]] = Counter()
        for note in self.stuck.values():
            for copy_step, facts in note.copies.items():
                counts["copy", copy_step.value] += facts.count
            for delete_step, facts in note.deletes.items():
                counts["delete", delete_step.value] += facts.count
        for usual in (("copy", CopyStep.LIVE.value), ("delete", DeleteStep.WAIT.value)):
            counts.pop(usual, None)
        return counts

    def forget(self, partitions: Iterable[TopicIdPartition]) -> None:
        """Forget partitions that this daemon does not look after any more."""
        for partition in partitions:
            self.removals.pop(partition, None)
            self.stuck.pop(partition, None)


def add_stuck(
    table: dict[CopyStep, StuckFacts] | dict[DeleteStep, StuckFacts],
    step: CopyStep | DeleteStep,
    segment_id: SegmentId,
    at_ms: int,
) -> None:
    """Count one segment under its step; the oldest gives the example."""
    rows: dict[CopyStep | DeleteStep, StuckFacts] = table  # type: ignore[assignment] # of one kind
    before = rows.get(step)
    if before is None:
        rows[step] = StuckFacts(count=1, oldest_id=uuid_text(segment_id), oldest_at_ms=at_ms)
        return
    older = at_ms < before.oldest_at_ms
    rows[step] = StuckFacts(
        count=before.count + 1,
        oldest_id=uuid_text(segment_id) if older else before.oldest_id,
        oldest_at_ms=min(at_ms, before.oldest_at_ms),
    )
