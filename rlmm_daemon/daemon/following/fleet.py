"""The followers of this daemon: one per wanted metadata partition, started and stopped as asked.

Opens the log, holds its identity against what is known, and runs the three small loops that all
followers share: start and stop, end offsets, positions.
"""

import asyncio
import random
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Final, Protocol

import msgspec
import structlog

from rlmm_daemon.codec.state_files import Accepted, Identity, Position, Positions
from rlmm_daemon.core.partitioner import PARTITIONER_ID
from rlmm_daemon.core.readiness.states import (
    Failure,
    FailureReason,
    Freshness,
    LogTrouble,
    PartitionState,
    TroubleKind,
)
from rlmm_daemon.daemon.base.broadcast import Broadcast
from rlmm_daemon.daemon.base.bugs import Bugs
from rlmm_daemon.daemon.base.crash_guard import blame
from rlmm_daemon.daemon.base.os_errors import in_words, is_shortage
from rlmm_daemon.daemon.base.state_directory import StateDirectory
from rlmm_daemon.daemon.following.follow_set import FollowSet
from rlmm_daemon.daemon.following.follower import Follower, FollowerContext
from rlmm_daemon.daemon.following.hooks import ManagerHooks
from rlmm_daemon.daemon.following.snapshots import SnapshotStore
from rlmm_daemon.daemon.following.snapshotter import Snapshotter, allowed
from rlmm_daemon.daemon.following.writer import Writer
from rlmm_daemon.domain.errors import (
    CorruptError,
    Draining,
    InvalidArgument,
    Malformed,
    NotReady,
    RlmmError,
    StorageFull,
    StorageUnavailable,
    UnavailableError,
    UnsupportedProtocol,
)
from rlmm_daemon.domain.ids import MetadataPartition, TopicId, uuid_bytes, uuid_text
from rlmm_daemon.observability.metrics import LogMetrics
from rlmm_daemon.ports.clock import Clock
from rlmm_daemon.ports.event_log import (
    NO_EPOCH,
    EventLog,
    LogForeign,
    LogIdentity,
    LogMissing,
    LogRange,
    LogUnnamed,
    NoTopicId,
    OwnEpochs,
    ranges_joined,
)

POSITIONS_SECONDS: Final = 1.0
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
        self._recorded: dict[int, Position] = {}
        #: The same as the presence file of an earlier life has it, until confirmed or accepted.
        self._present: dict[int, Position] = {}
        #: How far other daemons say that they had read, likewise, and in which file.
        self._others: dict[int, Mapping[Position, str]] = {}
        #: Followed since those were asked: others may have read on while this daemon did not.
        self._unheard: set[MetadataPartition] = set()
        self._newcomer = Broadcast()
        #: Whose loss some daemon accepted, while what this one had read may be from before.
        self._lost_elsewhere: set[int] = set()
        #: Whose loss was accepted in this life: what the presence file said before is void.
        self._given_up: set[int] = set()
        #: Whose loss is being written down right now.
        self._being_given_up: frozenset[int] = frozenset()
        #: Where each log started whose missing head was accepted.
        self._accepted_starts: dict[int, int] = {}
        #: By metadata partition, gaps of the present log whose loss was accepted here or elsewhere.
        self._accepted_gaps: dict[int, tuple[LogRange, ...]] = {}
        self._accept_missing = False
        #: Rung when it was accepted that the log is gone.
        self._gone = Broadcast()
        #: The positions file says of some position that nothing was appended beyond it.
        self._exact_on_disk = False
        #: Why they could not be rewritten.
        self._unwritten: OSError | None = None
        #: The last positions are written: nothing is appended any more.
        self._stopping = False
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
        self.whole_failure = None  # the log is there, readable, and has an id
        if marker is not None and not _same_cluster(marker, self.identity):
            marker = None
        read_of = None if read is None else TopicId(uuid_bytes(read.topic_id))
        await self._compare(self.identity, known, marker, read_of=read_of)
        if positions is not None and positions.topic_id == uuid_text(self.identity.topic_id):
            self._recorded = {n: self._believed(at) for n, at in positions.numbered().items()}
            self._accepted_starts = {int(n): at for n, at in positions.accepted_starts.items()}
            await self._begin_life()
        elif positions is not None and self.foreign_evidence is not None:
            self._recorded = {n: self._elsewhere(at) for n, at in positions.numbered().items()}
        if marker is not None and marker.topic_id == self.identity.topic_id:
            self._present, self._others = dict(marker.positions), dict(marker.others)
        await self._load_accepted(marker)
        self._snapshots.belongs_to(self.identity)
        self.follow_set = FollowSet(
            self.identity.partition_count,
            self._clock,
            on_demand_linger_seconds=self.options.on_demand_linger_seconds,
        )
        self.trouble = None  # from now on there are answers
        self.changed.ring()

    async def _begin_life(self) -> None:
        """Let no position in the file count as exact any more, before anything is appended.

        A disk that does not take it is tried again later: nothing is appended until then.
        """
        self._exact_on_disk = any(map(_vouches, self._recorded.values()))
        if not self._exact_on_disk:
            return
        try:
            await self.write_positions()
        except OSError as error:
            self._unwritten = error
            logger.warning("positions not written yet", error=str(error))

    @property
    def refusal(self) -> str:
        """Why nothing is appended for now, whatever the log could do; empty if it is."""
        error = self._unwritten
        if error is None or not self._exact_on_disk:
            return ""
        return str(error.strerror) if is_shortage(error) else in_words(error)

    def _may_append(self) -> None:
        if self._stopping:
            raise Draining("the daemon stops; nothing was begun")
        if self._exact_on_disk:
            full = self._unwritten is None or is_shortage(self._unwritten)
            error = StorageFull if full else StorageUnavailable
            raise error(f"the state directory: {self.refusal}; nothing was begun")

    async def _open_log(self, *, named: bool, cluster_id: str | None) -> LogIdentity:
        """Open the log, however long that takes; each failure is told and may pass.

        `cluster_id` is the one that the state directory belongs to, None if it does not say.
        """
        wait = _RETRY_SECONDS_MIN
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
                async with asyncio.timeout(wait * (0.5 + self._rng.random() / 2)):
                    await self._gone.wait()
            wait = min(wait * 2, _RETRY_SECONDS_MAX)

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
            said = marker.positions.items()
            self._present = {number: at for number, at in said if number not in self._given_up}
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
            self._forget_position(MetadataPartition(number))

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
            others = {} if self._accept_missing else marker.others
            self._others = {n: at for n, at in others.items() if n not in self._given_up}
        for follower in [f for f in self.followers.values() if f.partition in numbers]:
            positions = self._said_of(follower.partition)
            if self.foreign_evidence is not None or positions:
                follower.recheck(positions)

    def _said_of(self, partition: MetadataPartition) -> list[Position]:
        """Return how far a metadata partition had been read, as presence files have it."""
        own = self._present.get(partition)
        return [*([] if own is None else [own]), *self._others.get(partition, ())]

    def _others_files(self, partition: MetadataPartition) -> Mapping[Position, str]:
        """Return what only other daemons' presence files say, and the files."""
        own = (self._present.get(partition), self._recorded.get(partition))
        others = self._others.get(partition, {})
        return {at: files for at, files in others.items() if at not in own}

    # Gaps that were accepted.

    async def _load_accepted(self, marker: BucketLog | None) -> None:
        """Take up what an operator accepted of this very log, here or on another daemon."""
        assert self.identity is not None, "the log is open"
        try:
            kept = await self._state.accepted()
        except (Malformed, UnsupportedProtocol, OSError) as damage:
            logger.warning("state file ignored", error=str(damage))  # asked for again at worst
            kept = None
        if kept is not None and kept.topic_id == uuid_text(self.identity.topic_id):
            for number, ranges in kept.gaps.items():
                self._note_gaps(int(number), [LogRange(start=s, end=e) for s, e in ranges])
        self._learn_gaps(marker)

    def _learn_gaps(self, marker: BucketLog | None) -> bool:
        """Take up what the marker knows; return whether that was any news."""
        assert self.identity is not None, "the log is open"
        before = dict(self._accepted_gaps)
        for topic_id, number, gap in marker.accepted_gaps if marker else ():
            if topic_id == self.identity.topic_id:
                self._note_gaps(number, [gap])
        return before != self._accepted_gaps

    def _note_gaps(self, number: int, gaps: Iterable[LogRange]) -> None:
        known = self._accepted_gaps.get(number, ())
        self._accepted_gaps[number] = ranges_joined([*known, *gaps])

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
        lacking = [f for f in self.followers.values() if f.open_gaps]
        if self._learn_gaps(marker):
            for follower in lacking:
                if not follower.open_gaps:
                    follower.retry()
            await self._write_accepted_or_later()

    async def _write_accepted_or_later(self) -> None:
        """Keep what the marker has too: a disk that does not take it costs a question at worst."""
        try:
            await self._write_accepted()
        except OSError as error:
            logger.warning("accepted gaps not written", error=str(error))

    async def _write_accepted(self) -> None:
        assert self.identity is not None, "the log is open"
        if self._accepted_gaps:
            await self._state.write_accepted(
                Accepted(
                    topic_id=uuid_text(self.identity.topic_id),
                    gaps={
                        str(number): [(gap.start, gap.end) for gap in gaps]
                        for number, gaps in sorted(self._accepted_gaps.items())
                    },
                )
            )

    async def _read_marker(self) -> BucketLog | None:
        if self._bucket is None:
            return None
        wait = _RETRY_SECONDS_MIN
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
            await asyncio.sleep(wait * (0.5 + self._rng.random() / 2))
            wait = min(wait * 2, _RETRY_SECONDS_MAX)

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
            self._recorded, self._present, self._accepted_starts = {}, {}, {}
            self._others = {}
            self._accepted_gaps = {}
            self._accept_missing = False  # that was said of a log before this one
            if self.follow_set and self.follow_set.partition_count != self.identity.partition_count:
                self._recounted = self.identity.partition_count
            known = await self._state.identity()
            read_of = before.topic_id if known is None else None
            await self._compare(self.identity, known, None, read_of=read_of)

    async def _recount(self) -> None:
        """Follow the log by the number of partitions that it has now."""
        async with self._turning:
            for partition in list(self.followers):
                await self._end(partition)
            self.identity = await self._log.open(create=False)
            self._recounted = None
            self._recorded, self._present, self._accepted_starts = {}, {}, {}
            self._others = {}
            self._accepted_gaps = {}
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
        with self._giving_up([*self._present, *self._recorded, *every]):
            if recounted:  # a death in between must not leave what no repair could put back here
                await self._forget_known()
            if self.identity is not None:
                await self._accepted(None, every)
            if doubted and not recounted:  # before anybody follows, and misses it anew
                await self._forget_known()
            self._accept_missing = True
            self.foreign_evidence = None
            self.whole_failure = None
            self._recorded, self._present, self._others = {}, {}, {}
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
        with self._giving_up([follower.partition]):
            await self._accepted(follower.partition, {follower.partition: follower.open_gaps})
            self._given_up.add(follower.partition)
            self._forget_position(follower.partition)
        await self._accept_in(follower, without_looking=without_looking)

    @contextmanager
    def _giving_up(self, partitions: Iterable[int]) -> Iterator[None]:
        """Tell of no position of theirs while its loss is being written down.

        Behind the acceptance it would be taken for what was read since, and be missed anew.
        """
        before = self._being_given_up
        self._being_given_up = before | {*partitions}
        try:
            yield
        finally:
            self._being_given_up = before

    async def _accept_in(self, follower: Follower, *, without_looking: bool) -> None:
        await follower.accept_loss(without_looking=without_looking)
        if follower.accepted_start:
            self._accepted_starts[follower.partition] = follower.accepted_start
        if self.identity is not None:
            await self.write_positions()

    def _forget_position(self, partition: MetadataPartition) -> None:
        """The lineage that was recorded is accounted for: record the present one from now on."""
        self._recorded.pop(partition, None)
        self._present.pop(partition, None)
        self._others.pop(partition, None)

    def _keep_position(self, partition: MetadataPartition, position: Position) -> None:
        """A later life has to ask the log for it, too."""
        self._recorded.setdefault(partition, position)

    async def _accepted_in_time(self) -> None:
        """Write an acceptance of the whole log down, however long the bucket is away."""
        wait = _RETRY_SECONDS_MIN
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
            await asyncio.sleep(wait * (0.5 + self._rng.random() / 2))
            wait = min(wait * 2, _RETRY_SECONDS_MAX)

    async def _accepted(
        self, partition: MetadataPartition | None, gaps: Mapping[int, Sequence[LogRange]]
    ) -> None:
        """Write the acceptance down, first in the bucket, which other daemons read too."""
        assert self.identity is not None, "the log is open"
        if self._bucket is not None:
            await self._bucket.accept_loss(partition, self.identity, gaps)
        for number, some in gaps.items():
            if some:
                self._note_gaps(number, some)
        await self._write_accepted()
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
                may_append=self._may_append,
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
            on_dropped=self._forget_position,
            on_unrecorded=self._keep_position,
            reopen=self.reopen,
            hooks=self._hooks,
            turns=self._state.turns,
        )
        before = self._recorded.get(partition)
        recorded = [*([] if before is None else [before]), *self._said_of(partition)]
        if self.marker_checked and self._bucket is not None:
            self._unheard.add(partition)
            self._newcomer.ring()
        follower = Follower(
            partition,
            context,
            self.writer(partition, group),
            recorded=recorded,
            failure=self._failure_at_start(partition),
            foreign_evidence=lambda: self.foreign_evidence,
            accepted_start=self._accepted_starts.get(partition, 0),
            has_storage=self._bucket is not None,
            accepted_gaps=lambda: self._accepted_gaps.get(partition, ()),
            said_by=lambda: self._others_files(partition),
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
            self._note_position(follower)
            await self._end(partition)

    async def _end(self, partition: MetadataPartition) -> None:
        follower, task = self.followers.pop(partition), self._tasks.pop(partition)
        self._recorded.update(self._exactly(follower))
        if partition in self._lost_elsewhere:
            self._lost_elsewhere.discard(partition)
            if not follower.position_confirmed:
                self._forget_position(partition)
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
        written: Mapping[int, Position] = dict(self._recorded)
        starts = dict(self._accepted_starts)
        while True:
            await asyncio.sleep(POSITIONS_SECONDS)
            if self._stopping:
                continue  # the last positions stay as they are
            if self._identity_unwritten and self.foreign_evidence is None:
                await self._try_write_identity()
            for follower in self.followers.values():
                self._note_position(follower)
            changed = self._recorded != written or self._accepted_starts != starts
            if changed or self._exact_on_disk:
                try:
                    await self.write_positions()
                except OSError as error:
                    logger.warning("positions not written", error=str(error))
                    continue
                written, starts = dict(self._recorded), dict(self._accepted_starts)

    def _note_position(self, follower: Follower) -> None:
        if not follower.accepted_start:
            self._accepted_starts.pop(follower.partition, None)
        if follower.position_confirmed and follower.state is not PartitionState.FAILED:
            at = follower.settled
            before = self._recorded.get(follower.partition)
            known = at is not None and at.next_offset > 0 and at.leader_epoch >= 0
            if at and known and (before is None or before.next_offset < at.next_offset):
                self._recorded[follower.partition] = at

    def furthest(self) -> dict[MetadataPartition, Position]:
        """Return how far each partition is known to have been read, followed or not.

        A position of an earlier life stays until the log confirmed it or its loss was accepted.
        """
        known = {**self._present, **self._recorded}
        for number, position in self._present.items():
            if number in self._recorded and position.next_offset > known[number].next_offset:
                follower = self.followers.get(MetadataPartition(number))
                if follower is None or not follower.position_confirmed:
                    known[number] = position
        return {
            MetadataPartition(number): position
            for number, position in known.items()
            if number not in self._being_given_up
        }

    def _exactly(self, follower: Follower) -> dict[int, Position]:
        """Return the recorded position of a follower, exact if nothing lies beyond it."""
        recorded, at = self._recorded.get(follower.partition), follower.read_all
        if recorded is None:
            return {}
        # One that was not read to its end yet took no append: it is as the life before left it.
        exact = recorded.exact if at is None else at.next_offset == recorded.next_offset
        ended = self._believed(msgspec.structs.replace(recorded, exact=exact))
        return {follower.partition: ended}

    def _believed(self, at: Position) -> Position:
        """Return a position that is exact only in a log which nobody else writes to.

        Into a log of brokers, other daemons write while this one is stopped.
        """
        return at if isinstance(self._log, OwnEpochs) else _inexact(at)

    def _elsewhere(self, at: Position) -> Position:
        """Return a position in a log that another one stands for: that one can't confirm it.

        What other daemons had acknowledged in a log of brokers they hold against it themselves.
        """
        exact = at.exact or not isinstance(self._log, OwnEpochs)
        return Position(at.next_offset, NO_EPOCH, exact)

    async def write_last_positions(self) -> None:
        """Let nothing be appended any more, and write down where each partition ends."""
        self._stopping = True
        await self.write_positions()

    async def write_positions(self) -> None:
        """Write the positions file as of now; only the last ones can be exact."""
        assert self.identity is not None, "the log is open"
        positions = dict(self._recorded)
        for follower in self.followers.values():
            self._note_position(follower)
            positions |= self._exactly(follower)
        positions = {n: at if self._stopping else _inexact(at) for n, at in positions.items()}
        await self._state.write_positions(
            Positions(
                topic_id=uuid_text(self.identity.topic_id),
                partitions={str(number): at for number, at in sorted(positions.items())},
                accepted_starts={str(n): at for n, at in sorted(self._accepted_starts.items())},
            )
        )
        self._exact_on_disk = any(map(_vouches, positions.values()))


def _inexact(at: Position) -> Position:
    """Return a position of a life that goes on; nothing is appended to another log."""
    return at if at.leader_epoch < 0 else Position(at.next_offset, at.leader_epoch)


def _vouches(at: Position) -> bool:
    """Whether a position says of this log that nothing was acknowledged beyond it."""
    return at.exact and at.leader_epoch >= 0


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
