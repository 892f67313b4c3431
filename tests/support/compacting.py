"""Compaction of an embedded log at rest, to its end, as a daemon with snapshots does it."""

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from rlmm_daemon.adapters.event_log.embedded import EmbeddedLog, EmbeddedOptions
from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.adapters.os.disk import LocalDisk
from rlmm_daemon.core.snapshots.compaction import When
from rlmm_daemon.domain.ids import MetadataPartition
from rlmm_daemon.ports.event_log import Compacted

ALWAYS = EmbeddedOptions(compaction=When(factor=1.0, bytes_min=1))


@asynccontextmanager
async def steady() -> AsyncGenerator[bool, None]:
    yield True


async def compacted(directory: str, partition_count: int) -> list[Compacted]:
    """Compact all partitions of a log that no daemon has; return what that did."""
    disk = LocalDisk()
    try:
        async with asyncio.TaskGroup() as group:
            log = EmbeddedLog(
                disk=disk,
                clock=SystemClock(),
                spawn=lambda work, name: group.create_task(work, name=name),
                luck=random.Random(1),
                directory=directory,
                partition_count=partition_count,
                options=ALWAYS,
            )
            await log.open(create=False)
            try:
                return await _all(log)
            finally:
                await log.close()
    finally:
        disk.close()


async def _all(log: EmbeddedLog) -> list[Compacted]:
    assert log.identity is not None, "open"
    done = list[Compacted]()
    for number in map(MetadataPartition, range(log.identity.partition_count)):
        await log.seal(number)
        end = (await log.end_offsets([number]))[number].end
        found = await log.compact(number, end, turn=lambda: asyncio.sleep(0), steady=steady)
        done += [found] if found is not None else []
    return done
