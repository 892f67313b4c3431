"""The HTTP port for operators' machines: /metrics, /healthz, /readyz. It changes nothing."""

import asyncio
import errno
import importlib
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec

from rlmm_daemon.domain.errors import UnavailableError
from rlmm_daemon.observability.metrics import Metrics

if TYPE_CHECKING:
    from aiohttp import web

_TEXT: Final = "text/plain"
_SHUTDOWN_SECONDS: Final = 1.0
_BACKLOG: Final = 128
_ABSENT: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """Whether the daemon would answer every look-up now, and the facts behind it."""

    ready: bool
    facts: dict[str, Any] = field(default_factory=dict)


class AdminServer:
    """Listens while it is entered, and answers once `serve` ran. `listen` is `host:port`, or empty.

    The library behind it takes longer to load than a daemon to answer a broker: until a thread has
    done that, whoever connects waits.
    """

    def __init__(self, listen: str, metrics: Metrics, readiness: Callable[[], Ready]) -> None:
        self._listen = listen
        self._metrics = metrics
        self._readiness = readiness
        self._sockets: list[socket.socket] = []
        self._web: Any = None
        self._runner: web.AppRunner | None = None
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
        if self._runner is not None:
            await self._runner.cleanup()
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
        """Answer from now on; returns at once."""
        if not self._sockets:
            return
        web = self._web = await asyncio.to_thread(importlib.import_module, "aiohttp.web")
        application = web.Application()
        application.router.add_get("/metrics", self._serve_metrics)
        application.router.add_get("/healthz", self._serve_health)
        application.router.add_get("/readyz", self._serve_readiness)
        self._runner = web.AppRunner(
            application, access_log=None, shutdown_timeout=_SHUTDOWN_SECONDS
        )
        await self._runner.setup()
        for listening in self._sockets:
            await web.SockSite(self._runner, listening).start()

    def _answer(self, **parts: Any) -> "web.Response":
        answer: web.Response = self._web.Response(**parts)
        return answer

    async def _serve_metrics(self, _request: "web.Request") -> "web.Response":
        self._metrics.process.ready.set(self._readiness().ready)
        return self._answer(
            body=self._metrics.text(),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )

    async def _serve_health(self, _request: "web.Request") -> "web.Response":
        """Answering at all is the health: the loop runs."""
        return self._answer(text="ok\n", content_type=_TEXT)

    async def _serve_readiness(self, _request: "web.Request") -> "web.Response":
        answer = self._readiness()
        self._metrics.process.ready.set(answer.ready)
        return self._answer(
            body=msgspec.json.encode({"ready": answer.ready, **answer.facts}),
            status=200 if answer.ready else 503,
            content_type="application/json",
        )
