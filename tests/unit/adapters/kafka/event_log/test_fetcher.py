"""Following one partition through everything that a leader may do to a follower."""

import asyncio
import threading
from contextlib import aclosing

import cramjam
import pytest
from aiokafka.errors import KafkaConnectionError

from rlmm_daemon.adapters.kafka.event_log import KafkaLog, fetcher
from rlmm_daemon.adapters.kafka.event_log.parsing import Packed
from rlmm_daemon.config import KafkaFetch
from rlmm_daemon.domain.errors import LogCorrupt, StorageUnavailable, UnavailableError
from rlmm_daemon.domain.ids import MetadataPartition
from rlmm_daemon.ports.event_log import (
    NO_EPOCH,
    LogBatch,
    LogTrimmed,
    LogTruncated,
    TopicIdChanged,
)
from tests.unit.adapters.kafka.broker import (
    FakeBroker,
    compressed,
    encoded,
    fetched,
    opened,
    with_records,
)

P0, P1 = MetadataPartition(0), MetadataPartition(1)
WAIT_SECONDS = 10


async def first(batches) -> LogBatch:
    async with asyncio.timeout(WAIT_SECONDS):
        return await anext(batches)


async def read_to(batches, end: int) -> list[tuple[int, bytes | None]]:
    records: list[tuple[int, bytes | None]] = []
    while True:
        batch = await first(batches)
        records.extend(batch.records)
        if batch.next_offset >= end:
            return records


def refused_fetch(broker: FakeBroker, code: int, index: int = 0):
    return lambda request: fetched(request, broker.partitions[index], code)


async def test_the_first_fetch_does_not_wait_and_each_one_names_epochs_and_no_session():
    broker = FakeBroker()
    broker.partitions[0].epoch = 3
    broker.put(0, b"a")
    async with opened(broker) as log, aclosing(log.follow(P0, 0, epoch=NO_EPOCH)) as batches:
        assert await read_to(batches, 1) == [(0, b"a")]
        await first(batches)
    before, after, *_ = broker.requests("Fetch")
    assert (before.max_wait, after.min_bytes) == (0, 1)
    assert 3 < after.max_wait <= 5, "up to a quarter less, so that idle ones are not in step"
    assert (after.session, after.session_epoch, after.replica) == (0, -1, -1)
    row = after.topics[0][1][0]
    assert row[:4] == (0, 3, 1, 3), "partition, leader epoch, position, epoch of the last batch"
    assert after.topics[0][0] == broker.topic_id


async def test_a_followed_partition_has_a_connection_of_its_own_that_carries_only_fetch():
    broker = FakeBroker()
    async with opened(broker) as log:
        async with (
            aclosing(log.follow(P0, 0, epoch=NO_EPOCH)) as one,
            aclosing(log.follow(P1, 0, epoch=NO_EPOCH)) as two,
        ):
            before = log.facts()["connections"]
            await first(one)
            await first(two)
            assert log.facts()["connections"] == before + 2
            assert log.facts()["following"] == 2
            await log.append(P0, b"x")
        assert log.facts()["following"] == 0
        assert log.facts()["connections"] <= before + 1, "what stays is the producer's"


@pytest.mark.parametrize("code", [5, 6, 9, 56, 74, 75, 78, -1, 7, 29, 999])
async def test_an_error_that_passes_is_sat_out_without_a_gap_or_a_repeat(code: int):
    broker = FakeBroker()
    broker.put(0, b"a")
    async with opened(broker) as log, aclosing(log.follow(P0, 0, epoch=NO_EPOCH)) as batches:
        await read_to(batches, 1)
        broker.faults["Fetch"].extend([refused_fetch(broker, code)] * 3)
        broker.put(0, b"b")
        assert await read_to(batches, 2) == [(1, b"b")]
        told = log.facts()["partitions"][0]
        assert told["errors"] == 3
        assert "the broker answered" in told["last_error"]


async def test_a_top_level_error_comes_without_topics_and_is_sat_out():
    broker = FakeBroker()
    broker.put(0, b"a")
    broker.faults["Fetch"].append(lambda request: request.RESPONSE_TYPE(0, 70, 0, [], {}))
    async with opened(broker) as log, aclosing(log.follow(P0, 0, epoch=NO_EPOCH)) as batches:
        assert await read_to(batches, 1) == [(0, b"a")]


async def test_a_cut_connection_is_replaced_and_checked_before_anything_is_delivered():
    broker = FakeBroker()
    broker.put(0, b"a")
    async with opened(broker) as log, aclosing(log.follow(P0, 0, epoch=NO_EPOCH)) as batches:
        await read_to(batches, 1)
        assert not broker.requests("OffsetForLeaderEpoch")
        broker.faults["Fetch"].append(KafkaConnectionError("cut"))
        broker.put(0, b"b")
        assert await read_to(batches, 2) == [(1, b"b")]
    names = [name for _, name, _ in broker.asked if name in ("Fetch", "OffsetForLeaderEpoch")]
    assert names[-2:] == ["OffsetForLeaderEpoch", "Fetch"]
    assert len(broker.requests("OffsetForLeaderEpoch")) == 1


async def test_a_tail_lost_behind_a_cut_is_told_even_when_the_log_grew_past_our_position():
    broker = FakeBroker()
    broker.put(0, b"a", b"b", b"c")
    async with opened(broker) as log, aclosing(log.follow(P0, 0, epoch=NO_EPOCH)) as batches:
        await read_to(batches, 3)
        partition = broker.partitions[0]
        partition.epoch, partition.epoch_ends, partition.end = 1, {0: 1}, 1
        broker.put(0, b"x", b"y", b"z", b"0")
        broker.faults["Fetch"].append(KafkaConnectionError("cut"))
        with pytest.raises(LogTruncated, match="epoch 0 ends at 1"):
            await read_to(batches, 5)


@pytest.mark.parametrize("start", [0, 3])
async def test_a_log_that_begins_in_a_later_epoch_where_we_stand_does_not_confirm_what_was_read(
    start: int,
):
    """As Kafka says, an epoch that it forgot ended where the log starts: at our very position."""
    broker = FakeBroker()
    broker.put(0, b"a", b"b", b"c")
    async with opened(broker) as log, aclosing(log.follow(P0, 0, epoch=NO_EPOCH)) as batches:
        await read_to(batches, 3)
        partition = broker.partitions[0]
        partition.epoch, partition.start = 2, start
        if start:  # other events stood there, and they are gone as well
            partition.epoch_ends = {}
            del partition.batches[:]
        broker.put(0, b"x")
        broker.faults["Fetch"].append(KafkaConnectionError("cut"))
        if not start:
            assert await read_to(batches, 4) == [(3, b"x")]
            return
        with pytest.raises(LogTruncated, match="read up to 3 in epoch 0, the log's epoch -1"):
            await read_to(batches, 4)


async def test_a_new_leader_epoch_at_the_same_leader_is_checked_first():
    broker = FakeBroker()
    broker.put(0, b"a", b"b")
    async with opened(broker) as log, aclosing(log.follow(P0, 0, epoch=NO_EPOCH)) as batches:
        await read_to(batches, 2)
        partition = broker.partitions[0]
        partition.epoch, partition.epoch_ends = 1, {0: 1, 1: 2}
        with pytest.raises(LogTruncated):
            await read_to(batches, 3)


async def test_the_broker_may_tell_of_the_divergence_itself():
    broker = FakeBroker()
    broker.put(0, b"a", b"b")
    async with opened(broker) as log, aclosing(log.follow(P0, 0, epoch=NO_EPOCH)) as batches:
        await read_to(batches, 2)
        broker.faults["Fetch"].append(
            lambda request: fetched(request, broker.partitions[0], diverging=(0, 1))
        )
        with pytest.raises(LogTruncated, match="ends at 1"):
            await first(batches)


def overwritten(broker: FakeBroker, index: int = 0) -> None:
    """Ten records in epoch 0, cut to six by an unclean election and grown to twelve."""
    partition = broker.partitions[index]
    for number in range(6):
        broker.put(index, b"kept %d" % number)
    partition.epoch, partition.epoch_ends = 1, {0: 6}
    for number in range(6):
        broker.put(index, b"other %d" % number)


@pytest.mark.parametrize("position", [10, 12])
async def test_who_comes_from_a_snapshot_of_a_tail_that_was_overwritten_is_told(position: int):
    broker = FakeBroker()
    overwritten(broker)
    async with (
        opened(broker) as log,
        aclosing(log.follow(P0, position, epoch=0)) as batches,
    ):
        with pytest.raises(LogTruncated, match="epoch 0 ends at 6"):
            await first(batches)
    assert not broker.requests("Fetch"), "nothing is read before that is known"


async def test_an_election_is_checked_although_nothing_was_read_since_the_snapshot():
    broker = FakeBroker()
    broker.put(0, *[b"%d" % number for number in range(10)])
    async with opened(broker) as log, aclosing(log.follow(P0, 10, epoch=0)) as batches:
        assert (await first(batches)).leader_epoch == 0
        partition = broker.partitions[0]
        partition.epoch, partition.epoch_ends, partition.end = 1, {0: 6}, 6
        broker.put(0, *[b"other %d" % number for number in range(6)])
        with pytest.raises(LogTruncated, match="epoch 0 ends at 6"):
            await read_to(batches, 12)


async def test_who_comes_from_a_snapshot_names_its_epoch_in_its_first_fetch():
    """A cut between the check and the fetch is then told by the broker itself."""
    broker = FakeBroker()
    broker.put(0, b"a", b"b")
    async with opened(broker) as log, aclosing(log.follow(P0, 2, epoch=0)) as batches:
        broker.faults["Fetch"].append(
            lambda request: fetched(request, broker.partitions[0], diverging=(0, 1))
        )
        with pytest.raises(LogTruncated, match="ends at 1"):
            await first(batches)
    (row,) = broker.requests("Fetch")[0].topics[0][1]
    assert row[2:4] == (2, 0), "position, epoch of the last batch"


async def test_the_next_follower_checks_the_epoch_at_which_the_last_one_left():
    broker = FakeBroker()
    broker.put(0, b"a", b"b")
    async with opened(broker) as log:
        async with aclosing(log.follow(P0, 0, epoch=NO_EPOCH)) as batches:
            await read_to(batches, 2)
        broker.partitions[0].epoch_ends = {0: 1, 1: 2}
        broker.partitions[0].epoch = 1
        async with aclosing(log.follow(P0, 2, epoch=0)) as batches:
            with pytest.raises(LogTruncated):
                await first(batches)


async def test_out_of_range_is_told_apart_by_start_and_end():
    broker = FakeBroker()
    broker.put(0, b"a", b"b", b"c")
    broker.partitions[0].start = 2
    async with opened(broker) as log:
        async with aclosing(log.follow(P0, 1, epoch=NO_EPOCH)) as batches:
            with pytest.raises(LogTrimmed) as raised:
                await first(batches)
            assert raised.value.start == 2
        async with aclosing(log.follow(P0, 4, epoch=NO_EPOCH)) as batches:
            with pytest.raises(LogTruncated):
                await first(batches)


async def test_out_of_range_in_passing_is_neither():
    broker = FakeBroker()
    broker.put(0, b"a")
    broker.faults["Fetch"].append(refused_fetch(broker, 1))
    async with opened(broker) as log, aclosing(log.follow(P0, 0, epoch=NO_EPOCH)) as batches:
        assert await read_to(batches, 1) == [(0, b"a")]


async def test_a_recreated_topic_is_told_with_its_new_id():
    broker = FakeBroker()
    async with opened(broker) as log, aclosing(log.follow(P0, 0, epoch=NO_EPOCH)) as batches:
        await first(batches)
        broker.topic_id = b"n" * 16
        with pytest.raises(TopicIdChanged) as raised:
            await first(batches)
        assert raised.value.topic_id == broker.topic_id
        assert await log.end_offsets([P0]) == {}, "those of another topic are no targets"


async def test_a_deleted_topic_is_waited_for(monkeypatch):
    monkeypatch.setattr(fetcher, "PATIENCE_SECONDS", 0.02)
    broker = FakeBroker()
    async with opened(broker) as log, aclosing(log.follow(P0, 0, epoch=NO_EPOCH)) as batches:
        await first(batches)
        broker.exists = False
        with pytest.raises(StorageUnavailable, match="does not exist"):
            await first(batches)


async def test_a_broken_batch_is_fetched_again_once():
    broker = FakeBroker()
    broker.put(0, b"a")
    broken = bytearray(encoded(0, [b"a"]))
    broken[-1] ^= 1

    def spoiled(request):
        return fetched(request, broker.partitions[0], 0, bytes(broken))

    async with opened(broker) as log:
        broker.faults["Fetch"].append(spoiled)
        async with aclosing(log.follow(P0, 0, epoch=NO_EPOCH)) as batches:
            assert await read_to(batches, 1) == [(0, b"a")]
        broker.faults["Fetch"].extend([spoiled, spoiled])
        async with aclosing(log.follow(P0, 0, epoch=NO_EPOCH)) as batches:
            with pytest.raises(LogCorrupt, match="wrong checksum, twice") as raised:
                await first(batches)
            assert raised.value.fields["offset"] == 0
            assert raised.value.fields["command"] == "rlmm partition retry 0"


async def test_a_compressed_batch_that_holds_too_much_fails_its_partition_and_the_loop_goes_on():
    broker = FakeBroker()
    bomb = with_records(bytes(cramjam.zstd.compress(bytes(256 << 20))), 4)
    assert len(bomb) < 25_000
    broker.put(0, b"before")
    broker.partitions[0].put(bomb, 1)
    broker.put(1, b"other")
    async with opened(broker) as log:
        async with aclosing(log.follow(P0, 0, epoch=NO_EPOCH)) as batches:
            assert await read_to(batches, 1) == [(0, b"before")]
            with pytest.raises(LogCorrupt, match="unpacked_bytes_max") as raised:
                await first(batches)
        assert raised.value.fields["offset"] == 1
        assert raised.value.fields["command"] == "rlmm partition retry 0"
        async with aclosing(log.follow(P1, 0, epoch=NO_EPOCH)) as batches:
            assert await read_to(batches, 1) == [(0, b"other")]


async def test_a_large_compressed_batch_is_unpacked_in_another_thread(monkeypatch):
    threads = list[str]()
    unpack = Packed.unpack

    def told(packed: Packed) -> None:
        threads.append(threading.current_thread().name)
        unpack(packed)

    monkeypatch.setattr(Packed, "unpack", told)
    broker = FakeBroker()
    values = [b"value %d of many" % number for number in range(9_000)]
    broker.partitions[0].put(compressed(0, values, 4), len(values))
    async with opened(broker) as log, aclosing(log.follow(P0, 0, epoch=NO_EPOCH)) as batches:
        assert await read_to(batches, len(values)) == [*enumerate(values)]
    assert len(threads) == 1
    assert threads[0] != threading.current_thread().name


async def test_what_stands_before_a_broken_batch_is_delivered():
    broker = FakeBroker()
    broker.put(0, b"a", b"b")
    broken = bytearray(encoded(1, [b"b"]))
    broken[-1] ^= 1
    data = encoded(0, [b"a"]) + bytes(broken)
    broker.faults["Fetch"].append(lambda r: fetched(r, broker.partitions[0], 0, data))
    async with opened(broker) as log, aclosing(log.follow(P0, 0, epoch=NO_EPOCH)) as batches:
        assert await read_to(batches, 2) == [(0, b"a"), (1, b"b")]


async def test_a_leader_that_stays_away_is_told_after_a_while_with_the_last_error(monkeypatch):
    monkeypatch.setattr(fetcher, "PATIENCE_SECONDS", 0.02)
    broker = FakeBroker()
    broker.partitions[0].leader = 2
    broker.refusing = {2}
    async with opened(broker) as log, aclosing(log.follow(P0, 0, epoch=NO_EPOCH)) as batches:
        with pytest.raises(UnavailableError, match="refused"):
            await first(batches)
        tries = [each for each in broker.asked if each[1] == "Metadata"]
    assert 2 <= len(tries) < 100, "it neither gave up at once nor span"


def epoch_known(log: KafkaLog) -> int | None:
    leader = log.directory.leader(P0)
    return leader.epoch if leader else None


async def test_a_lagging_broker_does_not_take_a_newer_leader_epoch_back():
    broker = FakeBroker()
    broker.put(0, b"a")
    broker.partitions[0].epoch = 5
    async with opened(broker) as log:
        assert epoch_known(log) == 5
        broker.partitions[0].epoch = 4
        await log.directory.refresh()
        assert epoch_known(log) == 5


async def test_a_cancelled_follower_leaves_no_connection_and_delivers_nothing_more():
    broker = FakeBroker()
    async with opened(broker, fetch=KafkaFetch(max_wait_ms=20_000)) as log:
        seen: list[LogBatch] = []
        begun = asyncio.Event()

        async def follow() -> None:
            async for batch in log.follow(P0, 0, epoch=NO_EPOCH):
                seen.append(batch)
                begun.set()

        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(follow())
            await begun.wait()
            task.cancel()
        broker.put(0, b"late")
        await asyncio.sleep(0)
        assert len(seen) == 1
        assert log.facts()["following"] == 0


async def test_a_long_poll_of_one_partition_delays_no_other():
    broker = FakeBroker()
    broker.put(1, b"quick")
    stuck = asyncio.Event()

    async def hang(_):
        await stuck.wait()

    async with (
        opened(broker) as log,
        aclosing(log.follow(P0, 0, epoch=NO_EPOCH)) as slow,
        asyncio.TaskGroup() as tasks,
    ):
        broker.faults["Fetch"].append(hang)
        waiting = tasks.create_task(first(slow))
        await broker.arrived["Fetch"].wait()
        async with aclosing(log.follow(P1, 0, epoch=NO_EPOCH)) as quick:
            assert await read_to(quick, 1) == [(0, b"quick")]
        assert await log.append(P0, b"x") == 0
        assert not waiting.done()
        waiting.cancel()


async def test_a_silent_broker_is_left_after_the_time_out():
    broker = FakeBroker()
    broker.put(0, b"a")
    never = asyncio.Event()

    async def hang(_):
        await never.wait()

    broker.faults["Fetch"].append(hang)
    limits = KafkaFetch(max_wait_ms=5, request_timeout_ms=20)
    async with (
        opened(broker, fetch=limits) as log,
        aclosing(log.follow(P0, 0, epoch=NO_EPOCH)) as batches,
    ):
        assert await read_to(batches, 1) == [(0, b"a")]
        assert "no answer in time" in log.facts()["partitions"][0]["last_error"]
    assert sum(not each.connected() for each in broker.connections) >= 1
