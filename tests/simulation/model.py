"""A dumb model of one metadata partition: segments as the log's events imply them, and no more.

Written against KIP-405's words, from decoded events, without indexes: slow, short, and sharing
nothing with the product's fold but the record decoder.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from rlmm_daemon.codec import records
from rlmm_daemon.core.fold.epoch_index import EpochIndex
from rlmm_daemon.core.fold.fold import Fold
from rlmm_daemon.core.fold.user_partitions import Sleeping
from rlmm_daemon.domain.ids import LeaderEpoch, Offset, SegmentId, TopicIdPartition
from rlmm_daemon.domain.partition_delete import PartitionDelete, PartitionDeleteState
from rlmm_daemon.domain.segment import SegmentMetadata, SegmentState, SegmentUpdate
from tests.simulation.world import Violation

S = SegmentState
D = PartitionDeleteState
_NEXT = {
    S.COPY_SEGMENT_STARTED: {S.COPY_SEGMENT_FINISHED, S.DELETE_SEGMENT_STARTED},
    S.COPY_SEGMENT_FINISHED: {S.DELETE_SEGMENT_STARTED},
    S.DELETE_SEGMENT_STARTED: {S.DELETE_SEGMENT_FINISHED},
}

#: Offsets between two looks at a user partition that sleeps in a snapshot.
WAKES_EVERY: Final = 7


@dataclass(slots=True)
class UserPartition:
    """Segments in order of their start, and what ever finished."""

    segments: dict[SegmentId, SegmentMetadata]
    #: Ids in the order in which they finished.
    finished: list[SegmentId]
    highest: dict[LeaderEpoch, int]
    #: How far its removal is.
    deleted: PartitionDeleteState | None = None

    def covering(self, epoch: LeaderEpoch, offset: Offset) -> SegmentMetadata | None:
        """Return the readable segment that holds the offset; the last one finished wins."""
        for segment_id in reversed(self.finished):
            segment = self.segments.get(segment_id)
            if segment is None or segment.state is not S.COPY_SEGMENT_FINISHED:
                continue
            if epoch not in segment.segment_leader_epochs:
                continue
            if dict(spans(segment)).get(epoch, range(0)).count(offset):
                return segment
        return None


def spans(segment: SegmentMetadata) -> list[tuple[LeaderEpoch, range]]:
    """Return each epoch of a segment with the offsets that it has in it."""
    epochs = sorted(segment.segment_leader_epochs.items())
    ends = [start for _, start in epochs[1:]] + [segment.end_offset + 1]
    return [(epoch, range(start, end)) for (epoch, start), end in zip(epochs, ends, strict=True)]


class Model:
    """The fold of `values[:position]`."""

    def __init__(self, owns: Callable[[TopicIdPartition], bool] = lambda _: True) -> None:
        """With `owns`, events of user partitions that belong elsewhere are passed over."""
        self._owns = owns
        self.position = 0
        self.partitions: dict[TopicIdPartition, UserPartition] = {}

    def advance(self, values: Sequence[bytes | None], position: int) -> None:
        """Fold on, or anew if `position` lies before what was folded; None is no event."""
        if position < self.position:
            self.position, self.partitions = 0, {}
        if position > len(values):
            raise Violation(f"a fold at {position} of a log that gave out {len(values)} records")
        for value in values[self.position : position]:
            if value is not None:
                self._apply(records.decode(value))
        self.position = position

    def _apply(self, event: object) -> None:
        assert isinstance(event, SegmentMetadata | SegmentUpdate | PartitionDelete)
        if event.partition not in self.partitions and not self._owns(event.partition):
            return
        if isinstance(event, SegmentMetadata):
            partition = self._partition(event.partition)
            known = partition.segments.get(event.segment_id)
            if known is not None and known.state is not S.COPY_SEGMENT_STARTED:
                return  # it is past its beginning
            if partition.deleted is D.DELETE_PARTITION_FINISHED:
                partition.deleted = None
            partition.segments[event.segment_id] = event
        if isinstance(event, PartitionDelete):
            self._mark(self._partition(event.partition), event.state)
        if isinstance(event, SegmentUpdate) and event.partition in self.partitions:
            self._update(self.partitions[event.partition], event)

    def _partition(self, partition: TopicIdPartition) -> UserPartition:
        fresh = UserPartition(segments={}, finished=[], highest={})
        return self.partitions.setdefault(partition, fresh)

    def _mark(self, partition: UserPartition, state: PartitionDeleteState) -> None:
        """The marks go one after another; the last drops everything."""
        if state != (-1 if partition.deleted is None else partition.deleted) + 1:
            return
        partition.deleted = state
        if state is D.DELETE_PARTITION_FINISHED:
            partition.segments, partition.finished, partition.highest = {}, [], {}

    def _update(self, partition: UserPartition, update: SegmentUpdate) -> None:
        segment = partition.segments.get(update.segment_id)
        if segment is None or update.state not in {*_NEXT[segment.state], segment.state}:
            return
        if update.state is S.DELETE_SEGMENT_FINISHED:
            del partition.segments[update.segment_id]
            return
        if update.state is S.COPY_SEGMENT_FINISHED is not segment.state:
            partition.finished.append(update.segment_id)
            for epoch, offsets in spans(segment):
                partition.highest[epoch] = max(partition.highest.get(epoch, -1), offsets[-1])
        partition.segments[update.segment_id] = replace(
            segment,
            broker_id=update.broker_id,
            event_timestamp_ms=update.event_timestamp_ms,
            custom_metadata=update.custom_metadata,
            state=update.state,
        )

    def verify(self, fold: Fold) -> None:
        """Hold the product's fold against this one: every listing, look-up and set."""
        where = f"metadata partition {fold.partition} at {fold.position}"
        for partition in fold.partitions:
            if partition not in self.partitions and fold.partitions[partition].list_all():
                raise Violation(f"{where}: {partition} is not in the log")
        for partition, expected in self.partitions.items():
            # To look wakes it, so most of the time one that sleeps is left alone.
            asleep = isinstance(fold.partitions.peek(partition), Sleeping)
            if asleep and fold.position % WAKES_EVERY:
                continue
            self._verify_partition(fold, partition, expected, f"{where}: {partition}")

    def _verify_partition(
        self, fold: Fold, partition: TopicIdPartition, expected: UserPartition, where: str
    ) -> None:
        cache = fold.partitions.get(partition)
        if cache is None:
            raise Violation(f"{where} is missing")
        listed = {segment.segment_id: segment for segment in map(_segment, cache.list_all())}
        if listed != expected.segments:
            raise Violation(f"{where} lists {_short(listed)}, not {_short(expected.segments)}")
        if cache.delete_state is not expected.deleted:
            raise Violation(f"{where} is {cache.delete_state!r}, not {expected.deleted!r}")
        if cache.highest_offsets != expected.highest:
            raise Violation(f"{where}: highest {cache.highest_offsets}, not {expected.highest}")
        for segment in expected.segments.values():
            for epoch, offsets in spans(segment):
                _verify_one_set(cache.epochs.get(epoch), segment, f"{where} epoch {epoch}")
                for offset in (offsets[0], offsets[-1]):
                    found = cache.lookup(epoch, Offset(offset))
                    wanted = expected.covering(epoch, Offset(offset))
                    if (None if found is None else _segment(found)) != wanted:
                        raise Violation(f"{where}: {epoch}/{offset} finds {found!r}")


def _segment(record: bytes) -> SegmentMetadata:
    segment = records.decode(record)
    assert isinstance(segment, SegmentMetadata)
    return segment


def _short(segments: dict[SegmentId, SegmentMetadata]) -> dict[str, str]:
    return {segment_id.hex()[-6:]: each.state.name for segment_id, each in segments.items()}


def _verify_one_set(index: EpochIndex | None, segment: SegmentMetadata, where: str) -> None:
    """In each of its epochs a live segment is in exactly one of Kafka's two sets or the third."""
    holding: list[str] = []
    if index is not None:
        sets = {
            "referenced": index.referenced_ids(),
            "unreferenced": list(index.unreferenced),
            "third": list(index.third),
        }
        holding = [name for name, ids in sets.items() if segment.segment_id in ids]
    if len(holding) != 1:
        raise Violation(f"{where}: {segment.segment_id.hex()[-6:]} is in the sets {holding}")
