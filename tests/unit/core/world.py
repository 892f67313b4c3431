"""Short words for histories: one user partition, small segment numbers, records as Kafka writes."""

from rlmm_daemon.codec import records
from rlmm_daemon.core.fold.cache import PartitionCache
from rlmm_daemon.core.fold.fold import Fold
from rlmm_daemon.core.fold.outcome import Outcome
from rlmm_daemon.domain.event import Event
from rlmm_daemon.domain.ids import BrokerId, MetadataPartition, SegmentId, TopicId, TopicIdPartition
from rlmm_daemon.domain.partition_delete import PartitionDelete, PartitionDeleteState
from rlmm_daemon.domain.segment import SegmentMetadata, SegmentState, SegmentUpdate

STARTED, FINISHED, DELETE_STARTED, DELETE_FINISHED = SegmentState
MARKED, PARTITION_STARTED, PARTITION_FINISHED = PartitionDeleteState
TOPIC_ID = TopicId(bytes(range(1, 17)))
FOO = TopicIdPartition(TOPIC_ID, "foo", 0)
#: With one metadata partition every user partition hashes to it.
COUNT = 1


def seg(n) -> SegmentId:
    return SegmentId(n.to_bytes(16, "big"))


def number(segment: bytes | None) -> int | None:
    """Return the number of a record's or an id's segment."""
    if segment is None:
        return None
    if len(segment) > 16:
        metadata = records.decode(segment)
        assert isinstance(metadata, SegmentMetadata)
        segment = metadata.segment_id
    return int.from_bytes(segment, "big")


def add(n, start, end, epochs=None, *, partition=FOO, **fields) -> SegmentMetadata:
    fields = {
        "broker_id": 1, "max_timestamp_ms": -1, "event_timestamp_ms": 123, "segment_size_bytes": 10,
    } | fields  # fmt: skip
    return SegmentMetadata(
        partition=partition,
        segment_id=seg(n),
        start_offset=start,
        end_offset=end,
        segment_leader_epochs=epochs or {0: start},
        **fields,
    )


def update(n, state, custom=None, *, broker_id=1, at_ms=456, partition=FOO) -> SegmentUpdate:
    return SegmentUpdate(
        partition=partition,
        segment_id=seg(n),
        broker_id=broker_id,
        event_timestamp_ms=at_ms,
        custom_metadata=custom,
        state=state,
    )


def delete(state, *, partition=FOO) -> PartitionDelete:
    return PartitionDelete(
        partition=partition, broker_id=BrokerId(1), event_timestamp_ms=9, state=state
    )


class World:
    """A fold that is fed events."""

    def __init__(self) -> None:
        self.fold = Fold(MetadataPartition(0), COUNT)

    @property
    def cache(self) -> PartitionCache:
        return self.fold.partitions[FOO]

    def put(self, event: Event, *more: Event) -> Outcome:
        outcome = self.fold.apply(self.fold.position, records.encode(event))
        for following in more:
            outcome = self.fold.apply(self.fold.position, records.encode(following))
        return outcome

    def upload(self, n, start, end, epochs=None, **fields) -> Outcome:
        return self.put(add(n, start, end, epochs, **fields), update(n, FINISHED))

    def remove(self, n) -> Outcome:
        return self.put(update(n, DELETE_STARTED), update(n, DELETE_FINISHED))

    def look(self, epoch, offset):
        return number(self.cache.lookup(epoch, offset))

    def listed(self, epoch):
        return [number(record) for record in self.cache.list_epoch(epoch)]

    def third(self, epoch):
        return [number(segment_id) for segment_id in self.cache.third_set(epoch)]

    def referenced(self, epoch):
        index = self.cache.epochs.get(epoch)
        return [] if index is None else [number(i) for i in index.referenced_ids()]

    def unreferenced(self, epoch):
        index = self.cache.epochs.get(epoch)
        return set() if index is None else {number(i) for i in index.unreferenced}
