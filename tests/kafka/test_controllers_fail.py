"""Controllers that are killed and frozen while they are followed: the word is right, or none."""

import asyncio

import pytest

from deploy.dev.stack.kafka.cluster import Cluster
from rlmm_daemon.adapters.controllers.observer import ControllersObserver
from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.config import KafkaSecurity
from rlmm_daemon.core.cluster_image.word import ControllersState, ControllersWord
from rlmm_daemon.domain.ids import TopicId, uuid_bytes
from tests.kafka.controllers_observed import SECONDS, observing, standing
from tests.kafka.rig import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


async def test_another_leader_is_found_and_what_it_says_is_whole(rig, cluster):
    async with observing(cluster, KafkaSecurity()) as observer:
        await standing(observer, ControllersState.CURRENT)
        for number, silence in enumerate((cluster.kill, cluster.freeze)):
            leader = led_by(cluster, observer)
            await asyncio.to_thread(silence, leader)
            before = observer.observed().at
            answer = await asyncio.to_thread(
                rig.probe.ask,
                "create",
                topic=f"{rig.topic}.{number}",
                config={},
                replicas=1,
                partitions=1,
            )
            topic_id = TopicId(uuid_bytes(answer["id"]))
            found = await a_word(observer, cluster, topic_id)
            assert found.known == {topic_id}
            assert before is not None
            assert found.at.epoch > before.epoch
            await asyncio.to_thread(cluster.thaw, leader)
            await asyncio.to_thread(cluster.start_nodes, [leader])
            await asyncio.to_thread(rig.probe.ask, "delete", topic=f"{rig.topic}.{number}")
            found = await a_word(observer, cluster, topic_id)
            assert (set(found.known), list(found.removed)) == (set(), [topic_id])


def led_by(cluster: Cluster, observer: ControllersObserver) -> int:
    (at,) = observer._leader
    return next(n for n, node in cluster.nodes.items() if node.ports["CONTROLLER"] == at.port)


async def a_word(
    observer: ControllersObserver, cluster: Cluster, topic_id: TopicId
) -> ControllersWord:
    """Ask until there is one: while nobody leads, none is given."""
    asked_at = SystemClock().monotonic()
    async with asyncio.timeout(SECONDS):
        while True:
            found = await observer.word([topic_id], asked_at, cluster_id=cluster.cluster_id)
            if found is not None:
                return found
            await until(lambda: observer.following.standing is ControllersState.CURRENT, SECONDS)
