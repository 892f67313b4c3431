from collections.abc import AsyncIterator

import pytest

from rlmm_daemon.adapters.event_log.memory import MemoryEventLog, MemoryLogStore
from rlmm_daemon.domain.errors import StorageFull
from rlmm_daemon.domain.ids import MetadataPartition, TopicId
from rlmm_daemon.ports.event_log import EventLog
from tests.contract.event_log import P0, EventLogContract

NOTHING_IS_LOST = "it ends with its process, and loses nothing before"
ONLY_EVENTS = "only managers append to it, and only events"


class MemoryHarness:
    def __init__(self) -> None:
        self.cannot = {
            "absent": "a store is its log",
            "truncate": NOTHING_IS_LOST,
            "trim": NOTHING_IS_LOST,
            "recreate": NOTHING_IS_LOST,
            "lose": NOTHING_IS_LOST,
            "put_tombstone": ONLY_EVENTS,
            "pass_over": ONLY_EVENTS,
            "fail_next_append": "an append is a call in one process",
        }
        self.store = MemoryLogStore(topic_id=TopicId(b"a" * 16), partition_count=3)
        self.log: EventLog = MemoryEventLog(self.store, heartbeat_seconds=0.01)

    async def restart(self) -> None:
        await self.log.close()
        self.log = await self.second()

    async def second(self) -> EventLog:
        log = MemoryEventLog(self.store, heartbeat_seconds=0.01)
        await log.open(create=True)
        return log

    def absent(self) -> EventLog:
        raise AssertionError(self.cannot["absent"])

    async def truncate(self, partition: MetadataPartition, end: int) -> None:
        raise AssertionError(self.cannot["truncate"], partition, end)

    async def trim(self, partition: MetadataPartition) -> int:
        raise AssertionError(self.cannot["trim"], partition)

    async def recreate(self) -> None:
        raise AssertionError(self.cannot["recreate"])

    async def put_tombstone(self, partition: MetadataPartition) -> int:
        raise AssertionError(self.cannot["put_tombstone"], partition)

    async def lose(self, partition: MetadataPartition, offset: int) -> None:
        raise AssertionError(self.cannot["lose"], partition, offset)

    async def pass_over(self, partition: MetadataPartition) -> None:
        raise AssertionError(self.cannot["pass_over"], partition)

    async def fail_next_append(self, partition: MetadataPartition) -> None:
        raise AssertionError(self.cannot["fail_next_append"], partition)


class TestMemoryEventLog(EventLogContract):
    @pytest.fixture
    async def harness(self) -> AsyncIterator[MemoryHarness]:
        harness = MemoryHarness()
        await harness.log.open(create=True)
        yield harness
        await harness.log.close()


async def test_a_store_that_is_full_refuses_and_holds_what_it_has():
    store = MemoryLogStore(topic_id=TopicId(b"t" * 16), partition_count=1, records_max=1)
    log = MemoryEventLog(store)
    await log.open(create=True)
    assert await log.append(P0, b"first") == 0
    with pytest.raises(StorageFull):
        await log.append(P0, b"second")
    assert (await log.end_offsets([P0]))[P0].end == 1
