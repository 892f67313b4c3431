"""Kafka takes the configuration of deploy/kubernetes as the broker's container makes it."""

import shlex
import subprocess
from pathlib import Path

from deploy.dev.stack.kafka.cluster import java, quick
from tests.support.kubernetes import named

[BROKER] = [
    each
    for each in named("StatefulSet", "kafka")["spec"]["template"]["spec"]["containers"]
    if each["name"] == "kafka"
]
CONFIGURATION = named("ConfigMap", "kafka")["data"]


def test_a_pods_broker_is_formatted_by_what_its_container_makes(tmp_path: Path):
    (tmp_path / "server.properties").write_text(
        CONFIGURATION["server.properties"].replace("/var/lib/kafka/data", str(tmp_path / "data"))
    )
    [shell, option, told] = BROKER["command"]
    tool = shlex.join([*java(*quick()), "kafka.tools.StorageTool"])
    for there, here in {
        "/etc/kafka/server.properties": str(tmp_path / "server.properties"),
        "/tmp/server.properties": str(tmp_path / "made.properties"),
        "/opt/kafka/bin/kafka-storage.sh": tool,
        "/opt/kafka/bin/kafka-server-start.sh": "cat",
    }.items():
        assert there in told
        told = told.replace(there, here)
    done = subprocess.run(
        [shell, option, told],
        env={"PATH": "/usr/bin:/bin", "POD_INDEX": "2", "CLUSTER_ID": CONFIGURATION["cluster-id"]},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "advertised.listeners=PLAINTEXT://kafka-2.kafka:9092" in done.stdout
    meta = (tmp_path / "data" / "log" / "meta.properties").read_text().splitlines()
    assert {"node.id=2", f"cluster.id={CONFIGURATION['cluster-id']}"} <= set(meta)
