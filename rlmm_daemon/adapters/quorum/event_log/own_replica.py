"""This daemon's replica of the quorum's log: run, and opened anew after its disk failed."""

import asyncio
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any

import msgspec
import structlog

from rlmm_daemon.adapters.quorum.files.formatted import (
    note_abandoned,
    require_may_run,
    topic_id_of,
)
from rlmm_daemon.adapters.quorum.files.identity import read_meta
from rlmm_daemon.adapters.quorum.files.layout import Layout
from rlmm_daemon.adapters.quorum.handshake import Acceptor, Dialer
from rlmm_daemon.adapters.quorum.node import Node
from rlmm_daemon.adapters.quorum.replica import ReplicaOptions, running
from rlmm_daemon.core.raft import standing
from rlmm_daemon.core.raft.log_facts import BEGINNING
from rlmm_daemon.core.raft.messages import UNKNOWN
from rlmm_daemon.core.raft.roles import Follower, Leader, Replica
from rlmm_daemon.domain.errors import (
    ConfigError,
    HistoryLost,
    InTheWay,
    RlmmError,
    StorageUnavailable,
    UnavailableError,
)
from rlmm_daemon.domain.ids import uuid_text
from rlmm_daemon.ports.clock import Clock
from rlmm_daemon.ports.disk import Disk
from rlmm_daemon.ports.event_log import LogMissing

_log = structlog.get_logger(__name__)


class OwnReplica:
    """The replica, and why there is none."""

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        options: ReplicaOptions,
        *,
        acceptor: Acceptor,
        dialer: Dialer,
        probe_seconds: float,
    ) -> None:
        self.node: Node | None = None
        #: Told of a replica that runs, and of its end.
        self.on_node: Callable[[Node | None], None] = lambda _node: None
        #: Told why there will be none.
        self.on_failure: Callable[[RlmmError], None] = lambda _error: None
        self._disk = disk
        self._clock = clock
        self._options = options
        self._acceptor = acceptor
        self._dialer = dialer
        self._probe_seconds = probe_seconds
        self._why = "it starts"
        #: It sought another leader than the one that it followed, and has heard none since.
        self._doubts = False
        self._failure: RlmmError | None = None
        #: The log that this process went on with so far, and as which replica.
        self._of: tuple[bytes, int] | None = None
        #: By directory id, how much was committed and on its disk when it was closed.
        self._held: tuple[bytes, int] = b"", 0
        self._changed = asyncio.Event()
        self._stop = asyncio.Event()
        self._ended = asyncio.Event()
        self._ended.set()

    async def require_formatted(self) -> None:
        """Refuse a directory that is none of this replica.

        Raises:
            LogMissing: it was not formatted.
            ConfigError: it was, as another replica; or it must not run any more.
            LogCorrupt: what it was formatted as can't be read.
        """
        directory, wanted = self._options.directory, self._options.node_id
        layout = Layout(directory, self._options.topic)
        if not await self._disk.exists(layout.meta):
            named = "ID" if wanted is None else str(wanted)
            raise LogMissing(
                f"{directory} is not formatted for a quorum: mount its disk; or, for a new replica "
                f"only, see rlmm quorum format {directory} --node-id {named}"
            )
        found = (await read_meta(self._disk, layout)).node_id
        if wanted not in (None, found):
            raise ConfigError(
                f"{directory} was formatted as replica {found}, and this is the daemon of broker "
                f"{wanted}: rlmm quorum format another directory with --node-id {wanted}"
            )
        await require_may_run(self._disk, directory)

    def require_up(self) -> Node:
        """Return the replica that runs.

        Raises:
            StorageUnavailable: none does, now.
        """
        if self.node is None:
            raise StorageUnavailable(f"this replica is not open: {self._why}")
        return self.node

    @property
    def hears(self) -> bool:
        """Whether it leads, or its leader answered within the fetch timeout."""
        if self.node is None:
            return False
        match self.node.replica.role:
            case Leader():
                return True
            case Follower(fetched=fetched, fetch_by=until):
                return fetched and self._now() < until
            case _:
                return False

    @property
    def end_heard(self) -> int | None:
        """Up to where who leads, heard just now, has committed; None: nobody says so."""
        node = self.node
        if node is None or not self.hears:
            return None
        end = UNKNOWN
        match node.replica.role:
            case Leader(high_watermark=end):
                pass
            case Follower(high_watermark=end, download=None) if node.replica.installing is None:
                pass
            case _:
                return None
        return None if end == UNKNOWN else end

    @property
    def is_led(self) -> bool:
        """Whether what is sent to a leader may arrive.

        Who seeks office in vain follows the leader that it lost again: that is none, unheard.
        """
        if self.hears:
            self._doubts = False
        node = self.node
        seeks = node is None or not isinstance(node.replica.role, Leader | Follower)
        return not (seeks or self._doubts)

    def _changed_role(self, replica: Replica) -> None:
        _log.info(
            "quorum_role",
            role=_role(replica),
            epoch=replica.epoch,
            leader=replica.leader,
            voters=[key.id for key in replica.in_force.keys],
        )
        if not isinstance(replica.role, Leader | Follower):
            self._doubts = True

    def _now(self) -> int:
        return int(self._clock.monotonic() * 1000)

    def told(self) -> str:
        """Return how it stands, for people."""
        if self.node is None:
            return self._why
        replica = self.node.replica
        voters = [key.id for key in replica.in_force.keys]
        heard = standing.heard(replica, self._now())
        silent = [each for each in voters if each not in heard]
        return (
            f"replica {replica.me.id}, {_role(replica)} in epoch {replica.epoch}, hears of the "
            f"voters {_listed(heard)}, not {_listed(silent)}; {replica.in_force.majority} of "
            f"{len(voters)} have to hear each other"
        )

    def facts(self) -> Mapping[str, Any]:
        """Return how it stands, for status and metrics."""
        if self.node is None:
            return {"role": None, "why": self._why}
        replica = self.node.replica
        return {
            "replica": replica.me.id,
            "role": _role(replica),
            "epoch": replica.epoch,
            # Who seeks office remembers whom it heard last.
            "leader": replica.leader if self.hears else None,
            "voters": [key.id for key in replica.in_force.keys],
            "heard": sorted(standing.heard(replica, self._now())),
            "needed": replica.in_force.majority,
            "end": replica.log.end,
            "committed": replica.committed,
            "checkpoint": _newest_checkpoint(replica),
            "why": None,
        }

    async def up(self, *, timeout_seconds: float) -> None:
        """Wait until it runs.

        Raises:
            StorageUnavailable: not in time.
            RlmmError: it never will.
        """
        try:
            async with asyncio.timeout(timeout_seconds):
                while self.node is None and self._failure is None:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError as error:
            raise StorageUnavailable(f"this replica is not open: {self._why}") from error
        if self._failure is not None:
            raise self._failure

    async def run(self) -> None:
        """Run it until `stop`, or until nobody should run it any more."""
        self._ended.clear()
        try:
            while not self._stop.is_set() and self._failure is None:
                try:
                    await self._live()
                except* RlmmError as errors:
                    error = _first(errors)
                    assert isinstance(error, RlmmError), "it is of them"
                    await self._met(error)
                except* OSError as errors:
                    await self._met(_first(errors))
                if not self._stop.is_set() and self._failure is None:
                    await self._pause()
        finally:
            self._ended.set()

    async def stop(self) -> None:
        """Have somebody else lead, and give the files back."""
        self._stop.set()
        await self._ended.wait()

    async def _require_same(self) -> bytes:
        """Refuse another log's directory, or another replica's, in the place of the first one.

        Return the directory's id.

        Raises:
            ConfigError: it is one. What was read before is none of its.
        """
        directory = self._options.directory
        meta = await read_meta(self._disk, Layout(directory, self._options.topic))
        found = await topic_id_of(self._disk, directory), meta.node_id
        if self._of not in (None, found):
            raise ConfigError(
                f"it is of another log or replica than before: log {uuid_text(found[0])}, replica "
                f"{found[1]}. Put the one back that was there; for a new disk of the same quorum, "
                "rlmm quorum format with --join and that quorum's --topic-id"
            )
        self._of = found
        return meta.directory_id

    async def _live(self) -> None:
        directory_id = await self._require_same()
        known, held = self._held
        least = held if known == directory_id else 0  # a new disk is given all of it again
        options = msgspec.structs.replace(self._options, least_end=least)
        async with running(
            self._disk, self._clock, options, acceptor=self._acceptor, dialer=self._dialer
        ) as node:
            try:
                self._tell(node)
                await self._stop.wait()
            finally:
                replica = node.replica
                self._held = directory_id, min(replica.committed, replica.log.synced)
                self._tell(None)

    def _tell(self, node: Node | None) -> None:
        self.node, self._doubts = node, False
        if node is not None:
            node.on_change.append(self._changed_role)
        self.on_node(node)
        self._changed.set()

    async def _met(self, error: BaseException) -> None:
        """Try again after a failure, unless nobody should: a lock may be free the next time."""
        passes = isinstance(error, OSError | UnavailableError | ConfigError | InTheWay)
        if passes and not (isinstance(error, RlmmError) and error.fields.get("retry") is False):
            self._why = f"{self._options.directory}: {error}"
            _log.warning("quorum_replica_failed", why=self._why)
            return
        assert isinstance(error, RlmmError), "it is of them"
        forced = error.fields.get("forced_epoch") if isinstance(error, HistoryLost) else None
        if forced is not None:
            with suppress(OSError):  # else it hears of it again at the next start
                await note_abandoned(self._disk, self._options.directory, forced)
        _log.error("quorum_replica_ended", why=error.message)
        self._why, self._failure = error.message, error
        self.on_failure(error)
        self._changed.set()

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(self._probe_seconds):
                await self._stop.wait()
        except TimeoutError:
            pass


def _role(replica: Replica) -> str:
    role = type(replica.role).__name__.lower()
    return role if replica.is_voter or isinstance(replica.role, Leader) else "observer"


def _newest_checkpoint(replica: Replica) -> Mapping[str, int] | None:
    """Return where it ends; none of what a log begins behind by itself."""
    newest = max(replica.log.snapshots, default=BEGINNING)
    return None if newest == BEGINNING else {"epoch": newest.epoch, "end": newest.end}


def _listed(ids: Collection[int]) -> str:
    return ", ".join(map(str, sorted(ids))) or "none"


def _first(errors: BaseExceptionGroup[Exception]) -> BaseException:
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
