"""Requests to other replicas, each beside all else, and what is heard of them."""

from collections.abc import Callable, Sequence

import structlog

from rlmm_daemon.adapters.quorum.links import Links, Unreachable
from rlmm_daemon.adapters.quorum.notices import Notices
from rlmm_daemon.core.raft import inputs
from rlmm_daemon.core.raft.inputs import Answered, Input, Reachable, Unanswered
from rlmm_daemon.core.raft.roles import Replica
from rlmm_daemon.core.raft.voters import Endpoint
from rlmm_daemon.domain.errors import HistoryLost

_log = structlog.get_logger(__name__)


class Asking:
    """A replica's side of what it asks others."""

    def __init__(
        self,
        links: Links,
        bootstrap: Sequence[Endpoint],
        take: Callable[[Input], None],
        notices: Notices,
        *,
        known: Callable[[], Sequence[Endpoint]] = tuple,
    ) -> None:
        """`take` is given what comes of each request; `known` are voters that may be asked."""
        self._links = links
        self._bootstrap = bootstrap
        self._servers_at = 0
        self._take = take
        self._notices = notices
        self._known = known

    async def send(self, effect: inputs.Send) -> None:
        """Ask a replica, or any server, and hand on what it answers."""
        endpoints = effect.endpoints
        if effect.to is None or not endpoints:
            endpoints = self._a_server()
        try:
            answer = await self._links.ask(effect.request, endpoints, effect.to)
        except Unreachable as error:
            self._notices.missed(effect.to, error)
            self._take(Unanswered(effect.serial, refused=error.refused))
        except Exception:  # noqa: BLE001 - else its answer would be awaited for ever
            self._met_a_defect(effect.to, effect.serial)
        else:
            self._take(Answered(effect.serial, answer))

    async def probe(self, effect: inputs.Probe) -> None:
        """Ask a replica which kraft.versions it bears."""
        try:
            versions = await self._links.versions(effect.endpoints, effect.to.id)
        except Unreachable as error:
            self._notices.missed(effect.to.id, error)
            self._take(Unanswered(effect.serial))
        except Exception:  # noqa: BLE001 - as above
            self._met_a_defect(effect.to.id, effect.serial)
        else:
            self._take(Reachable(effect.serial, versions))

    def _met_a_defect(self, replica: int | None, serial: int) -> None:
        _log.exception("a request to another replica met a defect", replica=replica)
        self._take(Unanswered(serial))

    async def confirm(self, replica: Replica, answered: Answered) -> HistoryLost | None:
        """Return that the voters were forced while this replica was away, if who leads says so.

        An epoch so far ahead alone is no proof: whoever reaches a port can bring one about. Of a
        quorum that began anew the leader counts others than this replica does.
        """
        epoch, leader = answered.answer.epoch, answered.answer.leader
        if leader is None or not answered.answer.endpoints:
            return None
        try:
            counted = await self._links.voters(answered.answer.endpoints, leader)
        except Unreachable:
            return None
        if counted is None or counted == frozenset(replica.in_force.keys):
            return None
        return HistoryLost(
            f"the voters were forced while replica {replica.me} was away (epoch {replica.epoch}, "
            f"and epoch {epoch} now): it must not serve, and its log may hold what the others lost",
            forced_epoch=epoch,
        )

    def _a_server(self) -> tuple[Endpoint, ...]:
        """Return the next bootstrap server, or voter: the former may be gone by now."""
        servers = tuple(dict.fromkeys((*self._bootstrap, *self._known())))
        if not servers:
            return ()
        self._servers_at = (self._servers_at + 1) % len(servers)
        return (servers[self._servers_at],)
