"""Votes, pre-votes, and the words of leaders that come and go."""

from typing import Final

from msgspec.structs import replace

from rlmm_daemon.core.raft.inputs import Asked, Reply
from rlmm_daemon.core.raft.messages import (
    Answer,
    BeginEpochRequest,
    Code,
    EndEpochRequest,
    VoteAnswer,
    VoteRequest,
)
from rlmm_daemon.core.raft.roles import (
    Candidate,
    Follower,
    Leader,
    Prospective,
    Replica,
    Resigned,
    Sent,
    Unattached,
)
from rlmm_daemon.core.raft.turn import Turn, is_lost, is_won
from rlmm_daemon.core.raft.voters import ReplicaKey

#: No healthy quorum gets there between two words; near 2^31 a quorum would end for ever.
EPOCH_STEP_MAX: Final = 1 << 20
#: No elections raise an epoch by so much while a replica is away: its voters were forced.
FORCED_STEP_MIN: Final = 1 << 16


def vote_asked(turn: Turn, asked: Asked, request: VoteRequest) -> None:
    """Grant a vote or not; a word of a newer epoch is taken first.

    Kafka takes it from anybody, and a stranger thereby ends a leader's office. Here whoever has a
    leader that it hears refuses without a look (etcd's lease): who lost touch has asked for
    pre-votes first, and is let back in when its own fetch shows the leader that it is ahead.
    """
    replica = turn.replica
    error = _malformed_vote(request)
    if error is None and request.epoch < replica.epoch:
        error = Code.FENCED_LEADER_EPOCH
    if error is None and request.candidate.id < 0:
        error = Code.INVALID_REQUEST
    if error is None:
        error = _stranger(turn, asked, request.candidate, request.epoch)
    if error is not None:
        turn.reply(asked.token, request, error)
        return
    if request.epoch > replica.epoch:
        if hears_its_leader(turn):
            turn.reply(asked.token, request)
            return
        turn.become_unattached(request.epoch)
    if _is_meant_for_another(turn, request.voter):
        turn.reply(asked.token, request, Code.INVALID_VOTER_KEY)
        return
    granted = _grants(turn, request)
    if granted and not request.pre_vote:
        _vote_for(turn, request.candidate)
    answer = turn.answer(VoteAnswer)
    turn.effects.append(Reply(asked.token, replace(answer, granted=granted)))


def _malformed_vote(request: VoteRequest) -> Code | None:
    last, epoch = request.last, request.epoch
    too_new = last.epoch > epoch if request.pre_vote else last.epoch >= epoch
    return Code.INVALID_REQUEST if last.end < 0 or last.epoch < 0 or too_new else None


def _stranger(turn: Turn, asked: Asked, claims: ReplicaKey, epoch: int) -> Code | None:
    """Return why a word of the quorum's life is not taken from there."""
    if not asked.peer.is_allowed_as(claims):
        turn.alarm("stranger", f"replica {asked.peer.id} spoke as {claims}")
        return Code.CLUSTER_AUTHORIZATION_FAILED
    if is_far_ahead(turn.replica, epoch):
        turn.alarm("epoch_far_ahead", f"{claims} spoke of epoch {epoch}")
        return Code.INVALID_REQUEST
    return None


def is_far_ahead(replica: Replica, epoch: int) -> bool:
    """Whether no request's word of this epoch is taken.

    Where the voters were forced, who holds records has to ask by itself, and ends of the answer: to
    follow by a request would cut what it alone may hold, and nothing would tell it any more.
    """
    ahead = epoch - replica.epoch
    return ahead > EPOCH_STEP_MAX or (replica.log.end > 0 and ahead >= FORCED_STEP_MIN)


def hears_its_leader(turn: Turn) -> bool:
    """Whether there is a leader that works, as far as this replica sees."""
    match turn.replica.role:
        case Follower(fetched=fetched, fetch_by=until):
            return fetched and turn.now.ms < until
        case Leader():  # a tick ends its office when it lost its quorum
            return True
        case Unattached() | Prospective() | Candidate() | Resigned():
            return False


def _is_meant_for_another(turn: Turn, voter: ReplicaKey | None) -> bool:
    return voter is not None and not voter.is_same(turn.replica.me)


def _grants(turn: Turn, request: VoteRequest) -> bool:
    """Whether this role grants this vote (the table of KIP-996)."""
    up_to_date = request.last >= turn.replica.log.last
    match turn.replica.role:
        case Unattached() | Prospective() if request.pre_vote:
            return up_to_date
        case Unattached(voted=voted, leader=leader) | Prospective(voted=voted, leader=leader):
            if voted is not None:
                return voted == request.candidate
            return leader is None and up_to_date
        case Follower(fetched=fetched):
            return request.pre_vote and not fetched and up_to_date
        case Candidate() | Resigned():
            return request.pre_vote and up_to_date
        case Leader():
            return False


def _vote_for(turn: Turn, candidate: ReplicaKey) -> None:
    role = turn.replica.role
    assert isinstance(role, Unattached | Prospective), "no other role votes"
    turn.amend(replace(role, voted=candidate))


def begin_asked(turn: Turn, asked: Asked, request: BeginEpochRequest) -> None:
    """Follow whoever was elected.

    Of two that claim one epoch, one lies, or consensus is broken: Kafka's process ends there.
    """
    replica, leader = turn.replica, request.leader
    error: Code | None = None
    if request.epoch < replica.epoch:
        error = Code.FENCED_LEADER_EPOCH
    elif leader.id < 0 or leader.id == replica.me.id:
        error = Code.INVALID_REQUEST
    else:
        error = _stranger(turn, asked, leader, request.epoch)
    if error is None and _is_no_leader_of_ours(turn, leader.id, request.epoch):
        error = Code.BROKER_NOT_AVAILABLE
    if error is None and request.epoch == replica.epoch and _led_by_another(turn, leader.id):
        turn.alarm("two_leaders", f"{leader} claims epoch {request.epoch}, which another leads")
        error = Code.INVALID_REQUEST
    if error is not None:
        turn.reply(asked.token, request, error)
        return
    if not _follows(turn, request.epoch, leader.id):
        turn.become_follower(request.epoch, leader.id, request.endpoints)
    if _is_meant_for_another(turn, request.voter):
        turn.reply(asked.token, request, Code.INVALID_VOTER_KEY)
        return
    turn.reply(asked.token, request)


def _is_no_leader_of_ours(turn: Turn, leader: int, epoch: int) -> bool:
    """Whether somebody who counts for nothing claims a newer epoch, beside a leader that is heard.

    A set of voters that this replica has not fetched yet may count it: then the leader that it
    hears is none for long, and the new one is asked for, or tells again.
    """
    newer = epoch > turn.replica.epoch
    return newer and turn.replica.in_force.find(leader) is None and hears_its_leader(turn)


def _led_by_another(turn: Turn, leader: int) -> bool:
    """Whether this epoch is known to be, or to have been, somebody else's."""
    if isinstance(turn.replica.role, Resigned):
        return leader != turn.replica.me.id
    return turn.replica.leader not in (None, leader)


def _follows(turn: Turn, epoch: int, leader: int) -> bool:
    role = turn.replica.role
    return isinstance(role, Follower) and (role.epoch, role.leader) == (epoch, leader)


def end_asked(turn: Turn, asked: Asked, request: EndEpochRequest) -> None:
    """Hold an election soon: the best successor at once, the others after it.

    The leader that was heard is gone by its own word, so that pre-votes are granted from now on
    (KAFKA-20895: Kafka refuses them, and the successor loses its first round).
    """
    replica, leader = turn.replica, request.leader
    error: Code | None = None
    if request.epoch < replica.epoch:
        error = Code.FENCED_LEADER_EPOCH
    elif leader.id < 0:
        error = Code.INVALID_REQUEST
    else:
        error = _stranger(turn, asked, leader, request.epoch)
    if error is None and _is_no_leader_of_ours(turn, leader.id, request.epoch):
        error = Code.BROKER_NOT_AVAILABLE
    if error is None and request.epoch == replica.epoch and _led_by_another(turn, leader.id):
        error = Code.INVALID_REQUEST
    if error is not None:
        turn.reply(asked.token, request, error)
        return
    turn.hear_of(request.epoch, leader.id, ())
    role = turn.replica.role
    if isinstance(role, Follower):
        wait = _successor_waits(turn, request.successors)
        turn.amend(replace(role, fetched=False, fetch_by=turn.now.ms + wait))
    turn.reply(asked.token, request)


def _successor_waits(turn: Turn, successors: tuple[ReplicaKey, ...]) -> int:
    """Return after how many milliseconds this one may ask for votes.

    Source: `FollowerState.handleEndQuorumEpoch`, `strictExponentialElectionBackoffMs`.
    """
    most = turn.replica.timing.backoff
    places = [n for n, key in enumerate(successors) if key.is_same(turn.replica.me)]
    if not places:
        return most
    return 0 if places[0] == 0 else most >> (len(successors) - places[0])


def vote_answered(turn: Turn, sent: Sent, answer: Answer) -> None:
    """Count a vote, or a pre-vote."""
    role = turn.replica.role
    assert sent.to is not None, "votes are asked of voters"
    if isinstance(role, Prospective) and answer.error is Code.UNSUPPORTED_VERSION:
        turn.become_candidate()
        return
    if not isinstance(role, Prospective | Candidate):
        return
    granted = isinstance(answer, VoteAnswer) and answer.granted and answer.error is Code.NONE
    if granted and answer.epoch == role.epoch:
        turn.amend(replace(role, granted=role.granted | {sent.to}))
    else:
        turn.amend(replace(role, refused=role.refused | {sent.to}))
    _judge_votes(turn)


def _judge_votes(turn: Turn) -> None:
    role, voters = turn.replica.role, turn.replica.in_force
    match role:
        case Prospective() if is_won(role.granted, voters):
            turn.become_candidate()
        case Prospective() if is_lost(role.refused, voters):
            lose_pre_vote(turn)
        case Candidate() if is_won(role.granted, voters):
            turn.become_leader(role.granted)
        case _:
            pass  # a Candidate that lost waits out its timer: others may be about to win


def lose_pre_vote(turn: Turn) -> None:
    """Go back to the leader that others hear, or ask who leads."""
    role = turn.replica.role
    assert isinstance(role, Prospective)
    known = role.leader is not None and (
        role.endpoints or turn.replica.in_force.find(role.leader) is not None
    )
    if role.leader is not None and known:
        turn.become_follower(role.epoch, role.leader, role.endpoints)
    else:
        fresh = Unattached(
            epoch=role.epoch,
            election_at=turn.election_at(),
            leader=role.leader,
            voted=role.voted,
        )
        turn.become(fresh)


def outgrow(turn: Turn, epoch: int) -> None:
    """Lead in an epoch beyond this one, where no other voter keeps count.

    A directory that was put back as it was earlier would give an epoch twice, and what is written
    anew would be taken for what stood there.
    """
    replica = turn.replica
    alone = isinstance(replica.role, Leader) and replica.in_force.keys == (replica.me,)
    if alone and replica.epoch <= epoch < replica.epoch + EPOCH_STEP_MAX:
        turn.become_unattached(epoch)
        turn.become_prospective()
