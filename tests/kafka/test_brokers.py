"""Brokers that die, come back, freeze and hand their partitions over, while copies go on."""

import asyncio

from rlmm_daemon.core.readiness.states import PartitionState
from tests.kafka.rig import BROKER, P0, Writer, follower, serving, tp_in, until


async def test_copies_go_on_after_the_leader_was_killed_and_again_after_it_is_back(rig, cluster):
    rig.create()
    tp = tp_in(0)
    async with rig.manager() as manager:
        await serving(manager, tp)
        writer = Writer(manager, tp)
        async with writer.writing():
            await writer.more(10)
            leader = await asyncio.to_thread(rig.leader, 0)
            await asyncio.to_thread(cluster.kill, leader)
            rig.tell(f"leader killed: {await writer.more(5):.1f} s to five more copies")
            await until(lambda: manager.lookups.is_ready(tp))
            await asyncio.to_thread(cluster.start_nodes, [leader])
            rig.tell(f"it is back: {await writer.more(5):.1f} s to five more copies")
        await asyncio.to_thread(writer.check, rig)


async def test_a_follower_goes_where_its_leader_goes(rig):
    rig.create(placement=[[1, 2, 3]] * 4)
    tp = tp_in(0)
    async with rig.manager() as manager:
        await serving(manager, tp)
        writer = Writer(manager, tp)
        async with writer.writing():
            await writer.more(10)
            for replicas in ([2, 3, 1], [3, 1, 2]):
                place = {"topic": rig.topic, "partition": 0}
                await asyncio.to_thread(rig.probe.ask, "place", replicas=replicas, **place)
                # A broker that an earlier test killed may not be in sync again: none is elected.
                async with asyncio.timeout(60):
                    while await asyncio.to_thread(rig.leader, 0) != replicas[0]:
                        await asyncio.to_thread(rig.probe.ask, "elect", **place)
                        await asyncio.sleep(0.1)
                rig.tell(f"leader moved: {await writer.more(10):.2f} s to ten more copies")
                await until(lambda: manager.lookups.is_ready(tp))
        await asyncio.to_thread(writer.check, rig)


async def test_a_manager_is_not_ready_while_its_leader_is_frozen_and_serves_hits_on(rig, cluster):
    rig.create(placement=[[1]] * 4)
    tp = tp_in(0)
    async with rig.manager() as manager:
        await serving(manager, tp)
        writer = Writer(manager, tp)
        await writer.copy(0)
        cluster.freeze(1)
        try:
            took = await until(lambda: not manager.lookups.is_ready(tp), 30)
            rig.tell(f"frozen: not ready after {took:.1f} s")
            assert manager.lookups.remote_log_segment_metadata(tp, 0, 5, BROKER) is not None
        finally:
            cluster.thaw(1)
        rig.tell(f"thawed: ready after {await until(lambda: manager.lookups.is_ready(tp)):.1f} s")
        await writer.copy(1)
        assert follower(manager, P0).state is PartitionState.READY
        await asyncio.to_thread(writer.check, rig)


async def test_a_daemon_that_was_killed_finds_every_acknowledged_copy_again(rig):
    rig.create()
    tp = tp_in(0)
    async with rig.manager() as manager:
        await serving(manager, tp)
        first = Writer(manager, tp)
        async with first.writing():
            await first.more(30)
    async with rig.manager() as manager:
        rig.tell(f"restart: ready after {await serving(manager, tp):.2f} s")
        first.manager = manager
        await asyncio.to_thread(first.check, rig)
    async with rig.manager("another state directory") as manager:
        await serving(manager, tp)
        first.manager = manager
        await asyncio.to_thread(first.check, rig)


async def test_the_daemon_starts_before_its_brokers(rig, cluster):
    rig.create(placement=[[1]] * 4)
    tp = tp_in(0)
    await asyncio.to_thread(cluster.kill, 1)
    async with rig.manager() as manager:
        manager.replace_assignment([tp], [])
        await until(lambda: follower_exists(manager))
        assert not manager.lookups.is_ready(tp)
        await asyncio.to_thread(cluster.start_nodes, [1])
        rig.tell(
            f"broker up: ready after {await until(lambda: manager.lookups.is_ready(tp)):.1f} s"
        )
        writer = Writer(manager, tp)
        await writer.copy(0)


def follower_exists(manager) -> bool:
    return bool(list(manager.followed()))
