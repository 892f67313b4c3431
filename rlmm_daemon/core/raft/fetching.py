"""A follower's side of the log: it fetches, cuts what diverges, and takes a snapshot where it must.

Its next fetch says that all before is on its disk, so it waits for the sync.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from rlmm_daemon.core.raft.inputs import Commit, Install, SnapshotInstalled, StorePiece
from rlmm_daemon.core.raft.log_facts import BEGINNING, Batch, LogPoint, emptied_to
from rlmm_daemon.core.raft.messages import (
    UNKNOWN,
    Answer,
    Code,
    FetchAnswer,
    FetchRequest,
    FetchSnapshotAnswer,
    FetchSnapshotRequest,
    UpdateVoterRequest,
)
from rlmm_daemon.core.raft.roles import Download, Follower, Replica, Sent, Unattached
from rlmm_daemon.core.raft.turn import Turn
from rlmm_daemon.core.raft.voters import Voter, VoterHistory


def ask(turn: Turn) -> None:
    """Send the next fetch, where none is under way and what came is on the disk."""
    role, log = turn.replica.role, turn.replica.log
    if not waits_to_ask(turn):
        return
    assert isinstance(role, Follower | Unattached)
    if turn.now.ms < role.ask_at:
        return
    to = role.leader if isinstance(role, Follower) and not _gave_up(turn, role) else None
    endpoints = role.endpoints if isinstance(role, Follower) and to is not None else ()
    download = role.download if isinstance(role, Follower) else None
    if download is not None:
        turn.send(to, _piece(turn, download), endpoints)
        return
    request = FetchRequest(
        epoch=role.epoch,
        replica=turn.replica.me,
        point=log.last,
        high_watermark=turn.replica.committed,
        wait_ms=turn.replica.timing.poll,
    )
    turn.send(to, request, endpoints)


def waits_to_ask(turn: Turn) -> bool:
    """Whether nothing but time keeps the next fetch back."""
    role, log = turn.replica.role, turn.replica.log
    idle = not turn.asks and turn.replica.installing is None
    return isinstance(role, Follower | Unattached) and idle and log.synced == log.end


def _gave_up(turn: Turn, role: Follower) -> bool:
    """Whether an observer's leader is silent: anybody may know the next one."""
    return turn.now.ms >= role.fetch_by


def _piece(turn: Turn, download: Download) -> FetchSnapshotRequest:
    return FetchSnapshotRequest(
        epoch=turn.replica.epoch,
        replica=turn.replica.me,
        snapshot=download.snapshot,
        position=download.position,
    )


def tell_address(turn: Turn) -> None:
    """Tell the leader where this voter listens, where the set of voters says otherwise."""
    role = turn.replica.role
    if not isinstance(role, Follower) or not role.fetched or turn.now.ms < role.tell_at:
        return
    mine = address_to_tell(turn.replica)
    if mine is None:
        return
    turn.amend(replace(role, tell_at=turn.now.ms + turn.replica.timing.fetch))
    turn.send(role.leader, UpdateVoterRequest(epoch=role.epoch, voter=mine), role.endpoints)


def address_to_tell(replica: Replica) -> Voter | None:
    """Return this voter as it is now, if the set in force has it elsewhere."""
    known = replica.in_force.find(replica.me.id)
    if known is None or not replica.is_voter or not replica.endpoints:
        return None
    if replica.voters.newest.kraft_version == 0 or known.endpoints == replica.endpoints:
        return None
    return Voter(replica.me, replica.endpoints, known.versions)


def address_taken(turn: Turn, answer: Answer) -> None:
    """Take the answer as a sign of life; the record of it comes with the log."""
    if answer.error is Code.NONE and isinstance(turn.replica.role, Follower):
        _hear(turn)


def put_off(turn: Turn) -> None:
    """Send the next fetch later: the last one failed."""
    role = turn.replica.role
    if isinstance(role, Follower | Unattached):
        turn.amend(replace(role, ask_at=turn.now.ms + turn.replica.timing.retry))


def answered(turn: Turn, sent: Sent, answer: Answer) -> None:
    """Take what the leader answered to a fetch."""
    role = turn.replica.role
    if not isinstance(role, Follower) or answer.leader not in (None, role.leader):
        put_off(turn)
        return
    if answer.error is Code.NONE and answer.leader is not None:
        _hear(turn)
        if isinstance(answer, FetchAnswer):
            _take(turn, answer)
        elif isinstance(answer, FetchSnapshotAnswer):
            _take_piece(turn, answer)
        return
    if isinstance(sent.request, FetchSnapshotRequest) and answer.error in (
        Code.SNAPSHOT_NOT_FOUND,
        Code.UNKNOWN_SERVER_ERROR,
    ):
        _hear(turn)  # the leader removed it: it will name another
        _forget_download(turn)
        return
    put_off(turn)


def _hear(turn: Turn) -> None:
    """Know that the leader lives: nobody else should lead."""
    role = turn.replica.role
    assert isinstance(role, Follower)
    turn.amend(replace(role, fetched=True, fetch_by=turn.now.ms + turn.replica.timing.fetch))


def _take(turn: Turn, answer: FetchAnswer) -> None:
    role = turn.replica.role
    assert isinstance(role, Follower)
    if answer.diverging is not None:
        _cut_what_diverges(turn, answer.diverging)
        return
    if answer.snapshot is not None:
        _begin_download(turn, answer.snapshot)
        return
    if not _goes_on(turn, answer.batches):
        turn.alarm(
            "foreign_records", f"leader {role.leader} sent records that do not go on from here"
        )
        put_off(turn)
        return
    for batch in answer.batches:
        turn.write(batch)
    if answer.batches:
        turn.sync()
    turn.amend(replace(role, high_watermark=max(role.high_watermark, answer.high_watermark)))
    commit(turn)


def _goes_on(turn: Turn, batches: Sequence[Batch]) -> bool:
    """Whether these follow on the log without a gap, in epochs that do not fall."""
    end, epoch = turn.replica.log.end, turn.replica.log.last_epoch
    for batch in batches:
        if batch.base != end or not epoch <= batch.epoch <= turn.replica.epoch or batch.count <= 0:
            return False
        end, epoch = batch.end, batch.epoch
    return True


def _cut_what_diverges(turn: Turn, diverging: LogPoint) -> None:
    replica = turn.replica
    end = replica.log.common_end(diverging)
    if min(diverging.epoch, diverging.end) < 0 or end >= replica.log.end:
        turn.alarm("foreign_records", f"nothing diverges from {diverging}, as the leader says")
        put_off(turn)
        return
    if end < replica.committed:
        turn.fail(
            f"the leader of epoch {replica.epoch} would have offsets {end} to {replica.committed} "
            "cut, which are committed"
        )
        return
    turn.cut(end)
    turn.sync()


def commit(turn: Turn) -> None:
    """Apply what is committed, as far as it is on this disk."""
    replica = turn.replica
    if not isinstance(replica.role, Follower):
        return
    end = min(replica.role.high_watermark, replica.log.synced)
    if end > replica.committed:
        turn.replica = replace(replica, committed=end)
        turn.effects.append(Commit(end))


def _begin_download(turn: Turn, snapshot: LogPoint) -> None:
    role = turn.replica.role
    assert isinstance(role, Follower)
    if snapshot == BEGINNING or snapshot.end <= turn.replica.committed:
        turn.alarm(
            "old_snapshot", f"leader {role.leader} named snapshot {snapshot}, which is behind"
        )
        put_off(turn)
        return
    if role.download is None or role.download.snapshot != snapshot:
        # Where the log is committed by now, only the next records tell.
        turn.amend(replace(role, download=Download(snapshot), high_watermark=UNKNOWN))


def _forget_download(turn: Turn) -> None:
    role = turn.replica.role
    assert isinstance(role, Follower)
    turn.amend(replace(role, download=None, ask_at=turn.now.ms + turn.replica.timing.retry))


def _take_piece(turn: Turn, answer: FetchSnapshotAnswer) -> None:
    """Store a piece; what does not continue the one before begins the download anew."""
    role = turn.replica.role
    assert isinstance(role, Follower)
    download = role.download
    if download is None:
        return
    fits = (
        answer.snapshot == download.snapshot
        and answer.position == download.position
        and download.size in (None, answer.size)
        and download.position + len(answer.piece) <= answer.size
        and (answer.piece or answer.size == download.position)
    )
    if not fits:
        _forget_download(turn)
        return
    turn.effects.append(StorePiece(download.snapshot, download.position, answer.piece))
    position = download.position + len(answer.piece)
    if position < answer.size:
        turn.amend(replace(role, download=Download(download.snapshot, position, answer.size)))
        return
    turn.amend(replace(role, download=None))
    turn.replica = replace(turn.replica, installing=download.snapshot)
    turn.effects.append(Install(download.snapshot))


def installed(turn: Turn, done: SnapshotInstalled) -> None:
    """Go on behind a snapshot: the log before it is gone; one that doesn't hold is fetched anew."""
    replica = turn.replica
    assert done.snapshot == replica.installing, "one snapshot is installed at a time"
    if done.voters is None:
        turn.replica = replace(replica, installing=None)
        turn.alarm("damaged_snapshot", f"what was fetched as snapshot {done.snapshot} doesn't hold")
        put_off(turn)
        return
    assert done.snapshot.end >= replica.committed, "nothing was applied meanwhile"
    turn.replica = replace(
        replica,
        log=emptied_to(done.snapshot),
        voters=VoterHistory((done.voters,)),
        cuts=replica.cuts + 1,
        committed=done.snapshot.end,
        installing=None,
    )
    turn.effects.append(Commit(done.snapshot.end))


def time_out(turn: Turn) -> None:
    """A voter whose leader is silent asks whether it would be elected; an observer asks anybody."""
    role = turn.replica.role
    if isinstance(role, Follower) and turn.now.ms >= role.fetch_by and turn.replica.may_lead:
        turn.become_prospective()


def hurry(turn: Turn) -> None:
    """Hold an election soon: the leader's process is gone, nobody listens on its port.

    A pre-vote binds nobody, so that a port that only this replica can't reach costs a round of
    questions; at most one in each fetch timeout, and twice as long after each.
    """
    replica, role = turn.replica, turn.replica.role
    if not isinstance(role, Follower) or turn.now.ms < replica.hurry_at:
        return
    pause = max(replica.timing.fetch, min(2 * replica.hurry_pause, 32 * replica.timing.fetch))
    recent = turn.now.ms - replica.hurry_at < 32 * replica.timing.fetch
    pause = pause if recent else replica.timing.fetch
    soon = turn.now.ms + 50 + int(100 * turn.now.luck)
    turn.replica = replace(replica, hurry_at=turn.now.ms + pause, hurry_pause=pause)
    turn.amend(replace(role, fetched=False, fetch_by=min(role.fetch_by, soon)))
