"""Follower of a metadata partition: one task, one position, one fold, one health.

What it is, and what comes of whatever happens, is decided by `core.readiness.following.step`; here
are the log that it reads, and the carrying out of what the step says.
"""

import asyncio
import gc
from collections.abc import Collection, Sequence
from typing import Final, assert_never
from weakref import WeakMethod

from rlmm_daemon.codec.state_files import Position
from rlmm_daemon.core.fold.fold import Fold
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
    Checked,
    Compared,
    Damaged,
    Doubted,
    Dropped,
    Forgotten,
    Input,
    LossAccepted,
    Moved,
    Obeyed,
    OtherLog,
    PositionAnswered,
    Rebuild,
    Recheck,
    Refused,
    Retry,
    Trimmed,
    Untrimmed,
    WrittenDown,
)
from rlmm_daemon.core.readiness.follower_roles import Ready, Replaying, Starting, Stopped
from rlmm_daemon.core.readiness.following import step
from rlmm_daemon.daemon.base.broadcast import Broadcast
from rlmm_daemon.daemon.base.crash_guard import PartitionCrash
from rlmm_daemon.daemon.following.batches import apply_batch
from rlmm_daemon.daemon.following.confirmation import EndRequest
from rlmm_daemon.daemon.following.follower_state import (
    Beginning,
    FollowerContext,
    FollowerState,
    broken_of,
)
from rlmm_daemon.daemon.following.writer import Writer
from rlmm_daemon.domain.backoff import Backoff
from rlmm_daemon.domain.errors import (
    CorruptError,
    InvalidArgument,
    RefusedError,
    RlmmError,
    UnavailableError,
)
from rlmm_daemon.domain.ids import MetadataPartition, TopicId
from rlmm_daemon.ports.event_log import (
    NO_EPOCH,
    LogMoved,
    LogRange,
    LogTrimmed,
    TopicIdChanged,
    outgrow,
    range_of,
    ranges_less,
)

BACKOFF_SECONDS_MIN: Final = 0.05
BACKOFF_SECONDS_MAX: Final = 5.0


class Follower(FollowerState):
    """Follows one metadata partition from `run` until it is cancelled."""

    def __init__(
        self,
        partition: MetadataPartition,
        context: FollowerContext,
        writer: Writer,
        begin: Beginning,
    ) -> None:
        super().__init__(partition, context, writer, begin)
        self._watch_damage()
        #: Rung when something was ordered.
        self._ordered = Broadcast()

    # What others tell it.

    def target_known(self, end: int, asked: EndRequest) -> None:
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
        self._take(self._judged())  # whom nobody has heard may be others than before

    async def accept_loss(self, *, without_looking: bool = False) -> None:
        """Go on without what is missing: an operator said so.

        Of a lost head and a list of what was known the head alone is given up, unless
        `without_looking`: what the rest of the log lacks of the list can be looked for then.

        Raises:
            OSError: the state directory did not take it; nothing was accepted.
        """
        if self.head_alone and not without_looking:
            self._gaps = self.open_gaps
            self._take(LossAccepted())
            return
        # The snapshot that the fold goes on from is all that knows what stood in a lost head.
        headless = self.accepted_start > 0 or self.following.trimmed_to is not None
        goes_on = headless and not self.history.comparing
        await self.history.forget()
        if not goes_on:
            await self.context.snapshots.remove(self.partition)
        self._gaps = self.open_gaps  # what was met since the order was written down
        self._take(LossAccepted())

    async def known_to_snapshot(self) -> list[bytes]:
        """Write down what the fold or the newest snapshot knows, for a log that is being mended.

        Returns the finished segments' records. The replay of the mended log is compared with
        them, so the snapshots, whose offsets may mean other records then, are given up.

        Raises:
            OSError: it was not written down; nothing was given up.
        """
        loaded = await self.context.snapshots.load(self.partition)
        further = loaded is not None and loaded.fold.position > self.fold.position
        fold = loaded.fold if loaded is not None and loaded.same_log and further else self.fold
        whole = await self.history.drop(fold, "the log is being mended", same_log=True)
        known = self.history.missing
        await self.context.snapshots.remove(self.partition)
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
        backoff = Backoff(BACKOFF_SECONDS_MIN, BACKOFF_SECONDS_MAX, self.context.rng.random)
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
                self._take(broken_of(error, self._gives_up))
            except (UnavailableError, OSError) as error:
                self._troubled(error)
            except Exception as bug:
                raise PartitionCrash(self.partition) from bug
            if self.restarting:
                backoff.reset()
            elif isinstance(self.following.role, Stopped):
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
        if isinstance(self.following.role, Starting):
            await self._check_past()
        if isinstance(self.following.role, Replaying | Ready):
            await self._read_on()

    def _take(self, given: Input) -> Sequence[Effect]:
        """Step, and do what takes no time; return what is left to be done."""
        before = self.following
        self.following, effects = step(before, given, self.context.clock.now_ms())
        self.states.changed(self.following, given, self.fold.position)
        if isinstance(self.following.role, Starting) and not isinstance(before.role, Starting):
            self._began = self.context.clock.monotonic()
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
                self.context.on_dropped(self.partition, self.history.read)
            case KeepPosition(position=position):
                self.context.on_unrecorded(self.partition, position)
            case AskForEnd():
                self.context.target_wanted.ring()
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
                try:
                    await self.context.reopen(topic_id)
                except (UnavailableError, OSError) as error:
                    self._troubled(error)
            case ForgetHistory():
                await self.context.on_accounted(self.partition, self.accepted_start)
                await self.context.snapshots.remove(self.partition)
                if self._foreign_evidence() is None:
                    await self.history.forget()
                else:
                    self.history.end_for_now()
                self._take(Forgotten(self._means))
            case _:
                raise AssertionError(effect)

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
        self.lack([head])
        doubted = self._foreign_evidence() is not None
        self._take(Trimmed(position=head.start, start=head.end, doubted=doubted))

    async def _read_on(self) -> None:
        fold = self.fold
        batches = self.context.log.follow(self.partition, fold.position, epoch=fold.leader_epoch)
        try:
            async for batch in batches:
                if not (batch.late and isinstance(self.following.role, Ready)):
                    self._answered_at = self.context.clock.monotonic()
                self.trouble = None
                if self.restarting:
                    return
                self.range = batch.range
                if batch.lacking or 0 < self.went_on_from < batch.dropped_to:
                    # An older snapshot was read, or another daemon of a quorum has compacted.
                    self._take(Damaged("the log was compacted beyond what it had read"))
                    return
                async with self.steady:
                    await apply_batch(self, batch)
                if self.confirmation.read_to(self.fold.position, batch.range.end):
                    self.context.target_wanted.ring()
                await self._judge()
        except LogTrimmed as moved:
            await self._trimmed(LogRange(start=fold.position, end=moved.start))
        finally:
            await batches.aclose()

    async def _check_past(self) -> None:
        """Take up the snapshot if the log confirms it, and check how far we had read before.

        Raises:
            RlmmError: the log does not say where it starts.
        """
        await self.history.load()
        log, start = self.context.log, self.accepted_start
        if start and (await range_of(log, self.partition)).start < start:
            # Skip no offsets of a log that starts before them: it lost all, or is an older copy.
            self._take(Untrimmed())
        if not self.history.comparing and self.fold.position == 0:
            await self._load_snapshot()
        if self.history.read_elsewhere:
            at = Position(self.history.read_elsewhere, NO_EPOCH)
            self._take(Refused(at, same_log=False))
        if self._has_storage:
            await self.history.find_common(log)
        if self.fold.position < self.accepted_start:
            head = LogRange(start=self.fold.position, end=self.accepted_start)
            # What a snapshot had read of it, which is gone since, nobody accepted to lose.
            if self.history.comparing or not ranges_less([head], self._accepted_gaps()):
                self.fold.advance(head.end, NO_EPOCH)
        self._take(Doubted(evidence=self._foreign_evidence(), comparing=self.history.comparing))
        for position in self.following.unconfirmed:
            self._take(
                PositionAnswered(
                    position=position,
                    confirmed=await self._confirmed(position),
                    read=self.fold.position,
                    missing=self.history.missing_count,
                    means=self._means,
                )
            )
        self._take(Checked())

    async def _load_snapshot(self) -> None:
        loaded = await self.context.snapshots.load(self.partition)
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
        self._gaps, self.strangers, self.looked_for = (), False, False
        self.settled, self.went_on_from = None, 0
        self.applied_since_snapshot = 0
        self.fold = Fold(self.partition, self.context.partition_count)
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
                await self.context.snapshots.reject(image.path, why)
            except OSError as error:
                self._troubled(error)

    async def _confirmed(self, position: Position) -> bool:
        if position.leader_epoch < 0 or position.next_offset == 0:
            # Right behind what is gone nobody knows the epoch, and nothing else was read.
            passed = {gap.end for gap in self._accepted_gaps()}
            return position.next_offset <= self.accepted_start or position.next_offset in passed
        log, epoch = self.context.log, position.leader_epoch
        found = await log.epoch_end(self.partition, epoch)
        confirmed = found.epoch == epoch and found.end_offset >= position.next_offset
        if not confirmed:  # before anything is appended, which would stand where they stood
            outgrow(log, epoch)
        return confirmed

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
