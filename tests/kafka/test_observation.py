"""A topic that real brokers forgot is marked unasked once its time is up, and nothing else is."""

import os
import random
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from deploy.dev.stack.kafka.cluster import Cluster
from rlmm_daemon.domain.ids import TopicId, TopicIdPartition, uuid_bytes
from tests.kafka.cleaner_rig import OneDaemon, cluster_id_of, until
from tests.kafka.probe import Probe

pytestmark = pytest.mark.timeout(600)

#: One of them is below 5 % of their bytes, two are not.
TOPICS = 24
CONFIG = """
[daemon]
broker_id = {broker_id}
state_dir = "var/state"
log_dirs = ["var/kafka-logs", "{log_dir}"]
[socket]
path = "var/rlmm.sock"
[event_log]
kind = "kafka"
[event_log.kafka]
bootstrap = {bootstrap}
topic = "{topic}"
[event_log.kafka.admin]
partition_count = 2
replication_factor = 3
[storage]
kind = "local"
directory = "{remote}"
shared = true
[cleaner]
interval_seconds = 1
[cleaner.observe]
enabled = true
interval_seconds = 1
grace_seconds = 8
[admin]
listen = "127.0.0.1:0"
"""


class Rig:
    def __init__(self, home: Path, cluster: Cluster, probe: Probe) -> None:
        self.cluster, self.probe = cluster, probe
        self.name = f"rlmm.observed.{os.urandom(3).hex()}"
        self.remote = home / "remote"
        self.remote.mkdir()
        self.daemons = {
            n: OneDaemon(
                home / f"d{n}",
                n,
                CONFIG.format(
                    broker_id=n,
                    bootstrap=cluster.bootstrap().split(","),
                    topic=self.name,
                    remote=self.remote,
                    log_dir=cluster.data(n),
                ),
            )
            for n in (1, 2, 3)
        }
        self.topics: dict[str, str] = {}

    def stock(self) -> None:
        """Topics of the cluster, each with a segment of the same size in the storage."""
        luck = random.Random(5)
        daemon = self.daemons[1]
        del daemon.segments[1:]
        for number in range(TOPICS):
            name = f"{self.name}.t{number}"
            answer = self.probe.ask(
                "create",
                topic=name,
                partitions=1,
                replicas=3,
                config={"file.delete.delay.ms": "1000"},
            )
            self.topics[name] = str(answer["id"])
            segment = daemon.at(self.partition(name), luck)
            with daemon.client(timeout_seconds=60.0) as client:
                client.copy_segment(segment.metadata, segment.files)

    def partition(self, name: str) -> TopicIdPartition:
        return TopicIdPartition(TopicId(uuid_bytes(self.topics[name])), name, 0)

    def observation(self, daemon: OneDaemon) -> dict[str, Any]:
        with daemon.client(timeout_seconds=30.0) as client:
            told = client.cleanup()["observation"]
        assert isinstance(told, dict)
        return told

    def watcher(self) -> OneDaemon | None:
        """The daemon that lets clocks run."""
        watching = [d for d in self.daemons.values() if self.observation(d)["watches"]]
        return watching[0] if len(watching) == 1 else None

    def has_heard_of_all(self) -> OneDaemon | None:
        found = self.watcher()
        if found is None or self.observation(found)["seen_alive"] < len(self.topics):
            return None
        return found

    def runs_since(self, name: str) -> int:
        """When the clock of a topic started, wherever it runs; 0: it runs nowhere."""
        rows = [row for each in self.daemons.values() for row in self.observation(each)["topics"]]
        mine = [row["since_ms"] for row in rows if row["topic_id"] == self.topics[name]]
        return max((since for since in mine if since), default=0)

    def is_for_purge(self, name: str) -> bool:
        rows = [row for each in self.daemons.values() for row in self.observation(each)["topics"]]
        return any(
            row["topic_id"] == self.topics[name] and row["clock"] == "over_the_cap" for row in rows
        )

    def is_removed(self, name: str) -> bool:
        told = []
        for daemon in self.daemons.values():
            with daemon.client(timeout_seconds=30.0) as client:
                told.append(client.explain(f"{self.topics[name]}-0")["cause"])
        return "delete_finished" in told and not self.stored(name)

    def stored(self, name: str) -> list[Path]:
        return [each for each in self.remote.rglob("*.log") if self.topics[name] in str(each)]

    def marked(self) -> int:
        return sum(self.observation(each)["marked"] for each in self.daemons.values())


@pytest.fixture
def rig(cluster: Cluster, probe: Probe, tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path, cluster, probe)
    try:
        yield rig
    finally:
        for daemon in rig.daemons.values():
            daemon.kill()


def now_ms() -> int:
    return int(time.time() * 1000)  # noqa: TID251 - a broker's clock


def test_what_every_broker_forgot_is_marked_in_time_and_within_the_cap(rig):
    for daemon in rig.daemons.values():
        daemon.start()
    cluster_id = cluster_id_of(rig.daemons[1])
    for daemon in rig.daemons.values():
        until(partial(daemon.hello, cluster_id), "the daemon knows its cluster")
    rig.stock()
    until(rig.has_heard_of_all, "the brokers were heard to know every topic")

    first = f"{rig.name}.t0"
    began = now_ms()
    rig.probe.ask("delete", topic=first)
    until(partial(rig.is_removed, first), "what was deleted is marked and removed")
    assert now_ms() - began >= 8000, "not before its time is up"
    assert rig.marked() == 1

    # A broker that does not answer starts the clock over.
    second = f"{rig.name}.t1"
    rig.probe.ask("delete", topic=second)
    until(partial(rig.runs_since, second), "the clock runs")
    watcher = rig.watcher()
    assert watcher is not None
    silent = next(n for n in rig.daemons if n != watcher.broker_id)
    rig.cluster.kill(silent)
    killed_ms = now_ms()
    until(lambda: rig.observation(watcher)["trouble"], "the look is not whole")
    assert not rig.runs_since(second), "its clock does not run"
    assert not rig.is_for_purge(second), "its time was not up"
    assert not rig.is_removed(second)
    rig.cluster.start_nodes([silent])

    def begins_anew() -> bool:
        since_ms = rig.runs_since(second)
        assert since_ms == 0 or since_ms > killed_ms, "the old clock runs on"
        # On a busy machine the new time may be up before anybody looks.
        return bool(since_ms or rig.is_for_purge(second))

    until(begins_anew, "the clock runs anew")
    assert not rig.is_removed(second)

    # Two of them within an hour are more than 5 % of the bytes: that takes a person.
    until(partial(rig.is_for_purge, second), "its time is up")
    assert not rig.is_removed(second)
    with watcher.client(timeout_seconds=60.0) as client:
        client.purge(TopicId(uuid_bytes(rig.topics[second])), execute=True)
    until(partial(rig.is_removed, second), "what was ordered is removed")

    kept = [name for name in rig.topics if name not in (first, second)]
    assert all(rig.stored(name) for name in kept)
    assert rig.marked() == 1
