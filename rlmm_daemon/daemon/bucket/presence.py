"""Keeps this daemon's presence file in the bucket fresh, for the cleaners and the nightly job.

It is read before each write, and before anything is deleted: another daemon of the same broker id
writes it too (`core.readiness.twins`).
"""

import asyncio
import hashlib
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, Literal, Protocol, TypeAlias

import msgspec
import structlog

from rlmm_daemon.codec import marker
from rlmm_daemon.codec.marker import Hold, OtherDaemon, Presence, PresencePartition
from rlmm_daemon.core.explain.facts import LastError
from rlmm_daemon.core.readiness import twins
from rlmm_daemon.core.readiness.twins import Alone, Doubted, Met, Others, Own, Standing, Unread
from rlmm_daemon.daemon.bucket.bucket import OTHER_DAEMON
from rlmm_daemon.domain.errors import Malformed, StorageUnavailable, UnavailableError
from rlmm_daemon.ports.clock import Clock
from rlmm_daemon.ports.storage import RemoteStorage

REWRITE_SECONDS: Final = 60.0
#: While positions move it is rewritten so often: 360 GETs and PUTs an hour at most. What was read
#: since is unknown to whoever starts from an older state directory behind a kill.
MOVED_SECONDS: Final = 10.0
#: Without a rewrite for so long, this daemon is not there any more.
LEASE_SECONDS: Final = 180.0
#: Changes within this time share one write.
SETTLE_SECONDS: Final = 1.0
WRITE_SECONDS_MAX: Final = 30.0
#: A look at the file is good for so long before something is deleted.
LOOK_SECONDS: Final = 1.0
#: What is to be deleted waits so long for the first look, and for what a meeting calls for.
FIRST_LOOK_SECONDS: Final = 10.0
#: Of one that timed out and lands later, this life still knows that it is its own.
_WRITES_KNOWN: Final = 512

log = structlog.get_logger()


class PresenceFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What changes while the daemon runs; asked for at each write."""

    incarnation: int | None
    lease_end_ms: int | None
    metadata_manager: Literal["rlmm", "foreign"]
    partitions: dict[int, PresencePartition]
    holds: tuple[Hold, ...] = ()


class Author(msgspec.Struct, frozen=True):
    """What tells this process from another daemon of the same broker id."""

    #: Names the lock on the state directory, which no two processes hold; "": not known.
    place: str = ""
    #: Host, process and start, for people.
    host: str = ""


UNKNOWN_AUTHOR: Final = Author()
#: Starts a task that lives as long as the daemon.
Spawn: TypeAlias = Callable[[Coroutine[Any, Any, None]], object]
_OWED: Final = (
    "another daemon of this broker id was met, and the hold on what it may have stored is not "
    "written yet; nothing is deleted until it is"
)


class Remembrance(Protocol):
    """Where it outlives this process that another daemon was met: `StateDirectory` keeps it."""

    async def other_daemon(self) -> str | None:
        """Return who was met; OSError: not now."""

    async def note_other_daemon(self, who: str | None) -> None:
        """Keep who was met; None: it was silent since. OSError: not done."""


async def _nothing() -> None:
    """Do nothing about another daemon."""


class PresenceFile:
    """One writer for one file, unless a clone writes it; two events ask for a write."""

    def __init__(
        self,
        storage: RemoteStorage,
        clock: Clock,
        *,
        cluster_id: str,
        broker_id: int,
        copy_deadline_seconds: float,
        facts: Callable[[], PresenceFacts],
        spawn: Spawn,
        may_write: Callable[[], bool] = lambda: True,
        author: Author = UNKNOWN_AUTHOR,
        on_met: Callable[[], Awaitable[None]] = _nothing,
        remembrance: Remembrance | None = None,
    ) -> None:
        """`may_write` is false while the storage may be somebody else's.

        `on_met` is awaited at each sign of another daemon that lives, and when it was silent.
        """
        self._remembrance, self._spawn = remembrance, spawn
        self._may_write = may_write
        self._author, self._on_met = author, on_met
        self._storage, self._clock, self._facts = storage, clock, facts
        self._cluster_id, self._broker_id = cluster_id, broker_id
        self._copy_deadline_seconds = copy_deadline_seconds
        self._started_at_ms = clock.now_ms()
        self._changed = asyncio.Event()
        self._moved = asyncio.Event()
        self.standing: Standing = Unread()
        #: Held by whoever reads or writes the file: what was read before a write is no news.
        self._turn = asyncio.Lock()
        self._looked = asyncio.Event()
        self._looked_at: float | None = None
        self._own: deque[bytes] = deque(maxlen=_WRITES_KNOWN)
        #: What another daemon left there, until this one has written over it.
        self._unanswered: bytes | None = None
        #: How often `on_met` was called for, and how much of that is done.
        self._owed = self._paid = 0
        #: What comes of the call that is under way.
        self._paying: asyncio.Future[None] | None = None
        #: Whom the state directory names.
        self._noted: str | None = None
        self._ended = False
        #: What the last write met; None if it succeeded.
        self.trouble: LastError | None = None

    def changed(self) -> None:
        """Say that the facts are others now, and not mere positions: ask for a write at once."""
        self._changed.set()
        self._moved.set()

    def moved(self) -> None:
        """Say that positions moved: ask for a write as soon as the last one is 10 s ago."""
        self._moved.set()

    async def run(self) -> None:
        """Write now, when asked, and every 60 s, for ever; a write that failed is due in 10 s."""
        while True:
            self._changed.clear()
            self._moved.clear()
            await self._try_write()
            await asyncio.sleep(SETTLE_SECONDS)
            if not await _is_set(self._changed, MOVED_SECONDS - SETTLE_SECONDS):
                await _is_set(self._moved, REWRITE_SECONDS - MOVED_SECONDS)

    async def write(self, *, ended: bool = False) -> None:
        """Look at the file and write it once, unless the storage may be somebody else's.

        Written also while a hold is still on its way: the other one has to hear of this one.
        `ended`: this is the last word, and nothing is written after it.

        Raises:
            StorageUnavailable, StorageFull: as they say.
        """
        if not self._may_write():
            return
        async with self._turn:
            await self._look()
            if not self._ended:
                self._ended = ended
                await self._write()
        if not ended:
            await self._settle_up()

    async def require_alone(self) -> None:
        """Return if no other daemon shows itself under this broker id, by a look of just now.

        Raises:
            StorageUnavailable: one does or may, or nobody can say.
        """
        try:
            async with asyncio.timeout(FIRST_LOOK_SECONDS):
                await self._looked.wait()
                async with self._turn:
                    now = self._clock.monotonic()
                    if self._looked_at is None or now - self._looked_at >= LOOK_SECONDS:
                        await self._look()
        except TimeoutError as error:
            raise StorageUnavailable("the presence file was not read in time") from error
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_LOOK_SECONDS):
                await self._settle_up()
        if (why := self.why_not_alone()) is not None:
            raise StorageUnavailable(why, reason=OTHER_DAEMON, retry=False)

    def why_not_alone(self) -> str | None:
        """Return what keeps this daemon from deleting by the last look, and what ends it."""
        unwritten = "" if self.trouble is None else self.trouble.message
        why = twins.sentence(self.standing, self._broker_id, unwritten)
        return _OWED if why is None and self._owes else why

    @property
    def _owes(self) -> bool:
        """Whether something that `on_met` was called for is not done."""
        return self._paid < self._owed

    async def _look(self) -> None:
        now = self._clock.monotonic()
        data = await self._read()
        met = await self._met_before()
        self._take(data, now)
        if met is not None and not isinstance(self.standing, Met):
            self.standing, self._owed = Met(met, now), self._owed + 1
        self._looked_at = now
        await self._keep_note()
        self._looked.set()

    async def _read(self) -> bytes | None:
        """Return what the file holds; nothing at all of one that is too large to be anybody's."""
        try:
            control = await self._storage.get_control(marker.presence_key(self._broker_id))
        except Malformed:
            return b""
        return None if control is None else control.data

    async def _settle_up(self) -> None:
        """Do what a meeting calls for. It goes on without a caller whose time is over.

        All objects may have to be listed for it.

        Raises:
            StorageUnavailable: it could not be done; it stays due.
        """
        if not self._owes:
            return
        if self._paying is None:
            told = asyncio.get_running_loop().create_future()
            self._spawn(self._pay(told))
            self._paying = told
        await asyncio.shield(self._paying)

    async def _pay(self, told: asyncio.Future[None]) -> None:
        """Do it, and tell all who wait what came of it."""
        failure: UnavailableError | None = None
        try:
            while self._owes:
                owed = self._owed
                await self._on_met()
                self._paid = owed
            async with self._turn:
                await self._keep_note()
        except UnavailableError as error:
            failure = error
        finally:
            self._paying = None
            if failure is None:
                told.set_result(None)  # whoever waits looks at what is owed
            else:
                told.set_exception(failure)
                told.exception()  # retrieved: perhaps all who waited have left

    async def _met_before(self) -> str | None:
        """Return who an earlier life had met, at the first look: its bucket may not know of that.

        Raises:
            StorageUnavailable: nobody can say now.
        """
        if self._remembrance is None or not isinstance(self.standing, Unread):
            return None
        try:
            self._noted = await self._remembrance.other_daemon()
        except OSError as error:
            raise StorageUnavailable(f"the state directory can't be read: {error}") from error
        return self._noted

    async def _keep_note(self) -> None:
        """Keep who was met, for a life that has to go on from here, until all is done about it."""
        match self.standing:
            case Met(who, _):
                wanted: str | None = who
            case Alone() if not self._owes:
                wanted = None
            case _:
                return
        if self._remembrance is None or wanted == self._noted:
            return
        try:
            await self._remembrance.note_other_daemon(wanted)
        except OSError as error:
            log.warning("the other daemon is not noted in the state directory", error=str(error))
        else:
            self._noted = wanted

    def _take(self, data: bytes | None, now: float) -> None:
        """Go on from what the file holds."""
        before = self.standing
        digest = None if data is None else hashlib.sha256(data).digest()
        seen: Own | Others = Own()
        if data is not None and digest not in self._own:
            seen = Others(_decoded(data), again=digest == self._unanswered)
            self._unanswered = digest
        self.standing = twins.step(before, seen, place=self._author.place, seconds=now)
        if self.standing == before:
            return
        if isinstance(before, Met) or isinstance(self.standing, Met):
            self._owed += 1
        if isinstance(seen, Others):
            self._changed.set()  # so that the other one hears of this one soon
        if type(before) is not type(self.standing):
            _tell(before, self.standing, self._broker_id)

    async def _write(self) -> None:
        facts = self._facts()
        presence = Presence(
            cluster_id=self._cluster_id,
            broker_id=self._broker_id,
            incarnation=facts.incarnation,
            started_at_ms=self._started_at_ms,
            written_at_ms=self._clock.now_ms(),
            copy_deadline_seconds=self._copy_deadline_seconds,
            lease_end_ms=facts.lease_end_ms,
            metadata_manager=facts.metadata_manager,
            partitions=facts.partitions,
            place=self._author.place,
            host=self._author.host,
            ended=self._ended,
            other=_other(self.standing),
            holds=facts.holds,
        )
        data = marker.encode(presence)
        self._own.append(hashlib.sha256(data).digest())
        await self._storage.overwrite_control(marker.presence_key(self._broker_id), data)
        self._unanswered = None

    async def _try_write(self) -> None:
        try:
            async with asyncio.timeout(WRITE_SECONDS_MAX):
                await self.write()
        except (UnavailableError, TimeoutError) as error:
            late = _OWED if self._owes else f"no answer in {WRITE_SECONDS_MAX:g} s"
            self._not_written(str(error) or late)
        else:
            if self.trouble is not None:
                log.info("presence file written again", failures=self.trouble.consecutive)
            self.trouble = None

    def _not_written(self, words: str) -> None:
        """Keep what a write met, and ask for the next one."""
        before = self.trouble
        if before is None or before.message != words:  # once, however long it lasts
            log.warning("presence file not written", error=words)
        self.trouble = LastError(
            message=words,
            at_ms=self._clock.now_ms(),
            consecutive=1 if before is None else before.consecutive + 1,
        )
        self._moved.set()


async def _is_set(event: asyncio.Event, seconds: float) -> bool:
    """Return whether an event is set, as soon as it is, within so many seconds."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


def _decoded(data: bytes) -> Presence | None:
    try:
        return marker.decode_presence(data)
    except Malformed as damage:
        log.warning("a presence file that is not this daemon's can't be read", error=damage.message)
        return None


def _other(standing: Standing) -> OtherDaemon | None:
    match standing:
        case Doubted(who, _):
            return OtherDaemon(who=who, met=False)
        case Met(who, _):
            return OtherDaemon(who=who, met=True)
        case Unread() | Alone():
            return None


def _tell(before: Standing, standing: Standing, broker_id: int) -> None:
    why = twins.sentence(standing, broker_id)
    match standing:
        case Met():
            log.error("another daemon has this broker id", why=why)
        case Doubted():
            log.warning("another daemon may have this broker id", why=why)
        case Alone() if not isinstance(before, Unread):
            log.warning("no other daemon has this broker id; deletes go on")
        case _:
            return
