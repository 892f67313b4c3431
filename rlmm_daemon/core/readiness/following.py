"""The states of the follower of one metadata partition, and its pure step from one to the next.

A follower has one role at a time, and some facts that outlive it. `step` says, for each role and
each input, what the follower is then and what its shell has to do, in that order. Its task does
what the role says: it begins what was ordered, checks the past, follows the log, or waits.

                 Starting   Replaying         Ready        Stopped     Ordered
    Accepted     Ordered    Ordered           Ordered      Ordered     -
    Answered     -          -                 -            -           -
    Broken       Stopped    Stopped           Stopped      -           -
    Checked      Replaying  -                 -            -           -
    Compared     -          -                 Replaying|-  -           -
    Damaged      Ordered    Ordered           Ordered      Ordered     -
    Doubted      -          -                 Replaying|-  -           -
    Dropped      -          -                 Replaying|-  -           -
    Forgotten    -          -                 -            -           -
    Judged       -          -|Ready|Ordered   Replaying|-  -           -
    Moved        -|Stopped  Starting|Stopped  Starting     Starting|-  Starting|Stopped|-
    Obeyed       -          -                 -            -           Starting|Stopped|-
    OtherLog     -|Ordered  -|Ordered         -|Ordered    -|Ordered   -
    Rebuild      Ordered    Ordered           Ordered      Ordered     -
    Recheck      -|Ordered  -|Ordered         -|Ordered    -|Ordered   -
    Refused      -          -                 Replaying    -           -
    Retry        Ordered    Ordered           Ordered      Ordered     -
    Trimmed      Stopped    Stopped           Stopped      -           -
    Untrimmed    -          -                 -            -           -
    WrittenDown  Ordered    Ordered           Ordered      -           -

A failure is a fact beside the role: one that only says what is missing does not end the following,
since it may come back. `stale` is not stored: it is `ready` seen after too long a silence.
"""

from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias, assert_never

import msgspec
from msgspec.structs import replace

from rlmm_daemon.codec.state_files import Position
from rlmm_daemon.core.readiness.states import Failure, FailureReason, PartitionState
from rlmm_daemon.domain.ids import MetadataPartition, TopicId

ACCEPT_ALL: Final = "rlmm partition accept-loss --all"


# Roles.


class Starting(msgspec.Struct, frozen=True):
    """What is known has to be held against the log before it is read."""


class Replaying(msgspec.Struct, frozen=True):
    """It reads the log, and is not ready: the end is far, or something is missing."""


class Ready(msgspec.Struct, frozen=True):
    """It has read all that was there when it asked, and nothing is known to be missing."""


class Stopped(msgspec.Struct, frozen=True):
    """It failed of something that no reading mends: it waits for an order."""

    #: The past had been checked before.
    started: bool


class Ordered(msgspec.Struct, frozen=True, kw_only=True):
    """It was told to start over, and its task has not begun to; a failure stands until then."""

    started: bool
    #: Check everything anew; a rebuild and a damaged snapshot are orders to do so, too.
    over: bool = False
    #: Give up the fold, and hold the log against it.
    rebuild: bool = False
    #: The log that took the place of the one that was folded.
    other_log: TopicId | None = None
    #: Why the snapshot that the fold stands on cannot be trusted.
    damage: str | None = None


Role: TypeAlias = Starting | Replaying | Ready | Stopped | Ordered


class Following(msgspec.Struct, frozen=True, kw_only=True):
    """A role, and what outlives it."""

    partition: MetadataPartition
    role: Role = Starting()
    failure: Failure | None = None
    #: What failed is that finished segments are held, and nothing else.
    alarmed: bool = False
    #: Positions of earlier lives, until the log has confirmed them.
    unconfirmed: tuple[Position, ...] = ()
    #: Those that the log has confirmed, until the fold has reached them: it may lose its tail yet.
    ahead: tuple[Position, ...] = ()
    #: Those that it confirmed for this fold, reached or not: what lies before one of them in its
    #: epoch is confirmed, too.
    confirmed: tuple[Position, ...] = ()
    #: As far as what an earlier life had read of this log is written down, for the comparison.
    written: Position | None = None
    #: The fold was held against what an earlier one knew, and lacks nothing of it.
    accounted: bool = False
    #: The fold is of another log than was known: to compare with it would find nothing missing.
    doubted: bool = False
    #: The last other log for which the fold was written down and dropped.
    dropped_for: TopicId | None = None
    #: Where the log starts since its head was lost, until that is accepted.
    trimmed_to: int | None = None
    #: Where the log started when an operator accepted the loss of its head.
    accepted_start: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.role, Ready):
            assert self.failure is None, "what failed is not ready"
            assert not self.unread, "every position was reached, or its loss accepted"
            assert not self.doubted, "another log proves nothing of the one that was known"
        if isinstance(self.role, Stopped):
            assert self.failure is not None, "it says what it waits for"

    @property
    def unread(self) -> tuple[Position, ...]:
        """Positions of earlier lives that the fold has not reached, confirmed or not."""
        return self.unconfirmed + self.ahead

    @property
    def started(self) -> bool:
        """Whether the past had been checked, so that the fold may be read on from there."""
        match self.role:
            case Starting():
                return False
            case Replaying() | Ready():
                return True
            case Stopped(started=started) | Ordered(started=started):
                return started
            case _:
                assert_never(self.role)

    @property
    def crash_loops(self) -> bool:
        """Whether only an operator may have it tried again."""
        return self.failure is not None and self.failure.reason is FailureReason.CRASH_LOOP

    @property
    def state(self) -> PartitionState:
        """What others are told of the role."""
        if self.failure is not None:
            return PartitionState.FAILED
        if isinstance(self.role, Ready):
            return PartitionState.READY
        return PartitionState.REPLAYING if self.started else PartitionState.STARTING


# What others tell it, at any moment.


class Retry(msgspec.Struct, frozen=True):
    """Check everything anew."""


class Rebuild(msgspec.Struct, frozen=True):
    """Replay the log from its start, held against what had been known."""


class Accepted(msgspec.Struct, frozen=True):
    """An operator accepted the loss of what is missing, and that was written down."""


class OtherLog(msgspec.Struct, frozen=True):
    """The log is another one now, as another follower found."""

    topic_id: TopicId


class Damaged(msgspec.Struct, frozen=True):
    """A table of the snapshot that the fold stands on is damaged."""

    why: str


class Recheck(msgspec.Struct, frozen=True, kw_only=True):
    """Positions of earlier lives became known, or what the log was."""

    recorded: tuple[Position, ...]
    #: How far it has read itself.
    settled: Position | None
    #: The log is another one than was known.
    doubted: bool


class WrittenDown(msgspec.Struct, frozen=True):
    """What the fold knew was written down, and the fold given up, for a log that is mended."""

    #: How far it had read: whatever an earlier life had read beyond it is known by nothing else.
    at: Position


# What its task met.


class Means(msgspec.Struct, frozen=True, kw_only=True):
    """What can be done about a loss, as of now."""

    #: Objects of segments that the log lost can be looked for.
    storage: bool
    #: They were.
    looked_for: bool
    #: The log is another one than was known.
    doubted: bool
    #: Positions that only other brokers' presence files say, and which files.
    said_by: Mapping[Position, str] = msgspec.field(default_factory=dict)

    def against_unknown(self, one: Following) -> str:
        """Return the command for what the log lost and nobody here knows: look, then accept."""
        return _accept(one, doubted=True) if self.doubted else self.against_missing(one)

    def against_missing(self, one: Following) -> str:
        """Return the command for what is known to be missing, and may be in any log: likewise."""
        if self.storage and not self.looked_for:
            return f"rlmm log recover {one.partition}"
        return _accept(one, doubted=self.doubted)


class Obeyed(msgspec.Struct, frozen=True):
    """The task begins with what was ordered."""

    #: How far the fold has read.
    at: Position


class Refused(msgspec.Struct, frozen=True):
    """The snapshot that reached so far was cut off by the log, and is written down whole."""

    position: Position
    #: It was taken of this log; else of the one that stood here before.
    same_log: bool = True


class Doubted(msgspec.Struct, frozen=True, kw_only=True):
    """The task knows whether there is anything to hold another log against."""

    #: How the log is known to be another one, if it is.
    evidence: str | None
    comparing: bool


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """The log was asked for a position of an earlier life."""

    position: Position
    confirmed: bool
    #: The offset that the fold has read up to.
    read: int
    #: Finished segments that are known to be missing.
    missing: int
    means: Means


class Checked(msgspec.Struct, frozen=True):
    """The past was checked: what there is to say of it is said."""


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """The end was reached, and so many finished segments that had been known did not come."""

    missing: int
    #: So many that had been deleted came again.
    risen: int = 0
    why: str
    #: The log lacks offsets that nobody accepted, or a head that may have held their end.
    gaps: bool
    means: Means


class Forgotten(msgspec.Struct, frozen=True):
    """What was to be compared is removed: all of it came again."""

    means: Means


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """A batch was applied, or the log said where it ends."""

    #: The position reached the end.
    reached: bool
    #: The position behind the last whole batch, if there was one.
    settled: Position | None
    #: What an earlier fold knew is still being looked for.
    comparing: bool
    #: Finished segments that a stuck copy's delete ended.
    held: int
    #: Offsets that may have held acknowledged events and do not, in words; empty: none.
    gaps: str
    means: Means


class Trimmed(msgspec.Struct, frozen=True, kw_only=True):
    """The log's head is gone, and nobody accepted that."""

    position: int
    start: int
    doubted: bool


class Untrimmed(msgspec.Struct, frozen=True):
    """The log starts before the head whose loss was accepted: that says nothing of it any more."""


class Moved(msgspec.Struct, frozen=True):
    """The log is not the one that was folded."""

    why: str
    #: Of the log that took its place; None: it lost its tail.
    topic_id: TopicId | None


class Dropped(msgspec.Struct, frozen=True):
    """The fold was given up, after it was written down where it says anything."""

    #: How far it had read, where a damaged table was not written down with it.
    unwritten: Position | None = None


class Broken(msgspec.Struct, frozen=True):
    """It met what no reading mends."""

    reason: FailureReason
    evidence: str
    command: str | None


Order: TypeAlias = Retry | Rebuild | Accepted | OtherLog | Damaged | Recheck | WrittenDown
Finding: TypeAlias = (
    Doubted | Answered | Compared | Forgotten | Judged | Trimmed | Untrimmed | Broken
)
Deed: TypeAlias = Obeyed | Refused | Checked | Moved | Dropped
Input: TypeAlias = Order | Finding | Deed


# What the shell has to do, in the order that it is given.


class RestartTargets(msgspec.Struct, frozen=True):
    """Ask for every end offset anew."""


class GiveUpSnapshot(msgspec.Struct, frozen=True):
    """Set the damaged file aside and go on with a fold of nothing: the log is as it was."""

    why: str


class DropFold(msgspec.Struct, frozen=True):
    """Write down what the fold knows, if it says anything; then go on with a fold of nothing."""

    why: str
    written: bool
    #: What is read then is the log that was folded, whatever it lost.
    same_log: bool = True


class Reopen(msgspec.Struct, frozen=True):
    """Take up the log that stands under the known name now."""

    topic_id: TopicId


class ForgetHistory(msgspec.Struct, frozen=True):
    """Remove what was to be compared, and the snapshots that are older."""


class ForgetPosition(msgspec.Struct, frozen=True):
    """The lineage that was recorded is accounted for by what is written down."""


class KeepPosition(msgspec.Struct, frozen=True):
    """No record has it: it stays until its loss is accepted, or the log holds it again."""

    position: Position


class AskForEnd(msgspec.Struct, frozen=True):
    """Have the log asked where it ends."""


class Serve(msgspec.Struct, frozen=True):
    """It is ready from now on."""


Effect: TypeAlias = (
    RestartTargets
    | GiveUpSnapshot
    | DropFold
    | Reopen
    | ForgetHistory
    | ForgetPosition
    | KeepPosition
    | AskForEnd
    | Serve
)
Stepped: TypeAlias = tuple[Following, tuple[Effect, ...]]


def step(one: Following, given: Input, now_ms: int) -> Stepped:
    """Return what a follower is after `given`, and what has to be done."""
    match given:
        case Retry() | Rebuild() | OtherLog() | Damaged() | Accepted() | Recheck() | WrittenDown():
            return _told(one, given)
        case Obeyed() | Refused() | Checked() | Moved() | Dropped():
            return _done(one, given)
        case _:
            return _learnt(one, given, now_ms)


def _told(one: Following, given: Order) -> Stepped:
    effects: tuple[Effect, ...] = ()
    match given:
        case Retry():
            one = _ordered(one, over=True)
        case Rebuild():
            one = _ordered(one, over=True, rebuild=True)
        case Damaged(why=why):
            one = _ordered(one, over=True, damage=why)
        case OtherLog(topic_id=topic_id):
            if topic_id != one.dropped_for:
                one = _ordered(one, other_log=topic_id)
        case Accepted():
            one = _accepted(one)
        case Recheck():
            one = _recheck(one, given)
        case WrittenDown(at=at):
            one, effects = _written_down(one, at)
        case _:
            assert_never(given)
    return one, effects


def _learnt(one: Following, given: Finding, now_ms: int) -> Stepped:
    effects: tuple[Effect, ...] = ()
    match given:
        case Doubted():
            one = _doubted(one, given, now_ms)
        case Answered():
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
            one = _stopped(_failed(one, reason, evidence, now_ms, command))
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


def _ordered(
    one: Following,
    *,
    over: bool = False,
    rebuild: bool = False,
    other_log: TopicId | None = None,
    damage: str | None = None,
) -> Following:
    before = one.role if isinstance(one.role, Ordered) else Ordered(started=one.started)
    orders = Ordered(
        started=before.started and other_log is None,
        over=before.over or over,
        rebuild=before.rebuild or rebuild,
        other_log=other_log or before.other_log,
        damage=damage or before.damage,
    )
    return replace(one, role=orders)


def _accepted(one: Following) -> Following:
    start = one.accepted_start if one.trimmed_to is None else one.trimmed_to
    told = _ordered(one, over=True)
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
    told = one if idle else _ordered(one, over=True)
    return replace(told, unconfirmed=one.unconfirmed + unsure)


def _written_down(one: Following, at: Position) -> Stepped:
    # One that stopped goes on when the log is mended, and not before.
    told = one if isinstance(one.role, Stopped) else _ordered(one, over=True)
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


def _doubted(one: Following, given: Doubted, now_ms: int) -> Following:
    evidence = None if one.accounted or given.comparing else given.evidence
    if evidence is None:
        return replace(one, doubted=False)
    # No fold of ours says what the log that was known held: nobody can say what is gone.
    failed = _failed(one, FailureReason.HISTORY_LOST, evidence, now_ms, ACCEPT_ALL)
    return replace(failed, doubted=True)


def _answered(one: Following, given: Answered, now_ms: int) -> Following:
    if given.position not in one.unconfirmed:
        return one  # an operator accepted the loss of them all meanwhile
    if given.confirmed:
        left = tuple(each for each in one.unconfirmed if each != given.position)
        ahead = (given.position,) if given.position.next_offset > given.read else ()
        confirmed = (*one.confirmed, given.position)
        return replace(one, unconfirmed=left, ahead=one.ahead + ahead, confirmed=confirmed)
    return _unconfirmed(one, given.position, given.missing, given.means, now_ms)


def _unconfirmed(
    one: Following, at: Position, missing: int, means: Means, now_ms: int
) -> Following:
    """Fail of a position that the log does not confirm: what stood before it is unknown."""
    files = means.said_by.get(at)
    return _failed(
        one,
        FailureReason.HISTORY_LOST,
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


def _checked(one: Following) -> Stepped:
    begun = replace(one, role=Replaying()) if isinstance(one.role, Starting) else one
    return begun, (AskForEnd(),)


def _compared(one: Following, given: Compared, now_ms: int) -> Stepped:
    if not (given.missing or given.risen):
        return one, (ForgetHistory(),)
    if not given.missing:
        evidence = (
            f"{given.risen} {'segment' if given.risen == 1 else 'segments'} that this daemon knew "
            f"to be deleted came back, since the log lost the deletion: {given.why}"
        )
        return _failed(
            one, FailureReason.HISTORY_LOST, evidence, now_ms, given.means.against_unknown(one)
        ), ()
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
    return _failed(one, FailureReason.HISTORY_LOST, evidence, now_ms, command), ()


def _forgotten(one: Following, means: Means, now_ms: int) -> Following:
    one = replace(one, accounted=True)
    if not isinstance(one.role, Replaying):
        return one
    if one.unconfirmed:
        return _unconfirmed(one, one.unconfirmed[0], 0, means, now_ms)
    return replace(one, failure=None, alarmed=False)


def _judged(one: Following, given: Judged, now_ms: int) -> Stepped:
    """Ready at the end, unless something is missing or may be; what is missing may come back."""
    if not isinstance(one.role, Replaying | Ready):
        return one, ()
    if _overtaken(one, given):
        return _ordered(one, over=True), ()
    one = _passed(one, given.settled)
    one = _held(one, given.held, now_ms)
    one = _lacking(one, given, now_ms)
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
    return replace(_failed(one, FailureReason.HISTORY_LOST, evidence, now_ms), alarmed=True)


def _lacking(one: Following, given: Judged, now_ms: int) -> Following:
    """Fail while the log lacks offsets which nobody has accepted.

    It goes on folding: what can be put back is known by what stands around the gap.
    """
    if not given.gaps or one.failure is not None:
        return one
    return _failed(
        one,
        FailureReason.HISTORY_LOST,
        f"the log holds nothing at {given.gaps}, where acknowledged events may have "
        "stood: it was compacted, or a damaged batch was cut out",
        now_ms,
        given.means.against_unknown(one),
    )


def _trimmed(one: Following, given: Trimmed, now_ms: int) -> Following:
    failed = _failed(
        one,
        FailureReason.HISTORY_LOST,
        f"the log starts at {given.start} now, this daemon stands at {given.position}; what "
        "snapshots know of it, rlmm log restore puts back first",
        now_ms,
        _accept(one, doubted=given.doubted),
    )
    return _stopped(replace(failed, trimmed_to=given.start))


def _accept(one: Following, *, doubted: bool) -> str:
    """Return what accepts a loss here; of a log that is another one, nothing does alone."""
    return ACCEPT_ALL if doubted else f"rlmm partition accept-loss {one.partition}"


def _stopped(one: Following) -> Following:
    return one if isinstance(one.role, Ordered) else replace(one, role=Stopped(one.started))


def _failed(
    one: Following, reason: FailureReason, evidence: str, now_ms: int, command: str | None = None
) -> Following:
    """Note a failure, since when it was first seen; what is ready is not, with it."""
    before = one.failure
    if before and (before.reason, before.evidence) == (reason, evidence):
        now_ms = before.at_ms
    failure = Failure(reason, evidence, now_ms, instead=command)
    role = Replaying() if isinstance(one.role, Ready) else one.role
    return replace(one, role=role, failure=failure, alarmed=False)
