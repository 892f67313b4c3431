"""On a real S3 server, a real Kafka topic and a standalone Spark cluster, through spark-submit."""

import json
import os
import subprocess
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import rlmm_daemon
from deploy.dev import s3
from deploy.dev import spark as standalone
from deploy.dev.kafka.cluster import Cluster
from rlmm_daemon.config import load
from rlmm_daemon.config.reconcile import Output, ReconcileConfig
from rlmm_daemon.config.reconcile import Spark as SparkConfig
from rlmm_daemon.core.layout import parse_key
from rlmm_daemon.domain.ids import uuid_text
from rlmm_daemon.reconcile.night import Run
from tests.reconcile.world import DAY, S3, World

pytestmark = [
    pytest.mark.spark,
    pytest.mark.kafka,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not any(os.environ.get(name) for name in ("RLMM_TEST_KAFKA", "RLMM_TEST_KAFKA_LIBS")),
        reason="needs a broker: make test-reconcile",
    ),
]
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
    # Whose keys may ask for old versions.
    key, secret, _ = s3.IDENTITIES["admin"]
    (tmp_path / "access_key_id").write_text(key)
    (tmp_path / "secret_access_key").write_text(secret)
    storage = S3.format(bucket=s3.BUCKET, endpoint=bucket.endpoint, home=tmp_path)
    world.write_kafka(broker.bootstrap(), storage)
    admin = bucket.admin()
    admin.put_bucket_versioning(Bucket=s3.BUCKET, VersioningConfiguration={"Status": "Enabled"})
    world.write_s3(admin, s3.BUCKET)
    again = next(key for key in world.objects if key.endswith(".log"))
    admin.put_object(Bucket=s3.BUCKET, Key=again, Body=bytes(world.objects[again][0]))
    parsed = parse_key(world.layout, again)
    assert parsed is not None
    world.expect("not_current_version", uuid_text(parsed.segment_id))
    return world


def kinds_of(directory: Path) -> dict[tuple[str, str], bool]:
    rows = pq.read_table(directory / "findings").to_pylist()
    return {(r["kind"], r["segment_id"] or r["key"] or r["topic_id"]): r["condemned"] for r in rows}


def test_a_whole_night_on_real_servers(world: World, bucket, spark) -> None:
    # No broker knows the topic that the log speaks of.
    expected = {("dead_topic", uuid_text(world.topic_id))}
    # A listing is XML, which has no word for ESC: the server shows a replacement for it.
    expected |= {(kind, name.replace("\x1b", "\ufffd")) for kind, name in world.expected}
    half = next(key for key in world.objects if key.endswith(".log"))
    upload = bucket.admin().create_multipart_upload(Bucket=s3.BUCKET, Key=half)
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
    doomed = {row["key"] for row in pq.read_table(first.directory / "findings").to_pylist()
              if row["condemned"] and row["upload_id"] is None}  # fmt: skip
    assert doomed
    listed = bucket.admin().list_multipart_uploads(Bucket=s3.BUCKET).get("Uploads", [])
    assert upload["UploadId"] in {each["UploadId"] for each in listed}


def submitted(cluster: standalone.SparkCluster, world: World) -> dict[str, object]:
    """Run the job as an operator of a cluster does, and return its summary."""
    config = world.home / "reconcile.toml"
    config.write_text(
        f'daemon_config = "{world.home}/rlmm.toml"\n'
        f'[spark]\nshuffle_partitions = 4\n[output]\ndirectory = "{world.home}/out"\n'
    )
    command = [
        cluster.submit, "--master", cluster.master, "--driver-memory", "700m",
        "--executor-memory", "1g", "--conf", "spark.driver.host=127.0.0.1", str(MAIN),
        "reconcile", "run", "--config", str(config), "--json",
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
