"""A whole run on a real Spark: every kind of finding, exactly; quarantine, deletion, guards."""

import asyncio
import json
import re
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest

from rlmm_daemon.adapters.event_log.embedded import EmbeddedLog
from rlmm_daemon.adapters.event_log.embedded import files as embedded_files
from rlmm_daemon.adapters.event_log.embedded.repair import repair
from rlmm_daemon.codec import marker, records
from rlmm_daemon.codec.marker import AcceptedGap, Hold, LayoutRow, Presence
from rlmm_daemon.config import load
from rlmm_daemon.config.reconcile import (
    ExportMetadata,
    LogMetadata,
    Metadata,
    Output,
    ReconcileConfig,
    Spark,
)
from rlmm_daemon.core.fold.fold import Fold
from rlmm_daemon.core.partitioner import metadata_partition
from rlmm_daemon.core.snapshots import sealing
from rlmm_daemon.core.storage.layout import LOCAL_TIERED_STORAGE, Layout
from rlmm_daemon.domain.ids import MetadataPartition, uuid_text
from rlmm_daemon.domain.segment import SegmentMetadata
from rlmm_daemon.offline import export_parquet, verification
from rlmm_daemon.reconcile import workspace
from rlmm_daemon.reconcile.act import quarantine
from rlmm_daemon.reconcile.errors import Incomplete
from rlmm_daemon.reconcile.judge import spared_topics
from rlmm_daemon.reconcile.night import Progress, Run
from rlmm_daemon.reconcile.read import exports, log_reading
from rlmm_daemon.reconcile.report.summary import Night
from tests.reconcile import oracle
from tests.reconcile.world import CLUSTER, DAY, HOUR, PARTITIONS, World

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
NOW = time.time_ns() // 1_000_000
THE_LOG = LogMetadata()


def reconcile(
    spark,
    world: World,
    *,
    execute: bool = False,
    now_ms: int = NOW,
    lineage: bool = True,
    snapshots: tuple[str, ...] = (),
    metadata: Metadata = THE_LOG,
    progress: Progress = lambda _stage: None,
) -> tuple[Run, Night]:
    config = ReconcileConfig(
        snapshots=snapshots,
        metadata=metadata,
        daemon_config=str(world.home / "rlmm.toml"),
        output=Output(directory=str(world.home / "out")),
        spark=Spark(shuffle_partitions=4),
        lineage=lineage,
    )
    run = Run(
        spark,
        config,
        load(config.daemon_config),
        execute=execute,
        now_ms=now_ms,
        progress=progress,
    )
    return run, run.whole()


def found_by(run: Run) -> dict[tuple[str, str], bool]:
    rows = pq.read_table(run.directory / "findings").to_pylist()
    return {(r["kind"], r["segment_id"] or r["key"]): r["condemned"] for r in rows}


def named(row: Mapping[str, Any]) -> tuple[str, ...]:
    names = ("kind", "severity", "segment_id", "key", "action")
    facts = re.sub(r"age_ms=\d+", "age", row["facts"])  # by the clock, and by a test's
    facts = facts.removesuffix(spared_topics.REASON)  # what never deletes anything spares nothing
    return *(row[name] or "" for name in names), facts


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path, NOW)
    world.everything()
    world.write_log()
    world.write_local()
    return world


@pytest.mark.parametrize("count", ["vouched for", "counted by a daemon alone"])
def test_a_log_that_lost_the_events_of_live_segments_condemns_nothing(
    spark, tmp_path: Path, count: str
) -> None:
    """As one that was compacted for a while: its start and its end are what they were."""
    world = World(tmp_path, NOW)
    for _ in range(40):
        world.store(world.live())
    world.write_log()
    world.write_local()
    ((number, end),) = world.ends.items()
    if count == "vouched for":
        lose(world, number)
    else:
        world.write_control("daemons/1.json", marker.encode(counted(world, number, 42)))
    _, night = reconcile(spark, world, execute=True)
    (reason,) = night.refused
    if count == "vouched for":
        assert f"partition {number}: {end - 1} offsets in 1 ranges hold no record" in reason
        assert night.findings["orphan_object"][0] == 160, "they are told as they look"
    else:
        assert "had 42 live segments at offset 80, the log that was read names 40" in reason
    assert (night.condemned, night.quarantined, night.manifests) == (0, 0, [])
    world.write_control("daemons/1.json", marker.encode(counted(world, number, 40)))
    again = reconcile(spark, world, now_ms=NOW + 1)[1]
    assert (again.refused == []) is (count != "vouched for")
    if count == "vouched for":
        accept(world, number, end - 1)
        run, given_up = reconcile(spark, world, execute=True, now_ms=NOW + 2)
        assert given_up.refused == []
        assert (given_up.condemned, given_up.quarantined) == (0, 0)
        found = pq.read_table(run.directory / "findings").to_pylist()
        assert {row["kind"] for row in found} == {"orphan_object"}
        # The one whose last event is left is named by it.
        held = [row for row in found if "held since a loss was accepted" in row["facts"]]
        assert len(held) == len(found) - 4 == 156


def test_a_hold_keeps_everything_in_a_bucket_that_was_copied_since(spark, tmp_path: Path) -> None:
    """Every segment's is of the time of the copying then, and none as old as the hold."""
    world = World(tmp_path, NOW)
    for _ in range(10):
        world.store(world.live())
    world.objects["README"] = (1, 0)  # it was in the new bucket before
    world.write_log()
    world.write_local()
    ((number, end),) = world.ends.items()
    lose(world, number)
    accept(world, number, end - 1, before_ms=1)
    run, night = reconcile(spark, world, execute=True)
    assert (night.refused, night.condemned, night.quarantined) == ([], 0, 0)
    found = pq.read_table(run.directory / "findings").to_pylist()
    assert sum("held since a loss was accepted" in row["facts"] for row in found) == 36


def accept(world: World, number: int, end: int, *, before_ms: int = NOW - HOUR) -> None:
    """Accept what is lost before an offset, as `rlmm partition accept-loss` does."""
    gap = AcceptedGap(
        metadata_partition=number, topic_id=uuid_text(world.log_topic_id), start=0, end=end
    )
    hold = Hold(metadata_partition=number, before_ms=before_ms, broker_id=1)
    held = msgspec.structs.replace(world.marker(), accepted_gaps=(gap,), holds=(hold,))
    world.write_control("marker.json", marker.encode(held))
    world.write_control("daemons/1.json", marker.encode(world.presence()))


@pytest.mark.parametrize("mounted", [False, True])
def test_a_storage_without_a_marker_is_no_report(spark, world: World, *, mounted: bool) -> None:
    """A directory where nothing is mounted, or another bucket: all would be missing."""
    root = world.home / "remote"
    (root / "_rlmm" / "marker.json").unlink() if mounted else root.rename(world.home / "away")
    if not mounted:
        root.mkdir()
    with pytest.raises(Incomplete, match="no _rlmm/marker"):
        reconcile(spark, world)
    assert not (world.home / "out" / "latest").exists()
    assert not [*(world.home / "out").glob("*/findings")]


def test_what_begins_while_a_night_goes_on_or_has_no_place_makes_no_false_finding(
    spark, tmp_path: Path
) -> None:
    """A daemon that is given another prefix meanwhile, and events of a name that Kafka forbids."""
    world = World(tmp_path, NOW)
    for _ in range(20):
        world.store(world.live())
    known = world.partition
    world.partition = known._replace(topic="no/topic\0")
    forbidden = world.live()
    world.partition = known
    world.write_log()
    world.write_local()

    def elsewhere(stage: str) -> None:
        if stage == "log":
            world.layout, world.layout_number = Layout("other/place"), 2
            world.events = []
            world.store(world.live())
            world.write_log()
            first = msgspec.structs.replace(world.marker(), layouts=FIRST)
            row = LayoutRow(number=2, kind=world.layout.kind, prefix=world.layout.prefix)
            new = msgspec.structs.replace(first, layouts=(*FIRST, row))
            world.write_local()
            world.write_control("marker.json", marker.encode(new))

    run, night = reconcile(spark, world, progress=elsewhere, lineage=False)
    assert night.refused == []
    name = uuid_text(forbidden.segment_id)
    assert found_by(run) == {("missing_object", name): False, ("partial_segment", name): False}
    # It is there from the start for the next one.
    run, night = reconcile(spark, world, now_ms=NOW + 1, lineage=False)
    assert night.refused == []
    assert {segment for _, segment in found_by(run)} == {name}


#: What every storage of a world begins with.
FIRST = (LayoutRow(number=1, kind=LOCAL_TIERED_STORAGE, prefix=""),)


def counted(world: World, number: int, segments: int) -> Presence:
    """Return what a daemon says that has counted its live segments."""
    presence = world.presence()
    seen = msgspec.structs.replace(
        presence.partitions[number], live_segments=segments, live_at=world.ends[number]
    )
    return msgspec.structs.replace(presence, partitions={**presence.partitions, number: seen})


def lose(world: World, number: int) -> None:
    """Damage all but the last batch of a metadata partition, and repair it from nothing."""
    config = load(world.home / "rlmm.toml")
    home = embedded_files.partition_directory(config.event_log_directory, MetadataPartition(number))
    (file,) = (each for each in Path(home).glob("*.log") if each.stat().st_size)
    data, at = bytearray(file.read_bytes()), 0
    while True:
        behind = at + 12 + int.from_bytes(data[at + 8 : at + 12], "big")
        if not any(data[behind:]):
            break
        data[at + 70] ^= 1
        at = behind
    file.write_bytes(data)

    async def work() -> None:
        async with log_reading.opened(config) as log:
            assert isinstance(log, EmbeddedLog)
            await repair(log, MetadataPartition(number), [])

    asyncio.run(work())


def test_every_kind_is_found_and_nothing_else(spark, world: World) -> None:
    # As on YARN: a path without a scheme would be looked for there.
    spark.conf.set("fs.defaultFS", "hdfs://127.0.0.1:1")
    try:
        run, night = reconcile(spark, world)
    finally:
        spark.conf.unset("fs.defaultFS")
    assert night.refused == [], night.refused
    assert found_by(run) == world.expected
    assert night.objects == len(world.objects)
    assert night.deleted == night.quarantined == 0
    # `rlmm storage verify` has the same judge and another way to it; of lineages it says nothing.
    verified = verification.run(load(world.home / "rlmm.toml"), None).rows
    rows = pq.read_table(run.directory / "findings").to_pylist()
    spared = [row for row in rows if row["facts"].endswith(spared_topics.REASON)]
    assert {(row["topic"], row["condemned"]) for row in spared} == {("forgotten", False)}
    assert len(spared) == sum(row["topic"] == "forgotten" for row in rows) > 1
    assert sorted(map(named, map(verification.told, verified))) == sorted(
        named(row) for row in rows if row["kind"] not in {"overlap", "offset_gap"}
    )


def test_another_engine_says_the_same_of_random_histories(spark, tmp_path: Path) -> None:
    world = World(tmp_path, NOW, seed=NOW % 1_000_003)
    world.random(1_500)
    world.write_log()
    world.write_local()
    rows = tmp_path / "rows"

    def keep(stage: str) -> None:
        if stage == "judging":  # and gone when the run ends
            (work,) = (tmp_path / "out").glob(f"*/{workspace.WORK}")
            shutil.copytree(work, rows)

    run, night = reconcile(spark, world, lineage=False, progress=keep)
    assert night.refused == []
    found: dict[tuple[str, str], tuple[int, bool]] = {}
    for row in pq.read_table(run.directory / "findings").to_pylist():
        at = row["kind"], row["segment_id"]
        number, condemned = found.get(at, (0, False))
        found[at] = number + 1, condemned or row["condemned"]
    expected, events, objects = oracle.findings(rows, now_ms=NOW)
    assert (events, objects) == (len(world.events), len(world.objects))
    assert found == expected, f"seed {world.seed}"
    assert len({kind for kind, _ in found}) == 7


def test_what_is_condemned_is_listed_first_and_deleted_a_quarantine_later(
    spark, world: World
) -> None:
    for _ in range(800):  # the cap is one object in a hundred
        world.store(world.live())
    world.objects.clear()
    world.events.clear()
    world.expected.clear()
    for _ in range(400):
        world.store(world.live())
    orphans = world.store(world._orphan(20 * DAY))
    fresh = World(world.home / "second", NOW)
    fresh.events, fresh.objects = world.events, world.objects
    fresh.write_log()
    fresh.write_local()

    _, night = reconcile(spark, fresh, execute=True)
    assert (night.quarantined, night.deleted) == (len(orphans), 0)
    assert all((fresh.home / "remote" / key).exists() for key in orphans)
    (manifest,) = night.manifests
    last, night = reconcile(spark, fresh, execute=True, now_ms=NOW + 8 * DAY)
    assert night.deleted == len(orphans)
    assert not any((fresh.home / "remote" / key).exists() for key in orphans)
    audit = [json.loads(line) for line in (last.directory / "audit.jsonl").read_text().splitlines()]
    for word in ("deleting", "deleted"):
        assert sorted(line[word] for line in audit if word in line) == sorted(orphans)
    kept = fresh.home / "remote" / quarantine.MANIFESTS / manifest
    assert kept.exists()
    _, night = reconcile(spark, fresh, execute=True, now_ms=NOW + 9 * DAY)
    assert (night.quarantined, night.deleted) == (0, 0)
    assert not kept.exists(), "there is nothing left that it names"


def test_a_log_without_its_head_condemns_nothing_until_a_snapshot_covers_it(
    spark, tmp_path: Path
) -> None:
    world = World(tmp_path, NOW, segment_bytes=4_096)
    world.everything()
    world.write_log()
    world.write_local()
    number = metadata_partition(world.partition.topic_id, world.partition.partition, PARTITIONS)
    snapshot = snapshot_of(world, number, after=60)
    files = sorted((tmp_path / "log").rglob("*.log"))
    home = max(files, key=lambda file: file.stat().st_size).parent
    first, *others = sorted(home.glob("*.log"))
    assert 0 < int(others[0].stem) <= 60, "what is taken away has to be in the snapshot"
    first.unlink()

    _, night = reconcile(spark, world, execute=True)
    assert f"metadata partition {number} begins at" in "".join(night.refused)
    assert night.condemned == night.quarantined == 0
    run, night = reconcile(spark, world, now_ms=NOW + 1, snapshots=(str(snapshot.parent),))
    assert night.refused == []
    # A snapshot does not tell which records it passed over: no orphan of its time is proven.
    assert found_by(run) == {
        found: condemned and found[0] != "orphan_object"
        for found, condemned in world.expected.items()
    }


def test_an_export_in_place_of_the_log_tells_the_same_and_condemns_nothing(
    spark, world: World
) -> None:
    fold = fold_of(world, after=len(world.events))
    cache = fold.cache(world.partition)
    assert cache is not None
    segments = [records.decode(record) for record in cache.list_all()]
    file = world.home / "segments.parquet"
    export_parquet.write((each for each in segments if isinstance(each, SegmentMetadata)), file)
    shutil.rmtree(world.home / "log")
    run, night = reconcile(spark, world, execute=True, metadata=ExportMetadata(files=(str(file),)))
    assert night.refused == [exports.REFUSED]
    assert (night.condemned, night.quarantined) == (0, 0)
    # What was deleted before it is not in an export.
    assert found_by(run) == {
        ("orphan_object" if kind == "deleted_but_present" else kind, name): False
        for kind, name in world.expected
    }
    (world.home / "not.parquet").write_text("no")
    with pytest.raises(Incomplete, match="is no export"):
        [*exports.events(spark, [str(world.home / "not.parquet")], PARTITIONS)]


def fold_of(world: World, *, after: int) -> Fold:
    """Return the fold of the log's first events, all of which are of one partition."""
    number = metadata_partition(world.partition.topic_id, world.partition.partition, PARTITIONS)
    fold = Fold(MetadataPartition(number), PARTITIONS)
    for offset, (_, value) in enumerate(world.events[:after]):
        fold.apply(offset, value)
    fold.advance(after, 0)
    return fold


def snapshot_of(world: World, number: int, *, after: int) -> Path:
    """Write a snapshot of the log's first events."""
    fold = fold_of(world, after=after)
    header = sealing.header_of(
        fold, cluster_id=CLUSTER, topic_id=world.log_topic_id, created_at_ms=NOW
    )
    path = world.home / "snapshots" / f"{number:02}-1.snapshot"
    path.parent.mkdir()
    path.write_bytes(b"".join(bytes(piece) for piece in sealing.write_chunks(fold, header)))
    return path
