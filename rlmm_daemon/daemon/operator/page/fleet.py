"""Several daemons side by side: each tells its own standing, one asks the others for the page.

Nobody is asked because somebody else was asked: a peer's answer is its own. What a peer says is
foreign, so it is decoded into fields with bounds, or shown as what it is.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from rlmm_daemon.daemon.base.bugs import Bugs
from rlmm_daemon.daemon.operator.http_get import Page, Query
from rlmm_daemon.daemon.operator.page.answer import json_page
from rlmm_daemon.daemon.operator.page.wrong import Fault
from rlmm_daemon.domain.errors import RlmmError
from rlmm_daemon.ports.clock import Clock

PATH: Final = "/api/standing"
#: Between two rounds, which begin only if somebody looks.
PERIOD_SECONDS: Final = 4.0
#: That a look waits for a round; then it is answered with what is known.
PATIENCE_SECONDS: Final = 1.0
AT_ONCE: Final = 8
FAULTS_MAX: Final = 5
_TEXT_MAX: Final = 300
_NO_STANDING: Final = "answered with what is no daemon's standing"

#: Larger ones can't be told on.
_INT_MAX: Final = 2**63 - 1
Count = Annotated[int, Meta(ge=0, le=_INT_MAX)]
Number = Annotated[int, Meta(ge=-1, le=_INT_MAX)]


class ReplicaStanding(msgspec.Struct, frozen=True, kw_only=True):
    """A daemon's replica of the quorum; without a role it is not open."""

    role: str | None = None
    leader: Number | None = None
    epoch: Number | None = None


class PeerStanding(msgspec.Struct, frozen=True, kw_only=True):
    """What a daemon tells of itself in one row."""

    version: str
    broker_id: Number | None
    cluster_id: str | None
    uptime_seconds: Annotated[float, Meta(ge=0)]
    #: Metadata partitions.
    followed: Count
    ready: Count
    topics: Count
    segments: Count
    bytes: Count
    copies: Count
    quorum: ReplicaStanding | None
    #: The gravest few.
    wrong: list[Fault]
    wrong_count: Count


class Peer(msgspec.Struct, kw_only=True):
    """What is known of one daemon: its last answer, or why there was none."""

    address: str | None
    told: PeerStanding | None = None
    trouble: str | None = "not asked yet"
    asked_at_ms: int | None = None


class Fleet:
    """The peers' last answers; they are asked again while somebody looks."""

    def __init__(
        self,
        addresses: Sequence[str],
        ask: Callable[[str, str], Awaitable[bytes]],
        clock: Clock,
        bugs: Bugs,
    ) -> None:
        """`ask` takes an address and a path, and has bounds of its own for time and size."""
        self.peers = [Peer(address=each) for each in addresses]
        self._ask, self._clock, self._bugs = ask, clock, bugs
        self._wanted, self._fresh = asyncio.Event(), asyncio.Event()
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def run(self) -> None:
        """Ask all peers whenever somebody looks, and not more often than the period."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            async with asyncio.TaskGroup() as group:
                for peer in self.peers:
                    group.create_task(self._look(peer), name=f"fleet {peer.address}")
            self._fresh.set()
            await asyncio.sleep(PERIOD_SECONDS)

    async def looked_at(self) -> list[Peer]:
        """Return what is known, after a moment for a round to end."""
        if self.peers:
            self._fresh.clear()
            self._wanted.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE_SECONDS):
                    await self._fresh.wait()
        return self.peers

    async def _look(self, peer: Peer) -> None:
        assert peer.address is not None, "only the own row has none"
        async with self._turns:
            try:
                peer.told = decoded(await self._ask(peer.address, PATH))
                peer.trouble = None
            except RlmmError as error:
                peer.told, peer.trouble = None, error.message[:_TEXT_MAX]
            except (msgspec.MsgspecError, UnicodeError, RecursionError):
                peer.told, peer.trouble = None, _NO_STANDING
            except Exception as bug:  # noqa: BLE001 - it ends this look, and nothing else
                peer.told, peer.trouble = None, "a bug was met; the daemon's log has it"
                self._bugs.met("fleet", bug)
            peer.asked_at_ms = self._clock.now_ms()


class FleetAnswers:
    """This daemon's row for another one's page, and all rows for its own."""

    def __init__(
        self, own: Callable[[], Awaitable[PeerStanding]], fleet: Fleet, now_ms: Callable[[], int]
    ) -> None:
        self._own, self._fleet, self._now_ms = own, fleet, now_ms

    def paths(self) -> dict[str, Callable[[Query], Awaitable[Page]]]:
        """Return what answers each path."""
        return {"/api/fleet": self.all, PATH: self.one}

    async def one(self, _query: Query) -> Page:
        """This daemon alone: a peer asks for it."""
        return json_page(msgspec.to_builtins(await self._own()))

    async def all(self, _query: Query) -> Page:
        """This daemon and its peers, a row each."""
        mine = Peer(address=None, told=await self._own(), trouble=None)
        daemons = [mine, *await self._fleet.looked_at()]
        return json_page({"as_of_ms": self._now_ms(), "daemons": daemons})


def decoded(answer: bytes) -> PeerStanding:
    """Return a peer's standing with its texts cut.

    Raises:
        msgspec.MsgspecError, UnicodeError, RecursionError: it is none.
    """
    told = msgspec.json.decode(answer, type=PeerStanding)
    return replace(
        told,
        version=told.version[:_TEXT_MAX],
        cluster_id=told.cluster_id and told.cluster_id[:_TEXT_MAX],
        quorum=told.quorum and replace(told.quorum, role=_cut(told.quorum.role)),
        wrong=[
            Fault(each.text[:_TEXT_MAX], _cut(each.command)) for each in told.wrong[:FAULTS_MAX]
        ],
    )


def _cut(text: str | None) -> str | None:
    return text and text[:_TEXT_MAX]


def own(brief: dict[str, Any], totals: dict[str, int], wrong: list[Fault]) -> PeerStanding:
    """Return this daemon's row, from what the page knows of it."""
    states: dict[str, int] = brief["metadata_partitions"]
    quorum = brief["log"]["quorum"]
    return PeerStanding(
        version=brief["version"],
        broker_id=brief["broker_id"],
        cluster_id=brief["cluster_id"],
        uptime_seconds=max(0.0, brief["uptime_seconds"]),
        followed=sum(states.values()),
        ready=states.get("ready", 0),
        topics=totals["topics"],
        segments=totals["segments"],
        bytes=totals["bytes"],
        copies=len(brief["copies"]),
        quorum=None
        if quorum is None
        else ReplicaStanding(
            role=quorum["role"], leader=quorum.get("leader"), epoch=quorum.get("epoch")
        ),
        wrong=wrong[:FAULTS_MAX],
        wrong_count=len(wrong),
    )
