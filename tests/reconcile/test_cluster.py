"""On a real S3 server, a real Kafka topic and a standalone Spark cluster, through spark-submit."""

import asyncio
import json
import os
import subprocess
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import rlmm_daemon
from deploy.dev.stack import s3
from deploy.dev.stack import spark as standalone
from deploy.dev.stack.kafka.cluster import Cluster
from rlmm_daemon.config import load
from rlmm_daemon.config.reconcile import Output, ReconcileConfig, Safety
from rlmm_daemon.config.reconcile import Spark as SparkConfig
from rlmm_daemon.core.storage.layout import parse_key
from rlmm_daemon.domain.ids import TopicId, TopicIdPartition, uuid_bytes, uuid_text
from rlmm_daemon.reconcile.act import quarantine
from rlmm_daemon.reconcile.act.steps import Actor
from rlmm_daemon.reconcile.night import Run
from rlmm_daemon.reconcile.report.summary import Night
from tests.reconcile.world import CLUSTER, DAY, S3, World
from tests.support.stocked_daemon import eventually

pytestmark = [
    pytest.mark.spark,
    pytest.mark.kafka,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not any(os.environ.get(name) for name in ("RLMM_TEST_KAFKA", "RLMM_TEST_KAFKA_LIBS")),
        reason="needs a broker: make test-reconcile",
    ),
]
KEPT = "kept"
#: As the tests' own Spark: see conftest.
QUICK = "-XX:TieredStopAtLevel=1"
MAIN = Path(rlmm_daemon.__file__).parent / "__main__.py"


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    cluster = Cluster(directory=tmp_path_factory.mktemp("kafka"), count=1, heap="256m")
    cluster.start()
    try:
        yield cluster
    finally:
        cluster.destroy()


@pytest.fixture(scope="module")
def bucket():
    with s3.running() as server:
        yield server


@pytest.fixture
def world(tmp_path: Path, broker: Cluster, bucket) -> World:
    """Every kind of finding, all of it put just now: nothing is old enough to be condemned."""
    now_ms = time.time_ns() // 1_000_000
    world = World(tmp_path, now_ms)
    world.everything()
    kept(world, broker)
    # Whose keys may ask for old versions.
    key, secret, _ = s3.IDENTITIES["admin"]
    (tmp_path / "access_key_id").write_text(key)
    (tmp_path / "secret_access_key").write_text(secret)
    storage = S3.format(bucket=s3.BUCKET, endpoint=bucket.endpoint, home=tmp_path)
    world.write_kafka(broker.bootstrap(), storage)
    admin = bucket.admin()
    # Before every object: the oldest are the first within the caps of a run.
    half = next(key for key in world.objects if key.endswith(".log"))
    admin.create_multipart_upload(Bucket=s3.BUCKET, Key=half)
    (upload,) = admin.list_multipart_uploads(Bucket=s3.BUCKET)["Uploads"]
    # Its time and the objects' are told by the second.
    eventually(lambda: datetime.now(UTC) >= upload["Initiated"] + timedelta(seconds=1))
    admin.put_bucket_versioning(Bucket=s3.BUCKET, VersioningConfiguration={"Status": "Enabled"})
    world.write_s3(admin, s3.BUCKET)
    again = next(key for key in world.objects if key.endswith(".log"))
    admin.put_object(Bucket=s3.BUCKET, Key=again, Body=bytes(world.objects[again][0]))
    parsed = parse_key(world.layout, again)
    assert parsed is not None
    world.expect("not_current_version", uuid_text(parsed.segment_id))
    return world


def kept(world: World, broker: Cluster) -> None:
    """Add a topic that the cluster knows, and old orphans that are all that it has."""
    tool, at = "org.apache.kafka.tools.TopicCommand", ("--bootstrap-server", broker.bootstrap())
    broker.tool(tool, *at, "--create", "--topic", KEPT, "--partitions", "1")
    words = broker.tool(tool, *at, "--describe", "--topic", KEPT).split()
    topic_id = TopicId(uuid_bytes(words[words.index("TopicId:") + 1]))
    before, world.partition = world.partition, TopicIdPartition(topic_id, KEPT, 0)
    world.expect("orphan_object", world._orphan(9 * DAY))
    world.partition = before


def kinds_of(directory: Path) -> dict[tuple[str, str], bool]:
    rows = pq.read_table(directory / "findings").to_pylist()
    return {(r["kind"], r["segment_id"] or r["key"] or r["topic_id"]): r["condemned"] for r in rows}


def test_a_whole_night_on_real_servers(world: World, bucket, spark) -> None:
    # No broker knows the topic that the log speaks of.
    expected = {("dead_topic", uuid_text(world.topic_id))}
    # A listing is XML, which has no word for ESC: the server shows a replacement for it.
    expected |= {(kind, name.replace("\x1b", "\ufffd")) for kind, name in world.expected}
    (upload,) = bucket.admin().list_multipart_uploads(Bucket=s3.BUCKET)["Uploads"]
    with standalone.running(cores=2, memory="1500m") as cluster:
        summary = submitted(cluster, world)
    assert summary["refused"] == []
    found = kinds_of(world.home / "out" / "latest")
    assert found.keys() == expected
    assert not any(found.values()), "nothing here is older than a day"

    # Two days on, on the same servers.
    in_two_days = world.now_ms + 2 * DAY
    first = in_process(spark, world, now_ms=in_two_days)
    assert "incomplete_upload" in {kind for kind, _ in kinds_of(first.directory)}
    assert first.night.refused == []
    rows = pq.read_table(first.directory / "findings").to_pylist()
    spared = [row["condemned"] for row in rows if row["topic"] == KEPT]
    assert spared
    assert not any(spared), "a topic that the cluster knows is never taken whole"
    doomed = {row["key"] for row in rows if row["condemned"] and row["upload_id"] is None}
    assert doomed
    condemned = [quarantine.entry_of(row) for row in rows if row["condemned"]]
    assert upload["UploadId"] in {each.upload_id for each in condemned}
    assert first.night.quarantined > 1
    assert first.night.deleted == 0

    # A quarantine later what is listed goes, and nothing else does.
    before = stored(bucket)
    last = Night(
        run="last", cluster=CLUSTER, listed_at_ms=0, execute=True,
        objects=first.night.objects, object_bytes=first.night.object_bytes,
    )  # fmt: skip
    actor = Actor(
        daemon=load(world.home / "rlmm.toml"),
        safety=Safety(),
        night=last,
        directory=world.home,
        now_ms=in_two_days + 8 * DAY,
        ends=world.ends,
    )
    asyncio.run(actor._carry_out(condemned))
    assert (last.deleted, last.failed, last.dropped) == (first.night.quarantined, 0, {})
    audit = [json.loads(line) for line in (world.home / "audit.jsonl").read_text().splitlines()]
    deleted = {line["deleted"]: line["upload_id"] for line in audit if "deleted" in line}
    assert deleted.pop(upload["Key"]) == upload["UploadId"]
    assert deleted.keys() <= doomed
    assert before - stored(bucket) == deleted.keys()
    assert not bucket.admin().list_multipart_uploads(Bucket=s3.BUCKET).get("Uploads")


def stored(bucket) -> set[str]:
    pages = bucket.admin().get_paginator("list_objects_v2").paginate(Bucket=s3.BUCKET)
    every = {each["Key"] for page in pages for each in page.get("Contents", ())}
    return {key for key in every if not key.startswith("_rlmm/")}


def submitted(cluster: standalone.SparkCluster, world: World) -> dict[str, object]:
    """Run the job as an operator of a cluster does, and return its summary."""
    config = world.home / "reconcile.toml"
    config.write_text(
        f'daemon_config = "{world.home}/rlmm.toml"\n'
        f'[spark]\nshuffle_partitions = 4\n[output]\ndirectory = "{world.home}/out"\n'
    )
    command = [
        cluster.submit, "--master", cluster.master, "--driver-memory", "700m",
        "--executor-memory", "1g", "--conf", "spark.driver.host=127.0.0.1",
        "--driver-java-options", QUICK, "--conf", f"spark.executor.extraJavaOptions={QUICK}",
        str(MAIN), "reconcile", "run", "--config", str(config), "--json",
    ]  # fmt: skip
    done = subprocess.run(
        command, env=cluster.environment, capture_output=True, text=True, timeout=800, check=False
    )
    assert done.returncode == 1, done.stderr[-3_000:]
    line = next(each for each in done.stdout.splitlines() if each.startswith("{"))
    summary: dict[str, object] = json.loads(line)
    return summary


def in_process(spark, world: World, *, now_ms: int) -> Run:
    config = ReconcileConfig(
        daemon_config=str(world.home / "rlmm.toml"),
        output=Output(directory=str(world.home / "out")),
        spark=SparkConfig(shuffle_partitions=4),
    )
    run = Run(
        spark,
        config,
        load(config.daemon_config),
        execute=True,
        now_ms=now_ms,
        progress=lambda _stage: None,
    )
    run.whole()
    return run
