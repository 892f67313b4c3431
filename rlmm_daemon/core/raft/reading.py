"""A leader's side of reads: it answers with what is committed once it was shown to lead still.

A deposed or isolated leader does not know that it is none. So each read waits until most voters
answered, in this epoch, a BeginQuorumEpoch that was sent after it: none of them had voted for a
newer leader when it was asked, and so nobody can have acknowledged anything that is not here.

A fetch shows less. One may have been sent long before the read, and so may two, where a follower
gave up on the first: a leader that was paused finds both when it wakes, of a voter that follows
another by now.

Source: Raft's thesis, 6.4.
"""

from collections.abc import Mapping

from msgspec.structs import replace

from rlmm_daemon.core.raft.inputs import ReadAsked, ReadAt, ReadRefused
from rlmm_daemon.core.raft.messages import UNKNOWN, Answer, Code
from rlmm_daemon.core.raft.roles import Leader, Question, Sent
from rlmm_daemon.core.raft.turn import Turn
from rlmm_daemon.core.raft.voters import majority_reached


def asked(turn: Turn, what: ReadAsked) -> None:
    """Take a read: what is sent from now on shows whether it may be answered."""
    replica, role = turn.replica, turn.replica.role
    if not isinstance(role, Leader):
        turn.effects.append(ReadRefused(what.token, replica.leader))
        return
    question = Question(what.token, replica.serial, turn.now.ms + replica.timing.check_quorum)
    turn.amend(replace(role, questions=(*role.questions, question)))
    settle(turn)


def settle(turn: Turn) -> None:
    """Answer the reads that may be answered, and ask voters for the others."""
    role = turn.replica.role
    assert isinstance(role, Leader)
    if not role.questions:
        return
    shown = _shown(turn, role)
    if role.high_watermark != UNKNOWN:  # else nothing of this epoch is committed, and more may be
        for each in role.questions:
            if each.serial < shown:
                turn.effects.append(ReadAt(each.token, role.high_watermark))
        left = tuple(each for each in role.questions if each.serial >= shown)
        role = replace(role, questions=left)
        turn.amend(role)
    _ask(turn, role)


def _shown(turn: Turn, role: Leader) -> int:
    """Return the serial that most voters have answered in this epoch, or one behind it."""
    replica = turn.replica
    serials = [
        replica.serial + 1 if key.is_same(replica.me) else role.confirmed.get(key.id, UNKNOWN)
        for key in replica.in_force.keys
    ]
    return majority_reached(serials, len(serials))


def _ask(turn: Turn, role: Leader) -> None:
    awaited = turn.awaited
    for key in turn.others():
        due = turn.now.ms >= role.ask_again_at.get(key.id, turn.now.ms)
        if key.id not in awaited and due and _is_needed(role, key.id):
            turn.tell_who_leads(key)


def _is_needed(role: Leader, voter: int) -> bool:
    """Whether a read waits that this voter was not asked behind."""
    return bool(role.questions) and role.confirmed.get(voter, UNKNOWN) <= role.questions[-1].serial


def answered(turn: Turn, serial: int, sent: Sent, answer: Answer) -> None:
    """Know that this voter had no newer leader when it answered."""
    role = turn.replica.role
    if not isinstance(role, Leader) or sent.to is None:
        return
    if answer.error is not Code.NONE or answer.epoch != role.epoch:
        missed(turn, sent)
        return
    turn.amend(replace(role, confirmed=_with(role.confirmed, sent.to, serial)))
    settle(turn)


def missed(turn: Turn, sent: Sent) -> None:
    """Ask a voter again a moment later."""
    role = turn.replica.role
    if isinstance(role, Leader) and role.questions and sent.to is not None:
        later = turn.now.ms + turn.replica.timing.retry
        turn.amend(replace(role, ask_again_at=_with(role.ask_again_at, sent.to, later)))


def _with(known: Mapping[int, int], voter: int, number: int) -> Mapping[int, int]:
    return {**known, voter: max(number, known.get(voter, number))}


def time_out(turn: Turn) -> None:
    """Ask again, and refuse the reads that waited too long: no majority answers this leader."""
    settle(turn)
    role = turn.replica.role
    assert isinstance(role, Leader)
    late = [each for each in role.questions if each.until <= turn.now.ms]
    if late:
        left = tuple(each for each in role.questions if each.until > turn.now.ms)
        turn.amend(replace(role, questions=left))
        turn.effects += [ReadRefused(each.token, None) for each in late]


def deadlines(turn: Turn) -> list[int]:
    """Return when reads have something to do, if nothing happens before."""
    role, awaited = turn.replica.role, turn.awaited
    assert isinstance(role, Leader)
    due = [each.until for each in role.questions[:1]]
    due += [
        at
        for voter, at in role.ask_again_at.items()
        if voter not in awaited and _is_needed(role, voter) and turn.replica.in_force.find(voter)
    ]
    return due
