"""Pure step of a replica: from what it is and what happens to what it is then, and must do.

A replica has one role at a time, and facts that outlive it. These are the roles that it may have
after each input, by their first letters; `-` is the one that it had. A word of a newer epoch may
come with any request or answer, and ends whatever the replica was.

                            Unattached  Prospective  Candidate  Follower  Leader  Resigned
    Tick                    -|P|L       U|-|F        P|-|L      P|-|L     -|R     U|-
    Unanswered              -           -            -          -         -       -
    Submitted               -           -            -          -         -       -
    ReadAsked               -           -            -          -         -       -
    Synced                  -           -            -          -         -       -
    Reachable               -           -            -          -         -       -
    SnapshotMade            -           -            -          -         -       -
    SnapshotInstalled       -                                   -
    StartMoved              -           -            -          -         -       -
    Resign                  -           -            -          -         R       -
    Outgrow                 -           -            -          -         -       -
    Vote asked              -           U|-          U|-        U|-       -       U|-
    BeginEpoch asked        -|F         -|F          -|F        -         F|-     F|-
    EndEpoch asked          -|F         U|-|F        U|-|F      U|-       F|-     U|F|-
    Fetch asked             -           -            -          -         U|-|R   -
    FetchSnapshot asked     -           -            -          -         U|-     -
    AddVoter asked          -           -            -          -         -       -
    RemoveVoter asked       -           -            -          -         -       -
    UpdateVoter asked       -           -            -          -         -       -
    Vote answered           -|F         U|-|C|F|L    U|-|F|L    U|-       U|F|-   U|F|-
    BeginEpoch answered     -|F         U|-|F        U|-|F      U|-       U|F|-   U|F|-
    EndEpoch answered       -|F         U|-|F        U|-|F      U|-       U|F|-   U|F|-
    Fetch answered          -|F         U|-|F        U|-|F      U|-       U|F|-   U|F|-
    FetchSnapshot answered  -|F         U|-|F        U|-|F      U|-       U|F|-   U|F|-
    UpdateVoter answered    -|F         U|-|F        U|-|F      U|-       U|F|-   U|F|-

An observer is never Prospective, and so neither Candidate nor Leader. Alone, a voter goes through
all three in one step. What must not be forgotten is saved before anything else is done.
"""

from typing import Final, assert_never

from msgspec.structs import replace

from rlmm_daemon.core.raft import elections, fetching, leading, reading, reconfiguring
from rlmm_daemon.core.raft.inputs import (
    Answered,
    Asked,
    Effect,
    Input,
    Moment,
    Outgrow,
    Reachable,
    ReadAsked,
    ReadRefused,
    Refuse,
    Resign,
    SavedState,
    SnapshotInstalled,
    SnapshotMade,
    StartMoved,
    Submitted,
    Synced,
    Tick,
    Unanswered,
)
from rlmm_daemon.core.raft.log_facts import LogFacts
from rlmm_daemon.core.raft.messages import (
    AddVoterRequest,
    Answer,
    BeginEpochRequest,
    Code,
    EndEpochRequest,
    FetchRequest,
    FetchSnapshotRequest,
    RemoveVoterRequest,
    UpdateVoterRequest,
    VoteRequest,
)
from rlmm_daemon.core.raft.roles import (
    Candidate,
    Follower,
    Leader,
    Prospective,
    Replica,
    Resigned,
    Role,
    Sent,
    Timing,
    Unattached,
)
from rlmm_daemon.core.raft.turn import Turn
from rlmm_daemon.core.raft.voters import Endpoint, ReplicaKey, VoterHistory

#: Answers to what no healthy replica asks: they are no different a moment later.
_NEVER_IN_HEALTH: Final = frozenset(
    {Code.INVALID_REQUEST, Code.INCONSISTENT_CLUSTER_ID, Code.CLUSTER_AUTHORIZATION_FAILED}
)


def step(replica: Replica, happened: Input, now: Moment) -> tuple[Replica, list[Effect]]:
    """Return the replica after that, and what to do, in this order."""
    turn = Turn(replica, now)
    if replica.failed is not None:
        _refuse(turn, happened)
        return turn.replica, turn.effects
    _happen(turn, happened)
    if turn.replica.failed is None:
        fetching.tell_address(turn)
        fetching.ask(turn)
    return turn.replica, turn.effects


def _refuse(turn: Turn, happened: Input) -> None:
    """Serve nothing: to go on would lose what was acknowledged."""
    match happened:
        case Asked(token=token, request=request):
            turn.reply(token, request, Code.BROKER_NOT_AVAILABLE)
        case Submitted(token=token):
            turn.effects.append(Refuse(token, None))
        case ReadAsked(token=token):
            turn.effects.append(ReadRefused(token, None))
        case _:
            pass


def _happen(turn: Turn, happened: Input) -> None:
    match happened:
        case Tick():
            _time_goes_by(turn)
        case Asked():
            _ask(turn, happened)
        case Answered():
            _answer(turn, happened)
        case Unanswered():
            _miss(turn, happened)
        case Submitted() | ReadAsked():
            _serve(turn, happened)
        case Reachable():
            reconfiguring.reached(turn, happened.serial, happened)
        case Resign() | Outgrow():
            _end_office(turn, happened)
        case Synced() | SnapshotMade() | SnapshotInstalled() | StartMoved():
            _disk_did(turn, happened)
        case _:
            assert_never(happened)


def _serve(turn: Turn, asked: Submitted | ReadAsked) -> None:
    if isinstance(asked, Submitted):
        leading.submitted(turn, asked)
    else:
        reading.asked(turn, asked)


def _end_office(turn: Turn, why: Resign | Outgrow) -> None:
    if isinstance(why, Outgrow):
        elections.outgrow(turn, why.epoch)
    elif isinstance(turn.replica.role, Leader):
        turn.resign()


def _disk_did(turn: Turn, done: Synced | SnapshotMade | SnapshotInstalled | StartMoved) -> None:
    """Know what the disk has done beside all else."""
    replica = turn.replica
    match done:
        case Synced():
            _sync(turn, done)
        case SnapshotMade(snapshot=snapshot):
            assert snapshot.end <= replica.committed, "a snapshot holds what is committed"
            turn.replica = replace(replica, log=replica.log.with_snapshot(snapshot))
        case SnapshotInstalled():
            fetching.installed(turn, done)
        case StartMoved(oldest=oldest):
            log, voters = replica.log.begin_at(oldest), replica.voters.begin_at(oldest.end)
            turn.replica = replace(replica, log=log, voters=voters)
        case _:
            assert_never(done)


def _time_goes_by(turn: Turn) -> None:
    role = turn.replica.role
    if turn.replica.installing is not None:
        return
    match role:
        case Unattached() | Prospective() | Candidate() | Resigned():
            if turn.now.ms >= role.election_at:
                _election_is_due(turn, role)
            elif isinstance(role, Resigned) and turn.now.ms >= role.tell_at:
                turn.say_good_bye()
        case Follower():
            fetching.time_out(turn)
        case Leader():
            leading.keep_office(turn)
            reconfiguring.time_out(turn)
        case _:
            assert_never(role)


def _election_is_due(turn: Turn, role: Unattached | Prospective | Candidate | Resigned) -> None:
    match role:
        case Unattached():
            if turn.replica.may_lead:
                turn.become_prospective()
        case Prospective():
            elections.lose_pre_vote(turn)
        case Candidate():
            turn.become_prospective()
        case Resigned():  # not in its own epoch: it would follow itself
            turn.become_unattached(role.epoch + 1)
        case _:
            assert_never(role)


def _ask(turn: Turn, asked: Asked) -> None:
    request = asked.request
    if asked.cluster_id != turn.replica.cluster_id and not _may_be_nameless(asked):
        turn.reply(asked.token, request, Code.INCONSISTENT_CLUSTER_ID)
        return
    match request:
        case VoteRequest():
            elections.vote_asked(turn, asked, request)
        case BeginEpochRequest():
            elections.begin_asked(turn, asked, request)
        case EndEpochRequest():
            elections.end_asked(turn, asked, request)
        case FetchRequest():
            leading.fetch_asked(turn, asked, request)
        case FetchSnapshotRequest():
            leading.snapshot_asked(turn, asked, request)
        case AddVoterRequest() | RemoveVoterRequest() | UpdateVoterRequest():
            reconfiguring.change_asked(turn, asked, request)
        case _:
            assert_never(request)


def _may_be_nameless(asked: Asked) -> bool:
    """Whether a request may leave the cluster's id out: Kafka's tool does, replicas never."""
    return asked.cluster_id is None and isinstance(
        asked.request, AddVoterRequest | RemoveVoterRequest
    )


def _answer(turn: Turn, answered: Answered) -> None:
    """Take an answer: first its word on who leads, then what was asked for."""
    sent = turn.take(answered.serial)
    if sent is None or sent.request is None:
        return
    answer, epoch = answered.answer, turn.replica.epoch
    if answer.epoch > epoch + elections.EPOCH_STEP_MAX:
        turn.alarm("epoch_far_ahead", f"replica {sent.to} answered with epoch {answer.epoch}")
        return
    role = turn.replica.role
    if answer.error in _NEVER_IN_HEALTH:
        turn.alarm(answer.error.name.lower(), f"replica {sent.to} answered to {sent.request}")
    turn.hear_of(answer.epoch, answer.leader, answer.endpoints)
    if turn.replica.role is not role and not isinstance(sent.request, FetchRequest):
        return
    _handle(turn, answered.serial, sent, answer)


def _handle(turn: Turn, serial: int, sent: Sent, answer: Answer) -> None:
    match sent.request:
        case VoteRequest():
            elections.vote_answered(turn, sent, answer)
        case FetchRequest() | FetchSnapshotRequest():
            _fetched(turn, sent, answer)
        case EndEpochRequest():
            role = turn.replica.role
            if isinstance(role, Resigned) and sent.to is not None:
                left = role.unacknowledged - {sent.to}
                turn.amend(replace(role, unacknowledged=left))
        case UpdateVoterRequest():
            fetching.address_taken(turn, answer)
        case BeginEpochRequest():
            reading.answered(turn, serial, sent, answer)
        case AddVoterRequest() | RemoveVoterRequest() | None:
            pass
        case _:
            assert_never(sent.request)


def _fetched(turn: Turn, sent: Sent, answer: Answer) -> None:
    """Take what a fetch brought; one that only taught who leads is sent again there at once."""
    if answer.epoch < turn.replica.epoch:
        fetching.put_off(turn)
    elif answer.error in (Code.NOT_LEADER_OR_FOLLOWER, Code.FENCED_LEADER_EPOCH):
        role = turn.replica.role
        if not isinstance(role, Follower) or role.fetched or sent.to == role.leader:
            fetching.put_off(turn)
    else:
        fetching.answered(turn, sent, answer)


def _miss(turn: Turn, missed: Unanswered) -> None:
    sent = turn.take(missed.serial)
    if sent is None:
        return
    if sent.request is None:
        reconfiguring.reached(turn, missed.serial, None)
        return
    if isinstance(sent.request, BeginEpochRequest):
        reading.missed(turn, sent)
    if not isinstance(sent.request, FetchRequest | FetchSnapshotRequest):
        return
    fetching.put_off(turn)
    role = turn.replica.role
    if missed.refused and isinstance(role, Follower) and sent.to == role.leader:
        fetching.hurry(turn)


def _sync(turn: Turn, synced: Synced) -> None:
    log = turn.replica.log
    if synced.cuts != turn.replica.cuts or synced.end <= log.synced:
        return
    turn.replica = replace(turn.replica, log=log.sync(synced.end))
    if isinstance(turn.replica.role, Leader):
        leading.advance(turn)
    else:
        fetching.commit(turn)


class CannotStart(Exception):
    """What is on the disk isn't what this replica acknowledged with: it must not vote."""


def start(
    *,
    me: ReplicaKey,
    cluster_id: str,
    saved: SavedState | None,
    log: LogFacts,
    voters: VoterHistory,
    now: Moment,
    endpoints: tuple[Endpoint, ...] = (),
    timing: Timing = Timing(),  # noqa: B008 - it is frozen
) -> tuple[Replica, list[Effect]]:
    """Return a replica as it was left on its disk.

    Raises:
        CannotStart: the log has records, and nothing says for whom this replica has voted.

    Source: `QuorumState.initialize`.
    """
    if saved is None and (log.end > 0 or log.snapshots):
        raise CannotStart(
            "the log has records, and quorum-state is gone: it may have voted in this epoch"
        )
    state = saved if saved is not None else SavedState()
    assert log.synced == log.end, "what was found is synced before anything is said of it"
    base = Replica(
        me=me,
        cluster_id=cluster_id,
        role=Unattached(epoch=state.epoch, election_at=now.ms),
        voters=voters,
        log=log,
        saved=state,
        endpoints=endpoints,
        timing=timing,
        committed=log.start,
    )
    turn = Turn(base, now)
    if log.last_epoch > state.epoch:
        turn.become(_first_role(turn, SavedState(log.last_epoch)))
    else:
        turn.replica = replace(turn.replica, role=_first_role(turn, state))
    return turn.replica, turn.effects


def _first_role(turn: Turn, state: SavedState) -> Role:
    me, at = turn.replica.me, turn.election_at()
    if turn.replica.in_force.keys == (me,):
        at = turn.now.ms  # alone, it need not wait for anybody
    if state.leader == me.id:
        others = frozenset(key.id for key in turn.others())
        return Resigned(epoch=state.epoch, election_at=at, unacknowledged=others)
    if state.voted == me and state.leader is None and turn.replica.may_lead:
        return Candidate(epoch=state.epoch, election_at=at, granted=frozenset({me.id}))
    leader = turn.replica.in_force.find(state.leader) if state.leader is not None else None
    if leader is not None:
        return Follower(
            epoch=state.epoch,
            leader=leader.key.id,
            endpoints=leader.endpoints,
            voted=state.voted,
            fetch_by=turn.now.ms + turn.replica.timing.fetch,
        )
    return Unattached(epoch=state.epoch, election_at=at, leader=state.leader, voted=state.voted)


def deadline(replica: Replica) -> int | None:
    """Return when the next `Tick` is due, in milliseconds; None: nothing is waited for."""
    if replica.installing is not None or replica.failed is not None:
        return None
    turn = Turn(replica, Moment(0, 0.0))
    role, due = replica.role, list[int]()
    match role:
        case Unattached(election_at=at) | Prospective(election_at=at) | Candidate(election_at=at):
            due += [at] if replica.may_lead else []
        case Follower(fetch_by=at, tell_at=tell_at, fetched=fetched):
            due += [at] if replica.may_lead else []
            due += [tell_at] if fetched and fetching.address_to_tell(replica) else []
        case Resigned(election_at=at, tell_at=tell_at, unacknowledged=left):
            due += [at, *([tell_at] if left - turn.awaited else [])]
        case Leader():
            due += leading.deadlines(turn)
        case _:
            assert_never(role)
    if fetching.waits_to_ask(turn):
        assert isinstance(role, Unattached | Follower)
        due.append(role.ask_at)
    return min(due, default=None)
