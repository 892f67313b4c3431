"""What may happen to the topic itself, and what strangers may write into it."""

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from rlmm_daemon.core.partitioner import metadata_partition
from rlmm_daemon.core.readiness.states import FailureReason, PartitionState
from rlmm_daemon.daemon.cleaner.cluster_view import ClusterFacts, ClusterView
from rlmm_daemon.daemon.operator.methods import Operator
from rlmm_daemon.daemon.operator.standing import Standing
from rlmm_daemon.domain.errors import HistoryLost, NotReady, PartitionFailed, RlmmError
from rlmm_daemon.domain.ids import BrokerId
from rlmm_daemon.ports.event_log import LogMissing
from rlmm_daemon.wiring import adapters
from tests.kafka.rig import (
    BROKER,
    COUNT,
    P0,
    Writer,
    follower,
    segments,
    serving,
    tp_in,
    until,
)
from tests.unit.daemon import events

POISON = Path(__file__).parents[1] / "data" / "golden" / "poison.jsonl"


async def failed(
    manager, reason: FailureReason, partition: int = P0, *, seconds: float = 15
) -> None:
    def holds() -> bool:
        failure = next(
            (each.failure for each in manager.followed() if each.partition == partition), None
        )
        return failure is not None and failure.reason is reason

    try:
        await until(holds, seconds, what=f"failed({reason.value})")
    except AssertionError as error:
        seen = [
            (each.partition, each.state, each.failure, each.trouble, each.fold.position)
            for each in manager.followed()
        ]
        raise AssertionError(f"{error}; followed: {seen}") from error


async def test_the_topic_is_made_as_the_configuration_says(rig):
    tp = tp_in(0)
    async with rig.manager() as manager:
        await serving(manager, tp)
        await Writer(manager, tp).copy(0)
    made = rig.probe.ask("describe", topic=rig.topic)
    assert len(made["partitions"]) == COUNT
    assert {len(row["replicas"]) for row in made["partitions"]} == {rig.replicas}
    wanted = {
        "cleanup.policy": "delete",
        "retention.ms": "-1",
        "min.insync.replicas": str(min(2, rig.replicas)),
        "remote.storage.enable": "false",
    }
    assert {name: made["config"][name] for name in wanted} == wanted


async def recreated(rig) -> None:
    await asyncio.to_thread(rig.probe.ask, "delete", topic=rig.topic)
    await until_created(rig)


@pytest.mark.parametrize("command", ["repair", "accept-loss"])
async def test_a_recreated_topic_is_history_lost_until_that_is_ended(rig, command):
    rig.topic += f".{command}"
    rig.create()
    tp = tp_in(0)
    async with rig.manager() as manager:
        await serving(manager, tp)
        writer = Writer(manager, tp)
        for number in range(3):
            await writer.copy(number)
        begun = time.perf_counter()
        await recreated(rig)
        await failed(manager, FailureReason.HISTORY_LOST, seconds=60)
        rig.tell(f"recreated: noticed after {time.perf_counter() - begun:.1f} s")
        assert not manager.lookups.is_ready(tp)
        with pytest.raises(HistoryLost, match="rlmm log repair 0"):
            manager.lookups.list_remote_log_segments(tp, None, BROKER)
        operator = Operator(manager)
        if command == "repair":
            await operator.log_repair(P0)
        else:
            await operator.partition_accept_loss(None, everything=True)
        rig.tell(
            f"{command}: ready after {await until(lambda: manager.lookups.is_ready(tp)):.2f} s"
        )
        assert len(segments(manager, tp)) == (3 if command == "repair" else 0)
        again = Writer(manager, tp, base=100)
        await again.copy(0)
        await asyncio.to_thread((writer if command == "repair" else again).check, rig)


async def test_a_raised_partition_count_fails_all_until_it_is_accepted(rig):
    rig.create()
    tp = tp_in(0)
    async with rig.manager() as manager:
        await serving(manager, tp)
        await Writer(manager, tp).copy(0)
        await asyncio.to_thread(rig.probe.ask, "grow", topic=rig.topic, count=COUNT + 3)
        async with watching(rig, manager):
            begun = time.perf_counter()
            await until(lambda: manager.fleet.whole_failure is not None)
            rig.tell(f"count raised: noticed after {time.perf_counter() - begun:.1f} s")
            with pytest.raises(PartitionFailed, match="accept-loss --all"):
                manager.lookups.list_remote_log_segments(tp, None, BROKER)
            await Operator(manager).partition_accept_loss(None, everything=True)
            rig.tell(
                f"accepted: ready after {await until(lambda: manager.lookups.is_ready(tp)):.2f} s"
            )
            follow_set = manager.fleet.follow_set
            assert follow_set is not None
            assert follow_set.partition_count == COUNT + 3
            again = Writer(manager, tp, base=100)
            await again.copy(0)
            assert follow_set.of(tp) == metadata_partition(tp.topic_id, tp.partition, COUNT + 3)
            await asyncio.to_thread(again.check, rig)


@asynccontextmanager
async def watching(rig, manager) -> AsyncIterator[ClusterView]:
    """The view of the cluster as the daemon keeps it, asking all the time."""

    def answered(facts: ClusterFacts) -> None:
        manager.fleet.seen(partition_count=len(facts.leaders))
        view.refresh()

    view = ClusterView(
        adapters.cluster_of(rig.config(), manager.log),
        manager.clock,
        random.Random(1),
        broker_id=BrokerId(1),
        on_answer=answered,
    )
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(view.run())
        try:
            yield view
        finally:
            task.cancel()


async def until_created(rig) -> None:
    """Create the topic again; its old files may not be gone yet."""
    from tests.kafka.probe import ProbeError  # noqa: PLC0415 - one use

    while True:
        try:
            await asyncio.to_thread(rig.create)
        except ProbeError as error:
            if "TopicExists" not in str(error):
                raise
        else:
            return


async def test_deleted_records_that_a_follower_had_read_cost_it_nothing(rig):
    rig.create()
    tp = tp_in(0)
    async with rig.manager() as manager:
        await serving(manager, tp)
        writer = Writer(manager, tp)
        for number in range(5):
            await writer.copy(number)
        where = {"topic": rig.topic, "partition": 0}
        await asyncio.to_thread(rig.probe.ask, "delete_records", before=4, **where)
        await writer.copy(5)
        assert len(segments(manager, tp)) == 6
    async with rig.manager("without a snapshot") as manager:
        manager.replace_assignment([tp], [])
        await failed(manager, FailureReason.HISTORY_LOST)
        with pytest.raises((HistoryLost, NotReady)):
            manager.lookups.list_remote_log_segments(tp, None, BROKER)
        assert not manager.lookups.is_ready(tp)
        await Operator(manager).partition_accept_loss(P0, everything=False)
        rig.tell(f"accepted: ready after {await until(lambda: manager.lookups.is_ready(tp)):.2f} s")
        left = {events.segment_id(number) for number in range(2, 6)}
        assert segments(manager, tp).keys() == left, "four events were two segments"
        await Writer(manager, tp, base=100).copy(0)


async def test_a_rebuild_and_a_retry_find_everything_in_the_topic_again(rig):
    rig.create()
    tp = tp_in(0)
    async with rig.manager() as manager:
        await serving(manager, tp)
        writer = Writer(manager, tp)
        for number in range(3):
            await writer.copy(number)
        operator, fold = Operator(manager), follower(manager, P0).fold
        await operator.partition_rebuild(P0)
        await until(lambda: follower(manager, P0).fold is not fold)
        took = await until(lambda: manager.lookups.is_ready(tp))
        rig.tell(f"rebuild: ready after {took:.2f} s")
        await asyncio.to_thread(writer.check, rig)
        assert (await operator.partition_retry(P0))["retried"] == [], "nothing has failed"
        await writer.copy(3)


async def test_no_poison_stops_a_follower(rig):
    """Each record of the list ends the consumer thread of Kafka's own manager."""
    rig.create()
    tp = tp_in(0)
    hexed = [json.loads(row)["hex"] for row in POISON.read_text().splitlines()]
    values = [None if each is None else bytes.fromhex(each) for each in hexed]
    assert None in values
    async with rig.manager() as manager:
        await serving(manager, tp)
        writer = Writer(manager, tp)
        await writer.copy(0)
        unreadable = [*values, events.snapshot_record(7)]
        refused = list(events.refused(0, tp).values())
        for value in (*unreadable, *refused):
            await asyncio.to_thread(rig.probe.produce, rig.topic, 0, [value])
        await writer.copy(2)
        assert manager.lookups.is_ready(tp)
        fold = follower(manager, P0).fold
        assert sum(fold.unreadable.values()) == len(unreadable), fold.unreadable
        assert sum(fold.rejected.values()) == len(refused), fold.rejected
        await asyncio.to_thread(writer.check, rig)
    async with rig.manager("replay") as manager:
        await serving(manager, tp)
        writer.manager = manager
        await asyncio.to_thread(writer.check, rig)
        strange = {*unreadable, *refused} - writer.tried.keys()
        ours = {value for _, _, value in rig.probe.dump(rig.topic) if value not in strange}
        assert ours == writer.tried.keys(), "and we wrote none"


@pytest.mark.parametrize("outcome", ["commit", "abort"])
async def test_a_transaction_at_the_tail_does_not_keep_a_partition_from_being_ready(rig, outcome):
    rig.topic += f".{outcome}"
    rig.create()
    tp = tp_in(0)
    rig.probe.produce(rig.topic, 0, [events.started(7, 0, 9, tp)], transaction=outcome)
    async with rig.manager() as manager:
        await serving(manager, tp)
        fold = follower(manager, P0).fold
        # The coordinator writes the marker some time after the commit was answered.
        await until(lambda: fold.position == 2, what="past the control batch")
        assert manager.lookups.is_ready(tp)
        writer = Writer(manager, tp, base=10)
        await writer.copy(0)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
async def test_a_strangers_compressed_batches_are_read(rig, codec):
    if codec != "gzip":
        pytest.importorskip("cramjam", reason="aiokafka reads other codecs with it")
    rig.topic += f".{codec}"
    rig.create()
    tp = tp_in(0)
    values = [events.started(7, 0, 9, tp), events.updated(7, tp=tp)]
    rig.probe.produce(rig.topic, 0, values, compression=codec)
    async with rig.manager() as manager:
        await serving(manager, tp)
        assert segments(manager, tp) == {events.segment_id(7): "COPY_SEGMENT_FINISHED"}


async def test_a_batch_larger_than_a_fetch_is_read_all_the_same(rig):
    """A broker sends the first batch whole, whatever a request allows: nothing stands still."""
    rig.create()
    tp = tp_in(0)
    values = [events.started(number, number * 10, number * 10 + 9, tp) for number in range(200)]
    rig.probe.produce(rig.topic, 0, list(values))
    assert sum(map(len, values)) > 4 * 4_096
    async with rig.manager(settings={"event_log.kafka.fetch.bytes_max": "4096"}) as manager:
        await serving(manager, tp)
        assert len(segments(manager, tp)) == len(values)
        await Writer(manager, tp, base=300).copy(0)


async def test_an_empty_partition_is_ready_and_an_idle_one_stays_so(rig):
    rig.create()
    idle, busy = tp_in(1), tp_in(0)
    async with rig.manager() as manager:
        await serving(manager, idle, busy)
        assert segments(manager, idle) == {}
        writer = Writer(manager, busy)
        async with writer.writing():
            for _ in range(20):
                await writer.more(3)
                assert manager.lookups.is_ready(idle)
        assert follower(manager, 1).state is PartitionState.READY


async def test_fifty_partitions_are_followed_at_once(rig):
    count = 50
    partitions = [tp_in(number, count) for number in range(count)]
    async with rig.manager(count=count) as manager:
        rig.tell(f"50 partitions: ready after {await serving(manager, *partitions):.2f} s")
        writers = [Writer(manager, tp, base=1000 * at) for at, tp in enumerate(partitions)]
        async with asyncio.TaskGroup() as group:
            for writer in writers:
                group.create_task(writer.copy(0))
        assert all(len(segments(manager, tp)) == 1 for tp in partitions)


async def opened(log) -> None:
    """Open a log whose topic was made just now: not every broker may know of it yet."""
    while log.identity is None:
        with suppress(LogMissing):
            await log.open(create=False)


async def test_a_topic_that_forgets_is_said_loudly_or_refused(rig):
    rig.create(retention_ms="604800000")
    async with rig.log() as log:
        await opened(log)
        assert any("retention" in warning for warning in log.warnings)
    async with rig.manager() as manager:
        await manager.gates.until_open()
        status = await Standing(manager, log_facts=manager.log.facts).status()
        assert any("retention" in warning for warning in status["log"]["warnings"])
    strict = {"event_log.kafka.admin.require_infinite_retention": "true"}
    async with rig.log(settings=strict) as log:
        with pytest.raises(RlmmError, match="retention"):
            await log.open(create=False)
