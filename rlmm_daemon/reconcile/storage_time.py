"""The storage's own time: what it says of an object that was written just now.

Ages of objects are by this clock, and so must be whatever is compared with them: a machine whose
clock is wrong would hold a lease for a year, or take a quarantine for over that began today.
"""

import time
from datetime import UTC, datetime
from typing import Final

from rlmm_daemon.daemon.bucket import storage_clock
from rlmm_daemon.ports.storage import ObjectInfo, RemoteStorage
from rlmm_daemon.reconcile import control
from rlmm_daemon.reconcile.errors import Incomplete, Refused

#: How far this machine's clock and the storage's may be apart.
SKEW_MS: Final = 300_000


class StorageClock:
    """The storage's time from one look on, by this machine's monotonic clock."""

    def __init__(self, at_ms: int) -> None:
        self._at_ms, self._began = at_ms, time.monotonic()

    def now_ms(self) -> int:
        """Return the storage's time in ms since 1970."""
        return self._at_ms + int((time.monotonic() - self._began) * 1000)

    def check(self, local_ms: int) -> None:
        """See that this machine's clock is right.

        Raises:
            Refused: it is not.
        """
        apart_ms = local_ms - self.now_ms()
        if abs(apart_ms) > SKEW_MS:
            side = "ahead of" if apart_ms > 0 else "behind"
            reason = (
                f"this machine's clock is {abs(apart_ms) // 1000} s {side} the storage's"
                f" ({_text(local_ms)}, {_text(self.now_ms())}): set it right"
            )
            raise Refused([reason])


class Steady:
    """This machine's wall clock, held against its monotonic one since the run began."""

    def __init__(self) -> None:
        self._wall_ms, self._began = wall_ms(), time.monotonic()

    def check(self) -> None:
        """See that nobody set the clock: a run counts ages from when it began.

        Raises:
            Refused: somebody did.
        """
        moved_ms = wall_ms() - self._wall_ms - int((time.monotonic() - self._began) * 1000)
        if abs(moved_ms) > SKEW_MS:
            raise Refused(
                [f"this machine's clock was set by {moved_ms // 1000} s since the run began"]
            )


def wall_ms() -> int:
    """Return this machine's time in ms since 1970."""
    return time.time_ns() // 1_000_000


async def read(storage: RemoteStorage) -> StorageClock:
    """Write an object and return the time that the storage gave it.

    Raises:
        Incomplete: the storage does not list what was written.
    """
    found = await storage_clock.now_ms(storage)
    if found is None:
        raise Incomplete(f"{storage_clock.CLOCK_KEY} was written and is not listed")
    return StorageClock(found)


async def row_of(storage: RemoteStorage, key: str) -> ObjectInfo | None:
    """Return what a listing says of one control object; None where it has none."""
    async for page in storage.list(control.HOME):
        for row in page:
            if row.key == key:
                return row
    return None


def _text(at_ms: int) -> str:
    try:
        return f"{datetime.fromtimestamp(at_ms / 1000, tz=UTC):%Y-%m-%dT%H:%M:%SZ}"
    except (ValueError, OverflowError, OSError):
        return f"{at_ms} ms"
