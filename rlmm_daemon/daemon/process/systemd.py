"""Notifications to systemd: sd_notify(3) without a library."""

import asyncio
import socket
from collections.abc import Callable, Mapping
from typing import Final

import structlog

_log = structlog.get_logger(__name__)
#: A full receive queue must not stop the event loop for longer.
_SEND_SECONDS: Final = 0.2
#: systemd wants a sign within its interval; three tries fit into one.
_BEATS_PER_INTERVAL: Final = 3


class Notifier:
    """Sends states to the service manager; without one it does nothing."""

    def __init__(self, address: str = "", watchdog_seconds: float | None = None) -> None:
        """Take a path, or `@name` for an abstract socket, as `NOTIFY_SOCKET` holds it."""
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self.watchdog_seconds = watchdog_seconds

    @classmethod
    def from_environment(cls, environ: Mapping[str, str], pid: int) -> "Notifier":
        """Return the notifier that systemd asked for; `WATCHDOG_PID` may name another process."""
        microseconds = environ.get("WATCHDOG_USEC", "")
        ours = environ.get("WATCHDOG_PID", str(pid)) == str(pid)
        watched = ours and microseconds.isdecimal() and int(microseconds) > 0
        return cls(
            environ.get("NOTIFY_SOCKET", ""), int(microseconds) / 1_000_000 if watched else None
        )

    def notify(self, *fields: str) -> bool:
        """Send e.g. `notify("READY=1", "STATUS=caught up")`; False when it was not delivered."""
        if not self._address:
            return False
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
                sock.settimeout(_SEND_SECONDS)
                sock.connect(self._address)
                sock.sendall("\n".join(fields).encode())
        except OSError as error:
            _log.warning("systemd was not told", fields=list(fields), error=str(error))
            return False
        return True

    async def feed_watchdog(self, healthy: Callable[[], bool]) -> None:
        """Send WATCHDOG=1 for ever while `healthy` says so; return if nobody watches.

        A loop that stands still sends nothing at all; one that crawls is asked through `healthy`.
        """
        if self.watchdog_seconds is None or not self._address:
            return
        while True:
            if healthy():
                self.notify("WATCHDOG=1")
            else:
                _log.error("the event loop lags: systemd's watchdog is not fed")
            await asyncio.sleep(self.watchdog_seconds / _BEATS_PER_INTERVAL)
