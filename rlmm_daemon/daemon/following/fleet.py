"""The followers of this daemon: one per wanted metadata partition, started and stopped as asked.

Opens the log, holds its identity against what is known, and runs the three small loops that all
followers share: start and stop, end offsets, positions.
"""

import asyncio
import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final, Protocol

import msgspec
import structlog

from rlmm_daemon.codec.state_files import Identity, Position, Positions
from rlmm_daemon.core.partitioner import PARTITIONER_ID
from rlmm_daemon.core.readiness.states import (
    Failure,
    FailureReason,
    Freshness,
    LogTrouble,
    TroubleKind,
)
from rlmm_daemon.daemon.base.broadcast import Broadcast
from rlmm_daemon.daemon.base.bugs import Bugs
from rlmm_daemon.daemon.base.crash_guard import blame
from rlmm_daemon.daemon.base.state_directory import StateDirectory
from rlmm_daemon.daemon.following.accepted_gaps import AcceptedGaps
from rlmm_daemon.daemon.following.follow_set import FollowSet
from rlmm_daemon.daemon.following.follower import Follower, FollowerContext
from rlmm_daemon.daemon.following.hooks import ManagerHooks
from rlmm_daemon.daemon.following.known_reads import KnownReads
from rlmm_daemon.daemon.following.noted_positions import NotedPositions
from rlmm_daemon.daemon.following.snapshots import SnapshotStore
from rlmm_daemon.daemon.following.snapshotter import Snapshotter, allowed
from rlmm_daemon.daemon.following.writer import Writer
from rlmm_daemon.domain.backoff import Backoff
from rlmm_daemon.domain.errors import (
    CorruptError,
    InvalidArgument,
    NotReady,
    RlmmError,
    StorageUnavailable,
    UnavailableError,
    UnsupportedProtocol,
)
from rlmm_daemon.domain.ids import MetadataPartition, TopicId, uuid_bytes, uuid_text
from rlmm_daemon.observability.metrics import LogMetrics
from rlmm_daemon.ports.clock import Clock
from rlmm_daemon.ports.event_log import (
    EventLog,
    LogForeign,
    LogIdentity,
    LogMissing,
    LogRange,
    LogUnnamed,
    NoTopicId,
)

#: Between two looks for what other daemons were told to accept, while that is of interest.
GAPS_SECONDS: Final = 5.0
#: What a log as a whole failed of, and goes on from when the loss is accepted.
_ENDED_BY_ACCEPTANCE: Final = frozenset(
    {FailureReason.LOG_MISSING, FailureReason.PARTITION_COUNT_CHANGED}
)
_RETRY_SECONDS_MIN: Final = 0.05
_RETRY_SECONDS_MAX: Final = 5.0
#: How long an acceptance waits for the log that is made by it. It is written down with that log.
_MADE_SECONDS: Final = 5.0
_NOT_OPENED: Final = LogTrouble(TroubleKind.NOT_OPENED, "not opened yet")

logger = structlog.get_logger(__name__)


class BucketLog(msgspec.Struct, frozen=True, kw_only=True):
    """What the bucket knows of the log: its marker, and this daemon's own presence file."""

    #: None: not known.
    cluster_id: str | None = None
    topic_id: TopicId
    partition_count: int
    #: How far an earlier life of this daemon had read, by metadata partition.
    positions: Mapping[int, Position] = msgspec.field(default_factory=dict)
    #: The same of other brokers' daemons, where none of them is beyond another, and whose files say
    #: so.
    others: Mapping[int, Mapping[Position, str]] = msgspec.field(default_factory=dict)
    #: Metadata partitions (None: all) whose loss any daemon accepted since our presence file.
    lost_since: Collection[int | None] = ()
    #: Gaps whose loss was accepted, by any daemon: log, metadata partition, offsets.
    accepted_gaps: Sequence[tuple[TopicId, int, LogRange]] = ()


class BucketRecord(Protocol):
    """The bucket's word on the log, where there is a bucket."""

    async def log(self) -> BucketLog | None:
        """Return what the marker says, once it was read; None where there is no marker yet.

        Raises:
            RlmmError: not now; asked again with back-off.
        """
        ...

    async def accept_loss(
        self,
        partition: MetadataPartition | None,
        identity: LogIdentity,
        gaps: Mapping[int, Sequence[LogRange]],
    ) -> None:
        """Keep in the marker that a loss (None: of the whole log) was accepted; the log is this.

        `gaps`: the known ones of the metadata partitions that were accepted.

        Raises:
            RlmmError: it was not written.
        """
        ...


class FleetOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Times and bounds; see the configuration for what each is for."""

    freshness: Freshness = Freshness()
    delivery_timeout_seconds: float = 120.0
    on_demand_linger_seconds: float = 60.0


class Fleet:
    """Owns the followers and the writers; lives inside one task group."""

    def __init__(
        self,
        *,
        log: EventLog,
        state: StateDirectory,
        snapshots: SnapshotStore,
        snapshotter: Snapshotter,
        clock: Clock,
        rng: random.Random,
        options: FleetOptions,
        bucket: BucketRecord | None,
        quarantined: frozenset[int],
        hooks: ManagerHooks,
        metrics: LogMetrics | None = None,
        bugs: Bugs | None = None,
    ) -> None:
        self._metrics, self._bugs = metrics, bugs
        self._log = log
        self._state = state
        self._snapshots = snapshots
        self._snapshotter = snapshotter
        self._clock = clock
        self._rng = rng
        self.options = options
        self._bucket = bucket
        self._quarantined = set(quarantined)
        self._hooks = hooks
        self.identity: LogIdentity | None = None
        #: Why no partition of this log can be served: it is absent, or another count.
        self.whole_failure: Failure | None = None
        #: Set when the log is not the one that state directory or marker name.
        self.foreign_evidence: str | None = None
        self.trouble: LogTrouble | None = _NOT_OPENED
        self.follow_set: FollowSet | None = None
        self.followers: dict[MetadataPartition, Follower] = {}
        self._tasks: dict[MetadataPartition, asyncio.Task[None]] = {}
        self._writers: dict[MetadataPartition, Writer] = {}
        self._reads = KnownReads()
        #: Followed since those were asked: others may have read on while this daemon did not.
        self._unheard: set[MetadataPartition] = set()
        self._newcomer = Broadcast()
        #: Whose loss some daemon accepted, while what this one had read may be from before.
        self._lost_elsewhere: set[int] = set()
        self.noted = NotedPositions(log, state, self._reads, self.followers)
        self._accepted_gaps = AcceptedGaps(state)
        self._accept_missing = False
        #: Rung when it was accepted that the log is gone.
        self._gone = Broadcast()
        self._identity_unwritten = False
        #: Held while followers are started or stopped, and while the log is opened anew.
        self._turning = asyncio.Lock()
        #: How many partitions the open log has by now, where that is not what it opened with.
        self._recounted: int | None = None
        #: Set once the bucket's word was taken up, so that the presence file may be rewritten.
        self.marker_checked = False
        #: Rung when the identity became known, the marker was checked, a follower came or went.
        self.changed = Broadcast()
        self.target_wanted = Broadcast()

    # Opening.

    async def open(self, known: Identity | None, positions: Positions | None) -> None:
        """Return once the log is open, however long that takes.

        A log that is absent is created only if nothing names a topic id; else every partition is
        `failed(log_missing)` until an operator accepts the loss.
        """
        # A state directory that knows its log does not wait for a storage that is away.
        marker = None if known else await self._read_marker()
        # The file that names it may be lost or moved aside: what was read of it names it, too.
        read = positions if known is None else None
        self.identity = await self._open_log(
            named=bool(known or marker or read), cluster_id=known.cluster_id if known else None
        )
        self.noted.belong_to(self.identity.topic_id)
        self.whole_failure = None  # the log is there, readable, and has an id
        if marker is not None and not _same_cluster(marker, self.identity):
            marker = None
        read_of = None if read is None else TopicId(uuid_bytes(read.topic_id))
        await self._compare(self.identity, known, marker, read_of=read_of)
        if positions is not None and positions.topic_id == uuid_text(self.identity.topic_id):
            await self.noted.take_up(positions)
        elif positions is not None and self.foreign_evidence is not None:
            self.noted.take_up_elsewhere(positions)
        if marker is not None and marker.topic_id == self.identity.topic_id:
            self._reads.hear_own(marker.positions)
            self._reads.hear_others(marker.others)
        gaps = marker.accepted_gaps if marker else ()
        await self._accepted_gaps.load(self.identity.topic_id, gaps)
        self._snapshots.belongs_to(self.identity)
        self.follow_set = FollowSet(
            self.identity.partition_count,
            self._clock,
            on_demand_linger_seconds=self.options.on_demand_linger_seconds,
        )
        self.trouble = None  # from now on there are answers
        self.changed.ring()

    async def _open_log(self, *, named: bool, cluster_id: str | None) -> LogIdentity:
        """Open the log, however long that takes; each failure is told and may pass.

        `cluster_id` is the one that the state directory belongs to, None if it does not say.
        """
        backoff = self._backoff()
        while True:
            try:
                return await self._opened(cluster_id, create=not named or self._accept_missing)
            except LogMissing as missing:
                evidence = str(missing) or "the log is not there"
                self._whole_failed(FailureReason.LOG_MISSING, evidence)
            except NoTopicId as nameless:
                self._whole_failed(FailureReason.NO_TOPIC_ID, str(nameless))
            except UnsupportedProtocol as newer:
                self._whole_failed(FailureReason.NEWER_LOG, newer.message)
            except LogUnnamed as damaged:
                self._whole_failed(FailureReason.LOG_UNNAMED, damaged.message)
            except LogForeign as foreign:
                self._whole_failed(FailureReason.LOG_FOREIGN, foreign.message)
            except CorruptError as error:
                self._whole_failed(FailureReason.LOG_CORRUPT, error.message)
            except (UnavailableError, OSError) as error:
                self.trouble = LogTrouble(TroubleKind.LOG_AWAY, str(error))
                logger.warning("event log not open yet", error=str(error))
            with suppress(TimeoutError):
                async with asyncio.timeout(backoff.next()):
                    await self._gone.wait()

    def _backoff(self) -> Backoff:
        return Backoff(_RETRY_SECONDS_MIN, _RETRY_SECONDS_MAX, self._rng.random)

    async def _opened(self, cluster_id: str | None, *, create: bool) -> LogIdentity:
        opened = await self._log.open(create=create)
        if None not in (cluster_id, opened.cluster_id) and cluster_id != opened.cluster_id:
            raise LogForeign(
                f"the log is of cluster {opened.cluster_id}, and the state directory, which holds "
                f"what is known, of {cluster_id}",
                cluster_id=opened.cluster_id,
            )
        return opened

    async def check_marker(self) -> None:
        """Hold the open log against the marker, as soon as that can be read."""
        await self._check_marker()
        self.marker_checked = True
        self.changed.ring()

    async def _check_marker(self) -> None:
        assert self.identity is not None, "the log is open"
        marker = await self._read_marker()
        if marker is None or not _same_cluster(marker, self.identity) or self._accept_missing:
            return
        await self._compare(self.identity, None, marker)
        if marker.topic_id == self.identity.topic_id:
            self._reads.hear_own(marker.positions)
        await self._take_up_gaps(marker)
        self._hear_others(marker, self.followers.keys())
        self.lost_elsewhere(marker.lost_since)

    def lost_elsewhere(self, numbers: Collection[int | None]) -> None:
        """Let go of how far partitions had been read whose loss some daemon accepted since.

        A follower here holds the log against that. Of what nobody follows here the presence file
        would speak as of news, and who accepted the loss would fail of it again at each start.
        """
        assert self.identity is not None, "the log is open"
        every = range(self.identity.partition_count)
        self._lost_elsewhere |= {n for n in every if {None, n} & set(numbers)}
        for number in self._lost_elsewhere - self.followers.keys() - self._wanted():
            self._lost_elsewhere.discard(number)
            self._reads.forget(MetadataPartition(number))

    async def ask_others(self, partition: MetadataPartition) -> None:
        """Ask the bucket how far others have read of it, before what another broker began is ended.

        Its follower is not ready from here on while the log does not confirm that.

        Raises:
            StorageUnavailable: the bucket does not say.
        """
        if self._bucket is not None:
            self._hear_others(await self._bucket.log(), [partition])

    def _hear_others(self, marker: BucketLog | None, numbers: Collection[int]) -> None:
        """Take up how far other daemons had read, and have these partitions checked for it."""
        assert self.identity is not None, "the log is open"
        if marker is not None and marker.topic_id == self.identity.topic_id:
            self._reads.hear_others({} if self._accept_missing else marker.others)
        for follower in [f for f in self.followers.values() if f.partition in numbers]:
            positions = self._reads.said_of(follower.partition)
            if self.foreign_evidence is not None or positions:
                follower.recheck(positions)

    async def keep_learning_gaps(self) -> None:
        """Ask the bucket again, for what other daemons know.

        While a follower lacks offsets, whether one was told to accept that; and how far they had
        read of what this daemon begins to follow.
        """
        told = ""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(GAPS_SECONDS):
                    await self._newcomer.wait()
            unheard = frozenset(self._unheard)
            lacking = any(f.open_gaps for f in self.followers.values())
            if self._bucket is None or not (unheard or lacking):
                continue
            try:
                marker = await self._bucket.log()
            except RlmmError as error:
                if told != error.message:  # once, however long it lasts
                    logger.warning("bucket marker not read", error=error.message)
                told = error.message
                continue
            told = ""
            await self._take_up_gaps(marker)
            self._unheard -= unheard
            if unheard:
                self._hear_others(marker, unheard)

    async def _take_up_gaps(self, marker: BucketLog | None) -> None:
        """Start those over that failed only of what was accepted elsewhere."""
        assert self.identity is not None, "the log is open"
        lacking = [f for f in self.followers.values() if f.open_gaps]
        gaps = marker.accepted_gaps if marker else ()
        if self._accepted_gaps.learn(self.identity.topic_id, gaps):
            for follower in lacking:
                if not follower.open_gaps:
                    follower.retry()
            await self._accepted_gaps.write_or_later(self.identity.topic_id)

    async def _read_marker(self) -> BucketLog | None:
        if self._bucket is None:
            return None
        backoff = self._backoff()
        while True:
            try:
                found = await self._bucket.log()
            except RlmmError as error:
                message = f"the bucket marker was not read yet: {error}"
                trouble = LogTrouble(TroubleKind.MARKER_UNREAD, message)
                if trouble != self.trouble:  # once, however long it lasts
                    logger.warning("bucket marker not read yet", error=str(error))
                self.trouble = trouble
            else:
                if self.trouble is not None and self.trouble.kind is TroubleKind.MARKER_UNREAD:
                    self.trouble = None if self.identity else _NOT_OPENED
                return found
            await asyncio.sleep(backoff.next())

    async def _compare(
        self,
        identity: LogIdentity,
        known: Identity | None,
        marker: BucketLog | None,
        *,
        read_of: TopicId | None = None,
    ) -> None:
        """Hold the log that opened against the one that was known.

        `read_of` is the one whose positions are kept, which tell of no partition count.
        """
        names: dict[str, tuple[bytes, int | None]] = {}
        if read_of:
            names["positions.json"] = (read_of, None)
        if known:
            names["the state directory"] = (uuid_bytes(known.topic_id), known.partition_count)
        if marker:
            names["the bucket marker"] = (marker.topic_id, marker.partition_count)
        for who, (topic_id, count) in names.items():
            if count is not None and count != identity.partition_count:
                self._whole_failed(
                    FailureReason.PARTITION_COUNT_CHANGED,
                    f"{who} says {count} partitions, the log has {identity.partition_count}",
                )
            if topic_id != identity.topic_id and not self._accept_missing:
                self.foreign_evidence = (
                    f"{who} names the log {uuid_text(topic_id)}, "
                    f"this one is {uuid_text(identity.topic_id)}"
                )
        in_doubt = self.foreign_evidence is not None or self.whole_failure is not None
        if self._accept_missing:
            await self._accepted_in_time()
        elif known is None and not in_doubt:
            await self._try_write_identity()

    async def _try_write_identity(self) -> None:
        """Write the identity, now or with the positions: reads do not wait for such a disk."""
        try:
            await self.write_identity()
        except OSError as error:
            logger.warning("identity of the log not written yet", error=str(error))
            self._identity_unwritten = True
        else:
            self._identity_unwritten = False

    async def write_identity(self) -> None:
        """Fix the present log as the one this state directory belongs to."""
        identity = self.identity
        assert identity is not None, "the log is open"
        await self._state.write_identity(
            Identity(
                cluster_id=identity.cluster_id,
                topic_id=uuid_text(identity.topic_id),
                partition_count=identity.partition_count,
                partitioner=PARTITIONER_ID,
            )
        )

    def seen(self, *, partition_count: int) -> None:
        """Take up how many partitions the log has now: events of another count lie elsewhere."""
        identity = self.identity
        # A topic never has fewer: then it was a broker that has not heard of the newest yet.
        if identity is not None and partition_count > identity.partition_count:
            self._recounted = partition_count
            self._whole_failed(
                FailureReason.PARTITION_COUNT_CHANGED,
                f"the log had {identity.partition_count} partitions and has {partition_count} now",
            )
            if self.follow_set is not None:
                self.follow_set.changed.ring()

    def _whole_failed(self, reason: FailureReason, evidence: str) -> None:
        before = self.whole_failure
        if before is None or (before.reason, before.evidence) != (reason, evidence):
            self.whole_failure = Failure(reason, evidence, self._clock.now_ms())
            logger.error("event log failed", reason=reason.value, evidence=evidence)
        self.changed.ring()

    async def reopen(self, topic_id: TopicId) -> None:
        """Take up the log that stands under the known name now; each fold is the former one's.

        Raises:
            UnavailableError: not now.
        """
        async with self._turning:
            before = self.identity
            if before is None or before.topic_id == topic_id:
                return
            logger.error("event log is another one now", topic_id=uuid_text(topic_id))
            for follower in self.followers.values():
                follower.log_changed(topic_id)
            try:
                self.identity = await self._log.open(create=False)
            except (LogMissing, NoTopicId) as gone:
                raise StorageUnavailable(str(gone) or "the log is not there") from gone
            self._snapshots.belongs_to(self.identity)
            self._forget_log(self.identity.topic_id)
            self._accept_missing = False  # that was said of a log before this one
            if self.follow_set and self.follow_set.partition_count != self.identity.partition_count:
                self._recounted = self.identity.partition_count
            known = await self._state.identity()
            read_of = before.topic_id if known is None else None
            await self._compare(self.identity, known, None, read_of=read_of)

    def _forget_log(self, topic_id: TopicId) -> None:
        """Nothing that is known of the former log is said of the present one."""
        self.noted.belong_to(topic_id)
        self._reads.forget_all()
        self._accepted_gaps.forget()
        self.noted.accepted_starts = {}

    async def _recount(self) -> None:
        """Follow the log by the number of partitions that it has now."""
        async with self._turning:
            for partition in list(self.followers):
                await self._end(partition)
            self.identity = await self._log.open(create=False)
            self._recounted = None
            self._forget_log(self.identity.topic_id)
            self._snapshots.belongs_to(self.identity)
            assert self.follow_set is not None, "opened before"
            self.follow_set.recount(self.identity.partition_count)

    async def accept_all(self, *, without_looking: bool = False) -> None:
        """Go on with the log as it is, or with a new one: an operator accepted the loss.

        Raises:
            InvalidArgument: there is no loss to accept, or the log failed of what no acceptance
                ends: nothing that is known may be given up for it.
            NotReady: the log is not open, so nobody knows yet what is missing.
        """
        self._require_known_loss()
        doubted = self.whole_failure or self.foreign_evidence
        lacking = [each for each in self.followers.values() if each.lacking]
        if not doubted and not lacking:
            raise _nothing_missing("the event log", self.followers.values())
        if self._recounted is not None:
            await self._recount()
        every: dict[int, Sequence[LogRange]] = {
            f.partition: f.open_gaps for f in self.followers.values()
        }
        failure = self.whole_failure
        recounted = failure and failure.reason is FailureReason.PARTITION_COUNT_CHANGED
        with self._reads.giving_up([*self._reads.present, *self._reads.recorded, *every]):
            if recounted:  # a death in between must not leave what no repair could put back here
                await self._forget_known()
            if self.identity is not None:
                await self._accepted(None, every)
            if doubted and not recounted:  # before anybody follows, and misses it anew
                await self._forget_known()
            self._accept_missing = True
            self.foreign_evidence = None
            self.whole_failure = None
            self._reads.forget_all()
        if doubted:
            lacking = list(self.followers.values())
        for follower in lacking:  # of a whole log the snapshots of others may be all that is left
            await self._accept_in(follower, without_looking=without_looking or bool(doubted))
        self.changed.ring()
        self._gone.ring()
        with suppress(TimeoutError):
            async with asyncio.timeout(_MADE_SECONDS):
                while self.follow_set is None:
                    await self.changed.wait()

    async def _forget_known(self) -> None:
        await self._snapshots.remove_all()
        await self._state.remove_all_lost()

    async def can_be_restored(self) -> bool:
        """Whether the log is gone and snapshots know what stood in it."""
        failure = self.whole_failure
        gone = failure is not None and failure.reason is FailureReason.LOG_MISSING
        return gone and await self._snapshots.any()

    def _require_known_loss(self) -> None:
        failure = self.whole_failure
        if failure is not None and failure.reason not in _ENDED_BY_ACCEPTANCE:
            raise InvalidArgument(
                f"the event log failed ({failure.reason.value}: {failure.evidence}); to accept a "
                f"loss does not end that, so nothing was accepted; run: "
                f"{failure.command(MetadataPartition(0))}"
            )
        if failure is None and self.identity is None:
            raise NotReady(
                f"the event log is not open: {self.trouble}; nobody knows what is missing, so "
                f"nothing was accepted",
                state="starting",
            )

    async def accept(self, follower: Follower, *, without_looking: bool = False) -> None:
        """Go on without what one metadata partition is missing: an operator accepted it.

        Raises:
            InvalidArgument: the whole log is in doubt, so one partition cannot be accepted alone;
                or there is no loss to accept.
        """
        if self.foreign_evidence is not None or self.whole_failure is not None:
            raise InvalidArgument(
                "the whole log is another one than was known; run: rlmm partition accept-loss --all"
            )
        if not follower.lacking:
            raise _nothing_missing(f"metadata partition {follower.partition}", [follower])
        with self._reads.giving_up([follower.partition]):
            await self._accepted(follower.partition, {follower.partition: follower.open_gaps})
            self._reads.given_up.add(follower.partition)
            self._reads.forget(follower.partition)
        await self._accept_in(follower, without_looking=without_looking)

    async def _accept_in(self, follower: Follower, *, without_looking: bool) -> None:
        await follower.accept_loss(without_looking=without_looking)
        if follower.accepted_start:
            self.noted.accepted_starts[follower.partition] = follower.accepted_start
        if self.identity is not None:
            await self.noted.write()

    async def _accepted_in_time(self) -> None:
        """Write an acceptance of the whole log down, however long the bucket is away."""
        backoff = self._backoff()
        while True:
            try:
                await self._accepted(None, {})
            except (UnavailableError, OSError) as error:
                message = f"the accepted loss was not written down yet: {error}"
                self.trouble = LogTrouble(TroubleKind.ACCEPTANCE_UNWRITTEN, message)
                logger.warning("accepted loss not written yet", error=str(error))
            else:
                self.trouble = None
                return
            await asyncio.sleep(backoff.next())

    async def _accepted(
        self, partition: MetadataPartition | None, gaps: Mapping[int, Sequence[LogRange]]
    ) -> None:
        """Write the acceptance down, first in the bucket, which other daemons read too."""
        assert self.identity is not None, "the log is open"
        if self._bucket is not None:
            await self._bucket.accept_loss(partition, self.identity, gaps)
        for number, some in gaps.items():
            if some:
                self._accepted_gaps.note(number, some)
        await self._accepted_gaps.write(self.identity.topic_id)
        await self.write_identity()

    # Followers.

    def writer(self, partition: MetadataPartition, group: asyncio.TaskGroup) -> Writer:
        """Return the writer of a metadata partition; it outlives its followers."""
        found = self._writers.get(partition)
        if found is None:
            found = self._writers[partition] = Writer(
                partition,
                log=self._log,
                clock=self._clock,
                spawn=lambda work, name: group.create_task(work, name=name),
                delivery_timeout_seconds=self.options.delivery_timeout_seconds,
                metrics=self._metrics,
                bugs=self._bugs,
                may_append=self.noted.require_appendable,
            )
        return found

    def end_writes(self) -> None:
        """Nothing is applied any more: tell whoever waits for an apply."""
        for writer in self._writers.values():
            writer.end()

    def _wanted(self) -> frozenset[MetadataPartition]:
        """Return what is to be followed now."""
        assert self.follow_set is not None, "opened before"
        # Folds of a log with another partition count would mean nothing.
        return frozenset() if self.whole_failure else frozenset(self.follow_set.wanted())

    async def run(self, group: asyncio.TaskGroup) -> None:
        """Start a follower for whatever is wanted, for ever."""
        while True:
            async with self._turning:
                for partition in sorted(self._wanted() - self.followers.keys()):
                    self._start(partition, group)
                    await self._state.turns.wait()
            if self._wanted() <= self.followers.keys():
                await self._changed_or_late()

    async def keep_stopped(self) -> None:
        """Stop whatever is wanted no more, for ever.

        Beside `run`: the snapshot that a follower ends with waits for its disk, and no partition
        that was announced meanwhile waits with it.
        """
        while True:
            for partition in sorted(self.followers.keys() - self._wanted()):
                follower = self.followers.get(partition)
                if follower is not None and not follower.writer.in_flight:
                    await self._stop(follower)
            await self._changed_or_late()

    async def _changed_or_late(self) -> None:
        assert self.follow_set is not None, "opened before"
        try:
            async with asyncio.timeout(1.0):  # reasons that end by time ring no bell
                await self.follow_set.changed.wait()
        except TimeoutError:
            pass

    def _start(self, partition: MetadataPartition, group: asyncio.TaskGroup) -> None:
        assert self.identity is not None, "opened before"
        context = FollowerContext(
            log=self._log,
            state=self._state,
            snapshots=self._snapshots,
            clock=self._clock,
            rng=self._rng,
            freshness=self.options.freshness,
            partition_count=self.identity.partition_count,
            target_wanted=self.target_wanted,
            on_dropped=self._reads.forget,
            on_unrecorded=self._reads.keep,
            reopen=self.reopen,
            hooks=self._hooks,
            turns=self._state.turns,
        )
        if self.marker_checked and self._bucket is not None:
            self._unheard.add(partition)
            self._newcomer.ring()
        follower = Follower(
            partition,
            context,
            self.writer(partition, group),
            recorded=self._reads.of(partition),
            failure=self._failure_at_start(partition),
            foreign_evidence=lambda: self.foreign_evidence,
            accepted_start=self.noted.accepted_starts.get(partition, 0),
            has_storage=self._bucket is not None,
            accepted_gaps=lambda: self._accepted_gaps.of(partition),
            said_by=lambda: self._reads.said_by_others(partition),
        )
        assert self.follow_set is not None, "opened before"
        for announced in self.follow_set.announced_in(partition):
            follower.confirmation.insert(announced)
        self.followers[partition] = follower
        self._tasks[partition] = group.create_task(follower.run(), name=f"follower-{partition}")
        self.changed.ring()

    def _failure_at_start(self, partition: MetadataPartition) -> Failure | None:
        if partition in self._quarantined:
            evidence = "three crashes within a minute named it"
            return Failure(FailureReason.CRASH_LOOP, evidence, self._clock.now_ms())
        return None

    async def _stop(self, follower: Follower) -> None:
        """Snapshot what advanced, then end the follower: nothing stays connected or served."""
        partition = follower.partition
        if follower.applied_since_snapshot and allowed(follower):
            with blame(partition):
                await self._snapshotter.try_write(follower)
        async with self._turning:
            busy = follower.writer.in_flight or follower.dropping
            wanted = partition in self._wanted() or busy
            if wanted or self.followers.get(partition) is not follower:
                return  # wanted again meanwhile: a write may be on its way already
            self.noted.note(follower)
            await self._end(partition)

    async def _end(self, partition: MetadataPartition) -> None:
        follower, task = self.followers.pop(partition), self._tasks.pop(partition)
        self.noted.note_last(follower)
        if partition in self._lost_elsewhere:
            self._lost_elsewhere.discard(partition)
            if not follower.position_confirmed:
                self._reads.forget(partition)
        follower.retired = True
        task.cancel()
        await asyncio.wait({task})
        follower.writer.dropped()
        follower.changed.ring()
        self.changed.ring()

    def released(self, partition: MetadataPartition) -> None:
        """A quarantined partition may be tried again."""
        self._quarantined.discard(partition)

    # What all followers share.

    async def keep_targets(self) -> None:
        """Ask for end offsets wherever one is wanted: one request for all, an answer each."""
        while True:
            asking = {p: f for p, f in self.followers.items() if f.wants_target}
            if not asking:
                await self.target_wanted.wait()
                continue
            asked = {p: f.confirmation.question() for p, f in asking.items()}
            try:
                ranges = await self._log.end_offsets(list(asking))
            except RlmmError as error:
                logger.warning("end offsets unknown", error=str(error))
                ranges = {}
            for partition, known in ranges.items():
                follower = asking[partition]
                if self.followers.get(partition) is follower and follower.wants_target:
                    with blame(partition):
                        follower.target_known(known.end, asked[partition])
                    await self._state.turns.wait()  # it has a thousand user partitions
            if len(ranges) < len(asking):
                await asyncio.sleep(_RETRY_SECONDS_MIN * 2)

    async def keep_positions(self) -> None:
        """Record how far each partition was read, at most once a second."""
        await self.noted.keep(self._identity_too)

    async def _identity_too(self) -> None:
        """Try again to write what the disk did not take at the open."""
        if self._identity_unwritten and self.foreign_evidence is None:
            await self._try_write_identity()

    def furthest(self) -> dict[MetadataPartition, Position]:
        """Return how far each partition is known to have been read, followed or not.

        A position of an earlier life stays until the log confirmed it or its loss was accepted.
        """

        def is_confirmed(partition: MetadataPartition) -> bool:
            follower = self.followers.get(partition)
            return follower is not None and follower.position_confirmed

        return self._reads.furthest(is_confirmed)


def _nothing_missing(what: str, followers: Iterable[Follower]) -> InvalidArgument:
    """Return why there is no loss to accept, and what ends a failure that is none."""
    nothing = f"nothing is missing from {what}, so nothing was accepted"
    for follower in followers:
        failure = follower.failure
        if failure is not None:
            return InvalidArgument(
                f"{nothing}; metadata partition {follower.partition} failed "
                f"({failure.reason.value}: {failure.evidence}); "
                f"run: {failure.command(follower.partition)}"
            )
    return InvalidArgument(nothing)


def _same_cluster(marker: BucketLog, identity: LogIdentity) -> bool:
    """Whether a marker speaks of our cluster; another one's says nothing of our log."""
    return None in (marker.cluster_id, identity.cluster_id) or (
        marker.cluster_id == identity.cluster_id
    )
