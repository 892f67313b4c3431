"""Nights that delete beside daemons that copy and delete, on a real Kafka and a real S3 server.

Only in `make soak-reconcile`: some minutes.
"""

import asyncio
import contextlib
import json
import os
import shutil
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from deploy.dev import s3
from deploy.dev.kafka.cluster import Cluster
from rlmm_daemon.cli import verifying
from rlmm_daemon.client import Client, ClientOptions
from rlmm_daemon.config import Config, load
from rlmm_daemon.config.reconcile import Output, ReconcileConfig
from rlmm_daemon.config.reconcile import Spark as SparkConfig
from rlmm_daemon.core.disposal.findings import RULES, Severity
from rlmm_daemon.domain.ids import uuid_text
from rlmm_daemon.reconcile.night import Run
from tests.reconcile.test_living import Traffic, quarantine_everything
from tests.reconcile.world import CLUSTER, DAY, S3, World
from tests.support import stocked_daemon
from tests.support.stocked_daemon import Stocked

ROUNDS = int(os.environ.get("RLMM_TEST_RECONCILE_ROUNDS", "0"))
WAIT_SECONDS = 300.0
pytestmark = [
    pytest.mark.spark,
    pytest.mark.kafka,
    pytest.mark.skipif(not ROUNDS, reason="some minutes: make soak-reconcile"),
]


def name_of(key: str) -> str:
    """Return the segment id that stands in an object's name."""
    return key.rpartition("/")[2][21:43]


def stored(home: Path, broker: Cluster, server: s3.S3Server) -> tuple[set[str], Path]:
    """Fill topic and bucket; return the orphans' keys and the daemon's configuration."""
    home.mkdir()
    world = World(home, time.time_ns() // 1_000_000)
    for _ in range(300):  # of whose objects a night takes a hundredth
        world.store(world.live())
    names = {uuid_text(world._orphan(0).segment_id) for _ in range(20)}
    orphans = {key for key in world.objects if name_of(key) in names}
    key, secret, _ = s3.IDENTITIES["daemon"]
    (home / "access_key_id").write_text(key)
    (home / "secret_access_key").write_text(secret)
    storage = S3.format(bucket=s3.BUCKET, endpoint=server.endpoint, home=home)
    config = world.write_kafka(broker.bootstrap(), storage)
    world.write_s3(server.admin(), s3.BUCKET)
    return orphans, config


def daemon_of(directory: Path, number: int, first: Path) -> Stocked:
    """Return a daemon of broker `number`, which shares topic and bucket with the first one."""
    home = directory / "var"
    config = home / "rlmm.toml"
    if number > 1:
        home.mkdir(parents=True)
        for name in ("access_key_id", "secret_access_key"):
            shutil.copy(first.parent / name, home)
        text = first.read_text().replace(str(first.parent), str(home))
        config.write_text(text.replace("broker_id = 1", f"broker_id = {number}"))
    stocked = stocked_daemon.make(directory, config=config)
    del stocked.daemon.settings["event_log.partition_count"]  # Kafka has its own
    return stocked


def announced(stocked: Stocked, number: int) -> Client:
    options = ClientOptions(
        role="broker", part="metadata", cluster_id=CLUSTER, broker_id=number, broker_incarnation=7
    )
    client = Client(stocked.daemon.socket_path, options)
    client.replace_assignment([stocked.orders[number - 1]], [])
    return client


def night(spark, home: Path, daemon: Config, *, days: int) -> Run:
    config = ReconcileConfig(
        output=Output(directory=str(home / "out")),
        spark=SparkConfig(shuffle_partitions=4),
        lineage=False,  # one segment's range is copied again and again
    )
    now_ms = time.time_ns() // 1_000_000 + days * DAY
    run = Run(spark, config, daemon, execute=True, now_ms=now_ms, progress=lambda _stage: None)
    run.whole()
    return run


@pytest.mark.timeout(300 + 120 * ROUNDS)
def test_deletes_beside_busy_daemons_take_nothing_that_lives(spark, tmp_path: Path) -> None:
    """Everything is two days old and quarantined for a week, what lives as well as what does not.

    So whatever a night condemns it deletes, and only what it condemns keeps the rest alive.
    """
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(s3.running())
        cluster = Cluster(directory=tmp_path / "kafka", count=1, heap="256m")
        stack.callback(cluster.destroy)
        cluster.start()
        (tmp_path / "1").mkdir()
        orphans, config = stored(tmp_path / "1" / "var", cluster, server)
        daemon = load(config)
        traffics = []
        for number in (1, 2):
            stocked = daemon_of(tmp_path / str(number), number, config)
            stack.enter_context(stocked.daemon)
            stack.enter_context(announced(stocked, number))
            client = stack.enter_context(stocked.daemon.client())
            traffics.append(Traffic(client, stocked.next(number - 1)))
        asyncio.run(quarantine_everything(daemon))
        for traffic in traffics:
            stack.callback(traffic.stopped.set)
            traffic.start()
        deleted: set[str] = set()
        for _ in range(ROUNDS):
            before = [traffic.copied for traffic in traffics]
            run = night(spark, tmp_path, daemon, days=2)
            assert [traffic.error for traffic in traffics] == [None, None]
            assert all(t.copied > n for t, n in zip(traffics, before, strict=True)), "no traffic"
            assert run.night.refused == []
            found = pq.read_table(run.directory / "findings").to_pylist()
            assert [row for row in found if row["severity"] == "high"] == []
            assert run.night.failed == 0
            audit = map(json.loads, (run.directory / "audit.jsonl").read_text().splitlines())
            deleted |= {line["deleted"] for line in audit if "deleted" in line}
            if orphans <= deleted:
                break
        for traffic in traffics:
            traffic.stopped.set()
            traffic.join(WAIT_SECONDS)
        assert deleted & orphans, "nothing was deleted beside the traffic"
        doomed = traffics[0].doomed | traffics[1].doomed
        assert {name_of(key) for key in deleted - orphans} <= doomed
        grave = {kind for kind, rule in RULES.items() if rule.severity is Severity.HIGH}
        rows = verifying.run(daemon, None).rows
        assert [row for row in rows if row.judged.kind in grave] == []
        assert sum(traffic.copied for traffic in traffics) > ROUNDS
