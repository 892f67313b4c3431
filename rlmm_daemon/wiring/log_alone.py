"""Configured event log for who reads or mends it without a daemon."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.adapters.os.disk import LocalDisk
from rlmm_daemon.config import Config
from rlmm_daemon.ports.event_log import EventLog
from rlmm_daemon.wiring import adapters


@asynccontextmanager
async def log_alone(config: Config) -> AsyncIterator[EventLog]:
    """Yield the log, not open yet; it is closed at the end."""
    disk = LocalDisk()
    try:
        async with asyncio.TaskGroup() as group:
            log = adapters.event_log_of(
                config,
                disk,
                SystemClock(),
                random.Random(),  # noqa: S311 - names and jitter
                spawn=lambda work, name: group.create_task(work, name=name),
            )
            try:
                yield log
            finally:
                await log.close()
    finally:
        disk.close()
