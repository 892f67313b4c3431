"""Configured event log for who reads or mends it without a daemon."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.adapters.os.disk import LocalDisk
from rlmm_daemon.config import Config, QuorumLog
from rlmm_daemon.domain.errors import ConfigError
from rlmm_daemon.ports.event_log import EventLog
from rlmm_daemon.wiring import adapters


def require_readable(config: Config) -> None:
    """Refuse a quorum's log: to open a replica is to vote with it.

    Raises:
        ConfigError: it is one.
    """
    if isinstance(config.event_log, QuorumLog):
        raise ConfigError(
            'event_log.kind = "quorum": this command does not read a quorum\'s log yet. Ask a '
            "daemon that runs (rlmm segments, rlmm explain, rlmm export); the nightly job reads "
            'its exports ([metadata] kind = "export")'
        )


@asynccontextmanager
async def log_alone(config: Config, *, votes: bool = False) -> AsyncIterator[EventLog]:
    """Yield the log, not open yet; it is closed at the end.

    `votes`: of a quorum's log this process runs the daemon's replica, in the daemon's place.

    Raises:
        ConfigError: it is a quorum's, and this process is not to vote in it.
    """
    if not votes:
        require_readable(config)
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
