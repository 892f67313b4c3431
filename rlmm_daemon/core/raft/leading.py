"""A leader's side: it takes records, answers fetches, and counts who has what."""

from typing import Final

from msgspec.structs import replace

from rlmm_daemon.core.raft import reading
from rlmm_daemon.core.raft.elections import is_far_ahead
from rlmm_daemon.core.raft.inputs import (
    Accept,
    Asked,
    Commit,
    Refuse,
    Reply,
    ReplyRecords,
    ReplySnapshot,
    Submitted,
)
from rlmm_daemon.core.raft.log_facts import BEGINNING, Batch
from rlmm_daemon.core.raft.messages import (
    Answer,
    Code,
    FetchAnswer,
    FetchRequest,
    FetchSnapshotAnswer,
    FetchSnapshotRequest,
)
from rlmm_daemon.core.raft.roles import Leader, Parked, Progress
from rlmm_daemon.core.raft.turn import Turn
from rlmm_daemon.core.raft.voters import ReplicaKey, majority_reached

#: Observers that a leader remembers; the ones that fetched last stay.
OBSERVERS_MAX: Final = 1_000
#: An observer that did not fetch for so long is forgotten.
OBSERVER_MS: Final = 300_000


def submitted(turn: Turn, what: Submitted) -> None:
    """Append records: others may fetch them at once, and sync them beside this disk."""
    role = turn.replica.role
    if not isinstance(role, Leader):
        turn.effects.append(Refuse(what.token, turn.replica.leader))
        return
    base = turn.replica.log.end
    turn.write(Batch(base, what.count, role.epoch, payload=what.payload), what.token)
    turn.effects.append(Accept(what.token, base, role.epoch))
    release(turn)
    turn.sync()


def release(turn: Turn) -> None:
    """Answer every fetch that waits for news."""
    role = turn.replica.role
    assert isinstance(role, Leader)
    if not role.parked:
        return
    turn.amend(replace(role, parked=()))
    for parked in role.parked:
        _reply(turn, parked.token, parked.offset)


def _reply(turn: Turn, token: int, offset: int) -> None:
    role, log = turn.replica.role, turn.replica.log
    assert isinstance(role, Leader)
    answer = replace(turn.answer(FetchAnswer), high_watermark=role.high_watermark, start=log.start)
    turn.effects.append(ReplyRecords(token, answer, offset, log.end))


def fetch_asked(turn: Turn, asked: Asked, request: FetchRequest) -> None:
    """Answer a fetch: it also says that everything before it is on the asker's disk."""
    point = request.point
    malformed = min(point.end, point.epoch, request.wait_ms) < 0 or point.epoch > request.epoch
    error = Code.INVALID_REQUEST if malformed else _not_for_us(turn, asked, request)
    if error is not None:
        turn.reply(asked.token, request, error)
        return
    log = turn.replica.log
    snapshot = log.needed_snapshot(point)
    if snapshot is not None or not log.leads_to(point):
        _note(turn, request.replica, point.end, goes_on=False)
        answer = turn.answer(FetchAnswer)
        diverging = log.epoch_end(point.epoch) if snapshot is None else None
        told = replace(answer, diverging=diverging, snapshot=snapshot)
        turn.effects.append(Reply(asked.token, told))
        return
    _note(turn, request.replica, point.end, goes_on=True)
    advance(turn)
    _answer_or_park(turn, asked.token, request)


def _not_for_us(
    turn: Turn, asked: Asked, request: FetchRequest | FetchSnapshotRequest
) -> Code | None:
    """Return why this replica doesn't answer that; a replica that is ahead ends its office.

    Whoever leads refuses votes, so one that got to a higher epoch alone could never come back. That
    may be a voter, or one that was removed without hearing of it: its identity has to be proven.
    """
    replica, key = turn.replica, request.replica
    if key.id >= 0 and not asked.peer.is_allowed_as(key):
        turn.alarm("stranger", f"replica {asked.peer.id} fetched as {key}")
        return Code.CLUSTER_AUTHORIZATION_FAILED
    if request.epoch < replica.epoch:
        return Code.FENCED_LEADER_EPOCH
    if request.epoch > replica.epoch:
        if (
            isinstance(replica.role, Leader)
            and not is_far_ahead(replica, request.epoch)
            and (asked.peer.id is not None or replica.in_force.holds(key))
        ):
            turn.become_unattached(request.epoch)
        return Code.UNKNOWN_LEADER_EPOCH
    return None if isinstance(replica.role, Leader) else Code.NOT_LEADER_OR_FOLLOWER


def _note(turn: Turn, key: ReplicaKey, end: int | None, *, goes_on: bool = False) -> None:
    """Remember that a replica fetched from `end`, and whether its log goes on with this one there.

    An end that falls though nobody told it to cut is a disk that lost what it acknowledged: it
    counts again once all of that is back.
    """
    role = turn.replica.role
    assert isinstance(role, Leader)
    if key.id < 0 or key.is_same(turn.replica.me):
        return
    known = role.peers.get(key, Progress())
    progress = replace(known, fetched_at=turn.now.ms)
    if end is not None:
        lost = known.lost_before
        if end < known.end and not known.told_to_cut and lost is None:
            lost = known.end
            turn.alarm("acknowledged_lost", f"{key} had acknowledged {lost} and fetches at {end}")
        if goes_on:
            lost = None if lost is not None and end >= lost else lost
            caught_up = turn.now.ms if end >= turn.replica.log.end else known.caught_up_at
            progress = Progress(
                end=end, fetched_at=turn.now.ms, caught_up_at=caught_up, lost_before=lost
            )
        else:
            progress = replace(progress, told_to_cut=True, lost_before=lost)
    peers = {**role.peers, key: progress}
    if len(peers) > len(role.peers) and len(peers) > OBSERVERS_MAX:
        peers = _without_stalest(turn, peers)
    turn.amend(replace(role, peers=peers))


def _without_stalest(turn: Turn, peers: dict[ReplicaKey, Progress]) -> dict[ReplicaKey, Progress]:
    observers = [key for key in peers if not turn.replica.in_force.holds(key)]
    stalest = min(observers, key=lambda key: peers[key].fetched_at or 0)
    return {key: each for key, each in peers.items() if key != stalest}


def _answer_or_park(turn: Turn, token: int, request: FetchRequest) -> None:
    """Answer at once where there is news for the asker: records, or a high watermark (KIP-1166)."""
    role = turn.replica.role
    if not isinstance(role, Leader):  # what this fetch let commit was its own removal
        turn.reply(token, request, Code.NOT_LEADER_OR_FOLLOWER)
        return
    news = request.point.end < turn.replica.log.end or request.high_watermark < role.high_watermark
    if news or request.wait_ms == 0:
        _reply(turn, token, request.point.end)
        return
    wait = min(request.wait_ms, turn.replica.timing.poll)
    parked = Parked(token, request.point.end, turn.now.ms + wait)
    turn.amend(replace(role, parked=(*role.parked, parked)))


def snapshot_asked(turn: Turn, asked: Asked, request: FetchSnapshotRequest) -> None:
    """Answer with a piece of a snapshot; the asker lives, so it counts for the quorum's check."""
    error = _not_for_us(turn, asked, request)
    if error is None and (
        request.snapshot == BEGINNING or request.snapshot not in turn.replica.log.snapshots
    ):
        error = Code.SNAPSHOT_NOT_FOUND
    if error is None and request.position < 0:
        error = Code.POSITION_OUT_OF_RANGE
    if error is not None:
        turn.reply(asked.token, request, error)
        return
    _note(turn, request.replica, None)
    answer = turn.answer(FetchSnapshotAnswer)
    turn.effects.append(ReplySnapshot(asked.token, answer, request.snapshot, request.position))


def advance(turn: Turn) -> None:
    """Commit what a majority has on its disks, and begin what waited for that.

    Nothing counts before a record of this epoch does, for what an older leader replicated may still
    be cut (Raft, 5.4.2). A leader that removed itself does not count itself.
    """
    replica, role = turn.replica, turn.replica.role
    assert isinstance(role, Leader)
    ends = [
        replica.log.synced if key.is_same(replica.me) else _progress(role, key).acknowledged
        for key in replica.in_force.keys
    ]
    reached = min(majority_reached(ends, len(ends)), replica.log.end)
    if reached <= role.epoch_start or reached <= role.high_watermark:
        return
    turn.amend(replace(role, high_watermark=reached))
    if reached > replica.committed:
        turn.replica = replace(turn.replica, committed=reached)
        turn.effects.append(Commit(reached))
    release(turn)
    reading.settle(turn)
    _end_change(turn)
    if not turn.replica.is_voter and turn.replica.voters.newest.offset < reached:
        turn.resign()


def _progress(role: Leader, key: ReplicaKey) -> Progress:
    """Return what a voter has: with kraft.version 0, whatever its directory is."""
    found = role.peers.get(key)
    if found is not None:
        return found
    same = [each for other, each in role.peers.items() if other.is_same(key)]
    return same[0] if same else Progress()


def _end_change(turn: Turn) -> None:
    """Answer for a change of voters that the new majority has committed."""
    role = turn.replica.role
    assert isinstance(role, Leader)
    change = role.change
    if change is not None and change.offset is not None and change.offset < role.high_watermark:
        turn.amend(replace(role, change=None))
        if change.when_committed:
            turn.effects.append(Reply(change.token, said(turn, Code.NONE)))


def said(turn: Turn, error: Code) -> Answer:
    """Return the answer to a change of voters."""
    return turn.answer(Answer, error)


def keep_office(turn: Turn) -> None:
    """What a leader does as time goes by: it checks its quorum, and tells who has not heard."""
    if _lost_its_quorum(turn):
        turn.resign()
        return
    _answer_late_fetches(turn)
    _tell_the_silent(turn)
    reading.time_out(turn)
    _forget_observers(turn)


def _lost_its_quorum(turn: Turn) -> bool:
    """Whether too few voters fetched for one and a half fetch timeouts (KAFKA-15489)."""
    return turn.now.ms >= check_at(turn)


def check_at(turn: Turn) -> int:
    """Return until when enough voters have been heard; alone, it needs nobody (KAFKA-16144)."""
    replica, role = turn.replica, turn.replica.role
    assert isinstance(role, Leader)
    others = turn.others()
    needed = replica.in_force.majority - (1 if replica.is_voter else 0)
    if needed == 0:
        return turn.now.ms + replica.timing.check_quorum
    heard = sorted((_heard_at(role, key) for key in others), reverse=True)
    return heard[needed - 1] + replica.timing.check_quorum


def _heard_at(role: Leader, key: ReplicaKey) -> int:
    at = _progress(role, key).fetched_at
    return role.since if at is None else max(at, role.since)


def _answer_late_fetches(turn: Turn) -> None:
    role = turn.replica.role
    assert isinstance(role, Leader)
    late = [parked for parked in role.parked if parked.until <= turn.now.ms]
    if late:
        left = tuple(parked for parked in role.parked if parked.until > turn.now.ms)
        turn.amend(replace(role, parked=left))
        for parked in late:
            _reply(turn, parked.token, parked.offset)


def _tell_the_silent(turn: Turn) -> None:
    role, timing, now = turn.replica.role, turn.replica.timing, turn.now.ms
    assert isinstance(role, Leader)
    told, awaited = dict(role.told_at), turn.awaited
    for key in turn.others():
        if now - _told_at(role, key) >= timing.begin and key.id not in awaited:
            turn.tell_who_leads(key)
            told[key.id] = now
    if told != role.told_at:
        turn.amend(replace(role, told_at=told))


def _forget_observers(turn: Turn) -> None:
    role, now = turn.replica.role, turn.now.ms
    assert isinstance(role, Leader)
    stale = [
        key
        for key, each in role.peers.items()
        if now - (each.fetched_at or 0) > OBSERVER_MS and not turn.replica.in_force.holds(key)
    ]
    if stale:
        kept = {key: each for key, each in role.peers.items() if key not in stale}
        turn.amend(replace(role, peers=kept))


def deadlines(turn: Turn) -> list[int]:
    """Return when there is something to do, if nothing happens before."""
    role, timing = turn.replica.role, turn.replica.timing
    assert isinstance(role, Leader)
    others, awaited = turn.others(), turn.awaited
    due = [*(parked.until for parked in role.parked), *reading.deadlines(turn)]
    if role.change is not None:
        due.append(role.change.until)
    if others:
        due.append(check_at(turn))
        due += [_told_at(role, key) + timing.begin for key in others if key.id not in awaited]
    return due


def _told_at(role: Leader, key: ReplicaKey) -> int:
    """Return when a voter last knew who leads, as far as is known."""
    return max(_heard_at(role, key), role.told_at.get(key.id, role.since))
