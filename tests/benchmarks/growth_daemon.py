"""What grows with the user partitions and topics of a daemon: a manager, its gauges, its cleaner.

A hold is the longest callback of the loop, in processor time: a look-up waits for it.
"""

import asyncio
import time
from asyncio import events
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any, Final

from rlmm_daemon.adapters.event_log.memory import MemoryLogStore
from rlmm_daemon.core.partitioner import metadata_partition
from rlmm_daemon.daemon.base.announcing import Announcing
from rlmm_daemon.daemon.base.deleted_segments import DeletedSegments
from rlmm_daemon.daemon.bucket.live_counts import LiveCounts
from rlmm_daemon.daemon.metadata.manager import Manager
from rlmm_daemon.daemon.operator.gauges import Gauges
from rlmm_daemon.daemon.operator.methods import Operator
from rlmm_daemon.daemon.operator.standing import Standing
from rlmm_daemon.daemon.socket.limits import ServerStats
from rlmm_daemon.domain.ids import MetadataPartition, SegmentId, TopicId
from rlmm_daemon.domain.ids import TopicIdPartition as Partition
from rlmm_daemon.domain.partition_delete import PartitionDeleteState
from rlmm_daemon.embed import PARTITION_COUNT, open_manager
from rlmm_daemon.observability.metrics import Metrics
from tests.benchmarks.growth_curves import Cost, Growth, Watch
from tests.benchmarks.growth_events import OFFSETS, PARTITION, Mould
from tests.simulation.cleaning import CleanWorld, run

PARTITIONS_A_TOPIC: Final = 50
SEGMENTS_A_TOPIC: Final = 10
Step = Callable[[], Awaitable[object]]


class Holds:
    """Measures what is done in a running loop."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    async def __call__(self, what: str, step: Step) -> None:
        """Do something and tell the watch what it cost."""
        if not self._watch.each:
            begun = time.process_time()
            await step()
            self._watch.told(what, Cost(time.process_time() - begun))
            return
        await asyncio.sleep(0)  # out of the callback that is not looked at
        with _longest_callback() as longest:
            await asyncio.sleep(0)
            await step()
            await asyncio.sleep(0)
        self._watch.told(what, Cost(hold=longest[0]))


@contextmanager
def _longest_callback() -> Iterator[list[float]]:
    longest = [0.0]
    handle: Any = events.Handle  # asyncio has no hook for what each callback runs through
    run_one = handle._run

    def timed(one: Any) -> None:
        begun = time.thread_time()
        run_one(one)
        longest[0] = max(longest[0], time.thread_time() - begun)

    handle._run = timed
    try:
        yield longest
    finally:
        handle._run = run_one


def user_partition(number: int) -> Partition:
    topic = 9 * 10**9 + number // PARTITIONS_A_TOPIC
    name = f"topic-{number // PARTITIONS_A_TOPIC}"
    return Partition(TopicId(topic.to_bytes(16, "big")), name, number % PARTITIONS_A_TOPIC)


def announcements(size: int, watch: Watch) -> None:
    """Announce user partitions one by one, as a starting broker does; stop them likewise."""
    partitions = [user_partition(number) for number in range(size)]

    async def scenario() -> None:
        async with open_manager() as opened:
            manager, holds = opened.manager, Holds(watch)
            manager.replace_assignment([], [])

            async def announce() -> None:
                for partition in partitions:
                    manager.on_partition_leadership_changes([partition], [])
                    await asyncio.sleep(0)

            async def stop() -> None:
                for partition in partitions:
                    manager.on_stop_partitions([partition])
                    await asyncio.sleep(0)

            async def at_once() -> None:
                async with asyncio.TaskGroup() as tasks:
                    announcing = Announcing(manager.turns, tasks.create_task)
                    steps = manager.replacing_assignment(partitions, [], manager.incarnation_ms)
                    announcing.begin(steps, short=False)

            await holds("announce one by one", announce)
            await holds("stop one by one", stop)
            await holds("announce at once", at_once)

    asyncio.run(scenario())


def shown(size: int, watch: Watch) -> None:
    """Look at a daemon that knows so many user partitions, each with a segment."""
    partitions = [user_partition(number) for number in range(size)]
    store = MemoryLogStore(topic_id=TopicId(bytes([1] * 16)), partition_count=PARTITION_COUNT)
    for partition in partitions:
        number = metadata_partition(partition.topic_id, partition.partition, PARTITION_COUNT)
        made = Mould(partition).segment(0, OFFSETS - 1)
        store.put(MetadataPartition(number), made.started)
        store.put(MetadataPartition(number), made.finished)

    async def scenario() -> None:
        async with open_manager(store=store) as opened:
            manager, holds = opened.manager, Holds(watch)
            manager.replace_assignment(partitions, [])
            await _until_ready(manager, partitions)
            operator, standing = Operator(manager), Standing(manager)
            gauges, metrics = _gauges(manager)

            async def scrape() -> None:
                for _ in gauges._steps():
                    await asyncio.sleep(0)
                for _ in gauges._segments():
                    await asyncio.sleep(0)
                metrics.text()

            async def every() -> None:
                async for _ in operator.user_partitions(None):
                    pass

            async def selected() -> None:
                await operator.resolve("topic-0-0")

            await holds("status", standing.status)
            await holds("partitions", standing.partitions)
            await holds("user partitions", every)
            await holds("select one", selected)
            await holds("gauges and /metrics", scrape)
            await holds("live counts", LiveCounts(manager).count)

    asyncio.run(scenario())


async def _until_ready(manager: Manager, partitions: list[Partition]) -> None:
    async with asyncio.timeout(300):
        for partition in partitions:
            while not manager.lookups.is_ready(partition):  # noqa: ASYNC110 - of many conditions
                await asyncio.sleep(0.005)


def _gauges(manager: Manager) -> tuple[Gauges, Metrics]:
    metrics = Metrics()
    idle: Any = SimpleNamespace(
        jobs=list, outcomes=dict, outcomes_of_roll_backs=dict, bytes_copied=0
    )
    return Gauges(metrics, manager, idle, ServerStats()), metrics


def deletes_in_a_row(size: int, watch: Watch) -> None:
    """Tell the read caches of four times as many deletes as they remember."""
    deleted = DeletedSegments(remembered_max=size)
    ids = [SegmentId(number.to_bytes(16, "big")) for number in range(4 * size)]
    watch.steps("remember", map(partial(deleted.started, PARTITION), ids))


def purges(size: int, watch: Watch) -> None:
    """Remove topics that are gone, of ten segments each, in virtual time."""
    partitions = [
        Partition(TopicId((7 << 64 | number).to_bytes(16, "big")), f"t{number}", 0)
        for number in range(size)
    ]

    async def scenario(world: CleanWorld) -> None:
        for topic, partition in enumerate(partitions):
            for number in range(SEGMENTS_A_TOPIC):
                world.finished(topic * SEGMENTS_A_TOPIC + number, partition, 100 * number)
            world.facts.gone.add(partition.topic_id)
        daemon = world.daemon()

        async def purge() -> None:
            for partition in partitions:
                world.mark(partition)
                await asyncio.sleep(0)
            async with asyncio.timeout(86_400.0):
                for partition in partitions:
                    while not _is_removed(daemon.manager, partition):  # noqa: ASYNC110 - of many conditions
                        await asyncio.sleep(1.0)

        await Holds(watch)("purge", purge)

    run(scenario, steps_max=10**9)


def _is_removed(manager: Manager, partition: Partition) -> bool:
    for follower in manager.fleet.followers.values():
        cache = follower.fold.partitions.awake(partition)
        if cache is not None:
            return cache.delete_state is PartitionDeleteState.DELETE_PARTITION_FINISHED
    return False


PARTITION_SIZES: Final = (50, 500, 5_000, 50_000)
GROWTHS: Final = (
    Growth(of="user partitions", workload=announcements, sizes=PARTITION_SIZES,
           quick=(100, 500, 2_000, 10_000)),
    Growth(of="user partitions, shown", workload=shown, sizes=PARTITION_SIZES,
           quick=(100, 500, 2_000, 10_000)),
    Growth(of="deletes in a row", workload=deletes_in_a_row,
           sizes=(100, 1_000, 10_000, 100_000), quick=(600, 6_000, 60_000)),
    Growth(of="topics", workload=purges, sizes=(1, 10, 100, 1_000), quick=(1, 8, 64)),
)  # fmt: skip
