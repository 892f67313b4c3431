"""Changes of the voters, one at a time and by one voter (KIP-853): the guards, and what they await.

A change is in force once it is appended, and holds once the new majority has it. Whoever asked and
was told of neither knows nothing: the record may still be committed by the next leader.
"""

from typing import Final

from msgspec.structs import replace

from rlmm_daemon.core.raft.inputs import Asked, Probe, Reachable, Reply
from rlmm_daemon.core.raft.leading import advance, release, said
from rlmm_daemon.core.raft.log_facts import Batch
from rlmm_daemon.core.raft.messages import (
    UNKNOWN,
    AddVoterRequest,
    Code,
    RemoveVoterRequest,
    UpdateVoterRequest,
)
from rlmm_daemon.core.raft.roles import Leader, VoterChange
from rlmm_daemon.core.raft.turn import Turn
from rlmm_daemon.core.raft.voters import VoterSet

#: A newcomer has to have had all of the log within this time.
CAUGHT_UP_MS: Final = 3_600_000

ChangeRequest = AddVoterRequest | RemoveVoterRequest | UpdateVoterRequest


def change_asked(turn: Turn, asked: Asked, request: ChangeRequest) -> None:
    """Begin a change, or say why not."""
    error = _stands_in_the_way(turn, asked, request)
    if error is not None:
        turn.effects.append(Reply(asked.token, said(turn, error)))
        return
    voters = turn.replica.in_force
    match request:
        case AddVoterRequest(voter=voter):
            serial = turn.expect(None, None)
            change = replace(
                _change(turn, asked, voters.with_voter(voter)),
                newcomer=voter.key,
                probe=serial,
                when_committed=request.when_committed,
            )
            turn.effects.append(Probe(serial, voter.key, voter.endpoints))
            _amend(turn, change)
        case RemoveVoterRequest(voter=key):
            _append(turn, _change(turn, asked, voters.without(key.id)))
        case UpdateVoterRequest(voter=voter):
            if voters.find(voter.key.id) == voter:  # Kafka appends what changes nothing, too
                turn.effects.append(Reply(asked.token, said(turn, Code.NONE)))
            else:
                _append(turn, _change(turn, asked, voters.with_voter(voter)))


def _stands_in_the_way(turn: Turn, asked: Asked, request: ChangeRequest) -> Code | None:
    """Return the first guard that forbids this change now (KIP-853)."""
    role = turn.replica.role
    error = _not_from(turn, asked, request)
    if error is not None:
        return error
    if not isinstance(role, Leader):
        return Code.NOT_LEADER_OR_FOLLOWER
    return _not_now(turn, role) or _not_this(turn, request)


def _not_from(turn: Turn, asked: Asked, request: ChangeRequest) -> Code | None:
    """Return why the asker may not ask for that."""
    if not isinstance(request, UpdateVoterRequest):
        allowed = asked.peer.may_change_voters
        return None if allowed else Code.CLUSTER_AUTHORIZATION_FAILED
    if not asked.peer.is_allowed_as(request.voter.key):
        return Code.CLUSTER_AUTHORIZATION_FAILED
    if request.epoch < turn.replica.epoch:
        return Code.FENCED_LEADER_EPOCH
    return Code.UNKNOWN_LEADER_EPOCH if request.epoch > turn.replica.epoch else None


def _not_now(turn: Turn, role: Leader) -> Code | None:
    """Return why no change may begin: one at a time, and none before this epoch has committed.

    Without the latter, the changes of two leaders make two majorities that share nobody (the
    single-server bug of Raft's thesis).
    """
    newest = turn.replica.voters.newest
    if role.change is not None or role.high_watermark == UNKNOWN:
        return Code.REQUEST_TIMED_OUT
    if newest.kraft_version == 0:
        return Code.UNSUPPORTED_VERSION
    return Code.REQUEST_TIMED_OUT if newest.offset >= role.high_watermark else None


def _not_this(turn: Turn, request: ChangeRequest) -> Code | None:
    """Return why this set can't become that one."""
    voters = turn.replica.in_force
    match request:
        case AddVoterRequest(voter=voter):
            return Code.DUPLICATE_VOTER if voters.find(voter.key.id) is not None else None
        case RemoveVoterRequest(voter=key):
            return _may_go(voters, key.id) if voters.holds(key) else Code.VOTER_NOT_FOUND
        case UpdateVoterRequest(voter=voter):
            if not voters.holds(voter.key):
                return Code.VOTER_NOT_FOUND
            low, high = voter.versions
            fits = low <= turn.replica.voters.newest.kraft_version <= high and voter.endpoints
            return None if fits else Code.INVALID_REQUEST


def _may_go(voters: VoterSet, replica_id: int) -> Code | None:
    """Return that the last voter can't go: nobody would be left to say so."""
    return None if voters.without(replica_id).voters else Code.INVALID_REQUEST


def _change(turn: Turn, asked: Asked, voters: VoterSet) -> VoterChange:
    return VoterChange(
        token=asked.token, voters=voters, until=turn.now.ms + turn.replica.timing.change
    )


def _amend(turn: Turn, change: VoterChange | None) -> None:
    role = turn.replica.role
    assert isinstance(role, Leader)
    turn.amend(replace(role, change=change))


def _append(turn: Turn, change: VoterChange) -> None:
    """Write the new set: it counts from here on."""
    role = turn.replica.role
    assert isinstance(role, Leader)
    base = turn.replica.log.end
    turn.write(Batch(base, 1, role.epoch, change.voters, payload=change.voters))
    _amend(turn, replace(change, offset=base))
    if not change.when_committed:
        turn.effects.append(Reply(change.token, said(turn, Code.NONE)))
    release(turn)
    turn.sync()
    advance(turn)


def reached(turn: Turn, serial: int, found: Reachable | None) -> None:
    """Take what a newcomer answered, or that it didn't: one that lags would stop every commit."""
    role = turn.replica.role
    turn.take(serial)
    if not isinstance(role, Leader) or role.change is None:
        return
    change = role.change
    if change.probe != serial or change.offset is not None:
        return  # the answer of one whose change has ended
    error: Code | None = None
    if found is None or not _has_caught_up(turn, change):
        error = Code.REQUEST_TIMED_OUT
    elif not found.versions[0] <= turn.replica.voters.newest.kraft_version <= found.versions[1]:
        error = Code.INVALID_REQUEST
    if error is None:
        _append(turn, change)
    else:
        _give_up(turn, change, error)


def _has_caught_up(turn: Turn, change: VoterChange) -> bool:
    role = turn.replica.role
    assert isinstance(role, Leader)
    assert change.newcomer is not None, "others are voters already"
    progress = role.peers.get(change.newcomer)
    if progress is None or progress.caught_up_at is None or progress.lost_before is not None:
        return False
    return turn.now.ms - progress.caught_up_at <= CAUGHT_UP_MS


def _give_up(turn: Turn, change: VoterChange, error: Code) -> None:
    _amend(turn, None)
    if change.offset is None or change.when_committed:
        turn.effects.append(Reply(change.token, said(turn, error)))


def time_out(turn: Turn) -> None:
    """End a change that takes too long: its record, once written, stays."""
    role = turn.replica.role
    if isinstance(role, Leader) and role.change is not None and turn.now.ms >= role.change.until:
        _give_up(turn, role.change, Code.REQUEST_TIMED_OUT)
