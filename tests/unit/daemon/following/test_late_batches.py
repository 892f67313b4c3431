"""Batches of a log whose replica here is behind: what is read does not say what there is by now."""

from collections.abc import AsyncGenerator

import msgspec
import pytest

from rlmm_daemon.core.readiness.states import PartitionState
from rlmm_daemon.domain.errors import NotReady
from rlmm_daemon.domain.ids import MetadataPartition
from rlmm_daemon.ports.event_log import LogBatch
from tests.support.memory_log import MemoryEventLog
from tests.unit.daemon.events import TP, of, ready, segment_id, started, until, updated
from tests.unit.daemon.metadata.test_manager import found


class BehindLog(MemoryEventLog):
    """One that may have a backlog, and then says so."""

    is_behind = False

    async def follow(
        self, partition: MetadataPartition, from_offset: int, *, epoch: int
    ) -> AsyncGenerator[LogBatch, None]:
        async for batch in super().follow(partition, from_offset, epoch=epoch):
            if batch.records or not self.is_behind:
                yield msgspec.structs.replace(batch, late=self.is_behind)


async def test_a_stale_partition_is_ready_again_once_all_is_read_and_not_by_a_backlog(rig):
    rig.log_of = BehindLog
    async with rig.manager() as manager:
        manager.replace_assignment([TP], [])
        await ready(manager)
        follower = manager.fleet.followers[of(TP)]
        follower.context.log.is_behind = True
        follower._answered_at -= 61
        rig.store.put(of(TP), started(1, 0, 9))
        rig.store.put(of(TP), updated(1))
        await until(lambda: follower.fold.position == 2)
        assert follower.state is PartitionState.STALE
        assert found(manager, 5) == segment_id(1), "what was read is true"
        with pytest.raises(NotReady, match="stale"):
            found(manager, 50)
        follower.context.log.is_behind = False
        await ready(manager)
