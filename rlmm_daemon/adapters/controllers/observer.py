"""Observer of the controllers' log: a snapshot first, then what follows it and is committed.

Nothing of it is kept on a disk: after a start the snapshot is fetched anew. The log is asked for
every few seconds, and at once when somebody wants a word. Only the leader's answer counts; one that
was cut off from most voters resigns by itself after 3 s (`controller.quorum.fetch.timeout.ms`).
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Final, Protocol

import msgspec
import structlog

from rlmm_daemon.adapters.quorum.handshake import Dialer
from rlmm_daemon.adapters.quorum.links import Links, Unreachable
from rlmm_daemon.adapters.quorum.wire import Group
from rlmm_daemon.codec import batches
from rlmm_daemon.codec.kraft import cluster_records
from rlmm_daemon.codec.kraft.checkpoint_pieces import Pieces
from rlmm_daemon.codec.kraft.cluster_records import Passed, Record
from rlmm_daemon.core.cluster_image.image import ClusterImage
from rlmm_daemon.core.cluster_image.word import ControllersState, ControllersWord, Following
from rlmm_daemon.core.raft.log_facts import Batch, LogPoint
from rlmm_daemon.core.raft.messages import (
    Answer,
    Code,
    FetchAnswer,
    FetchRequest,
    FetchSnapshotAnswer,
    FetchSnapshotRequest,
    Request,
)
from rlmm_daemon.core.raft.voters import Endpoint, ReplicaKey
from rlmm_daemon.domain.backoff import Backoff
from rlmm_daemon.domain.errors import LogCorrupt, Malformed, Overloaded, UnavailableError
from rlmm_daemon.domain.ids import TopicId
from rlmm_daemon.ports.clock import Clock

_log = structlog.get_logger(__name__)

_TOPIC: Final = "__cluster_metadata"
_TOPIC_ID: Final = bytes(15) + b"\x01"
#: Answers name one address only, whatever the listener is called.
_LISTENER: Final = "CONTROLLER"
#: Served, and not counted among a quorum's observers.
_NOBODY: Final = ReplicaKey(-1)
#: Between two fetches that nobody asked for.
POLL_SECONDS: Final = 5.0
#: One fetch, its connection included.
_FETCH_SECONDS: Final = 5.0
#: How long a word is waited for.
WORD_SECONDS: Final = 5.0
#: A controller can't hand out a larger one (its positions are 32 bits wide).
_SNAPSHOT_BYTES_MAX: Final = 1 << 31
#: Records that are taken in before others get a turn.
_TURN: Final = 256
_RETRY_SECONDS_MIN: Final = 0.1
_RETRY_SECONDS_MAX: Final = 15.0
#: After an answer that only a person can change.
_LONG_RETRY_SECONDS: Final = 30.0
#: More are no lag of a few controllers that hold an election.
_AHEAD_MAX: Final = 8
_LONG: Final = frozenset(
    {ControllersState.OTHER_CLUSTER, ControllersState.UNAUTHORIZED, ControllersState.UNREADABLE}
)


class Asker(Protocol):
    """Whoever asks controllers: `Links`, of which no more is needed."""

    async def ask(self, request: Request, endpoints: Sequence[Endpoint]) -> Answer:
        """Return the answer of the first of them; Unreachable: there is none."""

    def close(self) -> None:
        """Give all connections back."""


def connecting(dialer: Dialer) -> Callable[[str], Asker]:
    """Return what connects to the controllers of a cluster."""

    def connect(cluster_id: str) -> Asker:
        group = Group(cluster_id=cluster_id, topic=_TOPIC, topic_id=_TOPIC_ID, listener=_LISTENER)
        return Links(group, dialer, timeout_seconds=_FETCH_SECONDS)

    return connect


def endpoints_of(bootstrap: Sequence[str]) -> tuple[Endpoint, ...]:
    """Return addresses, `host:port` or `[v6]:port`, as a dialer takes them."""
    split = [each.rpartition(":") for each in bootstrap]
    return tuple(Endpoint(_LISTENER, host.strip("[]"), int(port)) for host, _, port in split)


class _Missed(Exception):
    """A fetch brought nothing; `soon`: somebody else is to be asked at once."""

    def __init__(self, standing: ControllersState, trouble: str, *, soon: bool = False) -> None:
        super().__init__(trouble)
        self.standing, self.trouble, self.soon = standing, trouble, soon


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """How following the controllers stands, for people."""

    standing: ControllersState
    trouble: str | None
    #: Where the image stands; None: there is none.
    at: LogPoint | None
    #: Since the leader last confirmed that it is the newest.
    age_seconds: float | None
    topics: int
    brokers: int
    #: Types of records that Kafka 4.3.1 has not, passed over.
    unknown_kinds: tuple[int, ...]


class ControllersObserver:
    """Follows for ever; reads its own image only where the leader has confirmed it."""

    def __init__(
        self,
        bootstrap: Sequence[Endpoint],
        connect: Callable[[str], Asker],
        cluster_id: Callable[[], Awaitable[str]],
        *,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        """`cluster_id`: by the brokers' word; controllers of another cluster refuse it.

        `connect` is given it, and returns who asks.
        """
        self._bootstrap, self._connect, self._asked_cluster_id = bootstrap, connect, cluster_id
        self._clock, self._rng = clock, rng
        self.following = Following()
        #: What is being taken in; it becomes the following's when it is the newest.
        self._image = ClusterImage()
        self._epoch = 0
        self._leader: tuple[Endpoint, ...] = ()
        self._next_server = 0
        #: Answers on end by which this epoch is not known: a controller may be behind.
        self._ahead = 0
        self._asker: Asker | None = None
        self._wanted = asyncio.Event()
        self._waiting: set[asyncio.Future[None]] = set()

    async def word(
        self, topic_ids: Collection[TopicId], asked_at: float, *, cluster_id: str
    ) -> ControllersWord | None:
        """Return the controllers' word on topic ids, as of a moment after `asked_at`.

        None where it can't be had within some seconds; where they are not being followed, or are of
        another cluster than this one, at once.
        """
        try:
            async with asyncio.timeout(WORD_SECONDS):
                while (
                    self.following.standing is ControllersState.CURRENT
                    and self.following.cluster_id == cluster_id
                ):
                    found = self.following.word(topic_ids, cluster_id=cluster_id, asked_at=asked_at)
                    if found is not None:
                        return found
                    await self._next_answer()
        except TimeoutError:
            pass
        return None

    async def settled(self) -> None:
        """Return once the controllers are followed, or something is met that lasts."""
        lasting = _LONG | {ControllersState.CURRENT}
        while self.following.standing not in lasting:
            await self._next_answer()

    def observed(self) -> Observed:
        """Return how it stands."""
        image, checked_at = self.following.image, self.following.checked_at
        return Observed(
            standing=self.following.standing,
            trouble=self.following.trouble,
            at=image.at if image else None,
            age_seconds=None if checked_at is None else self._clock.monotonic() - checked_at,
            topics=len(image.topics) if image else 0,
            brokers=len(image.brokers) if image else 0,
            unknown_kinds=tuple(sorted(image.unknown_kinds)) if image else (),
        )

    async def _next_answer(self) -> None:
        self._wanted.set()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            await future
        finally:
            self._waiting.discard(future)

    def _tell(self) -> None:
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    async def run(self) -> None:
        """Fetch for ever; whatever is met is told, and tried again later."""
        backoff = Backoff(_RETRY_SECONDS_MIN, _RETRY_SECONDS_MAX, self._rng.random)
        try:
            while True:
                pause = await self._turn(backoff)
                self._tell()
                if pause:
                    await self._rest(pause)
        finally:
            if self._asker is not None:
                self._asker.close()

    async def _rest(self, seconds: float) -> None:
        """Wait, or until a word is wanted while the controllers answer."""
        if self.following.standing is not ControllersState.CURRENT:
            await asyncio.sleep(seconds)
            return
        try:
            async with asyncio.timeout(seconds):
                await self._wanted.wait()
        except TimeoutError:
            pass

    async def _turn(self, backoff: Backoff) -> float:
        """Fetch once; return how long to wait before the next time."""
        self._wanted.clear()
        try:
            caught_up = await self._fetch()
        except _Missed as missed:
            if missed.soon:
                return _RETRY_SECONDS_MIN
            self._miss(missed.standing, missed.trouble)
            return _LONG_RETRY_SECONDS if missed.standing in _LONG else backoff.next()
        except (LogCorrupt, Malformed, Overloaded) as error:
            self._begin_anew()
            self._miss(ControllersState.UNREADABLE, error.message)
            return _LONG_RETRY_SECONDS
        backoff.reset()
        return POLL_SECONDS if caught_up else 0.0

    def _miss(self, standing: ControllersState, trouble: str) -> None:
        before = self.following.standing
        self.following.missed(standing, trouble)
        if before is not self.following.standing:
            _log.warning(
                "the controllers' log is not followed",
                standing=self.following.standing.value,
                error=trouble,
            )

    def _begin_anew(self) -> None:
        self._image = ClusterImage()
        self.following.lost()

    # A fetch.

    async def _fetch(self) -> bool:
        """Take in what follows the image; return whether that was all there is."""
        asker = await self._open()
        asked_at = self._clock.monotonic()
        request = FetchRequest(epoch=self._epoch, replica=_NOBODY, point=self._image.at)
        answer = await self._asked(asker, request)
        assert isinstance(answer, FetchAnswer), "a fetch gets a fetch's answer"
        if answer.diverging is not None:
            _log.warning("the controllers' log is not the one that was read: reading it anew")
            self._begin_anew()
            return False
        if answer.snapshot is not None:
            await self._load(asker, answer.snapshot)
            return False
        for batch in answer.batches:
            if batch.end <= answer.high_watermark:
                await self._take(batch)
        was = self.following.standing
        caught_up = self.following.reached(self._image, asked_at, answer.high_watermark)
        if caught_up and was is not ControllersState.CURRENT:
            at = self._image.at
            _log.info("the controllers' log is followed", offset=at.end, epoch=at.epoch)
        if not caught_up and not answer.batches:
            raise _Missed(
                ControllersState.UNREACHABLE, "the controllers' leader commits nothing yet"
            )
        return caught_up

    async def _open(self) -> Asker:
        if self._asker is None:
            try:
                cluster_id = await self._asked_cluster_id()
            except UnavailableError as error:
                raise _Missed(
                    ControllersState.LOADING, f"no broker named the cluster: {error}"
                ) from error
            self.following.cluster_id = cluster_id
            self._asker = self._connect(cluster_id)
        return self._asker

    async def _asked(self, asker: Asker, request: Request) -> Answer:
        """Return the leader's answer.

        Raises:
            _Missed: somebody else answered, or nobody; whom to ask next is known.
        """
        servers = self._leader or (self._bootstrap[self._next_server],)
        try:
            answer = await asker.ask(request, servers)
        except Unreachable as error:
            self._forget_leader()
            raise _Missed(ControllersState.UNREACHABLE, str(error)) from error
        at = f"{servers[0].host}:{servers[0].port}"
        match answer.error:
            case Code.NONE:
                self._leader, self._ahead = servers, 0
                self._epoch = max(self._epoch, answer.epoch)
                return answer
            case Code.INCONSISTENT_CLUSTER_ID:
                trouble = f"{at} is of another cluster than the brokers"
                self._forget_leader()
                raise _Missed(ControllersState.OTHER_CLUSTER, trouble)
            case Code.CLUSTER_AUTHORIZATION_FAILED:
                trouble = f"{at}: the principal needs ClusterAction on the cluster"
                raise _Missed(ControllersState.UNAUTHORIZED, trouble)
            case Code.NOT_LEADER_OR_FOLLOWER | Code.FENCED_LEADER_EPOCH if (
                answer.epoch >= self._epoch and answer.endpoints
            ):
                known = (answer.epoch, answer.endpoints) == (self._epoch, self._leader)
                self._epoch, self._leader = answer.epoch, answer.endpoints
                raise _Missed(ControllersState.UNREACHABLE, f"{at} does not lead", soon=not known)
            case _:
                self._forget_leader()
                self._count_ahead(answer.error)
                trouble = f"{at} answered {answer.error.name.lower()}"
                raise _Missed(ControllersState.UNREACHABLE, trouble)

    def _count_ahead(self, error: Code) -> None:
        """Begin anew where nobody knows this epoch any more: the controllers began anew too."""
        if error in (Code.UNKNOWN_LEADER_EPOCH, Code.INVALID_REQUEST):
            self._ahead += 1
        if self._ahead >= _AHEAD_MAX:
            self._ahead = self._epoch = 0
            self._begin_anew()

    def _forget_leader(self) -> None:
        self._leader = ()
        self._next_server = (self._next_server + 1) % len(self._bootstrap)

    async def _take(self, batch: Batch) -> None:
        """Take in a committed batch, as a whole."""
        at = self._image.at
        if batch.end <= at.end:
            return
        if batch.base != at.end or not at.epoch <= batch.epoch:
            raise LogCorrupt(
                f"a batch at offset {batch.base} of epoch {batch.epoch} follows offset {at.end} "
                f"of epoch {at.epoch} in the controllers' log"
            )
        assert isinstance(batch.payload, bytes), "what was fetched is bytes"
        (kept,) = batches.split(batch.payload)
        if not kept.is_control:
            for offset, record in await asyncio.to_thread(_records, kept):
                self._image.apply(offset, record)
        self._image.reached(LogPoint(batch.epoch, batch.end))

    # A snapshot.

    async def _load(self, asker: Asker, point: LogPoint) -> None:
        """Fetch a whole snapshot of one leader, and begin an image with it."""
        self.following.lost()
        epoch, size = self._epoch, None
        image, pieces, position, count = ClusterImage(point), Pieces(point), 0, 0
        while size is None or position < size:
            request = FetchSnapshotRequest(
                epoch=epoch, replica=_NOBODY, snapshot=point, position=position
            )
            answer = await self._asked(asker, request)
            assert isinstance(answer, FetchSnapshotAnswer), "a snapshot's fetch gets its answer"
            size = answer.size if size is None else size
            self._check_piece(answer, point, position, size)
            for record in await asyncio.to_thread(_whole_records, pieces, answer.piece):
                image.apply(point.end, record)
                count += 1
                if count % _TURN == 0:
                    await asyncio.sleep(0)
            position += len(answer.piece)
        if not pieces.is_whole or image.in_transaction:
            raise LogCorrupt(f"the controllers' snapshot {point} is cut short")
        self._image = image
        _log.info("a snapshot of the controllers was read", offset=point.end, records=count)

    def _check_piece(
        self, answer: FetchSnapshotAnswer, point: LogPoint, position: int, size: int
    ) -> None:
        if answer.size > _SNAPSHOT_BYTES_MAX:
            raise Overloaded(f"a snapshot of {answer.size} bytes")
        same = (answer.snapshot, answer.position, answer.size) == (point, position, size)
        if not same or not answer.piece:
            raise _Missed(
                ControllersState.LOADING, "another piece of a snapshot came than was asked for"
            )


# In a thread: a batch may hold eight MiB, and look-ups go on meanwhile.


def _records(kept: batches.Batch) -> list[tuple[int, Record | Passed]]:
    rows = batches.keyed_records_of(kept)
    return [(offset, cluster_records.read(value)) for offset, _, value in rows]


def _whole_records(pieces: Pieces, piece: bytes) -> list[Record | Passed]:
    return [cluster_records.read(value) for value in pieces.take(piece)]
