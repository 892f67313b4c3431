"""Topics go while daemons, brokers and the way to S3 die: afterwards bucket and log agree exactly.

Three brokers, three daemons, a real S3 server behind a proxy that fails on purpose. Each daemon
copies real segments all the while; topics are created and deleted under it, and purged.
"""

import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from deploy.dev.stack.fault_proxy import Fault, Kind
from deploy.dev.stack.kafka.cluster import Cluster
from deploy.dev.stack.s3 import IDENTITIES, S3Server
from rlmm_daemon.client import Client
from rlmm_daemon.domain.errors import RlmmError
from rlmm_daemon.domain.ids import TopicId, TopicIdPartition, uuid_bytes
from rlmm_daemon.domain.segment import SegmentState
from tests.kafka.cleaner_rig import OneDaemon, cluster_id_of, until
from tests.kafka.probe import Probe, ProbeError
from tests.support.s3_daemon import ProxyThread, Tier
from tests.support.s3_world import needs_s3, s3_server

__all__ = ["s3_server"]  # a fixture
pytestmark = [
    *needs_s3,
    pytest.mark.timeout(600 + 120 * int(os.environ.get("RLMM_TEST_CLEANER_ROUNDS", "3"))),
]

ROUNDS = int(os.environ.get("RLMM_TEST_CLEANER_ROUNDS", "3"))
PARTITIONS = 2
CONFIG = """
[daemon]
broker_id = {broker_id}
state_dir = "var/state"
log_dirs = ["var/kafka-logs"]
[socket]
path = "var/rlmm.sock"
[event_log]
kind = "kafka"
[event_log.kafka]
bootstrap = {bootstrap}
topic = "{topic}"
[event_log.kafka.admin]
partition_count = 4
replication_factor = 3
[event_log.kafka.producer]
delivery_timeout_ms = 8000
[storage]
kind = "s3"
bucket = "{bucket}"
endpoint = "{endpoint}"
addressing = "path"
access_key_id_file = "s3.key"
secret_access_key_file = "s3.secret"
read_timeout_ms = 5000
[copy]
deadline_seconds = 10
[read]
cache_free_bytes_min = 0
[cleaner]
interval_seconds = 1
stuck_delete_seconds = 15
[admin]
listen = "127.0.0.1:0"
"""


class Rig:
    def __init__(
        self, home: Path, cluster: Cluster, probe: Probe, server: S3Server, proxy: ProxyThread
    ) -> None:
        self.cluster, self.probe, self.proxy = cluster, probe, proxy
        self.tier = Tier(server)
        self.topics: dict[str, str] = {}
        self.name = f"rlmm.cleaner.{os.urandom(3).hex()}"
        self.daemons = {
            n: OneDaemon(
                home / f"d{n}",
                n,
                CONFIG.format(
                    broker_id=n,
                    bootstrap=cluster.bootstrap().split(","),
                    topic=self.name,
                    bucket=self.tier.bucket,
                    endpoint=proxy.endpoint,
                ),
            )
            for n in (1, 2, 3)
        }
        key, secret, _ = IDENTITIES["daemon"]
        for daemon in self.daemons.values():
            (daemon.directory / "s3.key").write_text(key)
            (daemon.directory / "s3.secret").write_text(secret)
        self.stop = threading.Event()
        self.copied = 0
        self.copied_of = set[str]()

    def create(self, name: str) -> bool:
        """Create a topic; False if a broker is not back yet."""
        try:
            answer = self.probe.ask(
                "create", topic=f"{self.name}.{name}", partitions=PARTITIONS, replicas=3, config={}
            )
        except ProbeError:
            return False
        self.topics[name] = str(answer["id"])
        return True

    def partition(self, name: str, number: int) -> TopicIdPartition:
        topic_id = TopicId(uuid_bytes(self.topics[name]))
        return TopicIdPartition(topic_id, f"{self.name}.{name}", number)

    def copy_for_ever(self, daemon: OneDaemon) -> None:
        luck = random.Random(daemon.broker_id)
        while not self.stop.is_set():
            name = luck.choice(sorted(self.topics))
            segment = daemon.at(self.partition(name, luck.randrange(PARTITIONS)), luck)
            try:
                with daemon.client(timeout_seconds=20.0) as client:
                    client.copy_segment(segment.metadata, segment.files)
                self.copied += 1
                self.copied_of.add(name)
            except (RlmmError, OSError):
                self.stop.wait(0.2)
            self.stop.wait(luck.uniform(0.0, 0.3))

    def has_copied(self, count: int) -> bool:
        return self.copied >= count

    def has_copied_of(self, name: str) -> bool:
        return name in self.copied_of

    def any_client(self) -> Client:
        daemon = next(each for each in self.daemons.values() if each.process is not None)
        return daemon.client(timeout_seconds=30.0)

    def live(self) -> dict[str, list[SegmentState]]:
        """Segments that the log still knows, by topic."""
        found: dict[str, list[SegmentState]] = {}
        with self.any_client() as client:
            for segment in client.export():
                found.setdefault(segment.partition.topic, []).append(segment.state)
        return found

    def purge(self, name: str) -> bool:
        """Have a deleted topic purged: asked again until every broker knows that it is gone."""
        with self.any_client() as client:
            answer = client.purge(TopicId(uuid_bytes(self.topics[name])), execute=True)
        return str(answer["topic"]) == "gone"

    def removed(self, name: str) -> bool:
        answers = []
        with self.any_client() as client:
            for number in range(PARTITIONS):
                told = client.explain(f"{self.topics[name]}-{number}")
                answers.append(told["cause"] in ("delete_finished", "unknown_partition"))
        return all(answers)


@pytest.fixture
def rig(cluster: Cluster, probe: Probe, s3_server: S3Server, tmp_path: Path) -> Iterator[Rig]:
    with ProxyThread(s3_server) as proxy:
        rig = Rig(tmp_path, cluster, probe, s3_server, proxy)
        try:
            yield rig
        finally:
            rig.stop.set()
            for daemon in rig.daemons.values():
                daemon.kill()


def break_something(rig: Rig, luck: random.Random, number: int) -> None:
    kind = ("daemon", "proxy", "broker")[number % 3]
    victim = luck.choice(sorted(rig.daemons))
    if kind == "proxy":
        rig.proxy.plant(Fault(kind=Kind.RESET))
        time.sleep(luck.uniform(1, 3))
        rig.proxy.lift()
        return
    if kind == "daemon":
        rig.daemons[victim].kill()
    else:
        rig.cluster.kill(victim)
    time.sleep(luck.uniform(1, 3))
    if kind == "daemon":
        rig.daemons[victim].start()
    else:
        rig.cluster.start_nodes([victim])


@pytest.mark.timeout(600 + 120 * ROUNDS)
def test_bucket_and_log_agree_whatever_died(rig):
    luck = random.Random(7)
    until(partial(rig.create, "kept"), "a topic is created")
    for daemon in rig.daemons.values():
        daemon.start()
    cluster_id = cluster_id_of(rig.daemons[1])
    for daemon in rig.daemons.values():
        until(partial(daemon.hello, cluster_id), "the daemon knows its cluster")
    threads = [
        threading.Thread(target=rig.copy_for_ever, args=(each,), daemon=True)
        for each in rig.daemons.values()
    ]
    for thread in threads:
        thread.start()
    deleted = []
    for number in range(ROUNDS):
        name = f"gone{number}"
        until(partial(rig.create, name), f"{name} is created")
        until(partial(rig.has_copied, rig.copied + 10), "copies go on")
        until(partial(rig.has_copied_of, name), f"{name} is copied")
        break_something(rig, luck, number)
        rig.probe.ask("delete", topic=f"{rig.name}.{name}")
        until(partial(rig.purge, name), f"{name} is purged")
        deleted.append(name)
    rig.stop.set()
    for thread in threads:
        thread.join(60)
    for daemon in rig.daemons.values():
        until(partial(daemon.hello, cluster_id), "the daemon knows its cluster")
    agree(rig, deleted)


def agree(rig: Rig, deleted: list[str]) -> None:
    """Wait until all that was deleted is gone and nothing hangs; then hold bucket against log."""

    def purged_again(name: str) -> bool:
        # A copy that began behind the last mark began a new life of the partition.
        if not rig.removed(name):
            with suppress(RlmmError):
                rig.purge(name)
            return False
        return True

    for name in deleted:
        until(partial(purged_again, name), f"{name} is removed")

    def settled() -> Any:
        states = {topic: set(found) for topic, found in rig.live().items()}
        return states == {f"{rig.name}.kept": {SegmentState.COPY_SEGMENT_FINISHED}}

    until(settled, "nothing hangs")
    answer = rig.daemons[1].rlmm("storage", "verify", "--config", str(rig.daemons[1].file))
    assert answer.returncode == 0, answer.stdout + answer.stderr
    gone = [rig.topics[name] for name in deleted]
    assert not [key for key in rig.tier.keys_there() if any(each in key for each in gone)]
