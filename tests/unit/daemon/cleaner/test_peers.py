"""What is known of the other brokers' daemons, from their files and the cluster."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.codec.marker import Presence, encode, presence_key
from rlmm_daemon.core.disposal.steps import PartitionStep
from rlmm_daemon.daemon.cleaner.peers import Peers, PresentPeers
from rlmm_daemon.domain.errors import StorageUnavailable
from rlmm_daemon.domain.ids import BrokerId
from rlmm_daemon.ports.cluster import BrokerInfo
from tests.simulation.cleaning import OPTIONS, CleanWorld, SimPeers, partition_of, run, topic
from tests.support.memory_storage import MemoryBucket, MemoryStorage

NOW_MS = 1_000_000


class FakeCluster:
    """Answers from a view that is made anew when that is asked for."""

    silent = False

    def __init__(self) -> None:
        self.registered = {1, 2}
        self.refresh()

    def refresh(self) -> None:
        self._view = set(self.registered)

    async def brokers(self) -> dict[BrokerId, BrokerInfo]:
        if self.silent:
            raise StorageUnavailable("a broker does not answer")
        return {BrokerId(n): BrokerInfo(broker_id=BrokerId(n), fenced=n == 2) for n in self._view}


def presence(broker_id: int, **changes: Any) -> Presence:
    known: dict[str, Any] = {
        "cluster_id": "c",
        "broker_id": broker_id,
        "incarnation": 1,
        "started_at_ms": 0,
        "written_at_ms": 0,
        "copy_deadline_seconds": 60.0,
        "lease_end_ms": NOW_MS + 1,
        "metadata_manager": "rlmm",
        "partitions": {},
    }
    return Presence(**(known | changes))


@pytest.fixture
def bucket() -> MemoryBucket:
    return MemoryBucket()


@pytest.fixture
async def storage(bucket: MemoryBucket) -> MemoryStorage:
    storage = MemoryStorage(bucket, clock=SystemClock())
    for each in (presence(1), presence(2, copy_deadline_seconds=900.0)):
        await storage.overwrite_control(presence_key(each.broker_id), encode(each))
    return storage


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
def peers(cluster: FakeCluster, storage: MemoryStorage) -> PresentPeers:
    return PresentPeers(cluster, storage, cluster_id="c")  # type: ignore[arg-type]  # one question


async def test_every_registered_broker_counts_fenced_ones_included(peers):
    found = await peers.look()
    assert found.registered == {1, 2}
    assert found.survive_finished(NOW_MS)
    assert not found.survive_finished(NOW_MS + 2), "a lease has run out"
    assert found.copy_deadline_ms(60.0) == 900_000


async def test_a_broker_that_was_registered_a_moment_ago_counts(peers, cluster):
    assert (await peers.look()).survive_finished(NOW_MS)
    cluster.registered.add(3)
    assert not (await peers.look()).survive_finished(NOW_MS), "nobody knows what it runs"


@pytest.mark.parametrize(
    "changed",
    [
        {"metadata_manager": "foreign"},
        {"lease_end_ms": NOW_MS},
        {"lease_end_ms": None},
        {"cluster_id": "another"},
    ],
    ids=lambda changed: " ".join(map(str, *changed.items())),
)
async def test_one_that_does_not_fit_is_not_survived(peers, storage, changed):
    await storage.overwrite_control(presence_key(2), encode(presence(2, **changed)))
    assert not (await peers.look()).survive_finished(NOW_MS)


async def test_a_file_that_is_newer_than_this_program_says_nothing(peers, storage):
    await storage.overwrite_control(presence_key(2), b'{"format": 99}')
    found = await peers.look()
    assert not found.survive_finished(NOW_MS)
    assert found.lease_over(BrokerId(2), 10**15) is None, "so its copies are not proven stuck"


async def test_who_cannot_be_asked_is_not_known(peers, bucket, cluster):
    bucket.available = False
    found = await peers.look()
    assert (found.registered, found.complete) == ({1, 2}, False)
    assert not found.survive_finished(NOW_MS)
    assert found.lease_over(BrokerId(2), 10**15) is None
    bucket.available, cluster.silent = True, True
    found = await peers.look()
    assert (found.registered, found.is_registered(BrokerId(2))) == (None, None)
    assert not found.survive_finished(NOW_MS)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Each is a LIST, a GET of every presence file and a question to the cluster."""
    looks = list[int]()
    look = SimPeers.look

    async def counted(self: SimPeers) -> Peers:
        looks.append(1)
        return await look(self)

    monkeypatch.setattr(SimPeers, "look", counted)
    return looks


def test_an_idle_owner_of_many_metadata_partitions_shares_its_looks(looks):
    async def scenario(world: CleanWorld) -> None:
        world.daemon(options=replace(OPTIONS, interval_seconds=20.0))
        await asyncio.sleep(50)
        looks.clear()
        await asyncio.sleep(400)
        assert 400 / 20 - 2 <= len(looks) <= 400 / 20 + 2, "two metadata partitions, one look"

    run(scenario)


def test_removals_that_wait_for_other_managers_share_their_looks(looks):
    """A mixed cluster may stay so for months."""

    async def scenario(world: CleanWorld) -> None:
        world.facts.registered.add(BrokerId(7))
        report = world.daemon(options=replace(OPTIONS, interval_seconds=20.0)).report
        for number in range(1, 21):
            world.finished(number, partition_of(number))
            world.facts.gone.add(topic(number))
            world.mark(partition_of(number))
        await world.until(lambda: report.holds()[PartitionStep.HOLD_PEERS] == 20)
        looks.clear()
        await asyncio.sleep(400)
        assert len(looks) <= 400 / 20 + 2
        world.facts.registered.discard(BrokerId(7))
        await world.until(lambda: not report.rows()["removals"])

    run(scenario)


def test_a_look_that_failed_never_shortens_how_long_copies_are_waited_for():
    async def scenario(world: CleanWorld) -> None:
        world.present(2, copy_deadline_seconds=900.0)
        segments = world.daemon().cleaner.segments
        await world.until(lambda: segments.copy_ms == 900_000)
        world.facts.silent = True
        await asyncio.sleep(100)
        assert segments.copy_ms == 900_000
        world.facts.silent = False
        world.present(2, copy_deadline_seconds=60.0)
        await world.until(lambda: segments.copy_ms == 60_000)

    run(scenario)
