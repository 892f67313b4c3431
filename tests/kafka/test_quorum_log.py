"""Daemons on a quorum beside a real cluster: brokers say what is gone, the leader removes it.

Three brokers, three daemons whose event log is a quorum's, one directory that they all see.
"""

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from deploy.dev.stack.kafka.cluster import Cluster
from rlmm_daemon.domain.errors import InvalidArgument
from rlmm_daemon.domain.ids import TopicId, TopicIdPartition, uuid_bytes
from tests.kafka.cleaner_rig import OneDaemon, until
from tests.kafka.probe import Probe
from tests.support.quorum_processes import CLUSTER, QuorumProcesses

pytestmark = pytest.mark.timeout(400)

IDS = (1, 2, 3)
CONFIG = """
[daemon]
broker_id = {number}
cluster_id = "{cluster}"
state_dir = "var/state"
log_dirs = ["var/kafka-logs"]
[socket]
path = "var/rlmm.sock"
[event_log]
kind = "quorum"
[event_log.quorum]
directory = "{directory}"
listen = "{listen}"
bootstrap = {others}
partition_count = 4
[event_log.quorum.brokers]
bootstrap = {brokers}
[storage]
kind = "local"
directory = "{remote}"
shared = true
[cleaner]
interval_seconds = 1
[admin]
listen = "127.0.0.1:0"
"""


class Rig:
    def __init__(self, home: Path, cluster: Cluster, probe: Probe) -> None:
        self.probe, self.remote = probe, home / "remote"
        self.remote.mkdir()
        self.quorum = QuorumProcesses(home / "quorum")
        self.quorum.directory.mkdir()
        self.quorum.format(*IDS)
        self.daemons = {number: self._daemon(home, number, cluster) for number in IDS}
        self.topics: dict[str, str] = {}

    def _daemon(self, home: Path, number: int, cluster: Cluster) -> OneDaemon:
        replica = self.quorum[number]
        text = CONFIG.format(
            number=number,
            cluster=CLUSTER,
            directory=replica.directory,
            listen=replica.address,
            others=[self.quorum[each].address for each in IDS if each != number],
            brokers=cluster.bootstrap().split(","),
            remote=self.remote,
        )
        return OneDaemon(home / f"d{number}", number, text)

    def start(self, number: int) -> None:
        daemon = self.daemons[number]
        daemon.start()
        until(partial(daemon.hello, CLUSTER), "the daemon knows its cluster")

    def create(self, name: str) -> None:
        made = self.probe.ask("create", topic=name, partitions=1, replicas=3, config={})
        self.topics[name] = str(made["id"])

    def partition(self, name: str) -> TopicIdPartition:
        return TopicIdPartition(TopicId(uuid_bytes(self.topics[name])), name, 0)

    def copy(self, name: str, number: int) -> None:
        daemon, luck = self.daemons[number], random.Random(f"{name} {number}")
        segment = daemon.at(self.partition(name), luck)

        def copied() -> bool:
            with daemon.client(timeout_seconds=20.0) as client:
                client.copy_segment(segment.metadata, segment.files)
            return True

        until(copied, f"{name} is copied by {number}")

    def purge(self, name: str, number: int) -> str:
        with self.daemons[number].client(timeout_seconds=30.0) as client:
            answer = client.purge(TopicId(uuid_bytes(self.topics[name])), execute=True)
        return str(answer["topic"])

    def stored(self, name: str) -> int:
        return sum(self.topics[name] in str(each) for each in self.remote.rglob("*.log"))

    def leader(self) -> int:
        found: list[int] = []

        def known() -> bool:
            for number, daemon in self.daemons.items():
                if daemon.process is not None:
                    with daemon.client() as client:
                        if client.status()["log"]["quorum"]["role"] == "leader":
                            found[:] = [number]
            return bool(found)

        until(known, "somebody leads")
        return found[0]


@pytest.fixture
def rig(cluster: Cluster, probe: Probe, tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path, cluster, probe)
    try:
        yield rig
    finally:
        for daemon in rig.daemons.values():
            daemon.kill()


def test_what_brokers_call_gone_is_removed_by_whoever_leads_and_nothing_else(rig: Rig) -> None:
    for name in ("kept", "gone"):
        rig.create(name)
    for number in IDS:
        rig.start(number)
    for name in ("kept", "gone"):
        for number in IDS:
            rig.copy(name, number)
    assert (rig.stored("kept"), rig.stored("gone")) == (3, 3)
    answer = rig.daemons[1].rlmm("doctor", "--config", str(rig.daemons[1].file))
    assert f"3 brokers, 3 live, of cluster {CLUSTER}" in answer.stdout
    leader = rig.leader()
    with pytest.raises(InvalidArgument, match="exists"):
        rig.purge("kept", leader)
    rig.probe.ask("delete", topic="gone")
    rig.daemons[leader].kill()
    other = rig.leader()
    until(lambda: rig.purge("gone", other) == "gone", "every broker knows that it is gone")
    until(lambda: rig.stored("gone") == 0, "the next leader's daemon removes it")
    assert rig.stored("kept") == 3
    rig.start(leader)
    partition = rig.partition("kept")

    def read_again() -> bool:
        with rig.daemons[leader].client() as client:
            return len(client.list_remote_log_segments(partition)) == 3

    until(read_again, "what was kept is there for who was away")
