"""One metadata partition: one task, one position, one fold, one health.

Each state change happens here and nowhere else::

    starting --snapshot and positions checked--> replaying --position >= target--> ready <-> stale
        any --truncated, recreated--> fold written down and dropped --> starting
        any --trimmed, corrupt, events missing--> failed(reason) --retry, repair, accept--> starting

`stale` is not stored: it is `ready` seen after too long a silence (`core.readiness`).
"""

import asyncio
import gc
import random
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final
from weakref import WeakMethod

from rlmm_daemon.codec.state_files import Position
from rlmm_daemon.core.fold import Fold
from rlmm_daemon.core.readiness import (
    Failure,
    FailureReason,
    Freshness,
    PartitionState,
    state_now,
)
from rlmm_daemon.daemon.bell import Bell
from rlmm_daemon.daemon.confirmation import Asked, Confirmation
from rlmm_daemon.daemon.crash_guard import PartitionCrash
from rlmm_daemon.daemon.history import History
from rlmm_daemon.daemon.hooks import ManagerHooks
from rlmm_daemon.daemon.snapshots import NewerSnapshot, SnapshotStore
from rlmm_daemon.daemon.state_directory import StateDirectory
from rlmm_daemon.daemon.turns import Turns
from rlmm_daemon.daemon.writer import Writer
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
    TopicIdChanged,
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
ACCEPT_ALL: Final = "rlmm partition accept-loss --all"


@dataclass(slots=True)
class Trouble:
    """The last error of a follower, for `explain`."""

    message: str
    at_ms: int
    consecutive: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerContext:
    """What all followers share."""

    log: EventLog
    state: StateDirectory
    snapshots: SnapshotStore
    clock: Clock
    rng: random.Random
    freshness: Freshness
    partition_count: int
    #: Rung when an end offset should be asked for.
    target_wanted: Bell
    #: Called when a fold was written down and dropped.
    on_dropped: Callable[[MetadataPartition], None]
    #: Called when the log turned out to be another one, after the fold was dropped.
    reopen: Callable[[TopicId], Awaitable[None]]
    #: Told of each applied record, after the fold and before the writer.
    hooks: ManagerHooks
    #: For slices of a replay, and whatever else takes long.
    turns: Turns


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
        self.failure = failure
        self.trouble: Trouble | None = None
        self.range: LogRange | None = None
        #: Rung whenever the fold, the state or a target changed.
        self.changed = Bell()
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
        #: Positions of earlier lives, until the log has confirmed them.
        self._recorded = list(recorded)
        self._foreign_evidence = foreign_evidence
        self._state = PartitionState.STARTING
        self._answered_at = context.clock.monotonic()
        self._began = self._answered_at
        #: Records that were read while not ready.
        self._replayed = 0
        #: Seconds from starting to ready, until whoever measures takes them.
        self.replays: deque[float] = deque(maxlen=_REPLAYS_KEPT)
        self._retry = Bell()
        self._restart = False
        self._rebuild = False
        #: The topic id of the log that took the place of the one that was folded.
        self._other_log: TopicId | None = None
        #: The last such id for which the fold was written down and dropped.
        self._dropped_for: TopicId | None = None
        #: The fold was held against what an earlier one knew, and lacks nothing of it.
        self._accounted = False
        #: The fold is of another log than was known: to compare with it would find nothing missing.
        self._proves_nothing = False
        self._trimmed_to: int | None = None
        #: Why the snapshot that the fold stands on cannot be trusted.
        self._damage: str | None = None
        #: The failure that says that segments are held.
        self._held: Failure | None = None
        #: Where the log started when an operator accepted the loss of its head.
        self.accepted_start = accepted_start
        self._accepted_gaps = accepted_gaps
        #: Objects of segments that the log lost can be looked for, and were.
        self._has_storage = has_storage
        self.looked_for = False
        #: Offsets that the fold passed over and nobody vouches for, accepted or not.
        self._gaps: tuple[LogRange, ...] = ()
        #: The position behind the last whole batch, with that batch's epoch.
        self.settled: Position | None = None

    # What others ask.

    @property
    def silent_seconds(self) -> float:
        """Seconds since the log last answered."""
        return self._context.clock.monotonic() - self._answered_at

    @property
    def state(self) -> PartitionState:
        """The state as of now."""
        if self.failure is not None:
            return PartitionState.FAILED
        return state_now(self._state, self.silent_seconds, self._context.freshness)

    @property
    def answers_hits(self) -> bool:
        """Whether a segment that is found may be answered: true in `ready` and in `stale`."""
        return self._state is PartitionState.READY and self.failure is None and not self.retired

    @property
    def lag(self) -> int | None:
        """Events between the position and the furthest known end; None if no end is known."""
        ends = [end for end in (self.confirmation.target, self.range and self.range.end) if end]
        return max(0, max(ends) - self.fold.position) if ends else None

    @property
    def wants_target(self) -> bool:
        """Whether an end offset should be asked for."""
        started = self._state is not PartitionState.STARTING
        return started and (self.confirmation.target is None or bool(self.confirmation.asking))

    @property
    def position_confirmed(self) -> bool:
        """Whether positions of earlier lives were confirmed, so that they may be rewritten."""
        return not self._recorded and self._state is not PartitionState.STARTING

    @property
    def restarting(self) -> bool:
        """Whether it was told to start over and has not begun to."""
        return self._restart

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
        return bool(self.open_gaps or self._recorded)

    @property
    def lacking(self) -> bool:
        """Whether something is missing, or may be, whose loss can be accepted."""
        return bool(
            self.open_gaps
            or self.history.comparing
            or (self.failure is not None and self.failure.reason is FailureReason.HISTORY_LOST)
        )

    def target_known(self, end: int, asked: Asked) -> None:
        """An end offset was asked for and came."""
        self.confirmation.answered(end, asked)
        self.confirmation.reached(self.fold.position)
        self._turn_ready()
        self.changed.ring()

    def log_changed(self, topic_id: TopicId) -> None:
        """The log is another one now: nothing of the fold may be said any more, or gone on with."""
        if topic_id != self._dropped_for:
            self._other_log = topic_id
            self._begin()
            self.changed.ring()
            self._retry.ring()

    def retry(self) -> None:
        """Start over and check everything anew; until then the failure stands."""
        self._restart = True
        self._retry.ring()

    def recheck(self, recorded: Collection[Position]) -> None:
        """Check these positions too, unless the fold is beyond them in their own epoch."""
        at = self.settled
        unsure = [
            position
            for position in recorded
            if at is None
            or position.leader_epoch != at.leader_epoch
            or position.next_offset > at.next_offset
        ]
        self._recorded += unsure
        if not self._crash_loops and (unsure or self._foreign_evidence() is not None):
            self.retry()

    async def accept_loss(self) -> None:
        """Go on without what is missing: an operator said so.

        Raises:
            OSError: the state directory did not take it; nothing was accepted.
        """
        await self.history.forget()
        await self._context.snapshots.remove(self.partition)
        self._recorded = []
        self._proves_nothing = False
        self._gaps = ()
        if self._trimmed_to is not None:
            self.accepted_start = self._trimmed_to
        self.retry()

    async def known_to_snapshot(self) -> list[bytes]:
        """Write down what the fold or the newest snapshot knows, for a log that is being mended.

        Returns the finished segments' records. The replay of the mended log is compared with
        them, so the snapshots, whose offsets may mean other records then, are given up.

        Raises:
            OSError: it was not written down; nothing was given up.
        """
        loaded = await self._context.snapshots.load(self.partition)
        if loaded is not None and loaded.same_log and loaded.fold.position > self.fold.position:
            await self.history.drop(loaded.fold, "the log is being mended")
        else:
            await self.history.drop(self.fold, "the log is being mended")
        known = self.history.missing
        await self._context.snapshots.remove(self.partition)
        self._start_over()
        self.settled = None
        self._recorded = []
        self._context.on_dropped(self.partition)
        return known

    def rebuild(self) -> None:
        """Drop the fold and replay the log from its start, held against what had been known.

        Raises:
            InvalidArgument: the log is another one than was known, so its fold proves nothing.
        """
        if self._foreign_evidence() is not None:
            raise InvalidArgument("the log is another one; run: rlmm partition accept-loss --all")
        self._rebuild = True
        self.retry()

    # The task.

    async def run(self) -> None:
        """Follow for ever; troubles change the state and never end the task, a bug does."""
        wait = BACKOFF_SECONDS_MIN
        while True:
            position, stopped = self.fold.position, False
            try:
                await self._live()
            except LogTrimmed as moved:
                stopped = self._trimmed(LogRange(start=self.fold.position, end=moved.start))
            except LogMoved as moved:
                # Followed again after the usual pause: a log that stays moved must not spin.
                await self._drop_fold(str(moved) or "the log lost its tail")
                position = self.fold.position
                if isinstance(moved, TopicIdChanged):
                    self.accepted_start = 0  # of the log that was
                    await self._reopen(moved.topic_id)
            except (CorruptError, RefusedError) as error:
                stopped = True
                self._stopped_by(error)
            except (UnavailableError, OSError) as error:
                self._troubled(error)
            except Exception as bug:
                raise PartitionCrash(self.partition) from bug
            if self._restart or self._other_log is not None:
                wait = BACKOFF_SECONDS_MIN
            elif stopped or self._crash_loops:
                await self._retry.wait()
            else:
                # One that failed only because of what is missing goes on: it may come back.
                wait = BACKOFF_SECONDS_MIN if self.fold.position > position else wait
                await asyncio.sleep(wait * (0.5 + self._context.rng.random() / 2))
                wait = min(wait * 2, BACKOFF_SECONDS_MAX)

    def _trimmed(self, head: LogRange) -> bool:
        """The log's head is gone: pass over it if that was accepted, else stop; return whether."""
        if not ranges_less([head], self._accepted_gaps()):
            self.fold.advance(head.end, NO_EPOCH)  # nobody knows who wrote what is gone
            return False
        self._gaps = ranges_joined([*self._gaps, head])
        self._trimmed_to = head.end
        self._fail(
            FailureReason.HISTORY_LOST,
            f"the log starts at {head.end} now, this daemon stands at {head.start}; what snapshots "
            "know of it, rlmm log restore puts back first",
            command=self._accept_command,
        )
        return True

    @property
    def _accept_command(self) -> str:
        """Return what accepts a loss here; of a log that is another one, nothing does alone."""
        doubted = self._foreign_evidence() is not None
        return ACCEPT_ALL if doubted else f"rlmm partition accept-loss {self.partition}"

    async def _reopen(self, topic_id: TopicId) -> None:
        self._other_log, self._dropped_for = None, topic_id
        try:
            await self._context.reopen(topic_id)
        except (UnavailableError, OSError) as error:
            self._troubled(error)

    async def _live(self) -> None:
        """Follow until something is wrong, or an operator wants everything checked anew."""
        if self._other_log is not None:
            raise TopicIdChanged(self._other_log)
        if self._damage is not None:
            await self._give_up_snapshot(self._damage)
        if self._restart:
            self._begin_again()
        if self._crash_loops:
            return
        if self._state is PartitionState.STARTING:
            await self._start()
        fold = self.fold
        batches = self._context.log.follow(self.partition, fold.position, epoch=fold.leader_epoch)
        try:
            async for batch in batches:
                self._answered_at = self._context.clock.monotonic()
                self.trouble = None
                if self._restart or self._other_log is not None:
                    return
                self.range = batch.range
                async with self.steady:
                    await self._apply(batch)
                await self._judge()
        finally:
            await batches.aclose()

    @property
    def _crash_loops(self) -> bool:
        return self.failure is not None and self.failure.reason is FailureReason.CRASH_LOOP

    def _begin_again(self) -> None:
        self._restart = False
        self._begin()
        self.failure = None
        self.confirmation.restart()
        self.changed.ring()
        if self._rebuild:
            self._rebuild = False
            raise LogMoved("an operator ordered a rebuild")

    async def _start(self) -> None:
        """Take up the snapshot if the log confirms it, and check how far we had read before."""
        await self.history.load()
        if not self.history.comparing and self.fold.position == 0:
            await self._load_snapshot()
        if self.fold.position < self.accepted_start:
            self.fold.advance(self.accepted_start, NO_EPOCH)
        evidence = None if self._accounted else self._foreign_evidence()
        self._proves_nothing = not self.history.comparing and evidence is not None
        if self._proves_nothing and evidence is not None:
            # No fold of ours says what the log that was known held: nobody can say what is gone.
            self._fail(FailureReason.HISTORY_LOST, evidence, command=ACCEPT_ALL)
        for position in list(self._recorded):
            if await self._confirmed(position):
                # An operator may have accepted the loss of them all meanwhile.
                self._recorded = [each for each in self._recorded if each != position]
            else:
                self._fail_of(position)
        self._state = PartitionState.REPLAYING
        self.changed.ring()
        self._context.target_wanted.ring()

    def _fail_of(self, position: Position) -> None:
        """Fail of a position that the log does not confirm: what stood before it is unknown."""
        self._fail(
            FailureReason.HISTORY_LOST,
            f"offset {position.next_offset} of epoch {position.leader_epoch} had been read "
            "and the log does not hold it any more",
            # Without a storage a repair puts back all that is known; nobody knows more than that.
            command=None
            if self.history.missing_count and not self._has_storage
            else self._ends_unknown(),
        )

    def _ends_unknown(self) -> str:
        """Return the command for what the log lost and nobody here knows: look, then accept."""
        if self._has_storage and not self.looked_for and self._foreign_evidence() is None:
            return f"rlmm log recover {self.partition}"
        return self._accept_command

    async def _load_snapshot(self) -> None:
        loaded = await self._context.snapshots.load(self.partition)
        if loaded is None:
            return
        position = Position(loaded.fold.position, loaded.fold.leader_epoch)
        if loaded.same_log and await self._confirmed(position):
            self.fold = loaded.fold
            self._watch_damage()
            gc.freeze()
            self.snapshot_at_ms = loaded.created_at_ms
            self.writer.passed(self.fold.position)
            return
        why = "the log cut it off" if loaded.same_log else "it belongs to another log"
        await self.history.drop(loaded.fold, f"the snapshot was refused: {why}")
        if loaded.same_log and self._recorded:
            # What was read up to there is written down whole: the comparison answers for it.
            self._recorded = [each for each in self._recorded if not _within(each, position)]
            if not self._recorded:
                self._context.on_dropped(self.partition)

    def _start_over(self) -> None:
        """Go on with a fold of nothing."""
        self._gaps, self.looked_for = (), False
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
        self._damage = why
        self._state = PartitionState.REPLAYING
        self.retry()
        self.changed.ring()

    async def _give_up_snapshot(self, why: str) -> None:
        """Set the damaged file aside and start over, from the one before or from the log's start.

        The log is as it was, so there is nothing to compare.
        """
        image, self._damage = self.fold.image, None
        self._begin()
        self.writer.dropped()
        self.confirmation.restart()
        self.changed.ring()
        self._start_over()
        self.settled = None
        self.applied_since_snapshot = 0
        if image is not None and image.path is not None:
            try:
                await self._context.snapshots.reject(image.path, why)
            except OSError as error:
                self._troubled(error)

    async def _confirmed(self, position: Position) -> bool:
        if position.leader_epoch < 0 or position.next_offset == 0:
            # Right behind what is gone nobody knows the epoch, and nothing else was read.
            passed = {gap.end for gap in self._accepted_gaps()}
            return position.next_offset <= self.accepted_start or position.next_offset in passed
        found = await self._context.log.epoch_end(self.partition, position.leader_epoch)
        return found.epoch == position.leader_epoch and found.end_offset >= position.next_offset

    async def _apply(self, batch: LogBatch) -> None:
        fold, clock = self.fold, self._context.clock
        fold.eager = self.history.comparing
        rows, at, end = batch.records, 0, len(batch.records)
        if end > _SLICE_CHECK_EVENTS:
            await self._context.turns.wait()  # to read so many took a slice already
        until = clock.monotonic() + SLICE_SECONDS
        while at < end:
            turn = min(at + _SLICE_CHECK_EVENTS, end)
            if not (self.writer.in_flight or self.history.comparing or self._context.hooks.every):
                at = self._apply_run(fold, rows, at, turn)
            for offset, value in rows[at:turn]:
                self._apply_one(fold, offset, value)
            at = max(at, turn)
            if clock.monotonic() >= until:
                await self._context.turns.wait()
                until = clock.monotonic() + SLICE_SECONDS
        # A batch that brought nothing new may not know the epoch of what came before it.
        fold.advance(batch.next_offset, max(batch.leader_epoch, fold.leader_epoch))
        self.settled = Position(fold.position, fold.leader_epoch)
        if batch.unvouched:
            self._gaps = ranges_joined([*self._gaps, *batch.unvouched])
        if self._state is PartitionState.REPLAYING:
            before, self._replayed = self._replayed, self._replayed + end
            if before // _FREEZE_EVENTS != self._replayed // _FREEZE_EVENTS:
                gc.freeze()
        self.applied_since_snapshot += len(batch.records)
        self.writer.passed(fold.position)
        self.confirmation.reached(fold.position)

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
        self.history.applied(outcome)
        self._context.hooks.tell(self.partition, outcome)
        self.writer.applied(offset, value, outcome)

    async def _judge(self) -> None:
        """Turn ready when the target is reached and nothing that was known is missing."""
        target = self.confirmation.target
        if target is not None and self.fold.position >= target and self.history.comparing:
            await self._compare()
        self._turn_ready()
        self.changed.ring()

    def _judge_gaps(self) -> None:
        """Fail while the fold stands on a log that lacks offsets which nobody has accepted.

        It goes on folding: what can be put back is known by what stands around the gap.
        """
        gaps = self.open_gaps
        if gaps and self.failure is None:
            self._fail(
                FailureReason.HISTORY_LOST,
                f"the log holds nothing at {offsets(gaps)}, where acknowledged events may have "
                "stood: it was compacted, or a damaged batch was cut out",
                command=self._ends_unknown(),
            )

    def _turn_ready(self) -> None:
        """Ready at the target, unless what was known before is still being looked for."""
        self._hold()
        self._judge_gaps()
        target = self.confirmation.target
        reached = target is not None and self.fold.position >= target
        if self._damage is not None or self._restart:
            return  # what was read is given up, as soon as the batch in hand is done
        if reached and self._state is PartitionState.REPLAYING and not self.history.comparing:
            self._state = PartitionState.READY
            self.replays.append(self._context.clock.monotonic() - self._began)
            gc.freeze()  # a walk over all that was replayed holds the loop for many milliseconds

    def _begin(self) -> None:
        """Start over: what is known has to be held against the log again."""
        self._state = PartitionState.STARTING
        self._began = self._context.clock.monotonic()

    @property
    def alarmed(self) -> bool:
        """Whether what failed is that finished segments are held, and nothing else."""
        return self._held is not None and self.failure is self._held

    def _hold(self) -> None:
        """Alarm while finished segments are held that a stuck copy's delete ended."""
        if not self.fold.holding:
            if self.alarmed:
                self.failure = None
            self._held = None
        elif self.failure is None:
            count = len(self.fold.held_records())
            self._fail(
                FailureReason.HISTORY_LOST,
                f"{count} finished {'segment' if count == 1 else 'segments'} "
                "marked for deletion by what was meant for a stuck copy; nothing was deleted",
            )
            self._held = self.failure

    async def _compare(self) -> None:
        missing = self.history.missing_count
        if not missing:
            await self._context.snapshots.remove(self.partition)
            await self.history.forget()
            self._accounted = True
            if self._recorded:
                self._fail_of(self._recorded[0])
            else:
                self.failure = None
            return
        one = missing == 1
        self._fail(
            FailureReason.HISTORY_LOST,
            f"{missing} finished {'segment' if one else 'segments'} that this daemon knew "
            f"{'is' if one else 'are'} not in the log: {self.history.reasons[-1]}",
            # Repair appends nothing that may have been ended in what was lost.
            command=self._ends_unknown() if self.uncertain and self._has_storage else None,
        )

    async def _drop_fold(self, reason: str) -> None:
        """The log is not the one that was folded: write down what was known, then start over."""
        self._begin()
        self.writer.dropped()
        self.confirmation.restart()
        self.changed.ring()
        while True:
            try:
                if not self._proves_nothing:
                    await self.history.drop(self.fold, reason)
                break
            except (OSError, RlmmError) as error:
                self._troubled(error)
                await asyncio.sleep(BACKOFF_SECONDS_MAX)
        self._start_over()
        self._accounted, self._trimmed_to = False, None
        self.settled = None
        self.applied_since_snapshot = 0
        if not self._recorded:
            # What was read is written down whole, so the comparison answers for the position too.
            self._context.on_dropped(self.partition)

    def _fail(self, reason: FailureReason, evidence: str, command: str | None = None) -> None:
        before = self.failure
        told = None if before is None else (before.reason, before.evidence, before.instead)
        if told != (reason, evidence, command):
            now_ms = self._context.clock.now_ms()
            self.failure = Failure(reason, evidence, now_ms, instead=command)
        self.changed.ring()

    def _stopped_by(self, error: CorruptError | RefusedError) -> None:
        if isinstance(error, LogCorrupt):
            command = error.fields.get("command")
            self._fail(FailureReason.LOG_CORRUPT, error.message, command)
        elif isinstance(error, NewerSnapshot):
            self._fail(FailureReason.NEWER_SNAPSHOT, error.message)
        elif isinstance(error, UnsupportedProtocol):
            self._fail(FailureReason.NEWER_STATE, error.message)
        else:
            self._fail(FailureReason.HISTORY_LOST, error.message)

    def _troubled(self, error: Exception) -> None:
        before = self.trouble.consecutive if self.trouble else 0
        message = error.message if isinstance(error, RlmmError) else str(error)
        self.trouble = Trouble(message, self._context.clock.now_ms(), before + 1)
        self.changed.ring()


def _within(read: Position, written: Position) -> bool:
    """Whether who had read so far had read no more than what stands written down."""
    return read.next_offset <= written.next_offset and read.leader_epoch <= written.leader_epoch


def offsets(ranges: Sequence[LogRange]) -> str:
    """Return ranges in words, the first few of many."""
    named = [
        f"offset {each.start}"
        if each.end == each.start + 1
        else f"offsets {each.start} to {each.end - 1}"
        for each in ranges[:_GAPS_NAMED]
    ]
    more = len(ranges) - len(named)
    return ", ".join(named) + (f" and {more} more ranges" if more else "")
