"""The other brokers' daemons, as presence files and the cluster tell of them."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, Protocol

import msgspec

from rlmm_daemon.codec.marker import Presence
from rlmm_daemon.daemon.bucket.presence_files import present
from rlmm_daemon.domain.errors import RlmmError
from rlmm_daemon.domain.ids import BrokerId
from rlmm_daemon.ports.cluster import Cluster
from rlmm_daemon.ports.storage import RemoteStorage

ASK_SECONDS: Final = 30.0
#: Lease ends are another machine's clock.
CLOCK_SLACK_MS: Final = 30_000


class Peers(msgspec.Struct, frozen=True, kw_only=True):
    """One look at all brokers; None for what could not be asked."""

    #: Every registered broker, fenced ones included.
    registered: frozenset[BrokerId] | None = None
    #: By broker; a file that cannot be read is left out.
    presences: Mapping[BrokerId, Presence] = msgspec.field(default_factory=dict)
    #: Whether every presence file was read.
    complete: bool = False

    def is_registered(self, broker_id: BrokerId) -> bool | None:
        """Return whether a broker is registered; None: not known."""
        return None if self.registered is None else broker_id in self.registered

    def lease_over(self, broker_id: BrokerId, now_ms: int) -> bool | None:
        """Return whether a broker's daemon is gone by its own lease; without a file: not known."""
        presence = self.presences.get(broker_id)
        if presence is None or presence.lease_end_ms is None:
            return None
        return presence.lease_end_ms + CLOCK_SLACK_MS < now_ms

    def copy_deadline_ms(self, own_seconds: float) -> int:
        """Return the largest recorded copy deadline, this daemon's own among them."""
        recorded = [each.copy_deadline_seconds for each in self.presences.values()]
        return round(1000 * max([own_seconds, *recorded]))

    def survive_finished(self, now_ms: int) -> bool:
        """Return whether every registered broker's daemon is there, and its manager ours.

        Kafka's own metadata manager ends its consumer for good at DELETE_PARTITION_FINISHED.
        """
        if self.registered is None or not self.complete:
            return False
        return all(self._survives(broker_id, now_ms) for broker_id in self.registered)

    def _survives(self, broker_id: BrokerId, now_ms: int) -> bool:
        presence = self.presences.get(broker_id)
        return (
            presence is not None
            and presence.metadata_manager == "rlmm"
            and presence.lease_end_ms is not None
            and presence.lease_end_ms > now_ms
        )


class PeerSource(Protocol):
    """Whoever can look at the other brokers."""

    async def look(self) -> Peers:
        """Return what is known now; never raises for what does not answer."""


class SharedLook:
    """One look for the passes of all metadata partitions; what is deleted by is asked anew."""

    def __init__(self, peers: PeerSource, monotonic: Callable[[], float], seconds: float) -> None:
        """`seconds`: how old a look may be."""
        self._peers, self._monotonic, self._seconds = peers, monotonic, seconds
        self._one = asyncio.Lock()
        self._found: tuple[float, Peers] | None = None

    async def look(self) -> Peers:
        """Return what was known lately."""
        async with self._one:
            now = self._monotonic()
            if self._found is None or now - self._found[0] > self._seconds:
                self._found = now, await self._peers.look()
            return self._found[1]


class NoPeers:
    """The only broker of its log."""

    def __init__(self, broker_id: BrokerId) -> None:
        self._broker_id = broker_id

    async def look(self) -> Peers:
        """Return the one broker; whoever calls knows its own manager."""
        return Peers(registered=frozenset({self._broker_id}), complete=True)


class PresentPeers:
    """Reads the presence files and asks the cluster, each time anew."""

    def __init__(self, cluster: Cluster, storage: RemoteStorage, *, cluster_id: str | None) -> None:
        self._cluster, self._storage = cluster, storage
        self._cluster_id = cluster_id

    async def look(self) -> Peers:
        """Ask for the registered brokers and read every presence file."""
        self._cluster.refresh()
        try:
            async with asyncio.timeout(ASK_SECONDS):
                registered = frozenset(await self._cluster.brokers())
        except (RlmmError, TimeoutError):
            registered = None
        try:
            async with asyncio.timeout(ASK_SECONDS):
                presences = await self._presences()
        except (RlmmError, TimeoutError):
            return Peers(registered=registered)
        return Peers(registered=registered, presences=presences, complete=True)

    async def _presences(self) -> dict[BrokerId, Presence]:
        # One that cannot be read is left out: its broker is not known to be fine.
        return {
            BrokerId(each.broker_id): each
            for each in (await present(self._storage)).told
            if self._cluster_id in (None, each.cluster_id)
        }
