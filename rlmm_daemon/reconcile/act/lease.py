"""The lease of a run that may delete: one object, one owner at a time, a number that only grows.

Each batch of deletes renews the lease with If-Match first. An owner that was paused past its expiry
and overtaken meets another etag there, and stops before its next delete. The fencing number goes
into every manifest and audit line, so that two runs can be told apart afterwards.

A storage may carry a delete out after its sender is gone. So a lease that was not given back, by a
run that was killed, say, counts for longer to those who wait for deletes than to the next owner.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from rlmm_daemon.codec.marker import CalendarMs
from rlmm_daemon.domain.errors import Malformed, RlmmError
from rlmm_daemon.ports.storage import Conflict, RemoteStorage
from rlmm_daemon.reconcile import control, storage_time

LEASE_KEY: Final = f"{control.HOME}lease.json"
#: No run holds it longer without renewing it, whatever the object says: the configuration's most.
LEASE_MS_MAX: Final = 3_600_000
#: Behind so many renewals a run has asked anew for what was restored or held.
RENEWALS: Final = 2
#: A storage may carry a delete out so long after it was sent: S3 refuses what was signed before.
LATE_SECONDS: Final = 900
#: Of a lease that says that a delete was not answered, which the first format can't.
UNANSWERED: Final = 2
POLL_SECONDS: Final = 1.0
Pause = Callable[[float], Awaitable[object]]


class LeaseHeld(RlmmError):
    """Another run holds the lease."""


class Lease(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The object's content."""

    format: int = control.FORMAT
    owner: str
    #: Grows by one with every owner.
    fence: int
    expires_ms: CalendarMs
    #: A delete of its owner, or of one shortly before, failed or was not answered: it may be
    #: carried out at any time.
    unanswered: bool | UnsetType = UNSET


class FoundLease(msgspec.Struct, frozen=True, kw_only=True):
    """The lease's object as it lies there."""

    etag: str
    #: None where it can't be read; `damage` says why.
    lease: Lease | None
    damage: str
    #: Until when it counts, by the storage's time.
    ends_ms: int

    @property
    def late_ms(self) -> int:
        """Until when a delete may be carried out that its owner sent; 0: it was given back."""
        return self.ends_ms and self.ends_ms + LATE_SECONDS * 1000

    @property
    def owner(self) -> str:
        """Who holds it, or held it."""
        return self.lease.owner if self.lease else "somebody unknown"


async def look(storage: RemoteStorage) -> FoundLease | None:
    """Return the lease as it is now, None if there never was one.

    One that claims to last longer than any may was written by a wrong clock: it counts from when
    the storage took it.
    """
    found = await storage.get_control(LEASE_KEY)
    if found is None:
        return None
    row = await storage_time.row_of(storage, LEASE_KEY)
    ends_ms = (row.modified_ms if row else 0) + LEASE_MS_MAX
    try:
        lease = control.decode(found.data, Lease, key=LEASE_KEY, newest=UNANSWERED)
    except Malformed as error:
        return FoundLease(etag=found.etag, lease=None, damage=error.message, ends_ms=ends_ms)
    if row is not None:
        ends_ms = min(lease.expires_ms, ends_ms)
    return FoundLease(etag=found.etag, lease=lease, damage="", ends_ms=ends_ms)


async def wait_out(
    storage: RemoteStorage, now_ms: Callable[[], int], pause: Pause = asyncio.sleep
) -> None:
    """Wait until no run deletes any more by what it knew when this was called.

    A run may be between its look and its delete. It has looked again once it renewed its lease
    twice, and nobody deletes by a lease that was given back or ran out. Where a delete of its own
    was not answered, or nobody says whether (it was killed), only time tells that it comes no more.
    """
    etag, renewals = None, -1
    while (found := await look(storage)) is not None and found.late_ms > now_ms():
        if found.etag != etag:
            etag, renewals = found.etag, renewals + 1
        late = found.lease is not None and found.lease.unanswered is True
        if renewals >= RENEWALS and not late:
            return
        await pause(POLL_SECONDS)


async def take_away(
    storage: RemoteStorage,
    found: FoundLease,
    *,
    by: str,
    fence: int,
    now_ms: Callable[[], int],
    pause: Pause = asyncio.sleep,
) -> None:
    """Break a lease: nobody may delete until it would have run out, then anybody.

    Its owner is stopped at its next renewal, yet may do until then what it has just checked. Nobody
    gives the lease back in its place: what it sent may be carried out later still.

    Raises:
        LeaseHeld: it was renewed, or another run took it.
    """
    lease = Lease(owner=f"broken by {by}", fence=fence, expires_ms=found.ends_ms)
    try:
        await storage.put_control(LEASE_KEY, control.encode(lease), if_etag=found.etag)
    except Conflict as error:
        raise LeaseHeld(f"{found.owner} renewed {LEASE_KEY}: it lives") from error
    # A storage tells times by the second, so the next run's clock may be one behind.
    while found.ends_ms + 1000 > now_ms():
        await pause(POLL_SECONDS)


class Holder:
    """This run's hold on the lease."""

    def __init__(
        self, storage: RemoteStorage, *, owner: str, seconds: int, now_ms: Callable[[], int]
    ) -> None:
        self._storage, self._owner, self._seconds, self._now_ms = storage, owner, seconds, now_ms
        self._etag: str | None = None
        self._expires_ms = 0
        self.fence = 0
        #: Set while a delete is under way and once one failed or was not answered, also one of the
        #: owner before; the next renewal says so.
        self.unanswered = False

    async def acquire(self) -> None:
        """Take the lease.

        Raises:
            LeaseHeld: another owner's has not run out.
            Malformed: the object is damaged.
        """
        found = await look(self._storage)
        if found is not None:
            if found.lease is None:
                raise Malformed(f"{found.damage}: rlmm reconcile break-lease --execute ends that")
            if found.ends_ms > self._now_ms():
                seconds = (found.ends_ms - self._now_ms()) // 1000
                raise LeaseHeld(f"{found.owner} holds {LEASE_KEY} for another {seconds} s")
            self.fence = found.lease.fence
            self.unanswered = found.late_ms > self._now_ms()
        self.fence += 1
        await self._write(found.etag if found else None)

    async def renew(self) -> None:
        """Make the lease last from now on.

        Raises:
            LeaseHeld: it was lost; nothing may be deleted any more.
        """
        assert self._etag is not None, "acquired"
        await self._write(self._etag)

    def check(self) -> None:
        """See by this machine's own clock that at least half of the lease is left.

        What is deleted next must be through before anybody else may begin.

        Raises:
            LeaseHeld: it is not.
        """
        left_ms = self._expires_ms - self._now_ms()
        if left_ms < self._seconds * 500:
            raise LeaseHeld(
                f"of the lease's {self._seconds} s only {left_ms // 1000} were left when the batch"
                " had been looked at: raise lease_seconds or lower batch_objects"
            )

    async def release(self) -> None:
        """Let the next owner begin at once; a lease that was lost stays as it is.

        It ends at no time of this run's clock: the next owner's may be up to a second behind it,
        because a storage tells times by the second. Behind a delete without an answer it is left to
        run out, which is what says how late that may still come.
        """
        assert self._etag is not None, "acquired"
        if self.unanswered:
            return
        with suppress(LeaseHeld):
            await self._write(self._etag, expires_ms=0)

    async def _write(self, etag: str | None, expires_ms: int | None = None) -> None:
        lasting_ms = self._now_ms() + self._seconds * 1000
        self._expires_ms = lasting_ms if expires_ms is None else expires_ms
        lease = Lease(owner=self._owner, fence=self.fence, expires_ms=self._expires_ms)
        if self.unanswered:
            lease = replace(lease, format=UNANSWERED, unanswered=True)
        try:
            self._etag = await self._storage.put_control(
                LEASE_KEY, control.encode(lease), if_etag=etag
            )
        except Conflict as error:
            raise LeaseHeld(f"another run took {LEASE_KEY}") from error
