"""Keeps this daemon's presence file in the bucket fresh, for the cleaners and the nightly job."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

import structlog

from rlmm_daemon.codec import marker
from rlmm_daemon.codec.marker import Presence, PresencePartition
from rlmm_daemon.core.facts import LastError
from rlmm_daemon.domain.errors import UnavailableError
from rlmm_daemon.ports.clock import Clock
from rlmm_daemon.ports.storage import RemoteStorage

REWRITE_SECONDS: Final = 60.0
#: Without a rewrite for so long, this daemon is not there any more.
LEASE_SECONDS: Final = 180.0
#: Changes within this time share one write.
SETTLE_SECONDS: Final = 1.0
WRITE_SECONDS_MAX: Final = 30.0

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class PresenceFacts:
    """What changes while the daemon runs; asked for at each write."""

    incarnation: int | None
    lease_end_ms: int | None
    metadata_manager: Literal["rlmm", "foreign"]
    partitions: dict[int, PresencePartition]


class PresenceFile:
    """One writer for one file; `changed` asks for a write soon."""

    def __init__(
        self,
        storage: RemoteStorage,
        clock: Clock,
        *,
        cluster_id: str,
        broker_id: int,
        copy_deadline_seconds: float,
        facts: Callable[[], PresenceFacts],
        may_write: Callable[[], bool] = lambda: True,
    ) -> None:
        """`may_write` is false while the storage may be somebody else's."""
        self._may_write = may_write
        self._storage, self._clock, self._facts = storage, clock, facts
        self._cluster_id, self._broker_id = cluster_id, broker_id
        self._copy_deadline_seconds = copy_deadline_seconds
        self._started_at_ms = clock.now_ms()
        self._changed = asyncio.Event()
        #: What the last write met; None if it succeeded.
        self.trouble: LastError | None = None

    def changed(self) -> None:
        """Say that the facts are others now: states, incarnation, lease, not mere offsets."""
        self._changed.set()

    async def run(self) -> None:
        """Write now, on change and every 60 s, for ever; a storage that is away is retried."""
        while True:
            self._changed.clear()
            await self._try_write()
            await asyncio.sleep(SETTLE_SECONDS)
            try:
                async with asyncio.timeout(REWRITE_SECONDS - SETTLE_SECONDS):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def write(self) -> None:
        """Write once, unless the storage may be somebody else's.

        Raises:
            StorageUnavailable, StorageFull: as they say.
        """
        if not self._may_write():
            return
        facts = self._facts()
        presence = Presence(
            cluster_id=self._cluster_id,
            broker_id=self._broker_id,
            incarnation=facts.incarnation,
            started_at_ms=self._started_at_ms,
            written_at_ms=self._clock.now_ms(),
            copy_deadline_seconds=self._copy_deadline_seconds,
            lease_end_ms=facts.lease_end_ms,
            metadata_manager=facts.metadata_manager,
            partitions=facts.partitions,
        )
        key = marker.presence_key(self._broker_id)
        await self._storage.overwrite_control(key, marker.encode(presence))

    async def _try_write(self) -> None:
        try:
            async with asyncio.timeout(WRITE_SECONDS_MAX):
                await self.write()
        except (UnavailableError, TimeoutError) as error:
            words = str(error) or f"no answer in {WRITE_SECONDS_MAX:g} s"
            log.warning("presence file not written", error=words)
            before = 0 if self.trouble is None else self.trouble.consecutive
            self.trouble = LastError(
                message=words, at_ms=self._clock.now_ms(), consecutive=before + 1
            )
        else:
            self.trouble = None
