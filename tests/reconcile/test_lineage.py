"""What an epoch's lineage is made of: each segment that lives, once."""

from pathlib import Path

import pyarrow as pa
import pytest

from rlmm_daemon.codec.custom_metadata import ONLY_IF_STARTED
from rlmm_daemon.core.partitioner import metadata_partition
from rlmm_daemon.domain.segment import SegmentState as S
from rlmm_daemon.reconcile.judge import lineage, suspects
from rlmm_daemon.reconcile.read.event_rows import EventRows
from rlmm_daemon.reconcile.schema import EVENTS, ddl
from tests.reconcile.world import PARTITIONS, World

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def odd(spark, world: World) -> list[tuple[str, str]]:
    where = world.partition
    number = metadata_partition(where.topic_id, where.partition, PARTITIONS)
    rows = EventRows(number, PARTITIONS)
    for offset, (_, value) in enumerate(world.events):
        rows.add(offset, value)
    frame = spark.createDataFrame(
        pa.Table.from_batches([rows.take()], schema=EVENTS).to_pylist(), ddl(EVENTS)
    )
    found = lineage.findings(spark, suspects.hash_events(spark, frame), "c")
    return [(row["kind"], row["facts"]) for row in found.orderBy("facts").take(99)]


def test_a_segment_counts_once_however_often_its_events_are_told(spark, tmp_path: Path) -> None:
    world = World(tmp_path, 0)
    world.live()
    twice = world.live()
    for _ in range(2):  # as `rlmm log repair` does, and a retry whose first try was heard
        world.say(twice)
        world.update(twice, S.COPY_SEGMENT_FINISHED)
    late = world.live()
    world.say(late)
    held = world.live()
    world.update(held, S.DELETE_SEGMENT_STARTED, meant=ONLY_IF_STARTED)
    world.live()
    assert odd(spark, world) == []
    copied = world.segment()
    world.say(copied)
    world.update(copied, S.DELETE_SEGMENT_STARTED, meant=ONLY_IF_STARTED)
    gone = world.live()
    world.update(gone, S.DELETE_SEGMENT_STARTED)
    world.live(start=world.at)
    world.live(start=twice.start_offset + 10)
    assert odd(spark, world) == [
        ("overlap", "epoch=3 from=110 to=199"),
        ("overlap", "epoch=3 from=200 to=209"),
        ("offset_gap", "epoch=3 from=500 to=699"),
    ]
