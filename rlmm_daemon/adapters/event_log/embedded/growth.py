"""A follower's wait at the log's end: for the next batch, or until it is due to hear something."""

import asyncio

from rlmm_daemon.adapters.event_log.embedded.journal import Journal


class Growth:
    """One follower's wait. Its timer outlasts the waits, since a batch may come every moment."""

    def __init__(self, journal: Journal, heartbeat_seconds: float) -> None:
        self._journal = journal
        self._heartbeat_seconds = heartbeat_seconds
        self._timer: asyncio.TimerHandle | None = None
        self._waiter: asyncio.Future[bool] | None = None

    async def wait(self) -> bool:
        """Return True once the journal grew, False when a heartbeat is due; look before waiting."""
        loop = asyncio.get_running_loop()
        waiter = self._waiter = self._journal.growth()
        if self._timer is None:
            self._timer = loop.call_later(self._heartbeat_seconds, self._beat)
        return await waiter

    def _beat(self) -> None:
        """End a wait, perhaps one that has just begun: a heartbeat too many does no harm."""
        self._timer = None
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(False)

    def close(self) -> None:
        """Wait no more."""
        if self._timer is not None:
            self._timer.cancel()
