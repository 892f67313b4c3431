"""Verdicts on what a follower's log lacks or may lack: of what it fails, and when it is ready."""

from typing import TypeAlias, assert_never

from msgspec.structs import replace

from rlmm_daemon.codec.state_files import Position
from rlmm_daemon.core.readiness.follower_effects import (
    Effect,
    ForgetHistory,
    Serve,
)
from rlmm_daemon.core.readiness.follower_inputs import (
    ACCEPT_ALL,
    Broken,
    Compared,
    Doubted,
    Finding,
    Forgotten,
    Judged,
    Means,
    PositionAnswered,
    Trimmed,
    Untrimmed,
    accepting,
)
from rlmm_daemon.core.readiness.follower_roles import (
    Following,
    Ordered,
    Ready,
    Replaying,
    Stopped,
)
from rlmm_daemon.core.readiness.states import Failure, FailureReason

Stepped: TypeAlias = tuple[Following, tuple[Effect, ...]]


def learnt(one: Following, given: Finding, now_ms: int) -> Stepped:
    """Return what a follower is after its task found this, and what has to be done."""
    effects: tuple[Effect, ...] = ()
    match given:
        case Doubted():
            one = _doubted(one, given, now_ms)
        case PositionAnswered():
            one = _answered(one, given, now_ms)
        case Compared():
            one, effects = _compared(one, given, now_ms)
        case Forgotten(means=means):
            one = _forgotten(one, means, now_ms)
        case Judged():
            one, effects = _judged(one, given, now_ms)
        case Trimmed():
            one = _trimmed(one, given, now_ms)
        case Untrimmed():
            one = replace(one, accepted_start=0)
        case Broken(reason=reason, evidence=evidence, command=command):
            one = _stopped(_failed(one, Failure(reason, evidence, now_ms, instead=command)))
        case _:
            assert_never(given)
    return one, effects


def _doubted(one: Following, given: Doubted, now_ms: int) -> Following:
    evidence = None if one.accounted or given.comparing else given.evidence
    if evidence is None:
        return replace(one, doubted=False)
    # No fold of ours says what the log that was known held: nobody can say what is gone.
    failed = _lost(one, evidence, now_ms, ACCEPT_ALL)
    return replace(failed, doubted=True)


def _answered(one: Following, given: PositionAnswered, now_ms: int) -> Following:
    if given.position not in one.unconfirmed:
        return one  # an operator accepted the loss of them all meanwhile
    if given.confirmed:
        left = tuple(each for each in one.unconfirmed if each != given.position)
        ahead = (given.position,) if given.position.next_offset > given.read else ()
        confirmed = (*one.confirmed, given.position)
        return replace(one, unconfirmed=left, ahead=one.ahead + ahead, confirmed=confirmed)
    return _unconfirmed(one, given.position, given.means, now_ms, missing=given.missing)


def _unconfirmed(
    one: Following, at: Position, means: Means, now_ms: int, *, missing: int
) -> Following:
    """Fail of a position that the log does not confirm: what stood before it is unknown."""
    files = means.said_by.get(at)
    return _lost(
        one,
        f"offset {at.next_offset} of epoch {at.leader_epoch} had been read "
        "and the log does not hold it any more"
        + ("" if files is None else f" (by another broker's presence file: {files})"),
        now_ms,
        _against_unconfirmed(one, missing, means),
    )


def _against_unconfirmed(one: Following, missing: int, means: Means) -> str | None:
    if not missing:
        return means.against_unknown(one)
    # Without a storage a repair puts back all that is known; nobody knows more than that.
    return means.against_missing(one) if means.storage else None


def _compared(one: Following, given: Compared, now_ms: int) -> Stepped:
    if not (given.missing or given.risen):
        return one, (ForgetHistory(),)
    if not given.missing:
        evidence = (
            f"{given.risen} {'segment' if given.risen == 1 else 'segments'} that this daemon knew "
            f"to be deleted came back, since the log lost the deletion: {given.why}"
        )
        return _lost(one, evidence, now_ms, given.means.against_unknown(one)), ()
    single = given.missing == 1
    evidence = (
        f"{given.missing} finished {'segment' if single else 'segments'} that this daemon knew "
        f"{'is' if single else 'are'} not in the log: {given.why}"
    )
    # Repair appends nothing that may have been ended in what was lost, nor what has no objects;
    # and it ends nothing.
    means = given.means
    unknown = given.gaps or bool(one.unread or given.risen) or means.looked_for
    command = means.against_missing(one) if means.storage and unknown else None
    return _lost(one, evidence, now_ms, command), ()


def _forgotten(one: Following, means: Means, now_ms: int) -> Following:
    one = replace(one, accounted=True)
    if not isinstance(one.role, Replaying):
        return one
    if one.unconfirmed:
        return _unconfirmed(one, one.unconfirmed[0], means, now_ms, missing=0)
    return replace(one, failure=None, alarmed=False)


def _judged(one: Following, given: Judged, now_ms: int) -> Stepped:
    """Ready at the end, unless something is missing or may be; what is missing may come back."""
    if not isinstance(one.role, Replaying | Ready):
        return one, ()
    if _overtaken(one, given):
        return one.ordered(over=True), ()
    one = _heard(_passed(one, given.settled), given)
    one = _held(one, given.held, now_ms)
    one = _unheard(_lacking(one, given, now_ms), given, now_ms)
    doubted = one.doubted or (given.means.doubted and not one.accounted)
    whole = one.failure is None and not (one.unread or given.comparing or doubted)
    if isinstance(one.role, Ready):
        return one if whole else replace(one, role=Replaying()), ()
    if whole and given.reached:
        return replace(one, role=Ready()), (Serve(),)
    return one, ()


def _overtaken(one: Following, given: Judged) -> bool:
    """Whether the log lost a position since it confirmed it, or may have: it is asked again.

    It may have been overwritten where it was passed in another epoch, or the log ends before it.
    """
    at = given.settled
    left = _passed(one, at).ahead
    another = at and any(
        each.leader_epoch != at.leader_epoch for each in one.ahead if each not in left
    )
    return bool(another or (given.reached and left))


def _passed(one: Following, at: Position | None) -> Following:
    """Let go of the positions that the fold has reached."""
    if not one.ahead:
        return one
    left = tuple(each for each in one.ahead if at is None or each.next_offset > at.next_offset)
    return replace(one, ahead=left)


def _held(one: Following, count: int, now_ms: int) -> Following:
    """Alarm while finished segments are held that a stuck copy's delete ended."""
    if not count:
        return replace(one, failure=None, alarmed=False) if one.alarmed else one
    if one.failure is not None:
        return one
    evidence = (
        f"{count} finished {'segment' if count == 1 else 'segments'} "
        "marked for deletion by what was meant for a stuck copy; nothing was deleted"
    )
    return replace(_lost(one, evidence, now_ms), alarmed=True)


def _lacking(one: Following, given: Judged, now_ms: int) -> Following:
    """Fail while the log lacks offsets which nobody has accepted.

    It goes on folding: what can be put back is known by what stands around the gap.
    """
    if not given.gaps or one.failure is not None:
        return one
    return _lost(
        one,
        f"the log holds nothing at {given.gaps}, where acknowledged events may have "
        "stood: it was compacted, or a damaged batch was cut out",
        now_ms,
        given.means.against_unknown(one),
    )


def _heard(one: Following, given: Judged) -> Following:
    """Let go of what it failed of while a presence file could not be read, which now can."""
    failure = one.failure
    unread = failure is not None and failure.reason is FailureReason.PRESENCE_UNREAD
    return replace(one, failure=None) if unread and not given.unheard else one


def _unheard(one: Following, given: Judged, now_ms: int) -> Following:
    """Fail while nobody knows how far some daemon had read the log: its tail may be gone."""
    if not given.unheard or one.failure is not None:
        return one
    evidence = f"can't be read: {', '.join(given.unheard)}"
    command = given.means.against_unknown(one)
    failure = Failure(FailureReason.PRESENCE_UNREAD, evidence, now_ms, instead=command)
    return _failed(one, failure)


def _trimmed(one: Following, given: Trimmed, now_ms: int) -> Following:
    tail, at = "", max(one.unconfirmed, key=lambda each: each.next_offset, default=None)
    if at is not None:  # whoever accepts the head accepts that, too
        read = f"offset {at.next_offset} of epoch {at.leader_epoch}"
        tail = f"; nor does it hold {read}, which had been read"
    failed = _lost(
        one,
        f"the log starts at {given.start} now, this daemon stands at {given.position}{tail}; what "
        "snapshots know of it, rlmm log restore puts back first",
        now_ms,
        accepting(one.partition, doubted=given.doubted),
    )
    return _stopped(replace(failed, trimmed_to=given.start))


def _stopped(one: Following) -> Following:
    return one if isinstance(one.role, Ordered) else replace(one, role=Stopped(one.started))


def _lost(one: Following, evidence: str, now_ms: int, command: str | None = None) -> Following:
    return _failed(one, Failure(FailureReason.HISTORY_LOST, evidence, now_ms, instead=command))


def _failed(one: Following, failure: Failure) -> Following:
    """Note a failure, since when it was first seen; what is ready is not, with it."""
    before = one.failure
    if before and (before.reason, before.evidence) == (failure.reason, failure.evidence):
        failure = replace(failure, at_ms=before.at_ms)
    role = Replaying() if isinstance(one.role, Ready) else one.role
    return replace(one, role=role, failure=failure, alarmed=False)
