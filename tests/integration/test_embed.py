"""The manager in the caller's loop: what it keeps, what several share, how it ends."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from rlmm_daemon.adapters.event_log.memory import MemoryLogStore
from rlmm_daemon.domain.errors import Draining, IllegalTransition, SegmentNotFound
from rlmm_daemon.domain.ids import BrokerId, LeaderEpoch, Offset, SegmentId, TopicId
from rlmm_daemon.domain.ids import TopicIdPartition as Partition
from rlmm_daemon.domain.segment import SegmentMetadata, SegmentState, SegmentUpdate
from rlmm_daemon.embed import OpenManager, open_manager

ORDERS = Partition(TopicId(bytes(range(16))), "orders", 0)
SEGMENT = SegmentMetadata(
    partition=ORDERS,
    segment_id=SegmentId(bytes(16)),
    start_offset=Offset(0),
    end_offset=Offset(99),
    broker_id=BrokerId(1),
    max_timestamp_ms=1,
    event_timestamp_ms=1,
    segment_leader_epochs={LeaderEpoch(5): Offset(0)},
    segment_size_bytes=1000,
)
FINISHED = SegmentUpdate(
    partition=ORDERS,
    segment_id=SEGMENT.segment_id,
    broker_id=BrokerId(1),
    event_timestamp_ms=2,
    state=SegmentState.COPY_SEGMENT_FINISHED,
)


async def copy(manager: OpenManager) -> None:
    await manager.add_remote_log_segment_metadata(SEGMENT)
    await manager.update_remote_log_segment_metadata(FINISHED)


async def test_what_is_copied_is_found_in_its_epoch():
    async with open_manager() as manager:
        assert await manager.list_remote_log_segments(ORDERS) == []
        await copy(manager)
        assert await manager.remote_log_segment_metadata(ORDERS, 5, 50) == SEGMENT.with_update(
            FINISHED
        )
        assert await manager.remote_log_segment_metadata(ORDERS, 4, 50) is None
        assert await manager.next_segment_with_txn_index(ORDERS, 5, 0) is not None
        assert await manager.highest_offset_for_epoch(ORDERS, 5) == 99
        assert await manager.remote_log_size(ORDERS, 5) == 1000


async def test_a_state_directory_is_found_again(tmp_path: Path):
    async with open_manager(str(tmp_path)) as manager:
        await copy(manager)
    async with open_manager(str(tmp_path)) as manager:
        assert len(await manager.list_remote_log_segments(ORDERS)) == 1


async def test_a_store_is_shared_by_several_managers():
    store = MemoryLogStore(topic_id=TopicId(bytes([1] * 16)), partition_count=3)
    async with open_manager(store=store) as writer, open_manager(store=store) as reader:
        await copy(writer)
        assert await reader.remote_log_segment_metadata(ORDERS, 5, 0) is not None


async def test_an_error_of_the_block_comes_out_as_it_is():
    with pytest.raises(SegmentNotFound):
        async with open_manager() as manager:
            await manager.update_remote_log_segment_metadata(FINISHED)


async def test_a_refused_write_leaves_the_manager_usable():
    async with open_manager() as manager:
        await copy(manager)
        with pytest.raises(IllegalTransition):
            await manager.add_remote_log_segment_metadata(replace(SEGMENT, end_offset=Offset(98)))
        assert await manager.remote_log_segment_metadata(ORDERS, 5, 99) is not None


async def test_a_closed_manager_says_so_at_once():
    async with open_manager(timeout_seconds=3600.0) as manager:
        await copy(manager)
    for ask in (
        manager.list_remote_log_segments(ORDERS),
        manager.remote_log_segment_metadata(ORDERS, 5, 50),
        manager.add_remote_log_segment_metadata(SEGMENT),
    ):
        with pytest.raises(Draining):
            await ask
