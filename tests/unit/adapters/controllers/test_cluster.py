"""Brokers' and controllers' words together, each played by a test."""

import random

import pytest

from rlmm_daemon.adapters.controllers.cluster import WeighedCluster
from rlmm_daemon.adapters.controllers.observer import endpoints_of
from rlmm_daemon.adapters.fixed_cluster import FixedCluster
from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.codec.kraft.cluster_records import Kind
from rlmm_daemon.core.raft.voters import Endpoint
from rlmm_daemon.domain.backoff import Backoff
from rlmm_daemon.domain.errors import StorageUnavailable
from rlmm_daemon.domain.ids import BrokerId, TopicId
from rlmm_daemon.ports.cluster import ClusterLook
from tests.support.cluster_log import record, topic
from tests.unit.adapters.controllers.test_observer import Controllers, following, snapshot

A, B, C = (TopicId(each * 16) for each in (b"a", b"b", b"c"))


class Brokers(FixedCluster):
    """One broker that knows only C."""

    def __init__(self) -> None:
        super().__init__(cluster_id="ours", broker_id=BrokerId(1), partition_count=lambda: 1)

    async def topic_ids_unknown(self, topic_ids: frozenset[TopicId]) -> frozenset[TopicId]:
        return topic_ids - {C}

    async def look(self, topic_ids: frozenset[TopicId]) -> ClusterLook:
        unknown = await self.topic_ids_unknown(topic_ids)
        return ClusterLook(
            cluster_id="ours", controller=(1, 3), live=1, registered=1, unknown=unknown
        )


class Running:
    """A cluster whose observer fetches whenever a word is wanted."""

    def __init__(self, *brokers: int, answers: bool = True) -> None:
        registered = [record(Kind.REGISTER_BROKER, BrokerId=each, Fenced=False) for each in brokers]
        self.controllers = Controllers(snapshot=snapshot(topic(A), *registered), piece=1 << 20)
        self.observer = following(self.controllers)
        self.cluster = WeighedCluster(Brokers(), self.observer, SystemClock())
        self.answers = answers
        self.backoff = Backoff(0.1, 1.0, random.Random(1).random)
        self.observer._next_answer = self._turn  # type: ignore[method-assign]  # no task runs here

    async def _turn(self) -> None:
        await self.observer._turn(self.backoff)

    async def began(self) -> WeighedCluster:
        for _ in range(6 if self.answers else 0):
            await self._turn()
        return self.cluster


async def test_what_brokers_call_unknown_and_controllers_know_is_kept():
    cluster = await Running(1).began()
    assert await cluster.topic_ids_unknown(frozenset({A, B, C})) == {B}
    assert (await cluster.look(frozenset({A, B, C}))).unknown == {B}


async def test_what_brokers_know_is_kept_though_controllers_do_not():
    cluster = await Running(1).began()
    assert C not in await cluster.topic_ids_unknown(frozenset({C}))


async def test_without_a_word_everything_is_as_the_brokers_say():
    cluster = await Running(1, answers=False).began()
    assert await cluster.topic_ids_unknown(frozenset({A, B, C})) == {A, B}
    assert (await cluster.look(frozenset({A, C}))).unknown == {A}
    assert (await cluster.brokers()).keys() == {1}


async def test_a_word_of_another_cluster_than_the_brokers_say_now_is_none():
    running = Running(1)
    cluster = await running.began()
    running.observer.following.cluster_id = "the one before"
    assert await cluster.topic_ids_unknown(frozenset({A, B})) == {A, B}
    assert (await cluster.look(frozenset({A}))).unknown == {A}


async def test_a_look_at_fewer_brokers_than_controllers_count_is_no_look():
    cluster = await Running(1, 2).began()
    with pytest.raises(StorageUnavailable, match="count 2 live ones"):
        await cluster.look(frozenset({A}))


async def test_a_broker_that_only_the_controllers_list_is_registered_and_serves_nothing():
    cluster = await Running(1, 2).began()
    found = await cluster.brokers()
    assert {each: info.fenced for each, info in found.items()} == {1: False, 2: True}


def test_addresses_are_those_of_the_configuration():
    assert endpoints_of(["c1:9093", "[::1]:9094"]) == (
        Endpoint("CONTROLLER", "c1", 9093),
        Endpoint("CONTROLLER", "::1", 9094),
    )
