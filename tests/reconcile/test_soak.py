"""Nights that delete on a real Kafka and a real S3 server: beside busy daemons, and one that dies.

Only in `make soak-reconcile`: some minutes.
"""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest

from deploy.dev.stack import s3
from deploy.dev.stack import spark as standalone
from deploy.dev.stack.kafka.cluster import Cluster
from rlmm_daemon.client import Client, ClientOptions
from rlmm_daemon.config import Config, load
from rlmm_daemon.config.reconcile import Output, ReconcileConfig
from rlmm_daemon.config.reconcile import Spark as SparkConfig
from rlmm_daemon.core.disposal.findings import RULES, Severity
from rlmm_daemon.domain.ids import uuid_text
from rlmm_daemon.offline import verification
from rlmm_daemon.reconcile import control
from rlmm_daemon.reconcile.act.lease import LEASE_KEY, Lease
from rlmm_daemon.reconcile.night import Run
from rlmm_daemon.reconcile.read import listing
from tests.reconcile.test_living import Traffic, quarantine_everything, told, wait_for
from tests.reconcile.world import CLUSTER, DAY, S3, World
from tests.support import stocked_daemon
from tests.support.daemon_process import REPOSITORY
from tests.support.stocked_daemon import Stocked

ROUNDS = int(os.environ.get("RLMM_TEST_RECONCILE_ROUNDS", "0"))
WAIT_SECONDS = 300.0
LIVE = 300
#: Of 320 segments, four objects each: what one night may touch.
CAP = 12
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
    for _ in range(LIVE):  # of whose objects a night takes a hundredth
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

    def announce() -> bool:
        client.replace_assignment([stocked.orders[number - 1]], [])
        return True

    stocked_daemon.eventually(announce)  # its daemon asks the brokers which cluster it is in first
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
        rows = verification.run(daemon, None).rows
        assert [row for row in rows if row.judged.kind in grave] == []
        assert sum(traffic.copied for traffic in traffics) > ROUNDS


@pytest.mark.timeout(900)
def test_a_night_killed_on_real_servers_is_taken_up_by_the_next(tmp_path: Path) -> None:
    """Its driver dies among its deletions; executors, bucket and topic go on."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(s3.running())
        kafka = Cluster(directory=tmp_path / "kafka", count=1, heap="256m")
        stack.callback(kafka.destroy)
        kafka.start()
        orphans, config = stored(tmp_path / "var", kafka, server)
        daemon = load(config)
        asyncio.run(quarantine_everything(daemon))
        before = keys_of(server)
        assert orphans < before
        spark = stack.enter_context(standalone.running(cores=2, memory="1500m"))
        first = later(tmp_path, config, spark)
        stack.callback(first.kill)
        wait_for(lambda: told(tmp_path, "deleted"), first)
        first.send_signal(signal.SIGKILL)
        first.wait()
        killed = before - keys_of(server)
        assert killed, "it had deleted nothing"
        assert killed <= {line["deleting"] for line in told(tmp_path, "deleting")}
        assert len(killed) < CAP, "it was through"

        # The dead run's lease has to run out; until then the next one would only say who holds it.
        asyncio.run(let_the_lease_run_out(daemon))
        second = later(tmp_path, config, spark)
        stack.callback(second.kill)
        assert second.wait(WAIT_SECONDS) == 0, (tmp_path / "later.log").read_text()[-3_000:]
        gone = before - keys_of(server)
        assert killed < gone <= orphans
        assert gone == {line["deleting"] for line in told(tmp_path, "deleting")}
        assert len({line["fence"] for line in told(tmp_path, "deleted")}) == 2


def keys_of(server: s3.S3Server) -> set[str]:
    pages = server.admin().get_paginator("list_objects_v2").paginate(Bucket=s3.BUCKET)
    every = {each["Key"] for page in pages for each in page.get("Contents", ())}
    return {key for key in every if not key.startswith(listing.CONTROL)}


def later(home: Path, config: Path, spark: standalone.SparkCluster) -> "subprocess.Popen[bytes]":
    words = ["-m", "tests.reconcile.later", str(config), str(home / "out"), spark.master]
    with (home / "later.log").open("ab") as output:
        return subprocess.Popen(
            [sys.executable, *words],
            cwd=REPOSITORY,
            env=spark.environment,
            stdout=output,
            stderr=output,
        )


async def let_the_lease_run_out(daemon: Config) -> None:
    async with control.opened(daemon) as storage:
        found = await storage.get_control(LEASE_KEY)
        assert found is not None
        lease = control.decode(found.data, Lease)
        over = msgspec.structs.replace(lease, expires_ms=0)
        await storage.put_control(LEASE_KEY, control.encode(over), if_etag=found.etag)
