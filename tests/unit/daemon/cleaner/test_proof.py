"""The second fact beside a mark: what anybody knows, or was not asked about, is not gone."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rlmm_daemon.adapters.os.disk import LocalDisk
from rlmm_daemon.core.disposal.steps import Proof
from rlmm_daemon.daemon.cleaner import proof
from rlmm_daemon.daemon.cleaner.proof import AnnouncedProof, ClusterProof, SharedProof
from rlmm_daemon.daemon.metadata.assignment import Assignment
from rlmm_daemon.domain.errors import StorageUnavailable
from rlmm_daemon.domain.ids import TopicId, TopicIdPartition, uuid_text

GONE, HERE, THERE = (TopicId(bytes([n]) * 16) for n in (1, 2, 3))
EVERY = [GONE, HERE, THERE]


class FakeCluster:
    """Every live broker calls these unknown; or one of them says nothing, or is slow."""

    def __init__(self, *unknown: TopicId) -> None:
        self.unknown = frozenset(unknown)
        self.silent = False
        self.seconds = 0.0
        self.asked = list[frozenset[TopicId]]()

    async def topic_ids_unknown(self, topic_ids: frozenset[TopicId]) -> frozenset[TopicId]:
        self.asked.append(topic_ids)
        await asyncio.sleep(self.seconds)
        if self.silent:
            raise StorageUnavailable("a broker does not answer")
        return self.unknown & topic_ids


@pytest.fixture
def assignment() -> Assignment:
    return Assignment(lambda _: None)


def proof_of(cluster: FakeCluster, assignment: Assignment) -> ClusterProof:
    asked: Any = cluster
    return ClusterProof(asked, assignment)


async def test_gone_is_what_every_live_broker_calls_unknown(assignment):
    found = await proof_of(FakeCluster(GONE), assignment).prove(EVERY)
    assert found == {GONE: Proof.GONE, HERE: Proof.ALIVE, THERE: Proof.ALIVE}


async def test_what_this_broker_announces_is_alive_whatever_the_others_say(assignment):
    assignment.replace([], [TopicIdPartition(HERE, "here", 3)])
    found = await proof_of(FakeCluster(*EVERY), assignment).prove(EVERY)
    assert found == {GONE: Proof.GONE, HERE: Proof.ALIVE, THERE: Proof.GONE}


async def test_an_answer_that_is_not_whole_or_late_proves_nothing_of_any_id(
    assignment, monkeypatch
):
    cluster = FakeCluster(GONE)
    cluster.silent = True
    assert set((await proof_of(cluster, assignment).prove(EVERY)).values()) == {Proof.UNKNOWN}
    monkeypatch.setattr(proof, "ASK_SECONDS", 0.01)
    cluster.silent, cluster.seconds = False, 3600.0
    assert set((await proof_of(cluster, assignment).prove(EVERY)).values()) == {Proof.UNKNOWN}


async def test_a_topic_that_was_there_is_asked_about_again_after_a_while_a_gone_one_at_once(
    assignment,
):
    cluster, now = FakeCluster(GONE), [0.0]
    shared = SharedProof(proof_of(cluster, assignment), lambda: now[0], 10.0)
    told = {GONE: Proof.GONE, HERE: Proof.ALIVE}
    assert await shared.prove([GONE, HERE]) == told
    now[0] = 9.0
    assert await shared.prove([GONE, HERE]) == told
    assert cluster.asked == [{GONE, HERE}, {GONE}]
    cluster.unknown = frozenset({HERE})
    assert await shared.prove([GONE, HERE]) == dict.fromkeys([GONE, HERE], Proof.ALIVE)
    now[0] = 10.0
    assert await shared.prove([GONE, HERE]) == {GONE: Proof.ALIVE, HERE: Proof.GONE}
    assert cluster.asked[-1] == {HERE}


def disk_of(log_dir: Path, *topic_ids: TopicId) -> tuple[LocalDisk, list[str]]:
    """A broker's disk with a directory for a partition of each topic."""
    (log_dir / "meta.properties").write_text("version=1\n")
    for number, topic_id in enumerate(topic_ids):
        directory = log_dir / f"topic{number}-0"
        directory.mkdir(parents=True)
        text = f"version: 0\ntopic_id: {uuid_text(topic_id)}\n"
        (directory / "partition.metadata").write_text(text)
    return LocalDisk(), [str(log_dir)]


async def test_without_a_cluster_gone_is_what_the_one_broker_announced_without(
    assignment, tmp_path
):
    found = AnnouncedProof(assignment, *disk_of(tmp_path))
    assert set((await found.prove(EVERY)).values()) == {Proof.UNKNOWN}, "before it said anything"
    assignment.replace([TopicIdPartition(HERE, "here", 0)], [TopicIdPartition(THERE, "there", 0)])
    told = {GONE: Proof.GONE, HERE: Proof.ALIVE, THERE: Proof.ALIVE}
    assert await found.prove(EVERY) == told
    assignment.hello(8)
    assert set((await found.prove(EVERY)).values()) == {Proof.UNKNOWN}, "another broker process"


async def test_what_the_brokers_disk_holds_is_not_gone_whatever_it_announces(assignment, tmp_path):
    """One that starts announces nobody until Kafka has told it of its partitions."""
    found = AnnouncedProof(assignment, *disk_of(tmp_path, HERE, THERE))
    assignment.hello(8)
    assignment.replace([], [])
    told = {GONE: Proof.GONE, HERE: Proof.ALIVE, THERE: Proof.ALIVE}
    assert await found.prove(EVERY) == told


async def test_a_disk_that_cannot_be_read_proves_nothing(assignment, tmp_path):
    assignment.replace([TopicIdPartition(HERE, "here", 0)], [])
    told = {GONE: Proof.UNKNOWN, HERE: Proof.ALIVE, THERE: Proof.UNKNOWN}
    unmounted = tmp_path / "empty"
    unmounted.mkdir()
    _, mounted = disk_of(tmp_path)
    for log_dirs in ([str(tmp_path / "not there")], [*mounted, str(unmounted)], []):
        assert await AnnouncedProof(assignment, LocalDisk(), log_dirs).prove(EVERY) == told
