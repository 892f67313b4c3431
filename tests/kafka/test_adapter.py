"""The Kafka adapters on their own, where the daemon's view would hide what is asked."""

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from rlmm_daemon.adapters.kafka.cluster import KafkaCluster
from rlmm_daemon.adapters.kafka.event_log import KafkaLog
from rlmm_daemon.domain.errors import InvalidArgument
from rlmm_daemon.domain.ids import BrokerId, MetadataPartition, TopicId, uuid_bytes
from rlmm_daemon.ports.event_log import NO_EPOCH

P0, P1 = MetadataPartition(0), MetadataPartition(1)
WAIT_SECONDS = 60


async def opened(log: Any) -> KafkaLog:
    assert isinstance(log, KafkaLog)
    await log.open(create=True)
    return log


async def read(log: KafkaLog, partition: MetadataPartition, end: int) -> list[Any]:
    records: list[Any] = []
    async with (
        asyncio.timeout(WAIT_SECONDS),
        aclosing(log.follow(partition, 0, epoch=NO_EPOCH)) as batches,
    ):
        async for batch in batches:
            records.extend(batch.records)
            if batch.next_offset >= end:
                break
    return records


async def test_a_refused_record_poisons_neither_its_partition_nor_its_neighbours(rig):
    rig.create(max_message_bytes="2000")
    async with rig.log() as closed:
        log = await opened(closed)
        assert await log.append(P0, b"small") == 0
        with pytest.raises(InvalidArgument, match="5000 bytes"):
            await log.append(P0, bytes(5000))
        assert await log.append(P0, b"again") == 1
        assert await log.append(P1, b"other") == 0
        assert await read(log, P0, 2) == [(0, b"small"), (1, b"again")]


async def test_many_small_records_at_once_pass_a_topic_that_takes_only_small_batches(rig):
    rig.create(max_message_bytes="2000")
    values = [b"%03d" % number + bytes(97) for number in range(200)]
    async with rig.log() as closed:
        log = await opened(closed)
        async with asyncio.TaskGroup() as tasks:
            answers = [tasks.create_task(log.append(P0, value)) for value in values]
        offsets = [answer.result() for answer in answers]
        assert offsets == sorted(offsets) == list(range(200))
        assert [value for _, value in await read(log, P0, 200)] == values


async def test_two_writers_interleave_without_a_gap_or_a_repeat(rig):
    async with rig.log() as closed, rig.log() as other_closed:
        log, other = await opened(closed), await opened(other_closed)
        async with asyncio.TaskGroup() as tasks:
            answers = {
                b"%d-%d" % (who, number): tasks.create_task(
                    each.append(P0, b"%d-%d" % (who, number))
                )
                for number in range(100)
                for who, each in enumerate((log, other))
            }
        told = sorted((answer.result(), value) for value, answer in answers.items())
        assert await read(log, P0, 200) == told == await read(other, P0, 200)


async def test_the_cluster_port_names_brokers_leaders_and_unknown_topics(rig, cluster):
    async with rig.log() as closed:
        log = await opened(closed)
        assert log.identity is not None
        port = KafkaCluster(log.client, rig.topic, lambda: None)
        assert await port.cluster_id() == cluster.cluster_id == log.identity.cluster_id
        assert {int(each) for each in await port.brokers()} == set(cluster.nodes)
        leaders = await port.metadata_leaders()
        assert leaders.keys() == set(range(log.identity.partition_count))
        known, never = log.identity.topic_id, TopicId(b"never" + bytes(11))
        assert await port.topic_ids_unknown(frozenset({known, never})) == {never}
        assert (await port.tiered_topics(leaders[P0])).replicated == frozenset()


async def test_a_broker_that_is_gone_is_registered_and_fenced(rig, cluster):
    if len(cluster.nodes) == 1:
        pytest.skip("needs a broker that stays")
    async with rig.log() as closed:
        log = await opened(closed)
        port = KafkaCluster(log.client, rig.topic, lambda: None)
        gone = max(cluster.nodes)
        await asyncio.to_thread(cluster.stop, [gone])
        async with asyncio.timeout(WAIT_SECONDS):
            while not (await port.brokers())[gone].fenced:
                port.refresh()
                await asyncio.sleep(0.1)
        assert {int(each) for each in await port.brokers()} == set(cluster.nodes)


async def test_what_the_broker_replicates_of_tiered_topics_is_discovered(rig):
    if rig.cluster.count == 1:
        pytest.skip("needs a broker that replicates less than all")
    log_topic = rig.topic
    made = {}
    for name, tiered, placement in (
        ("tiered", "true", [[1, 2], [2, 3], [3, 1]]),
        ("local", "false", [[1, 2]]),
    ):
        rig.topic = f"{log_topic}.{name}"
        made[name] = TopicId(uuid_bytes(rig.create(placement, remote_storage_enable=tiered)))
    rig.topic = log_topic
    async with rig.log() as closed:
        log = await opened(closed)
        port = KafkaCluster(log.client, rig.topic, lambda: None)
        name = f"{log_topic}.tiered"
        for broker, held in ((1, {0, 2}), (2, {0, 1}), (3, {1, 2})):
            found: set[int] = set()
            async with asyncio.timeout(WAIT_SECONDS):
                while found != held:  # not every broker knows of a new topic at once
                    port.refresh()
                    seen = (await port.tiered_topics(BrokerId(broker))).replicated
                    mine = [each for each in seen if each.topic == name]
                    found = {each.partition for each in mine}
                    assert {each.topic_id for each in mine} <= {made["tiered"]}
                    assert not any(each.topic == f"{log_topic}.local" for each in seen)
