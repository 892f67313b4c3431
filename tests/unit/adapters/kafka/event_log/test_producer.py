"""What a writer is told, for everything that a leader may answer or leave unanswered."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager

import pytest
from aiokafka.errors import KafkaConnectionError
from aiokafka.record.default_records import DefaultRecordBatch

from rlmm_daemon.adapters.kafka.event_log import KafkaLog, producer
from rlmm_daemon.adapters.kafka.event_log.producer import Producer
from rlmm_daemon.config import KafkaProducer
from rlmm_daemon.domain.errors import (
    Draining,
    InvalidArgument,
    OutcomeUnknown,
    Overloaded,
    PartitionFailed,
    StorageUnavailable,
    UnavailableError,
)
from rlmm_daemon.domain.ids import MetadataPartition
from rlmm_daemon.ports.event_log import NO_EPOCH, LogBatch
from tests.unit.adapters.kafka.broker import FakeBroker, lost_answer, opened, refused, values_in

P0, P1 = MetadataPartition(0), MetadataPartition(1)
FOR_EVER = 1000


def written(broker: FakeBroker, index: int = 0) -> list[bytes]:
    return [value for *_, data in broker.partitions[index].batches for value in values_in(data)]


async def test_what_waits_while_a_request_is_under_way_shares_the_next_one():
    broker = FakeBroker()
    async with opened(broker) as log, asyncio.TaskGroup() as tasks:
        first = tasks.create_task(log.append(P0, b"first"))
        await broker.arrived["ProduceById"].wait()
        rest = [tasks.create_task(log.append(P0, b"%d" % n)) for n in range(63)]
        other = tasks.create_task(log.append(P1, b"other"))
    assert first.result() == other.result() == 0
    assert [each.result() for each in rest] == list(range(1, 64))
    assert len(broker.requests("ProduceById")) == 2


@asynccontextmanager
async def unread_burst(
    log: KafkaLog,
) -> AsyncIterator[tuple[AsyncGenerator[LogBatch, None], asyncio.TaskGroup]]:
    """Four records that were written at once, and that a follower holds and has not taken in."""
    async with aclosing(log.follow(P0, 0, epoch=NO_EPOCH)) as batches:
        await anext(batches)
        async with asyncio.TaskGroup() as tasks:
            for n in range(4):
                tasks.create_task(log.append(P0, b"%d" % n))
        assert len((await anext(batches)).records) == 4
        async with asyncio.TaskGroup() as tasks:
            yield batches, tasks


async def until_it_could_be_sent():
    for _ in range(20):
        await asyncio.sleep(0)


async def test_who_was_in_one_batch_and_is_told_piece_by_piece_shares_the_next_one_too(monkeypatch):
    monkeypatch.setattr(producer, "GATHER_SECONDS", FOR_EVER)
    broker = FakeBroker()
    async with opened(broker) as log, unread_burst(log) as (_, tasks):
        for n in range(4):
            tasks.create_task(log.append(P0, b"again %d" % n))
            await until_it_could_be_sent()
    assert len(broker.requests("ProduceById")) == 2
    assert written(broker)[4:] == [b"again %d" % n for n in range(4)]


async def test_what_waits_for_company_is_sent_once_all_that_was_written_is_read_back(monkeypatch):
    monkeypatch.setattr(producer, "GATHER_SECONDS", FOR_EVER)
    broker = FakeBroker()
    async with opened(broker) as log, unread_burst(log) as (batches, tasks):
        two = [tasks.create_task(log.append(P0, value)) for value in (b"a", b"b")]
        await until_it_could_be_sent()
        assert len(broker.requests("ProduceById")) == 1
        assert len((await anext(batches)).records) == 2
    assert [each.result() for each in two] == [4, 5]
    assert len(broker.requests("ProduceById")) == 2


async def test_what_waits_for_company_is_sent_when_the_follower_ends(monkeypatch):
    monkeypatch.setattr(producer, "GATHER_SECONDS", FOR_EVER)
    broker = FakeBroker()
    async with opened(broker) as log, unread_burst(log) as (batches, tasks):
        one = tasks.create_task(log.append(P0, b"one"))
        await until_it_could_be_sent()
        await batches.aclose()
    assert one.result() == 4


async def test_what_waits_for_company_is_sent_after_a_moment_although_nothing_is_read_back():
    broker = FakeBroker()
    async with opened(broker) as log, unread_burst(log):
        assert await log.append(P0, b"one") == 4


async def test_one_writer_alone_waits_for_nobody(monkeypatch):
    monkeypatch.setattr(producer, "GATHER_SECONDS", FOR_EVER)
    broker = FakeBroker()
    async with opened(broker) as log, aclosing(log.follow(P0, 0, epoch=NO_EPOCH)) as batches:
        await anext(batches)
        for n in range(5):
            async with asyncio.TaskGroup() as tasks:
                one = tasks.create_task(log.append(P0, b"%d" % n))
                assert (await anext(batches)).next_offset == n + 1
            assert one.result() == n


async def test_closing_sends_what_waits_for_company(monkeypatch):
    monkeypatch.setattr(producer, "GATHER_SECONDS", 0.05)
    broker = FakeBroker()
    async with opened(broker) as log, unread_burst(log) as (_, tasks):
        one = tasks.create_task(log.append(P0, b"one"))
        await until_it_could_be_sent()
        await log.close()
    assert one.result() == 4


async def test_records_carry_no_key_and_every_request_wants_all_replicas():
    broker = FakeBroker()
    async with opened(broker) as log:
        await log.append(P0, b"value")
    (request,) = broker.requests("ProduceById")
    assert (request.acks, request.transactional_id) == (-1, None)
    assert request.topics[0][0] == broker.topic_id
    (record,) = DefaultRecordBatch(request.topics[0][1][0][1])
    assert (record.key, record.value, record.headers) == (None, b"value", [])


async def test_a_lost_answer_is_asked_for_again_with_the_same_sequence():
    broker = FakeBroker()
    broker.faults["ProduceById"].append(lost_answer(broker))
    async with opened(broker) as log:
        assert await log.append(P0, b"once") == 0
        assert await log.append(P0, b"twice") == 1
    assert written(broker) == [b"once", b"twice"]
    first, again, _ = broker.requests("ProduceById")
    assert first.topics == again.topics


async def test_answers_that_stay_lost_end_as_unknown_and_the_next_record_has_a_new_producer():
    broker = FakeBroker()
    broker.faults["ProduceById"].extend([lost_answer(broker)] * FOR_EVER)
    async with opened(broker) as log:
        with pytest.raises(OutcomeUnknown):
            await log.append(P0, b"unknown")
        broker.faults.clear()
        assert await log.append(P0, b"after") == 1
        assert log.facts()["producer"]["lost"] == 1
    assert written(broker) == [b"unknown", b"after"]
    assert broker.producer_ids == 2


async def test_a_record_that_no_leader_ever_took_is_certainly_not_written():
    broker = FakeBroker()
    broker.faults["ProduceById"].extend([refused(6)] * FOR_EVER)
    async with opened(broker) as log:
        with pytest.raises(UnavailableError) as raised:
            await log.append(P0, b"value")
        assert not isinstance(raised.value, OutcomeUnknown)
        broker.faults.clear()
        assert await log.append(P0, b"next") == 0
    assert written(broker) == [b"next"]


async def test_a_record_that_a_deposed_leader_had_appended_is_never_called_not_written():
    """Its followers may have copied it: it answers "not leader", and the offset all the same."""
    broker = FakeBroker()
    broker.faults["ProduceById"].append(refused(6, base=0))
    broker.faults["ProduceById"].extend([refused(6)] * FOR_EVER)
    async with opened(broker) as log:
        with pytest.raises(OutcomeUnknown):
            await log.append(P0, b"value")


@pytest.mark.parametrize("code", [0, 46])
async def test_success_without_an_offset_is_unknown(code: int):
    broker = FakeBroker()
    broker.faults["ProduceById"].append(refused(code, base=-1))
    async with opened(broker) as log:
        with pytest.raises(OutcomeUnknown):
            await log.append(P0, b"somewhere")
        assert await log.append(P0, b"after") == 0
    assert broker.producer_ids == 2


@pytest.mark.parametrize("code", [20, 7, -1, 56])
async def test_an_error_after_which_it_may_be_written_never_becomes_a_refusal(code: int):
    broker = FakeBroker()
    broker.faults["ProduceById"].extend([refused(code), refused(29)])
    async with opened(broker) as log:
        with pytest.raises(OutcomeUnknown, match="earlier attempt"):
            await log.append(P0, b"value")


@pytest.mark.parametrize("code", [45, 47, 59, 90])
async def test_a_used_up_producer_is_replaced_when_nothing_was_written(code: int):
    broker = FakeBroker()
    broker.faults["ProduceById"].append(refused(code))
    async with opened(broker) as log:
        assert await log.append(P0, b"value") == 0
    assert broker.producer_ids == 2


async def test_a_used_up_producer_after_a_lost_answer_is_unknown():
    broker = FakeBroker()
    broker.faults["ProduceById"].extend([lost_answer(broker), refused(45)])
    async with opened(broker) as log:
        with pytest.raises(OutcomeUnknown):
            await log.append(P0, b"value")


async def test_a_refused_record_poisons_neither_its_partition_nor_its_neighbours():
    broker = FakeBroker()
    broker.faults["ProduceById"].append(refused(10))
    async with opened(broker) as log:
        with pytest.raises(InvalidArgument, match="more than the topic takes"):
            await log.append(P0, b"large")
        assert await log.append(P0, b"small") == 0
        assert await log.append(P1, b"other") == 0
    assert broker.producer_ids == 2, "one for each partition, none given up"


async def test_a_batch_that_is_too_large_is_cut_smaller():
    broker = FakeBroker()
    broker.faults["ProduceById"].extend([refused(6), refused(10)])
    async with opened(broker) as log, asyncio.TaskGroup() as tasks:
        answers = [tasks.create_task(log.append(P0, b"%d" % n)) for n in range(8)]
    assert [each.result() for each in answers] == list(range(8))
    assert written(broker) == [b"%d" % n for n in range(8)]


async def test_what_is_not_authorized_is_told_at_once_and_says_what_to_grant():
    broker = FakeBroker()
    broker.faults["ProduceById"].append(refused(29))
    async with opened(broker) as log:
        with pytest.raises(StorageUnavailable, match="grant the daemon's principal"):
            await log.append(P0, b"value")


async def test_who_may_not_be_a_producer_is_told_at_once_and_may_try_again():
    broker = FakeBroker()
    broker.faults["InitProducerId"].append(lambda r: r.RESPONSE_TYPE(0, 31, -1, -1, {}))
    async with opened(broker) as log:
        with pytest.raises(StorageUnavailable, match="grant the daemon's principal WRITE"):
            await log.append(P0, b"value")
        assert await log.append(P0, b"again") == 0


async def test_a_producer_id_that_is_not_there_yet_is_asked_for_again():
    broker = FakeBroker()
    broker.faults["InitProducerId"].append(lambda r: r.RESPONSE_TYPE(0, 14, -1, -1, {}))
    async with opened(broker) as log:
        assert await log.append(P0, b"value") == 0


async def test_a_moved_leader_is_followed():
    broker = FakeBroker()
    async with opened(broker) as log:
        await log.append(P0, b"one")
        broker.partitions[0].leader, broker.partitions[0].epoch = 2, 1
        assert await log.append(P0, b"two") == 1
    assert [node for node, name, _ in broker.asked if name == "ProduceById"] == [1, 1, 2]


async def test_nothing_is_written_to_a_topic_that_was_recreated():
    broker = FakeBroker()
    async with opened(broker) as log:
        await log.append(P0, b"old")
        broker.topic_id = b"n" * 16
        broker.partitions[0].batches.clear()
        with pytest.raises(PartitionFailed, match="recreated"):
            await log.append(P0, b"new")
        with pytest.raises(PartitionFailed, match="recreated"):
            await log.append(P0, b"new")
    assert written(broker) == []


async def test_a_broker_before_produce_by_id_is_written_by_name():
    broker = FakeBroker()
    broker.versions[0] = (3, 11)
    async with opened(broker) as log:
        assert await log.append(P0, b"value") == 0
    assert broker.requests("ProduceByName")[0].topics[0][0] == "meta"


async def test_waiting_records_have_a_bound():
    broker = FakeBroker()
    limits = KafkaProducer(delivery_timeout_ms=200, pending_records_max=3)
    async with opened(broker, producer=limits) as log, asyncio.TaskGroup() as tasks:
        broker.faults["ProduceById"].extend([KafkaConnectionError("cut")] * FOR_EVER)
        waiting = [tasks.create_task(outcome(log.append(P0, b"x"))) for _ in range(5)]
        await asyncio.sleep(0)
    kinds = [type(each.result()) for each in waiting]
    assert Overloaded in kinds
    assert kinds.count(Overloaded) <= 2


async def outcome(work):
    try:
        return await work
    except Exception as error:  # noqa: BLE001 - the test looks at what it was
        return error


async def test_closing_answers_everybody_in_bounded_time(monkeypatch):
    monkeypatch.setattr("rlmm_daemon.adapters.kafka.event_log.log.CLOSE_SECONDS", 0.05)
    broker = FakeBroker()
    never = asyncio.Event()

    async def hang(_):
        await never.wait()

    broker.faults["ProduceById"].append(hang)
    limits = KafkaProducer(delivery_timeout_ms=60_000)
    async with opened(broker, producer=limits) as log, asyncio.TaskGroup() as tasks:
        sent = tasks.create_task(outcome(log.append(P0, b"sent")))
        await broker.arrived["ProduceById"].wait()
        queued = tasks.create_task(outcome(log.append(P0, b"queued")))
        await asyncio.sleep(0)
        await log.close()
        assert isinstance(await sent, OutcomeUnknown)
        assert isinstance(await queued, Draining)
    assert all(not each.connected() for each in broker.connections)


async def test_a_partition_out_of_range_is_refused_before_anything_is_sent():
    broker = FakeBroker()
    async with opened(broker) as log:
        with pytest.raises(InvalidArgument):
            await log.append(MetadataPartition(77), b"value")
    assert not broker.requests("ProduceById")


async def test_a_producer_whose_tasks_may_not_start_answers_all_the_same():
    def ended(*_):
        raise RuntimeError("the group is shutting down")

    broker = FakeBroker()
    async with opened(broker) as log:
        log.producer._spawn = ended
        with pytest.raises(Draining):
            await log.append(P0, b"value")
    assert isinstance(log.producer, Producer)


async def test_what_was_under_way_to_the_old_topic_never_enters_the_new_one():
    broker = FakeBroker()
    gate = asyncio.Event()

    async def wait_then_cut(_):
        await gate.wait()
        raise KafkaConnectionError("cut")

    broker.faults["ProduceById"].append(wait_then_cut)
    async with opened(broker) as log, asyncio.TaskGroup() as tasks:
        old = tasks.create_task(outcome(log.append(P0, b"old")))
        await broker.arrived["ProduceById"].wait()
        waiting = tasks.create_task(outcome(log.append(P0, b"waiting")))
        await asyncio.sleep(0)
        broker.topic_id = b"n" * 16
        await log.open(create=False)
        gate.set()
        assert await log.append(P0, b"new") == 0
        assert isinstance(await old, OutcomeUnknown)
        assert isinstance(await waiting, PartitionFailed)
        assert log.producer.in_flight == 0
    assert written(broker) == [b"new"]
