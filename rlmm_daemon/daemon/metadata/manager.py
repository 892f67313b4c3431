"""The remote log metadata manager: KIP-405's SPI over the followers' folds.

Look-ups are plain calls that answer at once or raise; a write waits for its own apply. Whether
one may be answered now is for the `gates` to say.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Final, TypeVar

import msgspec
import structlog

from rlmm_daemon.codec.api import FoundUntil
from rlmm_daemon.codec.state_files import announced_json, announced_rows
from rlmm_daemon.core.fold import walks
from rlmm_daemon.core.fold.cache import PartitionCache
from rlmm_daemon.core.fold.fold import Fold
from rlmm_daemon.core.fold.outcome import Outcome
from rlmm_daemon.core.fold.validation import read_offered
from rlmm_daemon.core.fold.walks import Walk
from rlmm_daemon.core.readiness.states import (
    LogTrouble,
    PartitionState,
    Permit,
    Question,
    TroubleKind,
)
from rlmm_daemon.daemon.base.appends import Append, Tell
from rlmm_daemon.daemon.base.bugs import Bugs
from rlmm_daemon.daemon.base.caller import Caller
from rlmm_daemon.daemon.base.crash_guard import blame
from rlmm_daemon.daemon.base.fair_scheduler import FairScheduler, keep_freeing
from rlmm_daemon.daemon.base.os_errors import in_words, is_for_a_person, is_shortage
from rlmm_daemon.daemon.base.state_directory import StateDirectory
from rlmm_daemon.daemon.following.bucket_record import BucketRecord
from rlmm_daemon.daemon.following.compactor import Compactor
from rlmm_daemon.daemon.following.fleet import Fleet, FleetOptions
from rlmm_daemon.daemon.following.follower import Follower
from rlmm_daemon.daemon.following.hooks import ManagerHooks
from rlmm_daemon.daemon.following.snapshots import GENERATIONS_KEPT, SnapshotStore
from rlmm_daemon.daemon.following.snapshotter import SnapshotOptions, Snapshotter
from rlmm_daemon.daemon.metadata.assignment import Assignment
from rlmm_daemon.daemon.metadata.gates import Gates
from rlmm_daemon.daemon.metadata.previous_state import keep_announced, remembered
from rlmm_daemon.daemon.metadata.publisher import Publisher
from rlmm_daemon.domain.errors import (
    ConfigError,
    IllegalTransition,
    InvalidArgument,
    NotLeader,
    SegmentNotFound,
)
from rlmm_daemon.domain.ids import (
    LeaderEpoch,
    MetadataPartition,
    Offset,
    SegmentId,
    TopicIdPartition,
    require_topic_name,
)
from rlmm_daemon.domain.partition_delete import PartitionDelete, PartitionDeleteState
from rlmm_daemon.domain.segment import SegmentMetadata, SegmentState, SegmentUpdate
from rlmm_daemon.observability.metrics import LogMetrics
from rlmm_daemon.ports.clock import Clock
from rlmm_daemon.ports.disk import Disk
from rlmm_daemon.ports.event_log import Compactable, EventLog

logger = structlog.get_logger(__name__)

WRITE_SECONDS_DEFAULT: Final = 30.0
#: Between two tries of a start that lacks something.
START_AGAIN_SECONDS: Final = 0.5

T = TypeVar("T")


class ManagerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Times and bounds; see the configuration for what each is for."""

    state_dir: str
    fleet: FleetOptions = msgspec.field(default_factory=FleetOptions)
    snapshots: SnapshotOptions = msgspec.field(default_factory=SnapshotOptions)
    snapshots_kept: int = GENERATIONS_KEPT


class Manager:
    """One daemon's metadata, from `run` until that is cancelled."""

    def __init__(
        self,
        *,
        log: EventLog,
        disk: Disk,
        clock: Clock,
        rng: random.Random,
        options: ManagerOptions,
        bucket: BucketRecord | None = None,
        quarantined: frozenset[int] = frozenset(),
        metrics: LogMetrics | None = None,
    ) -> None:
        self.log = log
        self.clock = clock
        self.hooks = ManagerHooks()
        self.on_delete_started = self.hooks.delete_started
        self.on_delete_put_aside = self.hooks.delete_put_aside
        #: For whatever takes long.
        self.turns = FairScheduler()
        self.bugs = Bugs(clock.monotonic)
        self.state = StateDirectory(disk, options.state_dir, self.turns)
        self.snapshots = SnapshotStore(
            disk, self.state.snapshots, clock, keep=options.snapshots_kept
        )
        self.snapshotter = Snapshotter(
            self.snapshots,
            clock,
            options.snapshots,
            self.hooks.tell_snapshot_written,
            announced=lambda partition: self.gates.follow_set().announced_in(partition),
            turns=self.turns,
        )
        #: None for a log whose brokers compact it, or nobody.
        self.compactor: Compactor | None = None
        if isinstance(log, Compactable):
            self.compactor = Compactor(log, self.snapshots, clock, self.turns)
        self.fleet = Fleet(
            log=log,
            state=self.state,
            snapshots=self.snapshots,
            snapshotter=self.snapshotter,
            clock=clock,
            rng=rng,
            options=options.fleet,
            bucket=bucket,
            quarantined=quarantined,
            hooks=self.hooks,
            metrics=metrics,
            bugs=self.bugs,
        )
        self.assignment = Assignment(self._announced_changed)
        self.gates = Gates(self.fleet, self.assignment, self.snapshotter)
        self._publisher = Publisher(
            log, self.fleet, self.gates, clock, is_draining=lambda: self.draining
        )
        #: Announced partitions whose follower passed every gate: a hit needs no further question.
        #: Emptied whenever the announcement or the gate changes.
        self._serving: dict[TopicIdPartition, Follower] = {}
        self.draining = False
        #: A cleaner runs here: it alone says that a partition's removal began or ended.
        self.has_cleaner = False

    # The tasks.

    async def run(self) -> None:
        """Serve until cancelled; the socket may ask from the first moment and hears "not ready"."""
        await self._insist(self.state.open)
        try:
            known, positions, warm = await self._insist(partial(remembered, self.state))
            await self._insist(self.snapshots.sweep)
            async with asyncio.TaskGroup() as group:
                self._publisher.group = group
                await self.fleet.open(known, positions)
                self._warm(warm)
                group.create_task(self.fleet.run(group), name="fleet")
                group.create_task(self.fleet.keep_stopped(), name="fleet.stopped")
                group.create_task(self.fleet.check_marker(), name="fleet.marker")
                group.create_task(self.fleet.others.keep_learning_gaps(), name="fleet.gaps")
                group.create_task(self.fleet.keep_targets(), name="fleet.targets")
                group.create_task(self.fleet.keep_positions(), name="fleet.positions")
                group.create_task(
                    keep_announced(self.state, self.assignment), name="assignment.persist"
                )
                group.create_task(keep_freeing(self.turns), name="memory.freed")
                group.create_task(self.snapshotter.keep_checked(), name="snapshotter.asked")
                group.create_task(
                    self.snapshotter.run(lambda: list(self.fleet.followers.values())),
                    name="snapshotter",
                )
                if self.compactor is not None:
                    group.create_task(
                        self.compactor.run(lambda: list(self.fleet.followers.values())),
                        name="compactor",
                    )
        finally:
            self._publisher.end()
            self.fleet.end_writes()
            await self.state.close()

    async def _insist(self, step: Callable[[], Awaitable[T]]) -> T:
        """Do a step of the start again and again while the disk does not let us.

        Raises:
            ConfigError: a file is not this user's to use, which does not pass.
        """
        while True:
            try:
                return await step()
            except OSError as error:
                found = in_words(error)
                if is_for_a_person(error):
                    raise ConfigError(
                        f"{found}; let the daemon's user read and write its state directory, "
                        f"{self.state.path}; nothing of it was changed"
                    ) from error
                message = f"the state directory can't be used yet: {found}"
                if not is_shortage(error):
                    message += (
                        "; mend its disk, or put that file back from a copy: it is tried again and "
                        "again"
                    )
                if self.fleet.trouble is None or self.fleet.trouble.message != message:  # once
                    logger.warning("state directory not usable yet", error=found)
                self.fleet.known.trouble = LogTrouble(TroubleKind.STATE_AWAY, message)
            await asyncio.sleep(START_AGAIN_SECONDS)

    def _warm(self, warm: list[TopicIdPartition]) -> None:
        """The log is open: take up what was announced meanwhile, or else what had been."""
        follow_set = self.gates.follow_set()
        if self.assignment.version:
            announced = self.assignment.announced
            follow_set.announce(list(announced), announced, whole=self.assignment.gate_open)
        else:
            follow_set.warm(warm)
        self.gates.changed.ring()

    async def drain(self) -> None:
        """Take no new writes and write a last snapshot of whatever advanced."""
        self.draining = True
        for follower in list(self.fleet.followers.values()):
            if follower.applied_since_snapshot:
                with blame(follower.partition):
                    await self.snapshotter.try_write(follower)
        if self.fleet.identity is not None:
            try:
                await self.fleet.noted.write_last()
                if self.assignment.version:
                    await self.state.write_announced(
                        announced_json(map(announced_rows, self.assignment.rows()))
                    )
            except OSError as error:  # they warm and guard the next start; the log has everything
                logger.warning("last state not written", error=str(error))

    # Assignment.

    def hello_from_broker(self, incarnation_ms: int) -> None:
        """The broker's metadata manager connected; another incarnation has to announce anew."""
        self.assignment.hello(incarnation_ms)
        self._serving.clear()

    def on_partition_leadership_changes(
        self, leaders: Collection[TopicIdPartition], followers: Collection[TopicIdPartition]
    ) -> None:
        """Announce partitions; idempotent, in memory, never waits for the log."""
        self.assignment.add(leaders, followers)

    def on_stop_partitions(self, partitions: Collection[TopicIdPartition]) -> None:
        """Stop partitions; idempotent, in memory, never waits for the log."""
        self.assignment.remove(partitions)

    def replace_assignment(
        self, leaders: Sequence[TopicIdPartition], followers: Sequence[TopicIdPartition]
    ) -> None:
        """Make the announced partitions exactly these, and open the gate for reads."""
        self.assignment.replace(leaders, followers)

    @property
    def incarnation_ms(self) -> int | None:
        """When the broker began whose metadata manager said hello last."""
        return self.assignment.incarnation_ms

    def replacing_assignment(
        self,
        leaders: Sequence[TopicIdPartition],
        followers: Sequence[TopicIdPartition],
        incarnation_ms: int | None,
    ) -> Iterator[None]:
        """Do the same in steps, for a broker's incarnation."""
        return self.assignment.replacing(leaders, followers, incarnation_ms)

    def _announced_changed(self, partitions: Collection[TopicIdPartition]) -> None:
        self._serving.clear()
        follow_set = self.fleet.follow_set
        if follow_set is not None:
            announced = self.assignment.announced
            follow_set.announce(partitions, announced, whole=self.assignment.gate_open)
            for partition in partitions:
                follower = self.fleet.followers.get(follow_set.of(partition))
                if follower is None:
                    continue  # it takes up what is announced when it starts
                if partition in announced:
                    follower.confirmation.insert(partition)
                else:
                    follower.confirmation.remove(partition)
            self.fleet.target_wanted.ring()
        self.gates.changed.ring()

    # Look-ups: at once, or an error.

    def remote_log_segment_metadata(
        self, partition: TopicIdPartition, epoch: int, offset: int, caller: Caller
    ) -> bytes | None:
        """Return the record of the segment that holds `offset` in `epoch`, or None.

        Raises:
            NotReady, NotAssigned, PartitionFailed, HistoryLost, LogCorrupt: no answer can be true.
        """
        known = self._serving.get(partition)
        if known is not None and known.answers_hits and self.fleet.whole_failure is None:
            cache = known.fold.partitions.awake(partition)
            if cache is not None:
                hit = cache.lookup(epoch, offset)
                if hit is not None:
                    return hit
        follower, allowed = self.gates.ask(partition, Question.LOOKUP, caller)
        if caller is Caller.BROKER:
            self._serving[partition] = follower
        cache = follower.fold.partitions.get(partition)
        found = None if cache is None else cache.lookup(epoch, offset)
        if found is None:
            if allowed is Permit.POSITIVE_ONLY:
                raise self.gates.refusal(follower, partition)
            _require_not_removed(partition, cache)
        return found

    def found_until(
        self, partition: TopicIdPartition, epoch: int, offset: int, caller: Caller
    ) -> FoundUntil | None:
        """Return what `remote_log_segment_metadata` does, and how far that is the answer.

        Raises:
            NotReady, NotAssigned, PartitionFailed, HistoryLost, LogCorrupt: as that does.
        """
        record = self.remote_log_segment_metadata(partition, epoch, offset, caller)
        if record is None:
            return None
        cache = self.gates.follower(partition).fold.partitions.get(partition)
        assert cache is not None, "it has just answered"
        return FoundUntil(record, cache.answers_until(epoch, offset))

    def highest_offset_for_epoch(
        self, partition: TopicIdPartition, epoch: int, caller: Caller
    ) -> int | None:
        """Return the highest offset finished in `epoch`; never more than the log says."""
        cache = self._cache(partition, Question.HIGHEST, caller)
        return None if cache is None else cache.highest_offset(LeaderEpoch(epoch))

    def list_remote_log_segments(
        self, partition: TopicIdPartition, epoch: int | None, caller: Caller
    ) -> list[bytes]:
        """Return all segments, or those of one epoch in Kafka's order."""
        cache = self._cache(partition, Question.WHOLE, caller)
        if cache is None:
            return []
        return cache.list_all() if epoch is None else cache.list_epoch(LeaderEpoch(epoch))

    def remote_log_size(self, partition: TopicIdPartition, epoch: int, caller: Caller) -> int:
        """Return the bytes of an epoch's listed segments, all states counted as Kafka does."""
        cache = self._cache(partition, Question.WHOLE, caller)
        return 0 if cache is None else cache.size(LeaderEpoch(epoch))

    def listing(
        self, partition: TopicIdPartition, epoch: int | None, caller: Caller
    ) -> Walk[list[bytes]]:
        """Return what `list_remote_log_segments` does, as of now, to be drawn in steps."""
        cache = self._cache(partition, Question.WHOLE, caller)
        return Walk([]) if cache is None else walks.listing(cache, epoch)

    def sizing(self, partition: TopicIdPartition, epoch: int, caller: Caller) -> Walk[int]:
        """Return what `remote_log_size` does, as of now, to be summed in steps."""
        cache = self._cache(partition, Question.WHOLE, caller)
        return Walk([]) if cache is None else walks.size(cache, epoch)

    def next_segment_with_txn_index(
        self, partition: TopicIdPartition, epoch: int, offset: int, caller: Caller
    ) -> bytes | None:
        """Return the first segment at or after `offset` that has a transaction index (KIP-1058)."""
        cache = self._cache(partition, Question.WHOLE, caller)
        _require_not_removed(partition, cache)
        return (
            None if cache is None else cache.next_with_txn_index(LeaderEpoch(epoch), Offset(offset))
        )

    def is_ready(self, partition: TopicIdPartition, caller: Caller = Caller.BROKER) -> bool:
        """Return whether every question about this partition would be answered; never raises."""
        return self.gates.is_ready(partition, caller)

    def _cache(
        self, partition: TopicIdPartition, question: Question, caller: Caller
    ) -> PartitionCache | None:
        follower, _ = self.gates.ask(partition, question, caller)
        return follower.fold.partitions.get(partition)

    async def until_open(self) -> None:
        """Return once the event log is open, or is known not to open without an operator."""
        await self.gates.until_open()

    async def until_readable(
        self, partition: TopicIdPartition, caller: Caller, timeout_seconds: float
    ) -> None:
        """Return the moment a question that was not ready may be asked once more, or at the end.

        For an operator the metadata partition is followed on demand, for a while.
        """
        await self.gates.until_readable(partition, caller, timeout_seconds)

    # Writes.

    async def add(
        self, record: bytes, caller: Caller, timeout_seconds: float = WRITE_SECONDS_DEFAULT
    ) -> None:
        """Publish a COPY_SEGMENT_STARTED and return after this daemon's own apply of it.

        Raises:
            InvalidArgument, Malformed: not such a record.
            NotAssigned, NotLeader: the broker may not copy this partition.
            IllegalTransition: the segment exists and differs; nothing was appended.
            OutcomeUnknown: it may be in the log, now or later.
        """
        event, normal = self._addition(record, caller)
        await self._publisher.write(event, normal, caller, timeout_seconds, on_demand=False)

    def begin_add(self, record: bytes, timeout_seconds: float, tell: Tell) -> Append | None:
        """Begin a broker's `add` without a task; `tell` hears once, and later, what it came to.

        Returns None for a repeat: it succeeded, and `tell` hears nothing.

        Raises:
            MustWait: `add` has to do it; nothing was done.
            RefusedError, UnavailableError: as `add`; nothing was appended.
        """
        event, normal = self._addition(record, Caller.BROKER)
        return self._publisher.begin(event, normal, timeout_seconds, tell)

    def _addition(self, record: bytes, caller: Caller) -> tuple[SegmentMetadata, bytes]:
        event, normal = read_offered(record)
        if not isinstance(event, SegmentMetadata):
            raise InvalidArgument("add_remote_log_segment_metadata takes a segment's record")
        if event.state is not SegmentState.COPY_SEGMENT_STARTED:
            raise InvalidArgument(
                f"a segment is added as COPY_SEGMENT_STARTED, not as {event.state.name}"
            )
        require_topic_name(event.partition.topic)
        if caller is Caller.BROKER:
            self.gates.require_announced(event.partition)
            if not self.assignment.announced[event.partition]:
                raise NotLeader(f"the broker's last word made it a follower of {event.partition}")
        return event, normal

    async def update(
        self, record: bytes, caller: Caller, timeout_seconds: float = WRITE_SECONDS_DEFAULT
    ) -> None:
        """Publish a later state of a segment, whatever is announced, if its partition is followed.

        Raises:
            InvalidArgument, Malformed: not such a record.
            SegmentNotFound, IllegalTransition: refused; nothing was appended.
            OutcomeUnknown: it may be in the log, now or later.
        """
        event, normal = self._change(record, caller)
        await self._publisher.write(event, normal, caller, timeout_seconds, on_demand=False)

    def begin_update(self, record: bytes, timeout_seconds: float, tell: Tell) -> Append | None:
        """Begin a broker's `update` without a task; see `begin_add`."""
        event, normal = self._change(record, Caller.BROKER)
        return self._publisher.begin(event, normal, timeout_seconds, tell)

    def _change(self, record: bytes, caller: Caller) -> tuple[SegmentUpdate, bytes]:
        event, normal = read_offered(record)
        if not isinstance(event, SegmentUpdate):
            raise InvalidArgument("update_remote_log_segment_metadata takes an update record")
        if event.state is SegmentState.COPY_SEGMENT_STARTED:
            raise InvalidArgument("an update cannot lead back to COPY_SEGMENT_STARTED")
        if caller is Caller.BROKER:
            follow_set = self.gates.follow_set()
            if follow_set.of(event.partition) not in self.fleet.followers:
                self.gates.require_announced(event.partition)
        return event, normal

    async def put_partition_delete(
        self,
        record: bytes,
        caller: Caller,
        timeout_seconds: float = WRITE_SECONDS_DEFAULT,
        *,
        by_cleaner: bool = False,
    ) -> None:
        """Publish a mark on a user partition's way to removal.

        Raises:
            InvalidArgument, Malformed: not such a record.
            IllegalTransition: the marks go MARKED, STARTED, FINISHED; where a cleaner runs, only it
                says that a removal began or ended, since it alone knows that the topic is gone and
                that nothing is left.
            OutcomeUnknown: it may be in the log, now or later.
        """
        event, normal = read_offered(record)
        if not isinstance(event, PartitionDelete):
            raise InvalidArgument("put_remote_partition_delete_metadata takes a delete record")
        if not self._is_known(event.partition):
            require_topic_name(event.partition.topic)  # what a log holds already may be ended
        marks = event.state is PartitionDeleteState.DELETE_PARTITION_MARKED
        allowed = marks or by_cleaner or not self.has_cleaner
        judge = None if allowed else partial(self._judge_repeat, event)
        await self._publisher.write(
            event, normal, caller, timeout_seconds, on_demand=True, judge=judge
        )

    def _is_known(self, partition: TopicIdPartition) -> bool:
        return any(partition in each.fold.partitions for each in self.fleet.followers.values())

    def _judge_repeat(self, mark: PartitionDelete) -> Fold:
        fold = self.gates.writable(mark.partition).fold
        cache = fold.partitions.get(mark.partition)
        if cache is None or cache.delete_state is not mark.state:
            raise IllegalTransition(
                f"{mark.state.name} is the cleaner's to write; what may be said is "
                "DELETE_PARTITION_MARKED",
                after=mark.state.name,
            )
        return fold

    async def update_if(
        self,
        record: bytes,
        holds: Callable[[PartitionCache], bool],
        timeout_seconds: float = WRITE_SECONDS_DEFAULT,
        *,
        inside: bool = False,
    ) -> Outcome | None:
        """Publish an update if something holds of the fold just before the append.

        Returns what its own apply came to; None if it was a repeat. `inside` is for whoever holds
        the segment's `fence`.

        Raises:
            IllegalTransition: it does not hold, or the life cycle refuses it; nothing was appended.
            OutcomeUnknown: it may be in the log, now or later.
        """
        event, normal = read_offered(record)
        if not isinstance(event, SegmentUpdate):
            raise InvalidArgument("an update record is wanted")

        def judge() -> Fold:
            fold = self.gates.writable(event.partition).fold
            cache = fold.partitions.get(event.partition)
            if cache is None or not holds(cache):
                raise IllegalTransition("what the update was meant for does not hold any more")
            return fold

        return await self._publisher.write(
            event,
            normal,
            Caller.OPERATOR,
            timeout_seconds,
            on_demand=True,
            judge=judge,
            inside=inside,
        )

    def fence(
        self, partition: TopicIdPartition, segment_id: SegmentId, timeout_seconds: float
    ) -> AbstractAsyncContextManager[None]:
        """Refuse updates of a segment, but those `inside`, from a fold that holds all there is.

        Raises:
            OutcomeUnknown, TimedOut, NotReady: that could not be reached in time.
        """
        return self._publisher.fence(partition, segment_id, timeout_seconds)

    async def until_folded(self, partition: TopicIdPartition, timeout_seconds: float) -> None:
        """Return once everything is folded that the log held of a user partition when called.

        Raises:
            TimedOut, NotReady: that could not be reached in time.
        """
        await self._publisher.until_folded(partition, timeout_seconds)

    # For copies, deletes and fetches.

    @asynccontextmanager
    async def keep_followed(self, partition: TopicIdPartition) -> AsyncGenerator[None, None]:
        """Keep a user partition's metadata partition followed while a job is in flight.

        Waits, under the caller's deadline, until the log is open.
        """
        follow_set = await self.gates.opened()
        with follow_set.keep(follow_set.of(partition)):
            yield

    async def segment(
        self, partition: TopicIdPartition, segment_id: SegmentId, timeout_seconds: float = 30.0
    ) -> tuple[SegmentState, bytes] | None:
        """Return a segment's state and record from a ready fold; None if it is not there.

        Raises:
            TimedOut: the fold was not ready in time.
            PartitionFailed and kin: it will not be.
        """
        async with self.keep_followed(partition):
            follower = await self.gates.until_writable(
                self.gates.follow_set().of(partition), timeout_seconds
            )
            return _segment(follower, partition, segment_id)

    async def until_state(
        self,
        partition: TopicIdPartition,
        segment_id: SegmentId,
        states: frozenset[SegmentState],
        timeout_seconds: float = 30.0,
    ) -> tuple[SegmentState, bytes] | None:
        """Wait for this daemon's apply of one of `states`; return what the segment is then.

        Returns at once when the segment is in a later state, None when it is gone or, at the end
        of the time, was never seen.
        """
        earliest = min(states)
        deadline = self.clock.monotonic() + timeout_seconds
        async with self.keep_followed(partition):
            metadata_partition = self.gates.follow_set().of(partition)
            while True:
                left = max(0.0, deadline - self.clock.monotonic())
                follower = await self.gates.until_writable(metadata_partition, left)
                found = _segment(follower, partition, segment_id)
                if found is not None and found[0] >= earliest:
                    return found
                try:
                    async with asyncio.timeout(max(0.0, deadline - self.clock.monotonic())):
                        await follower.changed.wait()
                except TimeoutError:
                    return found

    def kept_custom_metadata(
        self, partition: TopicIdPartition, segment_id: SegmentId
    ) -> bytes | None:
        """Return the last custom metadata that was not null, which a delete needs for its keys."""
        follower = self.gates.follower(partition)
        cache = follower.fold.partitions.get(partition)
        return None if cache is None else cache.last_custom_metadata(segment_id)

    def is_held(self, partition: TopicIdPartition, segment_id: SegmentId) -> bool:
        """Whether a segment's objects may not be deleted, whatever its state says."""
        follower = self.fleet.followers.get(self.gates.follow_set().of(partition))
        cache = None if follower is None else follower.fold.partitions.get(partition)
        return cache is not None and segment_id in cache.held

    # For operators.

    def followed(self) -> Sequence[Follower]:
        """Return the followers by metadata partition."""
        return [follower for _, follower in sorted(self.fleet.followers.items())]

    def find(self, topic: str, number: int) -> list[TopicIdPartition]:
        """Return the user partitions of that name among those followed and those announced."""
        known = {p for p in self.assignment.announced if (p.topic, p.partition) == (topic, number)}
        for follower in self.followed():
            known.update(
                p for p in follower.fold.partitions if (p.topic, p.partition) == (topic, number)
            )
        return sorted(known)

    async def follow_all(self, timeout_seconds: float) -> None:
        """Follow every metadata partition for a while and wait until each is ready or failed."""
        follow_set = self.gates.follow_set()
        everything = [MetadataPartition(n) for n in range(follow_set.partition_count)]
        follow_set.demand(everything)
        try:
            async with asyncio.timeout(timeout_seconds):
                for partition in everything:
                    await self._until_settled(partition)
        except TimeoutError:
            return

    async def _until_settled(self, partition: MetadataPartition) -> None:
        unsettled = (PartitionState.STARTING, PartitionState.REPLAYING)
        while True:
            follower = self.fleet.followers.get(partition)
            if follower is None:
                await self.fleet.changed.wait()
            elif follower.state in unsettled:
                await follower.changed.wait()
            else:
                return


def _require_not_removed(partition: TopicIdPartition, cache: PartitionCache | None) -> None:
    """Refuse a look-up that would be empty because the partition was removed.

    Kafka forgets such a partition; "nothing found" would have a broker reset its consumers.

    Raises:
        SegmentNotFound: until a COPY_SEGMENT_STARTED begins the partition's next life.
    """
    if cache is not None and cache.delete_state is PartitionDeleteState.DELETE_PARTITION_FINISHED:
        raise SegmentNotFound(f"{partition} was removed (DELETE_PARTITION_FINISHED)")


def _segment(
    follower: Follower, partition: TopicIdPartition, segment_id: SegmentId
) -> tuple[SegmentState, bytes] | None:
    cache = follower.fold.partitions.get(partition)
    if cache is None:
        return None
    record, state = cache.get(segment_id), cache.state(segment_id)
    return None if record is None or state is None else (state, record)
