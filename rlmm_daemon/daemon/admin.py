"""The HTTP port for operators' machines: /metrics, /healthz, /readyz. It changes nothing."""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

import msgspec
from aiohttp import web

from rlmm_daemon.domain.errors import UnavailableError
from rlmm_daemon.observability.metrics import Metrics

_TEXT: Final = "text/plain"
_SHUTDOWN_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """Whether the daemon would answer every look-up now, and the facts behind it."""

    ready: bool
    facts: dict[str, Any] = field(default_factory=dict)


class AdminServer:
    """Listens while it is entered. `listen` is `host:port`; empty means not at all."""

    def __init__(self, listen: str, metrics: Metrics, readiness: Callable[[], Ready]) -> None:
        self._listen = listen
        self._metrics = metrics
        self._readiness = readiness
        self._runner: web.AppRunner | None = None
        #: Where it listens, known once entered: port 0 in the configuration takes a free one.
        self.address: tuple[str, int] | None = None

    async def __aenter__(self) -> Self:
        if not self._listen:
            return self
        application = web.Application()
        application.router.add_get("/metrics", self._serve_metrics)
        application.router.add_get("/healthz", self._serve_health)
        application.router.add_get("/readyz", self._serve_readiness)
        host, _, port = self._listen.rpartition(":")
        self._runner = web.AppRunner(
            application, access_log=None, shutdown_timeout=_SHUTDOWN_SECONDS
        )
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, host.strip("[]"), int(port)).start()
        except (OSError, OverflowError) as error:
            await self._runner.cleanup()
            reason = error.strerror if isinstance(error, OSError) else error
            raise UnavailableError(  # another start may find the port free
                f'admin.listen = "{self._listen}" can\'t be used: {reason}'
            ) from error
        self.address = self._runner.addresses[0][:2]
        return self

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _serve_metrics(self, _request: web.Request) -> web.Response:
        self._metrics.process.ready.set(self._readiness().ready)
        return web.Response(
            body=self._metrics.text(),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )

    async def _serve_health(self, _request: web.Request) -> web.Response:
        """Answering at all is the health: the loop runs."""
        return web.Response(text="ok\n", content_type=_TEXT)

    async def _serve_readiness(self, _request: web.Request) -> web.Response:
        answer = self._readiness()
        self._metrics.process.ready.set(answer.ready)
        return web.Response(
            body=msgspec.json.encode({"ready": answer.ready, **answer.facts}),
            status=200 if answer.ready else 503,
            content_type="application/json",
        )
