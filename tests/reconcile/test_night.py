"""A whole run on a real Spark: every kind of finding, exactly; quarantine, deletion, guards."""

import json
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from rlmm_daemon.codec import marker
from rlmm_daemon.config import load
from rlmm_daemon.config.reconcile import Output, ReconcileConfig, Spark
from rlmm_daemon.reconcile.night import Night, Run
from tests.reconcile import oracle
from tests.reconcile.world import DAY, World

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
NOW = time.time_ns() // 1_000_000


def reconcile(
    spark, world: World, *, execute: bool = False, now_ms: int = NOW, lineage: bool = True
) -> tuple[Run, Night]:
    config = ReconcileConfig(
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
        progress=lambda _stage: None,
    )
    return run, run.whole()


def found_by(run: Run) -> dict[tuple[str, str], bool]:
    rows = pq.read_table(run.directory / "findings").to_pylist()
    return {(r["kind"], r["segment_id"] or r["key"]): r["condemned"] for r in rows}


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path, NOW)
    world.everything()
    world.write_log()
    world.write_local()
    return world


def test_every_kind_is_found_and_nothing_else(spark, world: World) -> None:
    run, night = reconcile(spark, world)
    assert night.refused == [], night.refused
    assert found_by(run) == world.expected
    assert night.objects == len(world.objects)
    assert night.deleted == night.quarantined == 0


def test_another_engine_says_the_same_of_random_histories(spark, tmp_path: Path) -> None:
    world = World(tmp_path, NOW, seed=NOW % 1_000_003)
    world.random(1_500)
    world.write_log()
    world.write_local()
    run, night = reconcile(spark, world, lineage=False)
    assert night.refused == []
    found: dict[tuple[str, str], tuple[int, bool]] = {}
    for row in pq.read_table(run.directory / "findings").to_pylist():
        at = row["kind"], row["segment_id"]
        number, condemned = found.get(at, (0, False))
        found[at] = number + 1, condemned or row["condemned"]
    assert found == oracle.findings(world, now_ms=NOW), f"seed {world.seed}"
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

    run, night = reconcile(spark, fresh, execute=True)
    assert (night.quarantined, night.deleted) == (len(orphans), 0)
    assert all((fresh.home / "remote" / key).exists() for key in orphans)
    again, night = reconcile(spark, fresh, execute=True, now_ms=NOW + DAY)
    assert (night.quarantined, night.deleted) == (0, 0)
    del run, again
    last, night = reconcile(spark, fresh, execute=True, now_ms=NOW + 8 * DAY)
    assert night.deleted == len(orphans)
    assert not any((fresh.home / "remote" / key).exists() for key in orphans)
    audit = [json.loads(line) for line in (last.directory / "audit.jsonl").read_text().splitlines()]
    assert sorted(line["deleted"] for line in audit) == sorted(orphans)


def test_a_refused_run_still_reports(spark, world: World) -> None:
    world.write_control("daemons/1.json", marker.encode(world.presence(ahead=1)))
    run, night = reconcile(spark, world, execute=True)
    assert "the log ends at" in night.refused[0]
    assert found_by(run).keys() == world.expected.keys()
    assert not any(found_by(run).values())
    assert night.quarantined == 0
