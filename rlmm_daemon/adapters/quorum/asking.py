"""Requests to other replicas, each beside all else, and what is heard of them."""

from collections.abc import Callable, Sequence

from rlmm_daemon.adapters.quorum.links import Links, Unreachable
from rlmm_daemon.adapters.quorum.notices import Notices
from rlmm_daemon.core.raft import inputs
from rlmm_daemon.core.raft.inputs import Answered, Input, Reachable, Unanswered
from rlmm_daemon.core.raft.voters import Endpoint


class Asking:
    """A replica's side of what it asks others."""

    def __init__(
        self,
        links: Links,
        bootstrap: Sequence[Endpoint],
        take: Callable[[Input], None],
        notices: Notices,
    ) -> None:
        """`take` is given what comes of each request."""
        self._links = links
        self._bootstrap = bootstrap
        self._bootstrap_at = 0
        self._take = take
        self._notices = notices

    async def send(self, effect: inputs.Send) -> None:
        """Ask a replica, or any server, and hand on what it answers."""
        endpoints = effect.endpoints
        if effect.to is None or not endpoints:
            endpoints = self._a_bootstrap_server()
        try:
            answer = await self._links.ask(effect.request, endpoints, effect.to)
        except Unreachable as error:
            self._notices.missed(effect.to, error)
            self._take(Unanswered(effect.serial, refused=error.refused))
        else:
            self._take(Answered(effect.serial, answer))

    async def probe(self, effect: inputs.Probe) -> None:
        """Ask a replica which kraft.versions it bears."""
        try:
            versions = await self._links.versions(effect.endpoints, effect.to.id)
        except Unreachable as error:
            self._notices.missed(effect.to.id, error)
            self._take(Unanswered(effect.serial))
        else:
            self._take(Reachable(effect.serial, versions))

    def _a_bootstrap_server(self) -> tuple[Endpoint, ...]:
        if not self._bootstrap:
            return ()
        self._bootstrap_at = (self._bootstrap_at + 1) % len(self._bootstrap)
        return (self._bootstrap[self._bootstrap_at],)
