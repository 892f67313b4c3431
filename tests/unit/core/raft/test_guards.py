"""Guards of consensus that no seed needs, each against the bug that it stands for."""

from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace

from rlmm_daemon.core.raft.inputs import (
    Answered,
    Asked,
    Effect,
    Fail,
    Input,
    Moment,
    Peer,
    Probe,
    Reachable,
    Reply,
    Save,
    SavedState,
    Send,
    StorePiece,
    Synced,
    Tick,
    Truncate,
    Unanswered,
    Write,
)
from rlmm_daemon.core.raft.log_facts import Batch, LogFacts, LogPoint
from rlmm_daemon.core.raft.messages import (
    AddVoterRequest,
    BeginEpochRequest,
    Code,
    EndEpochRequest,
    FetchAnswer,
    FetchRequest,
    FetchSnapshotAnswer,
    FetchSnapshotRequest,
    UpdateVoterRequest,
    VoteAnswer,
    VoteRequest,
)
from rlmm_daemon.core.raft.roles import (
    Candidate,
    Download,
    Follower,
    Leader,
    Progress,
    Prospective,
    Replica,
    Resigned,
    Sent,
    Timing,
    Unattached,
)
from rlmm_daemon.core.raft.step import CannotStart, deadline, start, step
from rlmm_daemon.core.raft.voters import (
    Endpoint,
    ReplicaKey,
    Voter,
    VoterHistory,
    VotersAt,
    VoterSet,
)

NOW = Moment(10_000, 0.0)
KEYS = [ReplicaKey(n, bytes([n]) * 16) for n in range(8)]
ME, OTHER = KEYS[1], KEYS[2]
TIMING = Timing()
LOG = LogFacts(0, 5, 5, ((1, 0),))


def voter(number: int) -> Voter:
    return Voter(KEYS[number], (Endpoint("Q", "host", 9_000 + number),))


def voters(*numbers: int) -> VoterHistory:
    return VoterHistory((VotersAt(-1, VoterSet.of(voter(n) for n in numbers)),))


def replica(role, *, of=(1, 2, 3), log: LogFacts = LOG, committed: int = 0) -> Replica:
    return Replica(
        me=ME,
        cluster_id="c",
        role=role,
        voters=voters(*of),
        log=log,
        saved=SavedState(role.epoch),
        committed=committed,
    )


def follower(**facts) -> Follower:
    return Follower(epoch=1, leader=2, fetch_by=NOW.ms + 1_000, fetched=True, **facts)


def after(one: Replica, *happened: Input, now: Moment = NOW) -> tuple[Replica, list[Effect]]:
    said: list[Effect] = []
    for each in happened:
        one, effects = step(one, each, now)
        said += effects
    return one, said


def of_kind(effects: list[Effect], kind: type) -> list[Any]:
    return [each for each in effects if isinstance(each, kind)]


def asked(request, *, by: int | None = None) -> Asked:
    return Asked(7, request, Peer(by), "c")


def test_an_answer_to_an_earlier_role_is_not_taken():
    one, said = after(replica(follower()), Tick())
    [sent] = of_kind(said, Send)
    late = Tick()
    one, _ = after(one, late, now=Moment(NOW.ms + 1_000, 0.0))
    assert isinstance(one.role, Prospective)
    records = FetchAnswer(
        error=Code.NONE, epoch=1, leader=2, batches=(Batch(5, 1, 1),), high_watermark=6
    )
    one, said = after(replace(one, role=follower()), Answered(sent.serial, records))
    assert of_kind(said, Write) == []


def test_a_snapshots_download_belongs_to_one_leader_epoch():
    """Two leaders' files of one name need not be equal byte by byte: it begins anew."""
    point = LogPoint(1, 90)
    one, said = after(replica(follower(download=Download(point, 10, 30))), Tick())
    [sent] = of_kind(said, Send)
    assert isinstance(sent.request, FetchSnapshotRequest)
    assert sent.request.position == 10
    begun = BeginEpochRequest(epoch=2, leader=KEYS[3])
    one, said = after(one, asked(begun, by=3))
    assert isinstance(one.role, Follower)
    assert (one.role.epoch, one.role.download) == (2, None)
    late = FetchSnapshotAnswer(
        error=Code.NONE, epoch=1, leader=2, snapshot=point, size=30, position=10, piece=bytes(20)
    )
    one, more = after(one, Answered(sent.serial, late))
    assert not of_kind(more, StorePiece)
    [following] = of_kind([*said, *more], Send)[-1:]
    assert isinstance(following.request, FetchRequest)


def test_one_that_still_hears_the_leader_does_not_end_the_round_of_others():
    role = Prospective(epoch=1, election_at=NOW.ms + 900, leader=2, granted=frozenset({1}))
    one = replica(role, of=(1, 2, 3, 4, 5))
    ask = VoteRequest(epoch=1, candidate=ME, last=LogPoint(1, 5), pre_vote=True)
    one = replace(one, serial=3, sent={n - 2: Sent(n, ask) for n in (3, 4, 5)})
    refused = VoteAnswer(error=Code.NONE, epoch=1, leader=2)
    granted = VoteAnswer(error=Code.NONE, epoch=1, leader=2, granted=True)
    one, _ = after(one, Answered(1, refused), Answered(2, granted))
    assert isinstance(one.role, Prospective)
    one, _ = after(one, Answered(3, granted))
    assert isinstance(one.role, Candidate)


@pytest.mark.parametrize(("place", "waits"), [(0, 0), (1, 125), (2, 250), (3, 500), (None, 1_000)])
def test_successors_wait_by_their_place(place, waits):
    others = [KEYS[n] for n in (4, 5, 6, 7)]
    if place is not None:
        others[place] = ME
    bye = EndEpochRequest(epoch=1, leader=OTHER, successors=tuple(others))
    one, _ = after(replica(follower()), asked(bye))
    assert isinstance(one.role, Follower)
    assert one.role.fetch_by == NOW.ms + waits
    assert not one.role.fetched


def leader(**facts) -> Leader:
    heard = {KEYS[n]: Progress(5, NOW.ms, NOW.ms) for n in (2, 3, 4, 5)}
    return Leader(epoch=1, epoch_start=0, since=NOW.ms, high_watermark=5, peers=heard, **facts)


def test_a_newcomer_is_not_confirmed_by_the_answer_of_an_earlier_one():
    one = replica(leader(), log=LogFacts(0, 5, 5, ((1, 0),)), committed=5)
    one, said = after(one, asked(AddVoterRequest(voter=voter(4))))
    [first] = of_kind(said, Probe)
    one, _ = after(one, Unanswered(first.serial))
    one, said = after(one, asked(AddVoterRequest(voter=voter(5))), Reachable(first.serial, (0, 1)))
    assert of_kind(said, Write) == []
    [second] = of_kind(said, Probe)
    one, said = after(one, Reachable(second.serial, (0, 1)))
    [written] = of_kind(said, Write)
    assert [key.id for key in written.batch.voters.keys] == [1, 2, 3, 5]


def test_a_newcomer_that_does_not_answer_ends_the_change_at_once():
    one = replica(leader(), committed=5)
    one, said = after(one, asked(AddVoterRequest(voter=voter(4))))
    [probe] = of_kind(said, Probe)
    one, said = after(one, Unanswered(probe.serial))
    [told] = of_kind(said, Reply)
    assert told.answer.error is Code.REQUEST_TIMED_OUT
    assert isinstance(one.role, Leader)
    assert one.role.change is None


def refused(one: Replica, ms: int) -> Replica:
    fetch = FetchRequest(epoch=1, replica=ME, point=LOG.last)
    one = replace(one, role=replace(follower(), fetch_by=ms + 1_000), sent={9: Sent(2, fetch)})
    return after(one, Unanswered(9, refused=True), now=Moment(ms, 0.5))[0]


def test_a_refused_port_hurries_one_election_in_each_fetch_timeout_and_ever_fewer():
    one, hurried = replica(follower()), []
    for ms in range(10_000, 40_000, 250):
        one = refused(one, ms)
        assert isinstance(one.role, Follower)
        if one.role.fetch_by < ms + 1_000:
            assert one.role.fetch_by - ms <= 150
            hurried.append(ms)
    pauses = [b - a for a, b in pairwise(hurried)]
    assert pauses == [1_000, 2_000, 4_000, 8_000]


def test_what_the_leader_refuses_to_hear_from_a_voter_it_hears_from_a_fetch():
    one = replica(leader())
    vote = VoteRequest(epoch=2, candidate=OTHER, last=LogPoint(1, 9))
    same, _ = after(one, asked(vote, by=2))
    assert same.role == one.role
    fetch = FetchRequest(epoch=2, replica=KEYS[6], point=LogPoint(1, 5))
    stranger, _ = after(one, asked(fetch, by=5))
    assert stranger.role == one.role
    removed, _ = after(one, asked(fetch, by=6))
    assert isinstance(removed.role, Unattached)
    assert removed.epoch == 2


def test_what_a_leader_would_have_cut_of_what_is_committed_is_kept():
    one = replica(follower(), committed=5)
    one, said = after(one, Tick())
    [sent] = of_kind(said, Send)
    cut = FetchAnswer(error=Code.NONE, epoch=1, leader=2, diverging=LogPoint(1, 3))
    one, said = after(one, Answered(sent.serial, cut))
    assert of_kind(said, Truncate) == []
    assert len(of_kind(said, Fail)) == 1
    assert deadline(one) is None
    _, said = after(one, asked(FetchRequest(epoch=1, replica=OTHER, point=LOG.last)), Tick())
    [told] = of_kind(said, Reply)
    assert told.answer.error is Code.BROKER_NOT_AVAILABLE


def test_a_sync_from_before_a_cut_says_nothing_of_what_was_written_again():
    one = replica(follower(), committed=3, log=replace(LOG, synced=5))
    one, said = after(one, Tick())
    [sent] = of_kind(said, Send)
    cut = FetchAnswer(error=Code.NONE, epoch=1, leader=2, diverging=LogPoint(1, 3))
    one, said = after(one, Answered(sent.serial, cut))
    [sent] = of_kind(said, Send)
    records = FetchAnswer(error=Code.NONE, epoch=1, leader=2, batches=(Batch(3, 2, 1),))
    one, _ = after(one, Answered(sent.serial, records), Synced(5, 0))
    assert one.log.synced == 3
    one, _ = after(one, Synced(5, 1))
    assert one.log.synced == 5


def test_an_answer_that_cuts_nothing_is_no_reason_to_ask_at_once_again():
    one, said = after(replica(follower()), Tick())
    [sent] = of_kind(said, Send)
    odd = FetchAnswer(error=Code.NONE, epoch=1, leader=2, diverging=LogPoint(1, 9))
    _, said = after(one, Answered(sent.serial, odd))
    assert of_kind(said, Send) == []


def test_a_voter_says_where_it_listens_until_the_set_says_so():
    one = replace(replica(follower()), endpoints=(Endpoint("Q", "host", 1),))
    one, said = after(one, Tick())
    updates = [each.request for each in of_kind(said, Send)]
    assert [each.voter.endpoints[0].port for each in updates if hasattr(each, "voter")] == [1]
    _, said = after(one, Tick(), now=Moment(NOW.ms + 10, 0.0))
    assert not any(isinstance(each.request, UpdateVoterRequest) for each in of_kind(said, Send))


@pytest.mark.parametrize(
    ("saved", "role"),
    [
        (SavedState(3, 1, ME), Resigned),
        (SavedState(3, None, ME), Candidate),
        (SavedState(3, 2, ME), Follower),
        (SavedState(3, 2), Follower),
        (SavedState(3, 6), Unattached),
        (SavedState(3, None, OTHER), Unattached),
        (SavedState(0), Unattached),
    ],
)
def test_the_first_role_is_what_was_saved(saved, role):
    one, said = start(me=ME, cluster_id="c", saved=saved, log=LOG, voters=voters(1, 2, 3), now=NOW)
    assert isinstance(one.role, role)
    assert one.epoch == max(saved.epoch, 1)
    assert one.voted == saved.voted
    # The log is ahead of what was saved: nobody has voted in its epoch.
    assert [each.state for each in of_kind(said, Save)] == [SavedState(1)] * (saved.epoch == 0)


def test_records_without_quorum_state_start_nothing():
    with pytest.raises(CannotStart):
        start(me=ME, cluster_id="c", saved=None, log=LOG, voters=voters(1, 2, 3), now=NOW)


@pytest.mark.parametrize(
    ("point", "diverging"),
    [
        (LogPoint(0, 50), LogPoint(0, 0)),
        (LogPoint(1, 1_000_000_000), LogPoint(1, 5)),
        (LogPoint(3, 7), LogPoint(1, 5)),
    ],
)
def test_a_fetch_that_parts_from_the_log_is_told_where(point, diverging):
    one = replica(replace(leader(), epoch=4), log=LogFacts(0, 9, 9, ((1, 0), (4, 5))))
    fetch = FetchRequest(epoch=4, replica=OTHER, point=point)
    _, said = after(one, asked(fetch))
    [told] = of_kind(said, Reply)
    assert told.answer.diverging == diverging
