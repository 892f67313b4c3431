"""What is in order is never looked at again, whatever layout it lies under; the rest always is."""

import time
from pathlib import Path

import pyarrow as pa
import pytest

from rlmm_daemon.codec import custom_metadata, records
from rlmm_daemon.codec.custom_metadata import StoredFacts
from rlmm_daemon.codec.marker import LayoutRow
from rlmm_daemon.core.disposal.findings import Ages
from rlmm_daemon.core.partitioner import metadata_partition
from rlmm_daemon.core.storage.layout import LOCAL_TIERED_STORAGE, Layout, object_key
from rlmm_daemon.domain.ids import uuid_text
from rlmm_daemon.domain.segment import SegmentMetadata, SegmentState, SegmentUpdate
from rlmm_daemon.reconcile.judge import suspects
from rlmm_daemon.reconcile.read.event_rows import EventRows
from rlmm_daemon.reconcile.schema import OBJECTS, batch, ddl
from tests.reconcile.world import DAY, INDEXES, LOG_SIZE, PARTITIONS, World

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
NOW = time.time_ns() // 1_000_000
#: Some within others.
PREFIXES = ("", "tier", "tier/a", "{hash:8}/tier", "{hash:16}")
LAYOUTS = tuple(
    LayoutRow(number=number, kind=LOCAL_TIERED_STORAGE, prefix=prefix)
    for number, prefix in enumerate(PREFIXES, start=1)
)
AGES = Ages(listed_ms=NOW, grace_ms=DAY, stuck_copy_ms=DAY)


class Stage:
    """Segments that say that they lie under one layout, and lie under the same or another."""

    def __init__(self, home: Path) -> None:
        self.world = World(home, NOW)
        where = self.world.partition
        number = metadata_partition(where.topic_id, where.partition, PARTITIONS)
        self.events = EventRows(number, PARTITIONS)
        self.keys: list[str] = []
        self.sizes: list[int] = []

    def live(self, said: LayoutRow, *, lies: LayoutRow | None = None, hash_of: int = 0) -> str:
        segment = self.world.segment()
        facts = StoredFacts(layout_number=said.number, log_crc32c=1, sizes=INDEXES)
        finished = SegmentUpdate(
            partition=segment.partition,
            segment_id=segment.segment_id,
            broker_id=segment.broker_id,
            event_timestamp_ms=segment.event_timestamp_ms,
            custom_metadata=custom_metadata.encode(facts),
            state=SegmentState.COPY_SEGMENT_FINISHED,
        )
        for record in (segment, finished):
            self.events.add(2 * len(self.keys), records.encode(record))
        for suffix, size in {**INDEXES, ".log": LOG_SIZE}.items():
            self.keys.append(self._key(lies or said, segment, suffix, hash_of))
            self.sizes.append(size)
        return uuid_text(segment.segment_id)

    def _key(self, row: LayoutRow, segment: SegmentMetadata, suffix: str, hash_of: int) -> str:
        layout = Layout(row.prefix, row.kind)
        key = object_key(
            layout, segment.partition, segment.start_offset, segment.segment_id, suffix=suffix
        )
        if not hash_of:
            return key
        digits, _, rest = key.partition("/")
        return f"{int(digits, 16) ^ hash_of:0{len(digits)}x}/{rest}"

    def suspicious(self, spark) -> set[str]:
        rows: dict[str, list[object]] = {
            "key": [*self.keys],
            "size": [*self.sizes],
            "modified_ms": [NOW - 2 * DAY] * len(self.keys),
            "etag": [""] * len(self.keys),
            "noncurrent": [False] * len(self.keys),
        }
        listed = pa.Table.from_batches([batch(OBJECTS, rows)])
        told = pa.Table.from_batches([self.events.take()])
        objects = suspects.keyed(spark, spark.createDataFrame(listed, ddl(OBJECTS)))
        events = suspects.hash_events(spark, spark.createDataFrame(told))
        hashes = suspects.suspicious(spark, objects, events, LAYOUTS, ages=AGES)
        found = suspects.rows_of(spark, objects, events, hashes)
        return {row["segment_id"] for row in found.select("segment_id").distinct().take(1_000)}


def test_only_what_is_not_where_its_layout_says_is_suspicious(spark, tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    for row in LAYOUTS:
        for _ in range(10):
            stage.live(row)
    assert stage.suspicious(spark) == set()
    stage = Stage(tmp_path)
    misplaced = {
        stage.live(said, lies=lies) for said in LAYOUTS for lies in LAYOUTS if said is not lies
    }
    misplaced |= {stage.live(row, hash_of=1) for row in LAYOUTS if "{" in row.prefix}
    in_order = {stage.live(row) for row in LAYOUTS}
    found = stage.suspicious(spark)
    assert found == misplaced
    assert not found & in_order


def test_a_key_that_is_no_segments_is_given_to_no_segment(spark, tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.live(LAYOUTS[0])
    strangers = ["x", ".", "a/b.log", "é" * 30 + ".log", "tier/" + "A" * 22 + ".log"]
    stage.keys += strangers
    stage.sizes += [1] * len(strangers)
    assert stage.suspicious(spark) == {None}
