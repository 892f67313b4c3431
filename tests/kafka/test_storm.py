"""Everything at once, again and again: brokers and the daemon killed and frozen under writes."""

import asyncio
import random

import pytest

from tests.kafka.rig import COUNT, KafkaRig, Writer, serving, tp_in, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
ROUNDS = 4
SEED = 7


async def killed(rig: KafkaRig, node_id: int) -> None:
    await asyncio.to_thread(rig.cluster.kill, node_id)
    await asyncio.to_thread(rig.cluster.start_nodes, [node_id])


async def frozen(rig: KafkaRig, node_id: int) -> None:
    rig.cluster.freeze(node_id)
    try:
        await asyncio.sleep(6)  # longer than a broker's session: its leaderships move
    finally:
        rig.cluster.thaw(node_id)


async def stopped(rig: KafkaRig, node_id: int) -> None:
    await asyncio.to_thread(rig.cluster.stop, [node_id])
    await asyncio.to_thread(rig.cluster.start_nodes, [node_id])


async def test_no_storm_loses_or_repeats_an_acknowledged_copy(rig, cluster):
    if cluster.count == 1:
        pytest.skip("needs brokers that stay")
    rig.create(min_insync_replicas="2")
    luck = random.Random(SEED)
    partitions = [tp_in(number) for number in range(COUNT)]
    writers: list[Writer] = []
    for life in range(ROUNDS):
        # Each life of the daemon ends as by SIGKILL; every other one begins without its state.
        name = f"state-{life // 2}"
        async with rig.manager(name) as manager:
            took = await serving(manager, *partitions, seconds=120)
            rig.tell(f"life {life}: ready after {took:.2f} s")
            for writer in writers:
                writer.manager = manager
                await asyncio.to_thread(writer.check, rig)
            mine = [
                Writer(manager, tp, base=1_000_000 * at, first=10_000 * life)
                for at, tp in enumerate(partitions)
            ]
            writers += mine
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(writer.forever()) for writer in mine]
                for fault in luck.sample([killed, frozen, stopped], 2):
                    node_id = luck.randint(1, cluster.count)
                    await fault(rig, node_id)
                    for writer in mine:
                        await writer.more(3, seconds=120)
                    rig.tell(f"life {life}: {fault.__name__} {node_id}, copies go on")
                for task in tasks:
                    task.cancel()
    async with rig.manager("another") as manager:
        await serving(manager, *partitions, seconds=120)
        for writer in writers:
            writer.manager = manager
            await asyncio.to_thread(writer.check, rig)
        await until(lambda: all(manager.lookups.is_ready(tp) for tp in partitions))
    rig.tell(
        f"{sum(len(each.acknowledged) for each in writers)} copies acknowledged, all there once"
    )
