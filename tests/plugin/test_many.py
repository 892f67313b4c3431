"""`make soak-cluster`: 10,000 partitions on one broker, all of them led by it."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.plugin.conftest import PLUGIN
from tests.plugin.fleet import Fleet, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

COUNT = 10_000
TOPICS = 10
#: Broker and daemon share two cores with whoever looks at them.
PATIENCE_SECONDS = 600


@pytest.fixture
def broker() -> Iterator[Fleet]:
    """A broker of Kafka's own intervals: 10,000 partitions twice a second are another test."""
    intervals = {
        "remote.log.manager.task.interval.ms": "10000",
        "log.retention.check.interval.ms": "30000",
    }
    with tempfile.TemporaryDirectory(prefix="rlmm-many-", ignore_cleanup_errors=True) as directory:
        fleet = Fleet(Path(directory), PLUGIN, count=1, properties=intervals)
        fleet.cluster.heap = "1g"
        try:
            yield fleet.start()
        finally:
            fleet.end()


def ready(fleet: Fleet) -> int:
    """Return how many partitions the broker announced that can be looked up."""
    with fleet.daemons[1].client(timeout_seconds=60) as client:
        rows = client.partitions()
    return sum(row["announced"] for row in rows if row["state"] == "ready")


def test_ten_thousand_partitions_are_ready_tier_and_are_ready_again(broker: Fleet) -> None:
    topics = [f"many-{number}" for number in range(TOPICS)]
    for topic in topics:
        broker.create(topic, *([1] for _ in range(COUNT // TOPICS)))
    until(lambda: ready(broker) == COUNT, "all are ready", PATIENCE_SECONDS, every=1)
    end = broker.write(topics[-1], 2500) + 1
    until(lambda: broker.local_start(topics[-1], 1) >= end, "one tiers", PATIENCE_SECONDS)
    broker.daemons[1].kill()
    broker.daemons[1].start()
    until(lambda: ready(broker) == COUNT, "all are ready again", PATIENCE_SECONDS, every=1)
    assert broker.read(topics[-1]).ranges == [[0, end - 1]]
    broker.cluster.stop([1])
    broker.cluster.start_nodes([1])
    until(lambda: ready(broker) == COUNT, "and after the broker's", PATIENCE_SECONDS, every=1)
    assert broker.read(topics[-1]).ranges == [[0, end - 1]]
    for topic in topics:
        broker.delete(topic)
    until(lambda: not broker.stored(topics[-1]), "the storage is empty", PATIENCE_SECONDS)
    until(lambda: ready(broker) == 0, "all are gone", PATIENCE_SECONDS, every=1)
