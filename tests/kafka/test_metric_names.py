"""Kafka's own metrics of its tier are those that docs/metrics.md names beside ours."""

import subprocess

from deploy.dev.stack.kafka.cluster import quick
from tests.kafka.probe import java_of_ours
from tests.support.kafka_metrics import KEPT


def test_the_list_is_what_kafkas_classes_have(pytestconfig):
    done = subprocess.run(
        [*java_of_ours(*quick()), "RemoteMetrics"],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    if pytestconfig.getoption("--rewrite"):
        KEPT.write_text(done.stdout)
    assert done.stdout.splitlines() == KEPT.read_text().splitlines()
