"""A manager on a memory log and a real directory, and the events to feed it with."""

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.adapters.os.disk import LocalDisk
from rlmm_daemon.daemon.metadata.manager import Manager, ManagerOptions
from rlmm_daemon.domain.ids import TopicId
from tests.support.memory_log import MemoryEventLog, MemoryLogStore


class SoleLog(MemoryEventLog):
    """A log that nobody but this daemon writes to, as the embedded one."""

    def begin_beyond(self, epoch: int) -> None:
        """Nothing here is put back as an older copy."""


class Rig:
    """Builds managers over one shared log, one state directory each."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.store = MemoryLogStore(topic_id=TopicId(bytes(range(16))), partition_count=3)
        self.disk = LocalDisk()
        self.heartbeat_seconds = 0.05
        self.log_of: type[MemoryEventLog] = SoleLog

    @asynccontextmanager
    async def manager(
        self, name: str = "a", bucket=None, **options
    ) -> AsyncGenerator[Manager, None]:
        manager = Manager(
            log=self.log_of(self.store, heartbeat_seconds=self.heartbeat_seconds),
            disk=self.disk,
            clock=SystemClock(),
            rng=random.Random(1),
            bucket=bucket,
            options=ManagerOptions(state_dir=f"{self.directory}/{name}", **options),
        )
        async with asyncio.TaskGroup() as group:
            task = group.create_task(manager.run(), name="manager")
            try:
                yield manager
            finally:
                task.cancel()
                await asyncio.wait({task})


@pytest.fixture
async def rig(tmp_path) -> AsyncGenerator[Rig, None]:
    rig = Rig(str(tmp_path))
    yield rig
    rig.disk.close()
