"""Requests to other replicas, each beside all else, and what is heard of them."""

from collections.abc import Callable, Sequence

import structlog

from rlmm_daemon.adapters.quorum.links import Links, Unreachable
from rlmm_daemon.adapters.quorum.rare_log import RareLog
from rlmm_daemon.core.raft import inputs
from rlmm_daemon.core.raft.inputs import Answered, Input, Reachable, Unanswered
from rlmm_daemon.core.raft.voters import Endpoint

_log = structlog.get_logger(__name__)


class Asking:
    """A replica's side of what it asks others."""

    def __init__(
        self,
        links: Links,
        bootstrap: Sequence[Endpoint],
        take: Callable[[Input], None],
        alarm: Callable[[str, str], None],
    ) -> None:
        """`take` is given what comes of each request, and `alarm` a kind and what was seen."""
        self._links = links
        self._bootstrap = bootstrap
        self._bootstrap_at = 0
        self._take = take
        self._alarm = alarm
        self._warnings = RareLog(_log)

    async def send(self, effect: inputs.Send) -> None:
        """Ask a replica, or any server, and hand on what it answers."""
        endpoints = effect.endpoints
        if effect.to is None or not endpoints:
            endpoints = self._a_bootstrap_server()
        try:
            answer = await self._links.ask(effect.request, endpoints, effect.to)
        except Unreachable as error:
            self._missed(effect.to, error)
            self._take(Unanswered(effect.serial, refused=error.refused))
        else:
            self._take(Answered(effect.serial, answer))

    async def probe(self, effect: inputs.Probe) -> None:
        """Ask a replica which kraft.versions it bears."""
        try:
            versions = await self._links.versions(effect.endpoints, effect.to.id)
        except Unreachable as error:
            self._missed(effect.to.id, error)
            self._take(Unanswered(effect.serial))
        else:
            self._take(Reachable(effect.serial, versions))

    def _a_bootstrap_server(self) -> tuple[Endpoint, ...]:
        if not self._bootstrap:
            return ()
        self._bootstrap_at = (self._bootstrap_at + 1) % len(self._bootstrap)
        return (self._bootstrap[self._bootstrap_at],)

    def _missed(self, replica: int | None, error: Unreachable) -> None:
        """Tell why a replica was not reached: of one that is only down, others tell."""
        if error.unproven:
            self._alarm("stranger", f"in the place of replica {replica}: {error}")
        else:
            self._warnings.warning(
                "a replica is not reached", about=f"{replica}", replica=replica, why=str(error)
            )
