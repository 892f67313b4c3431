"""Real controllers, followed as an observer: what they say of topics, and when nothing is said."""

import asyncio
import random
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from deploy.dev.stack.kafka.cluster import Cluster
from rlmm_daemon.adapters.controllers.dialer import KafkaDialer
from rlmm_daemon.adapters.kafka.connection.security import load_security
from rlmm_daemon.adapters.quorum.handshake import Unproven
from rlmm_daemon.adapters.quorum.links import Link
from rlmm_daemon.codec.kraft import checkpoint
from rlmm_daemon.config import parse
from rlmm_daemon.core.cluster_image.word import ControllersState
from rlmm_daemon.core.raft.voters import Endpoint
from rlmm_daemon.domain.errors import InvalidArgument
from rlmm_daemon.domain.ids import TopicId, TopicIdPartition, uuid_bytes
from rlmm_daemon.offline import checkup
from tests.kafka.cleaner_rig import OneDaemon, cluster_id_of
from tests.kafka.cleaner_rig import until as until_true
from tests.kafka.controllers_observed import observing, secured, security, standing, word
from tests.kafka.probe import Probe
from tests.kafka.rig import until

NOBODYS = TopicId(b"no topic has it.")
CLUSTER_ACTION = {"resource": "CLUSTER", "name": "kafka-cluster", "operation": "CLUSTER_ACTION"}


@pytest.fixture(scope="module")
def node() -> Iterator[Cluster]:
    cluster = Cluster(
        directory=Path(tempfile.mkdtemp(prefix="rlmm-controllers-")), properties=secured()
    )
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.destroy()


@pytest.fixture(scope="module")
def admin(node: Cluster) -> Iterator[Probe]:
    with Probe(node.bootstrap(), node.directory / "probe.log") as probe:
        yield probe


@pytest.fixture
def granted(admin: Probe) -> None:
    admin.ask("allow", principal="User:rlmm", **CLUSTER_ACTION)


async def made(admin: Probe, name: str, partitions: int = 2) -> TopicId:
    answer = await asyncio.to_thread(
        admin.ask, "create", topic=name, config={}, partitions=partitions, replicas=1
    )
    return TopicId(uuid_bytes(answer["id"]))


async def test_cluster_action_alone_lets_it_follow_topics_that_come_and_go(node, admin, tmp_path):
    admin.ask("forbid", principal="User:rlmm", **CLUSTER_ACTION)
    first = await made(admin, "first")
    async with observing(node, security(node, tmp_path)) as observer:
        await standing(observer, ControllersState.UNAUTHORIZED)
        assert await observer.word([first], 0.0, cluster_id=node.cluster_id) is None
    admin.ask("allow", principal="User:rlmm", **CLUSTER_ACTION)
    async with observing(node, security(node, tmp_path)) as observer:
        await standing(observer, ControllersState.CURRENT)
        found = await word(observer, first, NOBODYS)
        assert found.known == {first}
        assert dict(found.removed) == {}
        assert found.registered == found.live == {1}
        second = await made(admin, "second", 3)
        assert (await word(observer, second)).known == {second}
        image = observer.following.image
        assert image is not None
        assert image.topics[second].leaders == {0: 1, 1: 1, 2: 1}
        assert image.features["metadata.version"] > 0
        await asyncio.to_thread(admin.ask, "delete", topic="first")
        found = await word(observer, first, second)
        assert found.known == {second}
        assert found.removed[first] < found.at.end
        assert image.unknown_kinds == set()


@pytest.mark.usefixtures("granted")
async def test_after_a_snapshot_the_image_is_what_kafka_lists(node, admin, tmp_path):
    gone = await made(admin, "gone")
    await asyncio.to_thread(admin.ask, "delete", topic="gone")
    kept = await made(admin, "kept")
    async with observing(node, security(node, tmp_path)) as observer:
        await standing(observer, ControllersState.CURRENT)
        at = (await word(observer, gone)).at.end
    await until(lambda: snapshots(node)[-1:] > [at], 60, "the controller makes a snapshot")
    async with observing(node, security(node, tmp_path)) as observer:
        await standing(observer, ControllersState.CURRENT)
        found = await word(observer, gone, kept)
        assert found.known == {kept}
        assert not found.removed, "a snapshot holds no removals"
        image = observer.following.image
        assert image is not None
        listed = await asyncio.to_thread(
            node.tool,
            "org.apache.kafka.tools.TopicCommand",
            *("--bootstrap-server", node.bootstrap(), "--list"),
        )
        assert {each.name for each in image.topics.values()} == set(listed.split())


def snapshots(node: Cluster) -> list[int]:
    """Where the controller's snapshots end."""
    names = (each.name for each in (node.data(1) / "__cluster_metadata-0").iterdir())
    points = [point for name in names if (point := checkpoint.parse_name(name)) is not None]
    return sorted(point.end for point in points)


@pytest.mark.usefixtures("granted")
async def test_controllers_of_another_cluster_are_not_listened_to(node, tmp_path):
    async def another() -> str:
        return "AAAAAAAAAAAAAAAAAAAAAA"

    way = security(node, tmp_path)
    async with observing(node, way, cluster_id=another) as observer:
        await standing(observer, ControllersState.OTHER_CLUSTER)
        assert await observer.word([NOBODYS], 0.0, cluster_id=await another()) is None


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_every_mechanism_logs_in_and_a_wrong_password_does_not(node, tmp_path, mechanism):
    way = security(node, tmp_path, mechanism=mechanism)
    # Brokers know all three, as controllers may.
    at = Endpoint("", "127.0.0.1", node.nodes[1].ports["SASLTLS"])
    link = Link(await KafkaDialer(lambda: load_security(way)).dial(at))
    await link.greet()
    link.close()
    wrong = security(node, tmp_path, mechanism=mechanism, password="wrong")
    with pytest.raises(Unproven, match="a wrong user or password"):
        await KafkaDialer(lambda: load_security(wrong)).dial(at)


CONFIG = """
[daemon]
broker_id = 1
state_dir = "var/state"
log_dirs = ["var/kafka-logs"]
[socket]
path = "var/rlmm.sock"
[event_log]
kind = "kafka"
[event_log.kafka]
bootstrap = ["{broker}"]
[event_log.kafka.admin]
partition_count = 2
replication_factor = 1
[event_log.kafka.controllers]
bootstrap = ["{controller}"]
[event_log.kafka.controllers.security]
protocol = "SASL_SSL"
mechanism = "PLAIN"
username = "rlmm"
password_file = "{home}/rlmm.password"
ca_file = "{ca}"
[storage]
kind = "local"
directory = "{home}/remote"
shared = true
[cleaner]
interval_seconds = 1
jvm_peers = false
[admin]
listen = "127.0.0.1:0"
"""


@pytest.mark.usefixtures("granted")
def test_a_deleted_topic_goes_by_both_words_and_doctor_says_whose_they_are(node, admin, tmp_path):
    security(node, tmp_path)
    (tmp_path / "remote").mkdir()
    text = CONFIG.format(
        broker=node.bootstrap(),
        controller=f"127.0.0.1:{node.nodes[1].ports['CONTROLLER']}",
        home=tmp_path,
        ca=node.key_directory / "ca.pem",
    )
    daemon = OneDaemon(tmp_path / "daemon", 1, text)
    try:
        daemon.start()
        until_true(partial(daemon.hello, cluster_id_of(daemon)), "the daemon knows its cluster")
        until_true(lambda: told(daemon)["standing"] == "current", "controllers are followed")
        answer = admin.ask("create", topic="whole", config={}, partitions=1, replicas=1)
        partition = TopicIdPartition(TopicId(uuid_bytes(answer["id"])), "whole", 0)
        segment = daemon.at(partition, random.Random(5))
        with daemon.client(timeout_seconds=60.0) as client:
            client.copy_segment(segment.metadata, segment.files)
            with pytest.raises(InvalidArgument, match="exists"):
                client.purge(partition.topic_id, execute=True)
        admin.ask("delete", topic="whole")

        def is_marked() -> bool:
            with daemon.client(timeout_seconds=60.0) as client, suppress(InvalidArgument):
                client.purge(partition.topic_id, execute=True)
                return True
            return False

        until_true(is_marked, "brokers and controllers call it gone")

        def is_removed() -> bool:
            with daemon.client(timeout_seconds=60.0) as client:
                cause = client.explain(f"{answer['id']}-0")["cause"]
            return cause == "delete_finished" and not list((tmp_path / "remote").rglob("*.log"))

        until_true(is_removed, "it is removed")
        config = parse(text, ["daemon.state_dir=/nonexistent"])
        rows = {each.check: each for each in checkup.examine(config, seconds=30)}
        assert rows["deleted topics"].verdict == "ok"
        assert "brokers' and the controllers' word" in rows["deleted topics"].found
    finally:
        daemon.kill()


def told(daemon: OneDaemon) -> dict[str, Any]:
    with daemon.client() as client:
        found: dict[str, Any] = client.status()["controllers"]
    return found
