"""A listing beside a log: each disagreement is found once, and nothing that agrees is."""

from rlmm_daemon.codec import custom_metadata, records
from rlmm_daemon.codec.custom_metadata import StoredFacts
from rlmm_daemon.core.disposal.findings import Ages, Finding
from rlmm_daemon.core.disposal.inventory import History, Inventory
from rlmm_daemon.core.fold.fold import Fold
from rlmm_daemon.core.partitioner import metadata_partition
from rlmm_daemon.core.storage.layout import SUFFIXES, Layout, object_key
from rlmm_daemon.domain.ids import MetadataPartition, SegmentId
from rlmm_daemon.domain.segment import SegmentState, SegmentUpdate
from tests.unit.daemon.segments import LOG_BYTES, PARTITION, metadata

S, F = SegmentState, Finding
COUNT = 5
NUMBER = MetadataPartition(metadata_partition(PARTITION.topic_id, PARTITION.partition, COUNT))
DAY = 24 * 3_600_000
NOW = 10 * DAY
AGES = Ages(listed_ms=NOW, grace_ms=DAY, stuck_copy_ms=3_600_000)
SIZES = {suffix: 8 for suffix in SUFFIXES if suffix not in (".log", ".txnindex")}
LAYOUTS = {1: Layout("old"), 2: Layout("{hash:8}")}


def segment_id(number: int) -> SegmentId:
    return SegmentId(bytes([number] * 16))


class World:
    def __init__(self) -> None:
        self.history = History(Fold(NUMBER, COUNT))
        self.inventory = Inventory(LAYOUTS)

    def event(self, number: int, *states: SegmentState, layout: int = 1, at_ms: int = NOW) -> None:
        made = metadata(segment_id=segment_id(number), event_timestamp_ms=at_ms)
        values = [records.encode(made)]
        for state in states:
            facts = StoredFacts(layout_number=layout, log_crc32c=1, sizes=SIZES)
            values.append(
                records.encode(
                    SegmentUpdate(
                        partition=PARTITION,
                        segment_id=made.segment_id,
                        broker_id=made.broker_id,
                        event_timestamp_ms=at_ms,
                        custom_metadata=custom_metadata.encode(facts),
                        state=state,
                    )
                )
            )
        for value in values:
            self.history.take(self.history.fold.position, value)

    def objects(self, number: int, *, layout: int = 1, modified_ms: int = 0, **other: int) -> None:
        changed = {f".{name}": size for name, size in other.items()}
        for suffix, size in (SIZES | {".log": LOG_BYTES} | changed).items():
            if size >= 0:
                self.inventory.listed(self.key(number, suffix, layout), size, modified_ms)

    def key(self, number: int, suffix: str, layout: int = 1) -> str:
        start = metadata().start_offset
        return object_key(LAYOUTS[layout], PARTITION, start, segment_id(number), suffix=suffix)

    def found(self) -> list[tuple[Finding, str, bool]]:
        rows = [*self.inventory.compared(self.history, AGES), *self.inventory.orphans(AGES)]
        rows += self.inventory.strangers()
        return [(row.judged.kind, row.key, row.judged.condemned) for row in rows]


def test_what_agrees_is_not_mentioned():
    world = World()
    world.event(1, S.COPY_SEGMENT_FINISHED)
    world.objects(1)
    world.event(2, S.COPY_SEGMENT_FINISHED, layout=2)
    world.objects(2, layout=2)
    world.event(3)  # being copied
    world.objects(3, index=-1)
    world.event(4, S.COPY_SEGMENT_FINISHED, S.DELETE_SEGMENT_STARTED)
    world.event(5, S.COPY_SEGMENT_FINISHED, S.DELETE_SEGMENT_STARTED, S.DELETE_SEGMENT_FINISHED)
    assert world.found() == []
    assert world.inventory.objects == 14


def test_each_disagreement_has_its_kind_and_its_key():
    world = World()
    world.event(1, S.COPY_SEGMENT_FINISHED)
    world.objects(1, log=-1)
    world.event(2, S.COPY_SEGMENT_FINISHED)
    world.objects(2, index=-1)
    world.event(3, S.COPY_SEGMENT_FINISHED)
    world.objects(3, log=LOG_BYTES - 1)
    world.event(
        4, S.COPY_SEGMENT_FINISHED, S.DELETE_SEGMENT_STARTED, S.DELETE_SEGMENT_FINISHED, at_ms=0
    )
    world.inventory.listed(world.key(4, ".log"), 1, 0)
    world.inventory.listed(world.key(5, ".log", 2), 1, 0)
    world.inventory.listed(world.key(6, ".log"), 1, NOW)
    world.event(8, at_ms=0)
    world.inventory.listed("somebody/else", 1, 0)
    world.inventory.listed_upload(world.key(7, ".log"), 0)
    world.inventory.listed_upload("somebody/else", 0)
    assert sorted(world.found()) == sorted(
        [
            (F.MISSING_OBJECT, world.key(1, ".log"), False),
            (F.PARTIAL_SEGMENT, world.key(2, ".index"), False),
            (F.SIZE_MISMATCH, world.key(3, ".log"), False),
            (F.DELETED_BUT_PRESENT, world.key(4, ".log"), True),
            (F.ORPHAN_OBJECT, world.key(5, ".log", 2), True),
            (F.ORPHAN_OBJECT, world.key(6, ".log"), False),
            (F.UNKNOWN_KEY, "somebody/else", False),
            (F.INCOMPLETE_UPLOAD, world.key(7, ".log"), True),
            (F.STUCK_COPY, "", False),
        ]
    )


def test_a_segment_without_custom_metadata_is_where_it_is_found():
    world = World()
    world.event(1)
    update = SegmentUpdate(
        partition=PARTITION,
        segment_id=segment_id(1),
        broker_id=metadata().broker_id,
        event_timestamp_ms=NOW,
        custom_metadata=None,
        state=S.COPY_SEGMENT_FINISHED,
    )
    world.history.take(world.history.fold.position, records.encode(update))
    world.objects(1, layout=2)
    assert world.found() == []


def test_custom_metadata_that_the_beginning_brought_says_where_a_segment_is():
    world = World()
    facts = StoredFacts(layout_number=2, log_crc32c=1, sizes=SIZES)
    made = metadata(segment_id=segment_id(1), custom_metadata=custom_metadata.encode(facts))
    world.history.take(0, records.encode(made))
    update = SegmentUpdate(
        partition=PARTITION,
        segment_id=made.segment_id,
        broker_id=made.broker_id,
        event_timestamp_ms=NOW,
        custom_metadata=None,
        state=S.COPY_SEGMENT_FINISHED,
    )
    world.history.take(1, records.encode(update))
    world.objects(1, layout=2, index=-1)
    assert world.found() == [(F.PARTIAL_SEGMENT, world.key(1, ".index", 2), False)]


def test_what_a_broker_rejects_says_nothing_here_either():
    world = World()
    world.event(1, S.COPY_SEGMENT_FINISHED)
    world.objects(1)
    update = SegmentUpdate(
        partition=PARTITION,
        segment_id=segment_id(1),
        broker_id=metadata().broker_id,
        event_timestamp_ms=NOW,
        custom_metadata=None,
        state=S.DELETE_SEGMENT_FINISHED,  # skips DELETE_SEGMENT_STARTED
    )
    world.history.take(world.history.fold.position, records.encode(update))
    assert world.found() == []


def test_objects_of_a_held_segment_are_told_and_never_condemned():
    """It was deleted as a stuck copy after it had been finished."""
    world = World()
    world.event(1, S.COPY_SEGMENT_FINISHED, at_ms=0)
    for state, custom in (
        (S.DELETE_SEGMENT_STARTED, custom_metadata.ONLY_IF_STARTED),
        (S.DELETE_SEGMENT_FINISHED, None),
    ):
        update = SegmentUpdate(
            partition=PARTITION,
            segment_id=segment_id(1),
            broker_id=metadata().broker_id,
            event_timestamp_ms=0,
            custom_metadata=custom,
            state=state,
        )
        world.history.take(world.history.fold.position, records.encode(update))
    world.inventory.listed(world.key(1, ".log"), LOG_BYTES, 0)
    assert world.found() == [(F.DELETED_BUT_PRESENT, world.key(1, ".log"), False)]


def test_a_segment_of_a_topic_whose_name_kafka_forbids_is_told_without_a_key() -> None:
    """Another manager's log may hold its events; nothing can be stored for it."""
    world = World()
    forbidden = PARTITION._replace(topic="no/topic\0")
    made = metadata(partition=forbidden, segment_id=segment_id(1), event_timestamp_ms=NOW)
    finished = SegmentUpdate(
        partition=forbidden,
        segment_id=made.segment_id,
        broker_id=made.broker_id,
        event_timestamp_ms=NOW,
        custom_metadata=None,
        state=S.COPY_SEGMENT_FINISHED,
    )
    for value in (records.encode(made), records.encode(finished)):
        world.history.take(world.history.fold.position, value)
    (row,) = world.inventory.compared(world.history, AGES)
    assert (row.judged.kind, row.key) == (F.MISSING_OBJECT, "")
    assert "is not a topic name of Kafka's" in row.judged.facts
