"""The metadata manager in the caller's own event loop: no daemon, no socket; for tests and tools.

`open_manager()` runs the very manager that the daemon runs, over a log in memory or in a directory.
Its methods are those of `client.AsyncClient`, so that code can be moved from one to the other.
"""

import asyncio
import os
import random
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final, TypeVar

from rlmm_daemon.adapters.event_log.embedded import EmbeddedLog, EmbeddedOptions
from rlmm_daemon.adapters.event_log.memory import MemoryEventLog, MemoryLogStore
from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.adapters.os.disk import LocalDisk
from rlmm_daemon.codec import records
from rlmm_daemon.daemon.base.caller import Caller
from rlmm_daemon.daemon.base.segment_log import decode_segment
from rlmm_daemon.daemon.metadata.manager import Manager, ManagerOptions
from rlmm_daemon.domain.errors import Draining, NotReady
from rlmm_daemon.domain.ids import UUID_BYTES, TopicId, TopicIdPartition
from rlmm_daemon.domain.partition_delete import PartitionDelete
from rlmm_daemon.domain.segment import SegmentMetadata, SegmentUpdate
from rlmm_daemon.observability.logging import begin_quiet

T = TypeVar("T")

CLUSTER_ID: Final = "embedded"
PARTITION_COUNT: Final = 50
TIMEOUT_SECONDS: Final = 30.0


class OpenManager:
    """A running manager in the domain's words. A look-up waits until it can be answered."""

    def __init__(self, manager: Manager, timeout_seconds: float) -> None:
        #: What the daemon's rooms see: record bytes, callers, gates.
        self.manager = manager
        self._timeout_seconds = timeout_seconds

    async def add_remote_log_segment_metadata(self, segment: SegmentMetadata) -> None:
        """Append a COPY_SEGMENT_STARTED; returns once it is applied."""
        await self.manager.events.add(
            records.encode(segment), Caller.OPERATOR, self._timeout_seconds
        )

    async def update_remote_log_segment_metadata(self, update: SegmentUpdate) -> None:
        """Append an update; returns once it is applied."""
        await self.manager.events.update(
            records.encode(update), Caller.OPERATOR, self._timeout_seconds
        )

    async def put_remote_partition_delete_metadata(self, mark: PartitionDelete) -> None:
        """Append a step of a user partition's removal."""
        record = records.encode(mark)
        await self.manager.events.put_partition_delete(
            record, Caller.OPERATOR, self._timeout_seconds
        )

    async def remote_log_segment_metadata(
        self, partition: TopicIdPartition, epoch: int, offset: int
    ) -> SegmentMetadata | None:
        """Return the finished segment that holds an offset in a leader epoch."""
        ask = self.manager.lookups.remote_log_segment_metadata
        found = await self._read(partition, lambda: ask(partition, epoch, offset, Caller.OPERATOR))
        return None if found is None else decode_segment(found)

    async def next_segment_with_txn_index(
        self, partition: TopicIdPartition, epoch: int, offset: int
    ) -> SegmentMetadata | None:
        """Return the next segment at or behind an offset that has a transaction index."""
        ask = self.manager.lookups.next_segment_with_txn_index
        found = await self._read(partition, lambda: ask(partition, epoch, offset, Caller.OPERATOR))
        return None if found is None else decode_segment(found)

    async def list_remote_log_segments(
        self, partition: TopicIdPartition, epoch: int | None = None
    ) -> list[SegmentMetadata]:
        """Return the segments in Kafka's order; of all epochs when none is given."""
        ask = self.manager.lookups.list_remote_log_segments
        found = await self._read(partition, lambda: ask(partition, epoch, Caller.OPERATOR))
        return [decode_segment(record) for record in found]

    async def highest_offset_for_epoch(self, partition: TopicIdPartition, epoch: int) -> int | None:
        """Return the highest offset that was copied in a leader epoch."""
        ask = self.manager.lookups.highest_offset_for_epoch
        return await self._read(partition, lambda: ask(partition, epoch, Caller.OPERATOR))

    async def remote_log_size(self, partition: TopicIdPartition, epoch: int) -> int:
        """Return the bytes of all segments of a leader epoch."""
        ask = self.manager.lookups.remote_log_size
        return await self._read(partition, lambda: ask(partition, epoch, Caller.OPERATOR))

    async def _read(self, partition: TopicIdPartition, ask: Callable[[], T]) -> T:
        if self.manager.gates.draining:  # what it had read may be answered yet, and gets old
            raise Draining("the manager is closed")
        try:
            return ask()
        except NotReady:
            await self.manager.lookups.until_readable(
                partition, Caller.OPERATOR, self._timeout_seconds
            )
            return ask()


@asynccontextmanager
async def open_manager(
    state_dir: str | None = None,
    *,
    store: MemoryLogStore | None = None,
    partition_count: int = PARTITION_COUNT,
    cluster_id: str = CLUSTER_ID,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> AsyncIterator[OpenManager]:
    """Run a manager while the context is open; metadata only, no segments are moved.

    With `state_dir` everything is kept there, log included, and found again; the directory is
    locked against a second manager and a daemon. Without, nothing is kept: the log is in memory,
    the manager's own or a `store` that several share. `partition_count` is fixed when a log is
    made. An error of a background task cancels the caller's block and is raised from it. Log lines
    go where the host's structlog sends them; where that is not configured, warnings and worse go to
    standard error.
    """
    begin_quiet()
    assert state_dir is None or store is None, "a log in a directory or one in memory"
    own: BaseException | None = None
    try:
        async with AsyncExitStack() as held:
            disk = LocalDisk()
            held.callback(disk.close)
            directory = state_dir or held.enter_context(tempfile.TemporaryDirectory(prefix="rlmm-"))
            tasks = await held.enter_async_context(asyncio.TaskGroup())
            log = (
                _memory(store, partition_count, cluster_id)
                if state_dir is None
                else _embedded(directory, disk, tasks, partition_count, cluster_id=cluster_id)
            )
            held.push_async_callback(log.close)
            manager = Manager(
                log=log,
                disk=disk,
                clock=SystemClock(),
                rng=random.Random(),  # noqa: S311 - jitter, no secrets
                options=ManagerOptions(state_dir=directory),
            )
            running = tasks.create_task(manager.run(), name="manager")
            held.callback(running.cancel)
            await _until_open(manager)
            held.push_async_callback(manager.drain)
            try:
                yield OpenManager(manager, timeout_seconds)
            except BaseException as error:
                own = error
                raise
    except BaseExceptionGroup as group:
        if own is not None and group.exceptions == (own,):
            raise own from None  # the caller's error, not wrapped by the group of our tasks
        raise


def _memory(store: MemoryLogStore | None, partition_count: int, cluster_id: str) -> MemoryEventLog:
    return MemoryEventLog(
        store
        or MemoryLogStore(
            topic_id=TopicId(os.urandom(UUID_BYTES)),
            partition_count=partition_count,
            cluster_id=cluster_id,
        )
    )


def _embedded(
    directory: str,
    disk: LocalDisk,
    tasks: asyncio.TaskGroup,
    partition_count: int,
    *,
    cluster_id: str,
) -> EmbeddedLog:
    return EmbeddedLog(
        disk=disk,
        clock=SystemClock(),
        spawn=lambda work, name: tasks.create_task(work, name=name),
        luck=random.Random(),  # noqa: S311 - names, no secrets
        directory=f"{directory}/log",
        partition_count=partition_count,
        cluster_id=cluster_id,
        options=EmbeddedOptions(),
    )


async def _until_open(manager: Manager) -> None:
    """Return once the log is open; a log that failed for good answers for itself."""
    while manager.fleet.identity is None and manager.fleet.whole_failure is None:
        await manager.fleet.changed.wait()
