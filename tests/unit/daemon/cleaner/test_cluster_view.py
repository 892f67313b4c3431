"""The view of the cluster: complete answers only, asked for on change and every 30 s."""

import asyncio
import random
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.daemon.cleaner import cluster_view
from rlmm_daemon.daemon.cleaner.cluster_view import ClusterView
from rlmm_daemon.daemon.following.follow_set import FollowSet
from rlmm_daemon.domain.errors import InvalidArgument, StorageUnavailable
from rlmm_daemon.domain.ids import BrokerId, MetadataPartition, TopicId, TopicIdPartition
from rlmm_daemon.ports.cluster import BrokerInfo, TieredTopics

PLAIN, COMPACTED = TopicId(b"p" * 16), TopicId(b"c" * 16)
HERE = BrokerId(1)


class FakeCluster:
    """Answers what its attributes say; `failing` names a question that gets no whole answer."""

    def __init__(self) -> None:
        self.leaders = {0: 1, 1: 2, 2: 1}
        self.tiered = TieredTopics()
        self.failing: str | None = None
        self.broker_ids = [HERE]
        self.asked: list[str] = []

    def _answer(self, name: str) -> None:
        self.asked.append(name)
        if self.failing == name:
            raise StorageUnavailable(f"no whole answer to {name}")

    def refresh(self) -> None:
        self._answer("refresh")

    async def cluster_id(self) -> str:
        return "c"

    async def brokers(self):
        self._answer("brokers")
        return {each: BrokerInfo(broker_id=each, fenced=False) for each in self.broker_ids}

    async def metadata_leaders(self):
        self._answer("leaders")
        return {MetadataPartition(n): BrokerId(at) for n, at in self.leaders.items()}

    async def topic_ids_unknown(self, _):
        return frozenset()

    async def tiered_topics(self, broker_id):
        assert broker_id == HERE
        self._answer("tiered")
        return self.tiered


@pytest.fixture
def fake() -> FakeCluster:
    return FakeCluster()


class Clock(SystemClock):
    """The system's, moved on by `later`."""

    later = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.later


@asynccontextmanager
async def running(
    fake, *, discovers=False, private_storage=False, on_answer=lambda _: None, clock=None
):
    view = ClusterView(
        fake,
        clock or SystemClock(),
        random.Random(1),
        broker_id=HERE,
        discovers=discovers,
        private_storage=private_storage,
        on_answer=on_answer,
    )
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(view.run())
        try:
            yield view
        finally:
            task.cancel()


async def until(condition):
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - a view's plain attributes
            await asyncio.sleep(0.005)


async def test_a_broker_owns_the_partitions_that_it_leads_until_it_is_told_otherwise(
    fake, monkeypatch
):
    monkeypatch.setattr(cluster_view, "SETTLE_SECONDS", 0.0)
    async with running(fake) as view:
        await until(lambda: view.facts)
        assert view.owned() == {0, 2}
        assert "tiered" not in fake.asked, "asked for only where partitions are discovered"
        fake.leaders[0] = 2
        view.refresh()
        await until(lambda: view.owned() == {2})


async def test_a_broker_that_hears_nothing_owns_nothing_after_a_while(fake, monkeypatch):
    monkeypatch.setattr(cluster_view, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(cluster_view, "RETRY_SECONDS_MAX", 0.001)
    clock = Clock()
    async with running(fake, clock=clock) as view:
        assert view.owned_within(3600) is None, "before the first answer"
        await until(lambda: view.facts)
        assert view.owned_within(3600) == {0, 2}
        fake.failing = "leaders"
        view.refresh()
        await until(lambda: view.failures)
        assert view.owned_within(3600) == {0, 2}
        clock.later = 3601
        assert view.owned_within(3600) is None
        fake.failing = None
        await until(lambda: view.owned_within(3600) == {0, 2})


async def test_it_asks_again_by_itself(fake, monkeypatch):
    monkeypatch.setattr(cluster_view, "REFRESH_SECONDS", 0.0)
    monkeypatch.setattr(cluster_view, "SETTLE_SECONDS", 0.0)
    async with running(fake) as view:
        await until(lambda: view.facts)
        fake.leaders[1] = 1
        await until(lambda: view.owned() == {0, 1, 2})


@pytest.mark.parametrize("question", ["brokers", "leaders", "tiered"])
async def test_a_partial_answer_changes_nothing_and_is_told(fake, monkeypatch, question):
    monkeypatch.setattr(cluster_view, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(cluster_view, "RETRY_SECONDS_MIN", 0.001)
    monkeypatch.setattr(cluster_view, "RETRY_SECONDS_MAX", 0.001)
    answers: list[Any] = []
    async with running(fake, discovers=True, on_answer=answers.append) as view:
        await until(lambda: view.facts)
        before, fake.failing, fake.leaders = view.facts, question, {0: 2, 1: 2, 2: 2}
        view.refresh()
        await until(lambda: view.failures > 2)
        assert view.facts is before
        assert answers == [before]
        assert view.trouble == f"no whole answer to {question}"
        fake.failing = None
        await until(lambda: not view.owned())
        assert view.trouble is None


async def test_what_a_broker_replicates_is_followed_and_what_compacts_is_refused(fake):
    at = [TopicIdPartition(PLAIN, "plain", number) for number in range(3)]
    fake.tiered = TieredTopics(replicated=frozenset(at), compacted=frozenset({COMPACTED}))
    follow_set = FollowSet(50, SystemClock(), on_demand_linger_seconds=1)
    async with running(
        fake, discovers=True, on_answer=lambda facts: follow_set.discover(facts.tiered.replicated)
    ) as view:
        compacts = TopicIdPartition(COMPACTED, "compacts", 0)
        view.refuse_compacted(compacts)  # nobody knows yet: the segment is not lost by waiting
        await until(lambda: view.facts)
        assert follow_set.wanted() == {follow_set.of(each) for each in at}
        view.refuse_compacted(at[0])
        with pytest.raises(InvalidArgument, match=r"compacts.*KIP-405"):
            view.refuse_compacted(compacts)
    follow_set.discover(at[:1])
    assert follow_set.wanted() == {follow_set.of(at[0])}
    follow_set.discover([])
    assert follow_set.wanted() == set()


async def test_a_directory_of_one_broker_takes_no_copies_in_a_cluster_of_several(fake, monkeypatch):
    monkeypatch.setattr(cluster_view, "SETTLE_SECONDS", 0.0)
    plain = TopicIdPartition(PLAIN, "plain", 0)
    async with running(fake, private_storage=True) as view:
        with pytest.raises(StorageUnavailable, match="not said yet"):
            view.refuse_copy(plain)  # nobody knows yet: a copy that others can't read is lost
        await until(lambda: view.facts)
        view.refuse_copy(plain)
        assert view.storage_trouble() is None
        fake.broker_ids = [HERE, BrokerId(2)]
        view.refresh()
        await until(view.storage_trouble)
        with pytest.raises(InvalidArgument, match=r"storage\.shared"):
            view.refuse_copy(plain)
    async with running(fake) as view:
        await until(lambda: view.facts)
        view.refuse_copy(plain)
        assert view.storage_trouble() is None
