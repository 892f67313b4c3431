"""The event-log contract on real brokers; a leader's files are cut where it would lose a tail."""

import asyncio
import os
import random
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.structs import TopicPartition

from deploy.dev.stack.kafka.cluster import Cluster
from rlmm_daemon.adapters.kafka.connection.security import load_security
from rlmm_daemon.adapters.kafka.event_log import KafkaLog
from rlmm_daemon.adapters.kafka.event_log.producer import Producer
from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.config import KafkaAdmin, KafkaClient, KafkaFetch, KafkaSecurity
from rlmm_daemon.domain.errors import StorageUnavailable
from rlmm_daemon.domain.ids import MetadataPartition
from rlmm_daemon.ports.event_log import EventLog
from tests.contract.event_log import EventLogContract


class KafkaHarness:
    def __init__(self, broker: Cluster, topic: str, tasks: asyncio.TaskGroup) -> None:
        self.cannot: dict[str, str] = {}
        self.broker = broker
        self.topic = topic
        self.tasks = tasks
        self.config = KafkaClient(
            bootstrap=tuple(broker.bootstrap().split(",")),
            topic=topic,
            admin=KafkaAdmin(partition_count=3, replication_factor=1),
            fetch=KafkaFetch(max_wait_ms=50),
        )
        self.log: EventLog = self._make(self.config)

    def _make(self, config: KafkaClient) -> KafkaLog:
        return KafkaLog(
            config,
            clock=SystemClock(),
            luck=random.Random(3),
            spawn=lambda work, name: self.tasks.create_task(work, name=name),
            load_security=lambda: load_security(KafkaSecurity()),
        )

    async def restart(self) -> None:
        await self.log.close()
        self.log = await self.second()

    async def second(self) -> EventLog:
        log = self._make(self.config)
        await log.open(create=True)
        return log

    def absent(self) -> EventLog:
        return self._make(msgspec.structs.replace(self.config, topic=f"{self.topic}.absent"))

    async def truncate(self, partition: MetadataPartition, end: int) -> None:
        """As after a power cut that took what only the page cache held."""
        assert isinstance(self.log, KafkaLog)
        leader = self.log.directory.leader(partition)
        assert leader is not None
        await self.log.close()
        await asyncio.to_thread(self._cut, leader.node.node_id, partition, end)
        self.log = await self.second()

    async def lose(self, partition: MetadataPartition, offset: int) -> None:
        """As a log cleaner does that finds no key: the offset stays, its record does not."""
        assert isinstance(self.log, KafkaLog)
        leader = self.log.directory.leader(partition)
        assert leader is not None
        await self.log.close()
        await asyncio.to_thread(self._take_out, leader.node.node_id, partition, offset)
        self.log = await self.second()

    def _take_out(self, node_id: int, partition: MetadataPartition, offset: int) -> None:
        self.broker.kill(node_id)
        directory = self.broker.data(node_id) / f"{self.topic}-{partition}"
        file = directory / f"{0:020}.log"
        data, kept, at = file.read_bytes(), b"", 0
        while at < len(data):
            size = 12 + struct.unpack_from(">i", data, at + 8)[0]
            if int.from_bytes(data[at : at + 8], "big") != offset:
                kept += data[at : at + size]
            at += size
        file.write_bytes(kept)
        for leftover in (*directory.glob("*.index"), *directory.glob("*.timeindex")):
            leftover.unlink()
        self.broker.start_nodes([node_id])

    async def pass_over(self, partition: MetadataPartition) -> None:
        """Two markers of transactions, one aborted; Kafka's own consumer reads both records."""
        producer = AIOKafkaProducer(
            bootstrap_servers=self.broker.bootstrap(), transactional_id=self.topic
        )
        await producer.start()
        try:
            for end in (producer.commit_transaction, producer.abort_transaction):
                await producer.begin_transaction()
                await producer.send_and_wait(self.topic, b"sent", partition=int(partition))
                await end()
        finally:
            await producer.stop()

    def _cut(self, node_id: int, partition: MetadataPartition, end: int) -> None:
        self.broker.kill(node_id)
        directory = self.broker.data(node_id) / f"{self.topic}-{partition}"
        file = directory / f"{0:020}.log"
        data, at = file.read_bytes(), 0
        while at < len(data) and int.from_bytes(data[at : at + 8], "big") < end:
            at += 12 + struct.unpack_from(">i", data, at + 8)[0]
        file.write_bytes(data[:at])
        for leftover in (*directory.glob("*.index"), *directory.glob("*.timeindex")):
            leftover.unlink()
        # The high watermark is the controller's word on what was replicated: it is lost, too.
        (self.broker.data(node_id) / "replication-offset-checkpoint").unlink(missing_ok=True)
        self.broker.start_nodes([node_id])

    async def trim(self, partition: MetadataPartition) -> int:
        async with self._admin() as admin:
            at = TopicPartition(self.topic, int(partition))
            await admin.delete_records({at: RecordsToDelete(before_offset=11)})
        return 11

    async def recreate(self) -> None:
        async with self._admin() as admin:
            await admin.delete_topics([self.topic])
        other = self._make(self.config)
        await self._made_again(other)
        await other.close()

    async def _made_again(self, log: KafkaLog) -> None:
        identity = self.log.identity
        assert identity is not None
        async with asyncio.timeout(20):
            while True:
                try:
                    if (await log.open(create=True)).topic_id != identity.topic_id:
                        return
                except StorageUnavailable:
                    pass
                await asyncio.sleep(0.05)

    async def put_tombstone(self, partition: MetadataPartition) -> int:
        producer = AIOKafkaProducer(bootstrap_servers=self.broker.bootstrap())
        await producer.start()
        try:
            where = {"partition": int(partition)}
            sent = await producer.send_and_wait(self.topic, None, key=b"dead", **where)
        finally:
            await producer.stop()
        return int(sent.offset)

    async def fail_next_append(self, partition: MetadataPartition) -> None:
        """The broker writes it; every answer is lost until the delivery timeout has passed."""
        assert isinstance(self.log, KafkaLog)
        assert partition == 0, "answers are lost whatever the partition"
        producer, ask = self.log.producer, self.log.producer._ask
        # Of what is sent from now on: elsewhere a broker that was just started may take its time.
        shorter = msgspec.structs.replace(self.config.producer, delivery_timeout_ms=500)
        setattr(producer, "_config", shorter)  # noqa: B010 - its own business otherwise

        async def answers_lost(connection: Any, sent: Any) -> Any:
            await ask(connection, sent)
            if producer.lost_count:
                return await ask(connection, sent)
            raise StorageUnavailable("the answer was lost")

        setattr(producer, Producer._ask.__name__, answers_lost)

    @asynccontextmanager
    async def _admin(self) -> AsyncIterator[AIOKafkaAdminClient]:
        admin = AIOKafkaAdminClient(bootstrap_servers=self.broker.bootstrap())
        await admin.start()
        try:
            yield admin
        finally:
            await admin.close()


class TestKafkaEventLog(EventLogContract):
    @pytest.fixture
    async def harness(
        self, cluster: Cluster, request: pytest.FixtureRequest
    ) -> AsyncIterator[KafkaHarness]:
        topic = f"c.{os.urandom(3).hex()}.{request.node.originalname}"[:200]
        async with asyncio.TaskGroup() as tasks:
            harness = KafkaHarness(cluster, topic, tasks)
            await harness.log.open(create=True)
            yield harness
            await harness.log.close()
