"""Step of a metadata partition's follower from one role to the next, and what has to be done then.

A follower has one role at a time, and some facts that outlive it. `step` says, for each role and
each input, what the follower is then and what its shell has to do, in that order. Its task does
what the role says: it begins what was ordered, checks the past, follows the log, or waits.
`docs/architecture.md` has the table of them all.
"""

from collections.abc import Iterable
from typing import TypeAlias, assert_never

from msgspec.structs import replace

from rlmm_daemon.codec.state_files import Position
from rlmm_daemon.core.readiness.follower_effects import (
    AskForEnd,
    DropFold,
    Effect,
    ForgetPosition,
    GiveUpSnapshot,
    KeepPosition,
    Reopen,
    RestartTargets,
)
from rlmm_daemon.core.readiness.follower_inputs import (
    Checked,
    Damaged,
    Deed,
    Dropped,
    Input,
    LossAccepted,
    Moved,
    Obeyed,
    Order,
    OtherLog,
    Rebuild,
    Recheck,
    Refused,
    Retry,
    WrittenDown,
)
from rlmm_daemon.core.readiness.follower_losses import learnt
from rlmm_daemon.core.readiness.follower_roles import (
    Following,
    Ordered,
    Ready,
    Replaying,
    Role,
    Starting,
    Stopped,
)
from rlmm_daemon.domain.ids import TopicId

Stepped: TypeAlias = tuple[Following, tuple[Effect, ...]]


def step(one: Following, given: Input, now_ms: int) -> Stepped:
    """Return what a follower is after `given`, and what has to be done."""
    match given:
        case (
            Retry()
            | Rebuild()
            | OtherLog()
            | Damaged()
            | LossAccepted()
            | Recheck()
            | WrittenDown()
        ):
            return _told(one, given)
        case Obeyed() | Refused() | Checked() | Moved() | Dropped():
            return _done(one, given)
        case _:
            return learnt(one, given, now_ms)


def _told(one: Following, given: Order) -> Stepped:
    effects: tuple[Effect, ...] = ()
    match given:
        case Retry():
            one = one.ordered(over=True)
        case Rebuild():
            one = one.ordered(over=True, rebuild=True)
        case Damaged(why=why):
            one = one.ordered(over=True, damage=why)
        case OtherLog(topic_id=topic_id):
            if topic_id != one.dropped_for:
                one = one.ordered(other_log=topic_id)
        case LossAccepted():
            one = _accepted(one)
        case Recheck():
            one = _recheck(one, given)
        case WrittenDown(at=at):
            one, effects = _written_down(one, at)
        case _:
            assert_never(given)
    return one, effects


def _done(one: Following, given: Deed) -> Stepped:
    match given:
        case Obeyed(at=at):
            return _obeyed(one, at)
        case Refused(position=position, same_log=same_log):
            return _refused(one, position) if same_log else _refused_other(one, position)
        case Checked():
            return _checked(one)
        case Moved(why=why, topic_id=topic_id):
            return _moved(one, why, topic_id)
        case Dropped(unwritten=unwritten):
            return _dropped(one, unwritten)
        case _:
            assert_never(given)


def _accepted(one: Following) -> Following:
    start = one.accepted_start if one.trimmed_to is None else one.trimmed_to
    told = one.ordered(over=True)
    given_up = replace(told, unconfirmed=(), ahead=(), confirmed=(), doubted=False)
    return replace(given_up, accepted_start=start, trimmed_to=None)


def _recheck(one: Following, given: Recheck) -> Following:
    """Check these positions too, unless the fold, or one that was confirmed, is beyond them.

    Nor those for which the comparison answers: a bucket that is read late tells nothing new, and
    what is ready stays so. Any other position is news of events that may be lost: what had not
    come from here would be answered as "empty", so nothing is until the log has confirmed it.
    """
    known = one.confirmed if given.settled is None else (*one.confirmed, given.settled)
    unsure = tuple(
        position
        for position in _not_written(given.recorded, one.written)
        if not any(
            position.leader_epoch == at.leader_epoch and position.next_offset <= at.next_offset
            for at in known
        )
    )
    idle = one.crash_loops or not (unsure or given.doubted)
    told = one if idle else one.ordered(over=True)
    return replace(told, unconfirmed=one.unconfirmed + unsure)


def _written_down(one: Following, at: Position) -> Stepped:
    # One that stopped goes on when the log is mended, and not before.
    told = one if isinstance(one.role, Stopped) else one.ordered(over=True)
    left = _not_written(one.unread, at)
    forget = () if left else (ForgetPosition(),)
    return replace(told, unconfirmed=left, ahead=(), confirmed=()), forget


def _obeyed(one: Following, at: Position) -> Stepped:
    """Begin what was ordered: the log that is there first, then what is known of it."""
    if not isinstance(one.role, Ordered):
        return one, ()
    orders = one.role
    if orders.other_log is not None:
        return _moved(one, "the metadata topic was recreated", orders.other_log)
    begun = replace(_begun(one, Starting()), failure=None, alarmed=False)
    given_up = () if orders.damage is None else (GiveUpSnapshot(orders.damage),)
    if given_up:
        begun = replace(begun, confirmed=())  # what the fold had reached is to be read again
    if given_up and at.leader_epoch >= 0:
        # The log is not compared with that fold: it has to be read as far again.
        begun = replace(begun, unconfirmed=(*begun.unconfirmed, at))
    if not orders.rebuild:
        return begun, (RestartTargets(), *given_up)
    return _moved(begun, "an operator ordered a rebuild", None, *given_up)


def _begun(one: Following, role: Role) -> Following:
    """Start over: what the fold has not reached has to be asked for again."""
    return replace(one, role=role, unconfirmed=one.unread, ahead=())


def _moved(one: Following, why: str, topic_id: TopicId | None, *first: Effect) -> Stepped:
    """Give the fold up; what was ordered besides is still to be done."""
    role: Role = Starting()
    if isinstance(one.role, Ordered):
        other = None if one.role.other_log == topic_id else one.role.other_log
        rest = replace(one.role, started=False, other_log=other, damage=None)
        role = rest if rest.over or other is not None else role
    if isinstance(role, Starting) and one.crash_loops:
        role = Stopped(started=False)
    moved = replace(_begun(one, role), confirmed=())
    drop = DropFold(why, written=not one.doubted, same_log=topic_id is None)
    effects = (RestartTargets(), *first, drop)
    if topic_id is None:
        return moved, effects
    # Where the former log started says nothing of this one.
    fresh = replace(moved, dropped_for=topic_id, accepted_start=0, written=None)
    return fresh, (*effects, Reopen(topic_id))


def _dropped(one: Following, unwritten: Position | None) -> Stepped:
    """Go on with a fold of nothing; the log has to hold what the former knew and nobody wrote."""
    one = replace(one, accounted=False, trimmed_to=None)
    if unwritten is None:
        return one, () if one.unconfirmed else (ForgetPosition(),)
    role = Replaying() if isinstance(one.role, Ready) else one.role
    forget = () if one.unconfirmed else (ForgetPosition(),)
    left = (*one.unconfirmed, unwritten)
    return replace(one, role=role, unconfirmed=left), (*forget, KeepPosition(unwritten))


def _refused(one: Following, read: Position) -> Stepped:
    """What was read up to there is written down whole: the comparison answers for it.

    But for a life that did not stop cleanly: nobody knows what it had acknowledged beyond.
    """
    if not one.unconfirmed:
        role = Replaying() if isinstance(one.role, Ready) else one.role
        return replace(one, role=role, unconfirmed=(read,)), (KeepPosition(read),)
    if not any(each.exact for each in one.unconfirmed):
        return one, ()
    left = _not_written(one.unconfirmed, read)
    return replace(one, unconfirmed=left, written=read), () if left else (ForgetPosition(),)


def _refused_other(one: Following, read: Position) -> Stepped:
    """The comparison answers for what had been read of another log, as far as the snapshot had."""
    if not any(each.exact for each in one.unconfirmed):
        return one, ()
    left = _not_written(one.unconfirmed, read)
    return replace(one, unconfirmed=left), () if left else (ForgetPosition(),)


def _not_written(positions: Iterable[Position], written: Position | None) -> tuple[Position, ...]:
    """Return those that had read more than what stands written down."""
    return tuple(
        each
        for each in positions
        if written is None
        or each.next_offset > written.next_offset
        or each.leader_epoch > written.leader_epoch
    )


def _checked(one: Following) -> Stepped:
    begun = replace(one, role=Replaying()) if isinstance(one.role, Starting) else one
    return begun, (AskForEnd(),)
