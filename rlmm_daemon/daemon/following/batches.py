"""Batches that were read from the log, folded in slices between which look-ups are answered."""

import gc
from collections.abc import Sequence
from typing import Final

from rlmm_daemon.codec.state_files import Position
from rlmm_daemon.core.fold.cache import EPOCHS_AT_ONCE
from rlmm_daemon.core.fold.fold import WRONG_PARTITION, Fold
from rlmm_daemon.core.fold.outcome import Unreadable
from rlmm_daemon.core.readiness.follower_roles import Ready
from rlmm_daemon.daemon.base.fair_scheduler import FairScheduler
from rlmm_daemon.daemon.following.follower_state import FollowerState
from rlmm_daemon.ports.event_log import LogBatch, LogRange, OwnEpochs

#: A replay gives way to look-ups after this long; lab figures put their p99 at about 1 ms then.
SLICE_SECONDS: Final = 0.0003
_SLICE_CHECK_EVENTS: Final = 16
#: Rows that are looked through for whole copies at once, which takes a millisecond or two.
_COPIES_ROWS_MAX: Final = 512
#: A replay tells the collector so often to leave out what it made. Lists of ids are few, but long.
_FREEZE_EVENTS: Final = 10_000


async def apply_batch(one: FollowerState, batch: LogBatch) -> None:
    """Fold a batch in, and tell whoever waits for what is in it.

    Into the fold that it was read for: an order may put another in its place in between.
    """
    fold, turns, clock = one.fold, one.context.turns, one.context.clock
    rows, at, end = batch.records, 0, len(batch.records)
    if end > _SLICE_CHECK_EVENTS:
        await turns.wait()  # to read so many took a slice already
    until = clock.monotonic() + SLICE_SECONDS
    while at < end:
        turn = min(at + _SLICE_CHECK_EVENTS, end)
        if not (one.writer.in_flight or one.history.comparing or one.context.hooks.every):
            at = _apply_run(one, rows, at, turn, fold=fold)
        while at < turn:
            _apply_one(one, fold, *rows[at])
            at += 1
            if clock.monotonic() >= until:
                break  # one of many leader epochs takes a slice alone
        if clock.monotonic() >= until:
            await _pause(fold, turns)
            until = clock.monotonic() + SLICE_SECONDS
    # A batch that brought nothing new may not know the epoch of what came before it.
    fold.advance(batch.next_offset, max(batch.leader_epoch, fold.leader_epoch))
    one.settled = Position(fold.position, fold.leader_epoch)
    one.lack(batch.unvouched)
    one.strangers |= batch.misplaced
    if not isinstance(one.following.role, Ready):
        before, one.replayed = one.replayed, one.replayed + end
        if before // _FREEZE_EVENTS != one.replayed // _FREEZE_EVENTS:
            gc.freeze()
    one.applied_since_snapshot += len(batch.records)
    one.writer.passed(fold.position)
    one.confirmation.reached(fold.position)


async def _pause(fold: Fold, turns: FairScheduler) -> None:
    """Let others go on; an event of very many leader epochs is put into some at a time."""
    await turns.wait()
    while fold.settle(EPOCHS_AT_ONCE):
        await turns.wait()


def _apply_run(
    one: FollowerState,
    rows: Sequence[tuple[int, bytes | None]],
    begin: int,
    turn: int,
    *,
    fold: Fold,
) -> int:
    """Apply copies that nobody waits for; return where the first record stands that is none.

    It can lie behind the turn: whole copies side by side cost little.
    """
    at = fold.apply_run(rows, begin, min(len(rows), begin + _COPIES_ROWS_MAX), turn)
    if at > begin:
        one.context.hooks.tell_copies(one.partition, at - begin)
    return at


def _apply_one(one: FollowerState, fold: Fold, offset: int, value: bytes | None) -> None:
    outcome = fold.apply(offset, value)
    if isinstance(outcome, Unreadable) and outcome.reason == WRONG_PARTITION:
        _misplaced(one, offset)
    one.history.applied(outcome, offset)
    one.context.hooks.tell(one.partition, outcome)
    one.writer.applied(offset, value, outcome)


def _misplaced(one: FollowerState, offset: int) -> None:
    """An event of another metadata partition stands here: what should stand here is unknown.

    Nobody but this daemon writes a log that numbers its epochs itself, so that its files were
    mixed up. In any other a stranger may have written it.
    """
    if isinstance(one.context.log, OwnEpochs):
        one.strangers = True
        one.lack([LogRange(start=offset, end=offset + 1)])
