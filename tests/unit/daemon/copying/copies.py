"""A real manager and a real copier over a log, a storage and a disk that wait when told to."""

import asyncio
import random
import re
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.adapters.os.disk import LocalDisk
from rlmm_daemon.adapters.passes.in_threads import InThreads
from rlmm_daemon.codec import records
from rlmm_daemon.core.explain.facts import CopyPhase
from rlmm_daemon.core.storage.layout import Layout
from rlmm_daemon.daemon.base.caller import Caller
from rlmm_daemon.daemon.bucket.bucket import Bucket
from rlmm_daemon.daemon.copying.copier import Copier
from rlmm_daemon.daemon.copying.copy_job import CopyOptions
from rlmm_daemon.daemon.metadata.manager import Manager, ManagerOptions
from rlmm_daemon.daemon.operator.standing import Standing
from rlmm_daemon.domain.errors import RlmmError
from rlmm_daemon.domain.ids import BrokerId, TopicId
from tests.support.memory_log import MemoryEventLog, MemoryLogStore
from tests.support.memory_storage import MemoryBucket, MemoryStorage
from tests.unit.daemon.segments import IDENTITY, PARTITION, files_in, metadata

PATIENCE_SECONDS = 30


class HeldStorage(MemoryStorage):
    """Waits before an upload or a delete until it is let go; an upload may fail then."""

    def __init__(self) -> None:
        super().__init__(MemoryBucket(), clock=SystemClock())
        self.uploads, self.deletes = asyncio.Event(), asyncio.Event()
        self.uploads.set()
        self.deletes.set()
        self.fault: RlmmError | None = None

    async def put_segment(self, objects, *, progress):
        progress.call = "PutObject .log"
        progress.bytes_done, progress.bytes_total, progress.parts_done = 8 << 20, 16 << 20, 2
        await self.uploads.wait()
        if self.fault is not None:
            raise self.fault
        return await super().put_segment(objects, progress=progress)

    async def delete(self, keys):
        await self.deletes.wait()
        return await super().delete(keys)


class World:
    """A daemon without a socket."""

    def __init__(self, home: Path, group: asyncio.TaskGroup) -> None:
        directory = home / "logs" / "orders-7"
        directory.mkdir(parents=True)
        self.files = files_in(directory)
        self.group = group
        self.store = MemoryLogStore(topic_id=TopicId(bytes(range(16))), partition_count=5)
        self.storage = HeldStorage()
        self.manager = Manager(
            log=MemoryEventLog(self.store),
            disk=LocalDisk(),
            clock=SystemClock(),
            rng=random.Random(1),
            options=ManagerOptions(state_dir=str(home / "state")),
        )
        self.bucket = Bucket(self.storage, layout=Layout(), rng=random.Random(2))
        #: Held by the thread that reads the segment meanwhile.
        self.reading = threading.Event()
        self.reading.set()
        self.copier = Copier(
            self.bucket,
            self.manager.events,
            group,
            options=CopyOptions(parallel_max=1, apply_wait_seconds=PATIENCE_SECONDS),
            log_dirs=[str(home / "logs")],
            broker_id=BrokerId(1),
            now_ms=SystemClock().now_ms,
            passes=InThreads(lambda _: _SlowCheck(self.reading)),
        )
        self.standing = Standing(self.manager, copier=self.copier)

    def copy(self, **changes: Any) -> "asyncio.Task[RlmmError | None]":
        """Begin a copy; its error is what the task returns, since a group ends with an error."""

        async def copied() -> RlmmError | None:
            try:
                await self.copier.copy_segment(records.encode(metadata(**changes)), self.files)
            except RlmmError as error:
                return error
            return None

        return self.group.create_task(copied())

    async def told(self, phase: CopyPhase) -> str:
        """What is said of the copy once it is in this phase; bytes and ages left out."""
        name = f"copy_{phase.value.replace(' ', '_')}"
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                answer = await self.standing.explain(str(PARTITION))
                for notice in answer["also"]:
                    if notice["cause"] == name:
                        assert notice["trouble"] is (phase is CopyPhase.ROLL_BACK)
                        assert notice["next_command"] == "rlmm status"
                        return re.sub(r": [^:]*$", "", notice["sentence"])
                await asyncio.sleep(0.01)


class _SlowCheck:
    """Reads as slowly as a bad disk."""

    def __init__(self, let_go: threading.Event) -> None:
        self._let_go = let_go

    def feed(self, chunk: bytes) -> None:
        pass

    def finish(self) -> None:
        assert self._let_go.wait(PATIENCE_SECONDS)


@asynccontextmanager
async def running(home: Path) -> AsyncIterator[World]:
    async with asyncio.TaskGroup() as group:
        world = World(home, group)
        task = group.create_task(world.manager.run())
        world.manager.replace_assignment([PARTITION], [])
        await world.bucket.open(IDENTITY)
        await world.manager.lookups.until_readable(PARTITION, Caller.OPERATOR, PATIENCE_SECONDS)
        try:
            yield world
        finally:
            for event in (world.storage.uploads, world.storage.deletes, world.reading):
                event.set()
            world.store.resume()
            task.cancel()
