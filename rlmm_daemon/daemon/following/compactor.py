"""Compaction of the log's metadata partitions: when one may be compacted, and up to which offset.

Never beyond the oldest snapshot that is kept: whoever starts from one reads nothing that lacks
events, and no snapshot knows a segment whose end was dropped. Nor while a fold is compared with
what an earlier one knew (`history`), or while the log lacks offsets that nobody accepted.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import asynccontextmanager
from typing import Final

import msgspec
import structlog

from rlmm_daemon.daemon.base.crash_guard import blame
from rlmm_daemon.daemon.base.fair_scheduler import FairScheduler
from rlmm_daemon.daemon.following.follower import Follower
from rlmm_daemon.daemon.following.snapshots import SnapshotStore
from rlmm_daemon.daemon.following.snapshotter import allowed
from rlmm_daemon.domain.errors import RlmmError
from rlmm_daemon.domain.ids import MetadataPartition
from rlmm_daemon.ports.clock import Clock
from rlmm_daemon.ports.event_log import Compactable, Compacted

POLL_SECONDS: Final = 30.0
#: One that failed read the log for nothing, and most likely would again.
AGAIN_SECONDS: Final = 600.0

logger = structlog.get_logger(__name__)


class Counts(msgspec.Struct):
    """What was done since the start."""

    done: int = 0
    failed: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    #: The last error, until a compaction succeeds.
    trouble: str | None = None


class Compactor:
    """Compacts one metadata partition after another."""

    def __init__(
        self, log: Compactable, snapshots: SnapshotStore, clock: Clock, turns: FairScheduler
    ) -> None:
        self._log = log
        self._snapshots = snapshots
        self._clock = clock
        self._turns = turns
        self.counts = Counts()
        #: When one that failed may be tried again.
        self._again_at: dict[MetadataPartition, float] = {}

    async def run(self, followers: Callable[[], Collection[Follower]]) -> None:
        """Compact what is due, for ever."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            for follower in list(followers()):
                if self._clock.monotonic() >= self._again_at.get(follower.partition, 0.0):
                    with blame(follower.partition):
                        await self.try_compact(follower)

    async def try_compact(self, follower: Follower) -> Compacted | None:
        """Compact a partition if it is due and may be; a failure is logged and tried later."""
        try:
            done = await self.compact(follower)
        except (RlmmError, OSError) as error:
            message = error.message if isinstance(error, RlmmError) else str(error)
            self.counts.failed += 1
            self.counts.trouble = message
            self._again_at[follower.partition] = self._clock.monotonic() + AGAIN_SECONDS
            logger.warning(
                "log not compacted", metadata_partition=follower.partition, error=message
            )
            return None
        self._again_at.pop(follower.partition, None)
        return done

    async def compact(self, follower: Follower) -> Compacted | None:
        """Compact a partition if it is due and may be.

        Raises:
            RlmmError, OSError: it was not; the log is as it was.
        """
        if not _may_be(follower):
            return None
        fold = follower.fold
        oldest = await self._snapshots.oldest_position(follower.partition)
        if oldest is None:
            return None

        @asynccontextmanager
        async def steady() -> AsyncGenerator[bool, None]:
            async with follower.steady:
                yield follower.fold is fold and _may_be(follower)

        began = self._clock.monotonic()
        upto = min(oldest, fold.position)
        done = await self._log.compact(
            follower.partition, upto, turn=self._turns.wait, steady=steady
        )
        if done is not None:
            self._note(follower.partition, done, self._clock.monotonic() - began)
        return done

    def _note(self, partition: MetadataPartition, done: Compacted, seconds: float) -> None:
        counts = self.counts
        counts.done += 1
        counts.bytes_before += done.bytes_before
        counts.bytes_after += done.bytes_after
        counts.trouble = None
        logger.info(
            "log compacted",
            metadata_partition=partition,
            until=done.until,
            bytes_before=done.bytes_before,
            bytes_after=done.bytes_after,
            events_after=done.events_after,
            seconds=round(seconds, 3),
        )


def _may_be(follower: Follower) -> bool:
    """Whether the fold is whole, and nothing is left that was to be compared with the log."""
    return allowed(follower) and follower.position_confirmed
