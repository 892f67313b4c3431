from collections.abc import AsyncIterator

import pytest

from rlmm_daemon.domain.ids import MetadataPartition, TopicId
from rlmm_daemon.ports.event_log import NO_EPOCH, EventLog
from tests.contract.event_log import EventLogContract
from tests.support.memory_log import AppendFault, MemoryEventLog, MemoryLogStore


class DoubleHarness:
    def __init__(self) -> None:
        self.cannot: dict[str, str] = {}
        self.store = MemoryLogStore(topic_id=TopicId(b"a" * 16), partition_count=3)
        self.log: EventLog = self._connection()

    def _connection(self) -> MemoryEventLog:
        return MemoryEventLog(self.store, heartbeat_seconds=0.01)

    async def restart(self) -> None:
        await self.log.close()
        self.log = await self.second()

    async def second(self) -> EventLog:
        log = self._connection()
        await log.open(create=True)
        return log

    def absent(self) -> EventLog:
        topic_id = TopicId(b"c" * 16)
        return MemoryEventLog(MemoryLogStore(topic_id=topic_id, partition_count=1, exists=False))

    async def truncate(self, partition: MetadataPartition, end: int) -> None:
        self.store.truncate(partition, end)

    async def trim(self, partition: MetadataPartition) -> int:
        self.store.trim(partition, 11)
        return 11

    async def recreate(self) -> None:
        self.store.recreate(TopicId(b"b" * 16))

    async def put_tombstone(self, partition: MetadataPartition) -> int:
        return self.store.put(partition, None)

    async def lose(self, partition: MetadataPartition, offset: int) -> None:
        self.store.lose(partition, offset, offset + 1)

    async def pass_over(self, partition: MetadataPartition) -> None:
        self.store.skip(partition, 3)

    async def fail_next_append(self, partition: MetadataPartition) -> None:
        self.store.fail_next_append(partition, AppendFault.UNKNOWN_LANDED)


class TestLogDouble(EventLogContract):
    @pytest.fixture
    async def harness(self) -> AsyncIterator[DoubleHarness]:
        harness = DoubleHarness()
        await harness.log.open(create=True)
        yield harness
        await harness.log.close()


async def test_two_followers_at_one_position_are_two():
    """One that ends must not take the other's place in the store's books."""
    store = MemoryLogStore(topic_id=TopicId(b"t" * 16), partition_count=1)
    logs = [MemoryEventLog(store, heartbeat_seconds=0.01) for _ in range(2)]
    streams = []
    for log in logs:
        await log.open(create=True)
        streams.append(log.follow(MetadataPartition(0), 0, epoch=NO_EPOCH))
        await anext(streams[-1])
    for stream in streams:
        await stream.aclose()
    assert store.partition(MetadataPartition(0)).cursors == []
