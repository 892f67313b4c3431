"""The HTTP port for operators' machines: /metrics, /healthz, /readyz, and a page to look at.

It changes nothing.
"""

import asyncio
import errno
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from rlmm_daemon.daemon.base.bugs import Bugs
from rlmm_daemon.daemon.operator.http_get import HttpGet, Page, Query, Spawn
from rlmm_daemon.domain.errors import UnavailableError
from rlmm_daemon.observability.metrics import Metrics

_TEXT: Final = "text/plain"
_BACKLOG: Final = 128
_ABSENT: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the daemon would answer every look-up now, and the facts behind it."""

    ready: bool
    facts: dict[str, Any] = msgspec.field(default_factory=dict)


class PageRoom(msgspec.Struct, frozen=True, kw_only=True):
    """What the page for a browser is made of."""

    answers: Mapping[str, Callable[[Query], Awaitable[Page]]]
    spawn: Spawn
    #: Names of this host, as a browser has them in its address bar, besides addresses.
    names: Sequence[str] = ()


class AdminServer:
    """Listens while it is entered, and answers once `serve` ran. `listen` is `host:port`, or empty.

    Whoever connects before that waits.
    """

    def __init__(
        self,
        listen: str,
        metrics: Metrics,
        readiness: Callable[[], Ready],
        bugs: Bugs | None = None,
        *,
        page: PageRoom | None = None,
    ) -> None:
        self._listen = listen
        self._metrics = metrics
        self._readiness = readiness
        self._sockets: list[socket.socket] = []
        self._servers: list[asyncio.Server] = []
        pages = {
            "/metrics": self._metrics_page,
            "/healthz": self._health_page,
            "/readyz": self._readiness_page,
        }
        known = Bugs() if bugs is None else bugs
        own = listen.rpartition(":")[0]
        self._http = HttpGet(
            pages,
            on_bug=lambda bug: known.met("admin", bug),
            slow={} if page is None else page.answers,
            spawn=None if page is None else page.spawn,
            names=frozenset(
                name.lower() for name in ("localhost", own, *(page.names if page else ())) if name
            ),
        )
        #: Where it listens, known once entered: port 0 in the configuration takes a free one.
        self.address: tuple[str, int] | None = None

    async def __aenter__(self) -> Self:
        if not self._listen:
            return self
        try:
            await self._bind()
        except (OSError, OverflowError) as error:
            self._close()
            reason = error.strerror if isinstance(error, OSError) else error
            raise UnavailableError(  # another start may find the port free
                f'admin.listen = "{self._listen}" can\'t be used: {reason}'
            ) from error
        self.address = self._sockets[0].getsockname()[:2]
        return self

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        for server in self._servers:
            server.close()
        self._http.close()
        self._close()

    async def _bind(self) -> None:
        host, _, port = self._listen.rpartition(":")
        found = await asyncio.get_running_loop().getaddrinfo(
            host.strip("[]") or None, int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        absent: OSError | None = None
        for family, _, _, _, address in dict.fromkeys(found):
            try:
                listening = socket.create_server(address, family=family, backlog=_BACKLOG)
                self._sockets.append(listening)
            except OSError as error:
                if error.errno not in _ABSENT:
                    raise
                absent = error  # a name has addresses of families that this machine does not use
        if absent is not None and not self._sockets:
            raise absent

    def _close(self) -> None:
        for listening in self._sockets:
            listening.close()
        self._sockets.clear()

    async def serve(self) -> None:
        """Answer from now on; returns at once.

        Raises:
            OSError: not now, for example for want of descriptors; it may be tried again.
        """
        loop = asyncio.get_running_loop()
        for listening in self._sockets[len(self._servers) :]:
            self._servers.append(await loop.create_server(self._http, sock=listening))

    def _metrics_page(self) -> Page:
        self._metrics.process.ready.set(self._readiness().ready)
        return Page(
            body=self._metrics.text(), content_type="text/plain; version=0.0.4; charset=utf-8"
        )

    def _health_page(self) -> Page:
        """Answering at all is the health: the loop runs."""
        return Page(body=b"ok\n", content_type=_TEXT)

    def _readiness_page(self) -> Page:
        answer = self._readiness()
        self._metrics.process.ready.set(answer.ready)
        return Page(
            body=msgspec.json.encode({"ready": answer.ready, **answer.facts}),
            content_type="application/json",
            status=200 if answer.ready else 503,
        )
