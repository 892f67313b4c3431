"""Who may delete: one object, one owner at a time, a number that only grows.

Each batch of deletes renews the lease with If-Match first. An owner that was paused past its expiry
and overtaken meets another etag there, and stops before its next delete. The fencing number goes
into every manifest and audit line, so that two runs can be told apart afterwards.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from rlmm_daemon.domain.errors import RlmmError
from rlmm_daemon.ports.storage import Conflict, RemoteStorage
from rlmm_daemon.reconcile import control

LEASE_KEY: Final = f"{control.HOME}lease.json"


class LeaseHeld(RlmmError):
    """Another run holds the lease."""


class Lease(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The object's content."""

    format: int = control.FORMAT
    owner: str
    #: Grows by one with every owner.
    fence: int
    expires_ms: int


class Holder:
    """This run's hold on the lease."""

    def __init__(
        self, storage: RemoteStorage, *, owner: str, seconds: int, now_ms: Callable[[], int]
    ) -> None:
        self._storage, self._owner, self._seconds, self._now_ms = storage, owner, seconds, now_ms
        self._etag: str | None = None
        self._expires_ms = 0
        self.fence = 0

    async def acquire(self) -> None:
        """Take the lease.

        Raises:
            LeaseHeld: another owner's has not run out.
        """
        found = await self._storage.get_control(LEASE_KEY)
        if found is not None:
            held = control.decode(found.data, Lease)
            if held.expires_ms > self._now_ms():
                seconds = (held.expires_ms - self._now_ms()) // 1000
                raise LeaseHeld(f"{held.owner} holds {LEASE_KEY} for another {seconds} s")
            self.fence = held.fence
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
        """Let the next owner begin at once; a lease that was lost stays as it is."""
        self._seconds = 0
        try:
            await self.renew()
        except LeaseHeld:
            return

    async def _write(self, etag: str | None) -> None:
        self._expires_ms = self._now_ms() + self._seconds * 1000
        lease = Lease(owner=self._owner, fence=self.fence, expires_ms=self._expires_ms)
        try:
            self._etag = await self._storage.put_control(
                LEASE_KEY, control.encode(lease), if_etag=etag
            )
        except Conflict as error:
            raise LeaseHeld(f"another run took {LEASE_KEY}") from error
