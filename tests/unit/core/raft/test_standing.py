"""Losses that a quorum bears, voters that are heard, and cautions before a change of them."""

import pytest

from rlmm_daemon.core.raft.inputs import SavedState
from rlmm_daemon.core.raft.log_facts import LogFacts
from rlmm_daemon.core.raft.roles import (
    Candidate,
    Follower,
    Leader,
    Progress,
    Prospective,
    Replica,
    Role,
    Timing,
    Unattached,
)
from rlmm_daemon.core.raft.standing import cautions, heard, reaches_majority, tolerated
from rlmm_daemon.core.raft.voters import (
    ReplicaKey,
    Voter,
    VoterHistory,
    VotersAt,
    VoterSet,
)


def voters(*ids: int) -> VoterSet:
    return VoterSet.of(Voter(ReplicaKey(each, bytes([each]) * 16)) for each in ids)


@pytest.mark.parametrize(
    ("count", "lost"), [(0, 0), (1, 0), (2, 0), (3, 1), (4, 1), (5, 2), (6, 2), (7, 3)]
)
def test_a_majority_has_to_be_left(count, lost):
    assert tolerated(count) == lost


def test_only_voters_that_are_there_reach_a_majority():
    three = voters(1, 2, 3)
    assert reaches_majority(three, voters(1, 2).keys)
    assert not reaches_majority(three, voters(1, 4, 5).keys), "observers count nothing"
    other_disk = ReplicaKey(2, b"x" * 16)
    assert not reaches_majority(three, [*voters(1).keys, other_disk]), "nor does another directory"


NOW = 10_000
SECOND, THIRD, BEHIND = (ReplicaKey(each, bytes([each]) * 16) for each in (2, 3, 4))
FRESH, OLD = Progress(fetched_at=NOW - 1_400), Progress(fetched_at=NOW - 1_600)


@pytest.mark.parametrize(
    ("role", "whom"),
    [
        (Unattached(epoch=1, election_at=0), {1}),
        (Unattached(epoch=1, election_at=0, leader=2), {1}),
        (Prospective(epoch=1, election_at=0, granted=frozenset({1, 3})), {1, 3}),
        (Prospective(epoch=1, election_at=0, refused=frozenset({2})), {1, 2}),
        (Candidate(epoch=1, election_at=0, granted=frozenset({1}), refused=frozenset({3})), {1, 3}),
        (Follower(epoch=1, leader=2, fetch_by=NOW + 1, fetched=True), {1, 2}),
        (Follower(epoch=1, leader=2, fetch_by=NOW, fetched=True), {1}),
        (Follower(epoch=1, leader=2, fetch_by=NOW + 1), {1}),
        (Leader(epoch=1, epoch_start=0, since=0), {1}),
        (
            Leader(
                epoch=1,
                epoch_start=0,
                since=0,
                peers={SECOND: FRESH, THIRD: OLD, BEHIND: FRESH},
            ),
            {1, 2},
        ),
        (Leader(epoch=1, epoch_start=0, since=0, peers={SECOND: Progress()}), {1}),
    ],
    ids=repr,
)
def test_a_voter_that_answered_lately_is_heard(role: Role, whom: set[int]) -> None:
    assert heard(replica(1, role), NOW) == whom


def test_an_observer_is_none_of_those_that_are_heard() -> None:
    follower = Follower(epoch=1, leader=2, fetch_by=NOW + 1, fetched=True)
    assert heard(replica(4, follower), NOW) == {2}


def replica(number: int, role: Role) -> Replica:
    return Replica(
        me=ReplicaKey(number, bytes([number]) * 16),
        cluster_id="c",
        role=role,
        voters=VoterHistory((VotersAt(-1, voters(1, 2, 3)),)),
        log=LogFacts(),
        saved=SavedState(),
        timing=Timing(fetch=1_000),
    )


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ((1, 2), (1, 2, 3), []),
        ((1,), (1, 2), ["two voters tolerate no failure"]),
        ((1, 2, 3), (1, 2), ["two voters tolerate no failure", "go from 1 to 0"]),
        ((1, 2, 3), (1, 2, 3, 4), ["4 voters tolerate no more failures than 3"]),
        ((1, 2), (1,), ["the only copy that counts"]),
        ((1, 2, 3, 4, 5), (1, 2, 3, 4), ["no more failures than 3", "go from 2 to 1"]),
    ],
    ids=repr,
)
def test_an_operator_is_told_what_a_change_costs(before, after, words):
    said = cautions(voters(*before), voters(*after))
    assert len(said) == len(words)
    assert all(each in line for each, line in zip(words, said, strict=True))
