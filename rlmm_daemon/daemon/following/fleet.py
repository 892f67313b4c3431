"""The followers of this daemon: one per wanted metadata partition, started and stopped as asked.

Opens the log, and runs the small loops that all followers share: start and stop, end offsets,
positions.
"""

import asyncio
import random

import msgspec
import structlog

from rlmm_daemon.codec.state_files import Identity, Position, Positions
from rlmm_daemon.core.readiness.states import Failure, FailureReason, Freshness, LogTrouble
from rlmm_daemon.daemon.base.broadcast import Broadcast
from rlmm_daemon.daemon.base.bugs import Bugs
from rlmm_daemon.daemon.base.crash_guard import blame
from rlmm_daemon.daemon.base.state_directory import StateDirectory, listed
from rlmm_daemon.daemon.following.bucket_record import BucketRecord, same_cluster
from rlmm_daemon.daemon.following.follow_set import FollowSet
from rlmm_daemon.daemon.following.follower import Follower
from rlmm_daemon.daemon.following.follower_state import Beginning, FollowerContext
from rlmm_daemon.daemon.following.hooks import ManagerHooks
from rlmm_daemon.daemon.following.known_log import RETRY_SECONDS_MIN, KnownLog
from rlmm_daemon.daemon.following.known_reads import KnownReads
from rlmm_daemon.daemon.following.loss_acceptance import LossAcceptance
from rlmm_daemon.daemon.following.noted_positions import NotedPositions
from rlmm_daemon.daemon.following.others_word import OthersWord
from rlmm_daemon.daemon.following.snapshots import SnapshotStore
from rlmm_daemon.daemon.following.snapshotter import Snapshotter, allowed
from rlmm_daemon.daemon.following.writer import Writer
from rlmm_daemon.domain.errors import RlmmError, StorageUnavailable
from rlmm_daemon.domain.ids import MetadataPartition, TopicId, uuid_bytes, uuid_text
from rlmm_daemon.observability.metrics import LogMetrics
from rlmm_daemon.ports.clock import Clock
from rlmm_daemon.ports.event_log import EventLog, LogIdentity, LogMissing, NoTopicId

logger = structlog.get_logger(__name__)


class FleetOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Times and bounds; see the configuration for what each is for."""

    freshness: Freshness = Freshness()
    delivery_timeout_seconds: float = 120.0
    on_demand_linger_seconds: float = 60.0


class Fleet:
    """Owns the followers and the writers; lives inside one task group."""

    def __init__(  # what all followers share, and nothing else: they get it from here
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
        #: None where there is none to ask.
        self._bucket = bucket if bucket is not None and bucket.has_storage else None
        self._quarantined = set(quarantined)
        self._hooks = hooks
        self.follow_set: FollowSet | None = None
        self.followers: dict[MetadataPartition, Follower] = {}
        self._tasks: dict[MetadataPartition, asyncio.Task[None]] = {}
        self._writers: dict[MetadataPartition, Writer] = {}
        self._reads = KnownReads()
        self.known = KnownLog(log, state, bucket, clock=clock, rng=rng)
        #: Rung when the identity became known, the marker was checked, a follower came or went.
        self.changed = self.known.changed
        self.noted = NotedPositions(log, state, self._reads, self.followers)
        self.others = OthersWord(
            self._bucket, self.known, self._reads, self.followers, wanted=self._wanted
        )
        self.acceptance = LossAcceptance(
            self.known,
            self.others,
            self.noted,
            self.followers,
            state=state,
            snapshots=snapshots,
            recount=self._recount,
            is_open=lambda: self.follow_set is not None,
        )
        #: Held while followers are started or stopped, and while the log is opened anew.
        self._turning = asyncio.Lock()
        #: Set once the bucket's word was taken up, so that the presence file may be rewritten.
        self.marker_checked = False
        self.target_wanted = Broadcast()

    @property
    def identity(self) -> LogIdentity | None:
        """The open log's."""
        return self.known.identity

    @property
    def whole_failure(self) -> Failure | None:
        """Why no partition of this log can be served: it is absent, or another count."""
        return self.known.whole_failure

    @property
    def trouble(self) -> LogTrouble | None:
        """Why there are no answers yet, or what is not written down yet."""
        return self.known.trouble

    # Opening.

    async def open(self, known: Identity | None, positions: Positions | None) -> None:
        """Return once the log is open, however long that takes.

        A log that is absent is created only if nothing names a topic id; else every partition is
        `failed(log_missing)` until an operator accepts the loss.
        """
        # A state directory that knows its log does not wait for a storage that is away.
        marker = None if known else await self.known.marker()
        # The file that names it may be lost or moved aside: what was read of it names it, too.
        read = positions if known is None else None
        identity = await self.known.opened(
            named=bool(known or marker or read), cluster_id=known.cluster_id if known else None
        )
        self.noted.belong_to(identity.topic_id)
        if marker is not None and not same_cluster(marker, identity):
            marker = None
        read_of = None if read is None else TopicId(uuid_bytes(read.topic_id))
        await self.known.compare(identity, known, marker, read_of=read_of)
        if positions is not None and positions.topic_id == uuid_text(identity.topic_id):
            await self.noted.take_up(positions)
        elif positions is not None and self.known.foreign_evidence is not None:
            self.noted.take_up_elsewhere(positions)
        if self.known.foreign_evidence is None:
            for number, read_to in (await listed(self._state)).items():
                self._reads.put_on_list(number, read_to)
        if marker is not None and marker.topic_id == identity.topic_id:
            self._reads.hear_own(marker.positions)
            self._reads.hear_others(marker.others)
        gaps = marker.accepted_gaps if marker else ()
        await self.known.gaps.load(identity.topic_id, gaps)
        self._snapshots.belongs_to(identity)
        self.follow_set = FollowSet(
            identity.partition_count,
            self._clock,
            on_demand_linger_seconds=self.options.on_demand_linger_seconds,
        )
        self.known.trouble = None  # from now on there are answers
        self.changed.ring()

    async def check_marker(self) -> None:
        """Hold the open log against the marker, as soon as that can be read."""
        await self.others.check_marker()
        self.marker_checked = True
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
                identity = await self.known.opened_anew()
            except (LogMissing, NoTopicId) as gone:
                raise StorageUnavailable(str(gone) or "the log is not there") from gone
            self._snapshots.belongs_to(identity)
            self._forget_log(identity.topic_id)
            self.known.accept_missing = False  # that was said of a log before this one
            if self.follow_set and self.follow_set.partition_count != identity.partition_count:
                self.known.recounted = identity.partition_count
            known = await self._state.identity()
            read_of = before.topic_id if known is None else None
            await self.known.compare(identity, known, None, read_of=read_of)

    def seen(self, *, partition_count: int) -> None:
        """Take up how many partitions the log has now: events of another count lie elsewhere."""
        self.known.counted(partition_count)
        if self.known.recounted is not None and self.follow_set is not None:
            self.follow_set.changed.ring()

    def _forget_log(self, topic_id: TopicId) -> None:
        """Nothing that is known of the former log is said of the present one."""
        self.noted.belong_to(topic_id)
        self._reads.forget_all()
        self.known.gaps.forget()
        self.noted.accepted_starts = {}

    async def _recount(self) -> None:
        """Follow the log by the number of partitions that it has now."""
        async with self._turning:
            for partition in list(self.followers):
                await self._end(partition)
            identity = await self.known.opened_anew()
            self.known.recounted = None
            self._forget_log(identity.topic_id)
            self._snapshots.belongs_to(identity)
            assert self.follow_set is not None, "opened before"
            self.follow_set.recount(identity.partition_count)

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
            on_dropped=self._reads.written_down,
            on_unrecorded=self._reads.keep,
            on_accounted=self.others.accounted,
            reopen=self.reopen,
            hooks=self._hooks,
            turns=self._state.turns,
        )
        if self.marker_checked:
            self.others.newcomer(partition)
        begin = Beginning(
            recorded=self._reads.of(partition),
            failure=self._failure_at_start(partition),
            foreign_evidence=lambda: self.known.foreign_evidence,
            said_by=lambda: self._reads.said_by_others(partition),
            accepted_start=self.noted.accepted_starts.get(partition, 0),
            accepted_gaps=lambda: self.known.gaps.of(partition),
            unheard=lambda: self.others.unheard(partition),
            has_storage=self._bucket is not None,
        )
        follower = Follower(partition, context, self.writer(partition, group), begin)
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
        self.others.left(follower)
        follower.retired = True
        task.cancel()
        await asyncio.wait({task})
        follower.writer.dropped()
        follower.changed.ring()
        self.changed.ring()

    def released(self, partition: MetadataPartition) -> None:
        """A quarantined partition may be tried again."""
        self._quarantined.discard(partition)

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
                await asyncio.sleep(RETRY_SECONDS_MIN * 2)

    async def keep_positions(self) -> None:
        """Record how far each partition was read, at most once a second."""
        await self.noted.keep(self.known.write_identity_too)

    def furthest(self) -> dict[MetadataPartition, Position]:
        """Return how far each partition is known to have been read, followed or not.

        A position of an earlier life stays until the log confirmed it or its loss was accepted.
        """

        def is_confirmed(partition: MetadataPartition) -> bool:
            follower = self.followers.get(partition)
            return follower is not None and follower.position_confirmed

        return self._reads.furthest(is_confirmed)
