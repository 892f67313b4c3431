"""Follower of a metadata partition: one task, one position, one fold, one health.

What it is, and what comes of whatever happens, is decided by `core.readiness.following.step`; here
are the log that it reads, the fold that it keeps, and the carrying out of what the step says.
"""

import asyncio
import gc
import random
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final, assert_never
from weakref import WeakMethod

import msgspec
from msgspec.structs import replace

from rlmm_daemon.codec.state_files import Position
from rlmm_daemon.core.fold.cache import EPOCHS_AT_ONCE
from rlmm_daemon.core.fold.fold import WRONG_PARTITION, Fold
from rlmm_daemon.core.fold.outcome import Unreadable
from rlmm_daemon.core.readiness.follower_effects import (
    AskForEnd,
    DropFold,
    Effect,
    ForgetHistory,
    ForgetPosition,
    GiveUpSnapshot,
    KeepPosition,
    Reopen,
    RestartTargets,
    Serve,
)
from rlmm_daemon.core.readiness.follower_inputs import (
    Accepted,
    Answered,
    Broken,
    Checked,
    Compared,
    Damaged,
    Doubted,
    Dropped,
    Forgotten,
    Input,
    Judged,
    Means,
    Moved,
    Obeyed,
    OtherLog,
    Rebuild,
    Recheck,
    Refused,
    Retry,
    Trimmed,
    Untrimmed,
    WrittenDown,
)
from rlmm_daemon.core.readiness.follower_roles import (
    Following,
    Ordered,
    Ready,
    Replaying,
    Starting,
    Stopped,
)
from rlmm_daemon.core.readiness.following import step
from rlmm_daemon.core.readiness.states import (
    Failure,
    FailureReason,
    Freshness,
    PartitionState,
    state_now,
)
from rlmm_daemon.daemon.base.broadcast import Broadcast
from rlmm_daemon.daemon.base.crash_guard import PartitionCrash
from rlmm_daemon.daemon.base.fair_scheduler import FairScheduler
from rlmm_daemon.daemon.base.os_errors import is_shortage
from rlmm_daemon.daemon.base.state_directory import StateDirectory
from rlmm_daemon.daemon.following.confirmation import Asked, Confirmation
from rlmm_daemon.daemon.following.history import History
from rlmm_daemon.daemon.following.hooks import ManagerHooks
from rlmm_daemon.daemon.following.snapshots import NewerSnapshot, SnapshotStore
from rlmm_daemon.daemon.following.writer import Writer
from rlmm_daemon.domain.backoff import Backoff
from rlmm_daemon.domain.errors import (
    CorruptError,
    InvalidArgument,
    LogCorrupt,
    RefusedError,
    RlmmError,
    UnavailableError,
    UnsupportedProtocol,
)
from rlmm_daemon.domain.ids import MetadataPartition, TopicId
from rlmm_daemon.ports.clock import Clock
from rlmm_daemon.ports.event_log import (
    NO_EPOCH,
    EventLog,
    LogBatch,
    LogMoved,
    LogRange,
    LogTrimmed,
    OwnEpochs,
    TopicIdChanged,
    range_of,
    ranges_joined,
    ranges_less,
)

#: A replay gives way to look-ups after this long; lab figures put their p99 at about 1 ms then.
SLICE_SECONDS: Final = 0.0003
_SLICE_CHECK_EVENTS: Final = 16
#: Rows that are looked through for whole copies at once, which takes a millisecond or two.
_COPIES_ROWS_MAX: Final = 512
#: A replay tells the collector so often to leave out what it made. Lists of ids are few, but long.
_FREEZE_EVENTS: Final = 10_000
BACKOFF_SECONDS_MIN: Final = 0.05
BACKOFF_SECONDS_MAX: Final = 5.0
#: Measurements that wait to be taken.
_REPLAYS_KEPT: Final = 16
#: Of the gaps in a log, so many are named.
_GAPS_NAMED: Final = 5


class Trouble(msgspec.Struct):
    """The last error of a follower, for `explain`."""

    message: str
    at_ms: int
    consecutive: int = 1
    #: The file of this machine that can't be read or written, if that is it.
    file: str | None = None


class FollowerContext(msgspec.Struct, frozen=True, kw_only=True):
    """What all followers share."""

    log: EventLog
    state: StateDirectory
    snapshots: SnapshotStore
    clock: Clock
    rng: random.Random
    freshness: Freshness
    partition_count: int
    #: Rung when an end offset should be asked for.
    target_wanted: Broadcast
    #: Called when a fold was written down and dropped.
    on_dropped: Callable[[MetadataPartition], None]
    #: Called with a position that the log does not confirm and that no file but a snapshot had.
    on_unrecorded: Callable[[MetadataPartition, Position], None]
    #: Called when the log turned out to be another one, after the fold was dropped.
    reopen: Callable[[TopicId], Awaitable[None]]
    #: Told of each applied record, after the fold and before the writer.
    hooks: ManagerHooks
    #: For slices of a replay, and whatever else takes long.
    turns: FairScheduler


class Follower:
    """Follows one metadata partition from `run` until it is cancelled."""

    def __init__(
        self,
        partition: MetadataPartition,
        context: FollowerContext,
        writer: Writer,
        *,
        recorded: Collection[Position],
        failure: Failure | None = None,
        foreign_evidence: Callable[[], str | None] = lambda: None,
        said_by: Callable[[], Mapping[Position, str]] = dict,
        accepted_start: int = 0,
        accepted_gaps: Callable[[], Sequence[LogRange]] = tuple,
        has_storage: bool = False,
    ) -> None:
        self.partition = partition
        self.fold = Fold(partition, context.partition_count)
        self._watch_damage()
        self.writer = writer
        self.confirmation = Confirmation()
        self.history = History(partition, context.state)
        self.trouble: Trouble | None = None
        self.range: LogRange | None = None
        #: Rung whenever the fold, the state or a target changed.
        self.changed = Broadcast()
        #: Held while a batch is applied, so that a snapshot is taken between batches.
        self.steady = asyncio.Lock()
        self.applied_since_snapshot = 0
        #: Set for good when nobody follows this partition here any more.
        self.retired = False
        self.snapshot_at_ms: int | None = None
        #: When the disk did not take a snapshot; None since one was written.
        self.snapshot_failed_ms: int | None = None
        self.followed_since_ms = context.clock.now_ms()
        self._context = context
        self._following = Following(
            partition=partition,
            role=Starting() if failure is None else Stopped(started=False),
            failure=failure,
            unconfirmed=tuple(recorded),
            accepted_start=accepted_start,
        )
        self._foreign_evidence = foreign_evidence
        self._said_by = said_by
        self._answered_at = context.clock.monotonic()
        #: When it began to start; None since it was ready.
        self._began: float | None = self._answered_at
        #: Records that were read while not ready.
        self._replayed = 0
        #: Seconds from starting to ready, until whoever measures takes them.
        self.replays: deque[float] = deque(maxlen=_REPLAYS_KEPT)
        #: Rung when something was ordered.
        self._ordered = Broadcast()
        self._accepted_gaps = accepted_gaps
        #: Objects of segments that the log lost can be looked for, and were.
        self._has_storage = has_storage
        self.looked_for = False
        #: Offsets that the fold passed over and nobody vouches for, accepted or not.
        self._gaps: tuple[LogRange, ...] = ()
        #: The position behind the last whole batch, with that batch's epoch; or of the snapshot.
        self.settled: Position | None = None
        #: How far the snapshot had read that the fold went on from; 0: it was read from the start.
        self.went_on_from = 0
        #: What the fold knew is being written down: nobody else knows it until then.
        self.dropping = False

    # What others ask.

    @property
    def silent_seconds(self) -> float:
        """Seconds since the log last answered."""
        return self._context.clock.monotonic() - self._answered_at

    @property
    def failure(self) -> Failure | None:
        """Why it is `failed`, if it is."""
        return self._following.failure

    @property
    def alarmed(self) -> bool:
        """Whether what failed is that finished segments are held, and nothing else."""
        return self._following.alarmed

    @property
    def accepted_start(self) -> int:
        """Where the log started when an operator accepted the loss of its head."""
        return self._following.accepted_start

    @property
    def state(self) -> PartitionState:
        """The state as of now."""
        return state_now(self._following.state, self.silent_seconds, self._context.freshness)

    @property
    def answers_hits(self) -> bool:
        """Whether a segment that is found may be answered: true in `ready` and in `stale`."""
        return isinstance(self._following.role, Ready) and not self.retired

    @property
    def lag(self) -> int | None:
        """Events between the position and the furthest known end; None if no end is known."""
        ends = [end for end in (self.confirmation.target, self.range and self.range.end) if end]
        return max(0, max(ends) - self.fold.position) if ends else None

    @property
    def wants_target(self) -> bool:
        """Whether an end offset should be asked for."""
        asked = self.confirmation
        unknown = asked.target is None or bool(asked.asking) or asked.short
        return self._following.started and unknown

    @property
    def position_confirmed(self) -> bool:
        """Whether positions of earlier lives were reached, so that they may be rewritten."""
        return self._following.started and not self._following.unread

    @property
    def read_all(self) -> Position | None:
        """The position, if this daemon acknowledged nothing beyond it as of now; else None."""
        whole = self.answers_hits and not (self.lag or self.writer.in_flight)
        return self.settled if whole else None

    @property
    def restarting(self) -> bool:
        """Whether it was told to start over and has not begun to."""
        return isinstance(self._following.role, Ordered)

    @property
    def waits_for_order(self) -> bool:
        """Whether it failed of what no reading mends, so that it is not read on."""
        return isinstance(self._following.role, Stopped)

    @property
    def read_to_end(self) -> bool:
        """Whether the fold has reached the log's end, ready or not."""
        target = self.confirmation.target
        return target is not None and self.fold.position >= target

    @property
    def open_gaps(self) -> tuple[LogRange, ...]:
        """Offsets that may have held acknowledged events and do not, as nobody accepted yet."""
        return ranges_less(self._gaps, self._accepted_gaps()) if self._gaps else ()

    @property
    def lacks_offsets(self) -> bool:
        """Whether the log lacks offsets that may have held acknowledged events, accepted or not."""
        return bool(self._gaps or self._accepted_gaps())

    @property
    def uncertain(self) -> bool:
        """Whether the log lost what nobody here knows: it may have held the end of a segment."""
        return bool(self.open_gaps or self._following.unread or self._head_unknown)

    @property
    def _head_unknown(self) -> bool:
        """Whether what is known to be missing may have been ended in a head that was accepted."""
        return self.history.comparing and self.accepted_start > 0

    @property
    def head_alone(self) -> bool:
        """Whether what can be accepted now is the lost head of the log, and nothing else yet.

        There is a list of segments that were known, and the rest of the log may hold them.
        """
        return self._following.trimmed_to is not None and self.history.comparing

    @property
    def lacking(self) -> bool:
        """Whether something is missing, or may be, whose loss can be accepted.

        Segments that are held are not: nothing of them is lost, and repair ends it.
        """
        failed = self.failure is not None and self.failure.reason is FailureReason.HISTORY_LOST
        return bool(
            self.open_gaps or self.history.comparing or (failed and not self._following.alarmed)
        )

    def target_known(self, end: int, asked: Asked) -> None:
        """An end offset was asked for and came."""
        self.confirmation.answered(end, asked)
        self.confirmation.reached(self.fold.position)
        self._take(self._judged())

    def log_changed(self, topic_id: TopicId) -> None:
        """The log is another one now: nothing of the fold may be said any more, or gone on with."""
        self._take(OtherLog(topic_id))

    def retry(self) -> None:
        """Start over and check everything anew; until then the failure stands."""
        self._take(Retry())

    def recheck(self, recorded: Collection[Position]) -> None:
        """Check these positions too, unless the fold is beyond them in their own epoch."""
        doubted = self._foreign_evidence() is not None
        self._take(Recheck(recorded=tuple(recorded), settled=self.settled, doubted=doubted))

    async def accept_loss(self, *, without_looking: bool = False) -> None:
        """Go on without what is missing: an operator said so.

        Of a lost head and a list of what was known the head alone is given up, unless
        `without_looking`: what the rest of the log lacks of the list can be looked for then.

        Raises:
            OSError: the state directory did not take it; nothing was accepted.
        """
        if self.head_alone and not without_looking:
            self._gaps = self.open_gaps
            self._take(Accepted())
            return
        # The snapshot that the fold goes on from is all that knows what stood in a lost head.
        goes_on = self._following.trimmed_to is not None and not self.history.comparing
        await self.history.forget()
        if not goes_on:
            await self._context.snapshots.remove(self.partition)
        self._gaps = self.open_gaps  # what was met since the order was written down
        self._take(Accepted())

    async def known_to_snapshot(self) -> list[bytes]:
        """Write down what the fold or the newest snapshot knows, for a log that is being mended.

        Returns the finished segments' records. The replay of the mended log is compared with
        them, so the snapshots, whose offsets may mean other records then, are given up.

        Raises:
            OSError: it was not written down; nothing was given up.
        """
        loaded = await self._context.snapshots.load(self.partition)
        further = loaded is not None and loaded.fold.position > self.fold.position
        fold = loaded.fold if loaded is not None and loaded.same_log and further else self.fold
        whole = await self.history.drop(fold, "the log is being mended", same_log=True)
        known = self.history.missing
        await self._context.snapshots.remove(self.partition)
        self._start_over()
        at = Position(fold.position, fold.leader_epoch) if whole else Position(0, NO_EPOCH)
        self._take(WrittenDown(at))
        return known

    def rebuild(self) -> None:
        """Drop the fold and replay the log from its start, held against what had been known.

        Raises:
            InvalidArgument: the log is another one than was known, so its fold proves nothing.
        """
        if self._foreign_evidence() is not None:
            raise InvalidArgument("the log is another one; run: rlmm partition accept-loss --all")
        self._take(Rebuild())

    # The task.

    async def run(self) -> None:
        """Follow for ever; troubles change the state and never end the task, a bug does."""
        backoff = Backoff(BACKOFF_SECONDS_MIN, BACKOFF_SECONDS_MAX, self._context.rng.random)
        while True:
            position = self.fold.position
            try:
                await self._live()
            except LogMoved as moved:
                # Followed again after the usual pause: a log that stays moved must not spin.
                topic_id = moved.topic_id if isinstance(moved, TopicIdChanged) else None
                await self._meet(Moved(str(moved) or "the log lost its tail", topic_id))
                position = self.fold.position
            except (CorruptError, RefusedError) as error:
                self._take(_broken(error, self._gives_up))
            except (UnavailableError, OSError) as error:
                self._troubled(error)
            except Exception as bug:
                raise PartitionCrash(self.partition) from bug
            if self.restarting:
                backoff.reset()
            elif isinstance(self._following.role, Stopped):
                await self._ordered.wait()
            else:
                # One that failed only because of what is missing goes on: it may come back.
                if self.fold.position > position:
                    backoff.reset()
                await asyncio.sleep(backoff.next())

    async def _live(self) -> None:
        """Follow until something is wrong, or an operator wants everything checked anew."""
        while self.restarting:
            await self._meet(Obeyed(Position(self.fold.position, self.fold.leader_epoch)))
        if isinstance(self._following.role, Starting):
            await self._check_past()
        if isinstance(self._following.role, Replaying | Ready):
            await self._read_on()

    def _take(self, given: Input) -> Sequence[Effect]:
        """Step, and do what takes no time; return what is left to be done."""
        before = self._following
        self._following, effects = step(before, given, self._context.clock.now_ms())
        starts = isinstance(self._following.role, Starting)
        if starts and not isinstance(before.role, Starting):
            self._began = self._context.clock.monotonic()
        left = [effect for effect in effects if not self._at_once(effect)]
        self.changed.ring()
        if self.restarting:
            self._ordered.ring()
        return left

    async def _meet(self, given: Input) -> None:
        """Step, and do all that comes of it."""
        for effect in self._take(given):
            await self._carry_out(effect)

    def _at_once(self, effect: Effect) -> bool:
        match effect:
            case RestartTargets():
                self.confirmation.restart()
            case ForgetPosition():
                self._context.on_dropped(self.partition)
            case KeepPosition(position=position):
                self._context.on_unrecorded(self.partition, position)
            case AskForEnd():
                self._context.target_wanted.ring()
            case Serve():
                self._measured()
            case GiveUpSnapshot() | DropFold() | Reopen() | ForgetHistory():
                return False
            case _:
                assert_never(effect)
        return True

    async def _carry_out(self, effect: Effect) -> None:
        match effect:
            case GiveUpSnapshot(why=why):
                await self._give_up_snapshot(why)
            case DropFold():
                await self._drop_fold(effect)
            case Reopen(topic_id=topic_id):
                await self._reopen(topic_id)
            case ForgetHistory():
                await self._context.snapshots.remove(self.partition)
                if self._foreign_evidence() is None:
                    await self.history.forget()
                else:
                    self.history.end_for_now()
                self._take(Forgotten(self._means))
            case _:
                raise AssertionError(effect)

    def _measured(self) -> None:
        if self._began is not None:
            self.replays.append(self._context.clock.monotonic() - self._began)
            self._began = None
        gc.freeze()  # a walk over all that was replayed holds the loop for many milliseconds

    async def _trimmed(self, head: LogRange) -> None:
        """The log's head is gone: pass over it if that was accepted, else stop.

        What was read before it is given up first unless the log still confirms it: the head may
        have begun with other events than those, and an acceptance says nothing of that.
        """
        if not await self._confirmed(Position(head.start, self.fold.leader_epoch)):
            why = f"the log starts at {head.end}, in a later epoch than was read"
            await self._meet(Moved(why, None))
            return
        if not ranges_less([head], self._accepted_gaps()):
            self.fold.advance(head.end, NO_EPOCH)  # nobody knows who wrote what is gone
            return
        self._gaps = ranges_joined([*self._gaps, head])
        doubted = self._foreign_evidence() is not None
        self._take(Trimmed(position=head.start, start=head.end, doubted=doubted))

    async def _reopen(self, topic_id: TopicId) -> None:
        try:
            await self._context.reopen(topic_id)
        except (UnavailableError, OSError) as error:
            self._troubled(error)

    async def _read_on(self) -> None:
        fold = self.fold
        batches = self._context.log.follow(self.partition, fold.position, epoch=fold.leader_epoch)
        try:
            async for batch in batches:
                self._answered_at = self._context.clock.monotonic()
                self.trouble = None
                if self.restarting:
                    return
                self.range = batch.range
                if 0 < self.went_on_from < batch.dropped_to:
                    # An older snapshot was put back, or the newer ones could not be read.
                    self._take(Damaged("the log was compacted beyond what it had read"))
                    return
                async with self.steady:
                    await self._apply(batch)
                if self.confirmation.read_to(self.fold.position, batch.range.end):
                    self._context.target_wanted.ring()
                await self._judge()
        except LogTrimmed as moved:
            await self._trimmed(LogRange(start=fold.position, end=moved.start))
        finally:
            await batches.aclose()

    async def _check_past(self) -> None:
        """Take up the snapshot if the log confirms it, and check how far we had read before."""
        await self.history.load()
        await self._doubt_accepted_start()
        if not self.history.comparing and self.fold.position == 0:
            await self._load_snapshot()
        if self.history.read_elsewhere:
            at = Position(self.history.read_elsewhere, NO_EPOCH)
            self._take(Refused(at, same_log=False))
        await self._find_common()
        if self.fold.position < self.accepted_start:
            self.fold.advance(self.accepted_start, NO_EPOCH)
        evidence, comparing = self._foreign_evidence(), self.history.comparing
        self._take(Doubted(evidence=evidence, comparing=comparing))
        for position in self._following.unconfirmed:
            self._take(
                Answered(
                    position=position,
                    confirmed=await self._confirmed(position),
                    read=self.fold.position,
                    missing=self.history.missing_count,
                    means=self._means,
                )
            )
        self._take(Checked())

    async def _doubt_accepted_start(self) -> None:
        """Skip no offsets of a log that starts before them: it lost all, or is an older copy.

        Raises:
            RlmmError: the log does not say where it starts.
        """
        if self.accepted_start:
            known = await range_of(self._context.log, self.partition)
            if known.start < self.accepted_start:
                self._take(Untrimmed())

    @property
    def _means(self) -> Means:
        return Means(
            storage=self._has_storage,
            looked_for=self.looked_for,
            doubted=self._foreign_evidence() is not None,
            said_by=self._said_by(),
        )

    @property
    def _gives_up(self) -> str:
        """The command that goes on without what is lost."""
        return replace(self._means, looked_for=True).against_unknown(self._following)

    async def _load_snapshot(self) -> None:
        loaded = await self._context.snapshots.load(self.partition)
        if loaded is None:
            return
        position = Position(loaded.fold.position, loaded.fold.leader_epoch)
        if loaded.same_log and await self._confirmed(position):
            self.fold = loaded.fold
            self.settled, self.went_on_from = position, loaded.fold.position
            self._watch_damage()
            gc.freeze()
            self.snapshot_at_ms = loaded.created_at_ms
            self.writer.passed(self.fold.position)
            return
        why = "the log cut it off" if loaded.same_log else "it belongs to another log"
        reason = f"the snapshot was refused: {why}"
        whole = await self.history.drop(loaded.fold, reason, same_log=loaded.same_log)
        if whole and loaded.same_log:
            self._take(Refused(position))
        elif not whole:  # the comparison can't answer for all that had been read
            epoch = position.leader_epoch if loaded.same_log else NO_EPOCH
            self.recheck([Position(position.next_offset, epoch)])

    def _start_over(self) -> None:
        """Go on with a fold of nothing."""
        self._gaps, self.looked_for = (), False
        self.settled, self.went_on_from = None, 0
        self.applied_since_snapshot = 0
        self.fold = Fold(self.partition, self._context.partition_count)
        self._watch_damage()

    def _watch_damage(self) -> None:
        # Weak, or follower and fold would keep each other, as frozen garbage, for ever.
        told = WeakMethod(self._damaged)

        def damaged(why: str) -> None:
            if (tell := told()) is not None:
                tell(why)

        self.fold.partitions.on_damage = damaged

    def _damaged(self, why: str) -> None:
        """A table of the snapshot is damaged: nothing is answered until the log was read again."""
        self._take(Damaged(why))

    async def _give_up_snapshot(self, why: str) -> None:
        """Set the damaged file aside and start over, from the one before or from the log's start.

        The log is as it was, so there is nothing to compare.
        """
        image = self.fold.image
        self.writer.dropped()
        self._start_over()
        if image is not None and image.path is not None:
            try:
                await self._context.snapshots.reject(image.path, why)
            except OSError as error:
                self._troubled(error)

    async def _find_common(self) -> None:
        """Learn how far the log is still what dropped folds had read.

        Raises:
            UnavailableError: the log does not say.
        """
        for each in self.history.read if self._has_storage else ():
            found = await self._context.log.epoch_end(self.partition, each.leader_epoch)
            end = min(each.next_offset, found.end_offset)
            self.history.common_end = max(self.history.common_end, end)

    async def _confirmed(self, position: Position) -> bool:
        if position.leader_epoch < 0 or position.next_offset == 0:
            # Right behind what is gone nobody knows the epoch, and nothing else was read.
            passed = {gap.end for gap in self._accepted_gaps()}
            return position.next_offset <= self.accepted_start or position.next_offset in passed
        log, epoch = self._context.log, position.leader_epoch
        found = await log.epoch_end(self.partition, epoch)
        confirmed = found.epoch == epoch and found.end_offset >= position.next_offset
        if not confirmed and isinstance(log, OwnEpochs):
            # Before anything is appended, which would stand where the lost events stood.
            log.begin_beyond(epoch)
        return confirmed

    async def _apply(self, batch: LogBatch) -> None:
        fold, clock = self.fold, self._context.clock
        rows, at, end = batch.records, 0, len(batch.records)
        if end > _SLICE_CHECK_EVENTS:
            await self._context.turns.wait()  # to read so many took a slice already
        until = clock.monotonic() + SLICE_SECONDS
        while at < end:
            turn = min(at + _SLICE_CHECK_EVENTS, end)
            if not (self.writer.in_flight or self.history.comparing or self._context.hooks.every):
                at = self._apply_run(fold, rows, at, turn)
            while at < turn:
                self._apply_one(fold, *rows[at])
                at += 1
                if clock.monotonic() >= until:
                    break  # one of many leader epochs takes a slice alone
            if clock.monotonic() >= until:
                await self._pause(fold)
                until = clock.monotonic() + SLICE_SECONDS
        # A batch that brought nothing new may not know the epoch of what came before it.
        fold.advance(batch.next_offset, max(batch.leader_epoch, fold.leader_epoch))
        self.settled = Position(fold.position, fold.leader_epoch)
        if batch.unvouched:
            self._gaps = ranges_joined([*self._gaps, *batch.unvouched])
        if not isinstance(self._following.role, Ready):
            before, self._replayed = self._replayed, self._replayed + end
            if before // _FREEZE_EVENTS != self._replayed // _FREEZE_EVENTS:
                gc.freeze()
        self.applied_since_snapshot += len(batch.records)
        self.writer.passed(fold.position)
        self.confirmation.reached(fold.position)

    async def _pause(self, fold: Fold) -> None:
        """Let others go on; an event of very many leader epochs is put into some at a time."""
        await self._context.turns.wait()
        while fold.settle(EPOCHS_AT_ONCE):
            await self._context.turns.wait()

    def _apply_run(
        self, fold: Fold, rows: Sequence[tuple[int, bytes | None]], begin: int, turn: int
    ) -> int:
        """Apply copies that nobody waits for; return where the first record stands that is none.

        It can lie behind the turn: whole copies side by side cost little.
        """
        at = fold.apply_run(rows, begin, min(len(rows), begin + _COPIES_ROWS_MAX), turn)
        if at > begin:
            self._context.hooks.tell_copies(self.partition, at - begin)
        return at

    def _apply_one(self, fold: Fold, offset: int, value: bytes | None) -> None:
        outcome = fold.apply(offset, value)
        if isinstance(outcome, Unreadable) and outcome.reason == WRONG_PARTITION:
            self._misplaced(offset)
        self.history.applied(outcome, offset)
        self._context.hooks.tell(self.partition, outcome)
        self.writer.applied(offset, value, outcome)

    def _misplaced(self, offset: int) -> None:
        """An event of another metadata partition stands here: what should stand here is unknown.

        Nobody but this daemon writes a log that numbers its epochs itself, so that its files were
        mixed up. In any other a stranger may have written it.
        """
        if isinstance(self._context.log, OwnEpochs):
            self._gaps = ranges_joined([*self._gaps, LogRange(start=offset, end=offset + 1)])

    async def _judge(self) -> None:
        """Turn ready when the target is reached and nothing that was known is missing."""
        if self.read_to_end and self.history.comparing:
            await self._meet(
                Compared(
                    missing=self.history.missing_count,
                    risen=self.history.risen_count,
                    why=self.history.reasons[-1],
                    gaps=bool(self.open_gaps) or self._head_unknown,
                    means=self._means,
                )
            )
        self._take(self._judged())

    def _judged(self) -> Judged:
        gaps = self.open_gaps
        return Judged(
            reached=self.read_to_end,
            settled=self.settled,
            comparing=self.history.comparing,
            held=len(self.fold.held_records()) if self.fold.holding else 0,
            gaps=offsets(gaps) if gaps else "",
            means=self._means,
        )

    async def _drop_fold(self, order: DropFold) -> None:
        """The log is not the one that was folded: write down what was known, then start over."""
        self.writer.dropped()
        # No other log confirms it, whatever stands at its offsets.
        epoch = self.fold.leader_epoch if order.same_log else NO_EPOCH
        at, whole = Position(self.fold.position, epoch), True
        self.dropping = True
        while True:
            try:
                if order.written:
                    whole = await self.history.drop(self.fold, order.why, same_log=order.same_log)
                break
            except (OSError, RlmmError) as error:
                self._troubled(error)
                await asyncio.sleep(BACKOFF_SECONDS_MAX)
        self._start_over()
        self.dropping = False
        self._take(Dropped(unwritten=None if whole else at))

    def _troubled(self, error: Exception) -> None:
        before = self.trouble.consecutive if self.trouble else 0
        message = error.message if isinstance(error, RlmmError) else str(error)
        file = error.fields.get("file") if isinstance(error, RlmmError) else None
        if isinstance(error, OSError) and not is_shortage(error):
            file = error.filename
        self.trouble = Trouble(message, self._context.clock.now_ms(), before + 1, file)
        self.changed.ring()


def _broken(error: CorruptError | RefusedError, gives_up: str) -> Broken:
    """Return what it broke of; `gives_up` is the command that goes on without what is lost."""
    if isinstance(error, LogCorrupt):
        command = error.fields.get("command")
        return Broken(FailureReason.LOG_CORRUPT, error.message, command)
    if isinstance(error, NewerSnapshot):
        return Broken(FailureReason.NEWER_SNAPSHOT, error.message, None)
    if isinstance(error, UnsupportedProtocol):
        return Broken(FailureReason.NEWER_STATE, error.message, None)
    # Nothing is read meanwhile, so nothing can be looked for before.
    why = f"{error.message}; put it back from a copy, or go on without what it names"
    return Broken(FailureReason.HISTORY_LOST, why, gives_up)


def offsets(ranges: Sequence[LogRange]) -> str:
    """Return ranges in words, the first few of many."""
    named = [
        f"offset {each.start}"
        if each.end == each.start + 1
        else f"offsets {each.start} to {each.end - 1}"
        for each in ranges[:_GAPS_NAMED]
    ]
    more = len(ranges) - len(named)
    behind = f" and {more} more {'range' if more == 1 else 'ranges'}" if more else ""
    return ", ".join(named) + behind
