"""Losses that a quorum bears, and cautions before a change of its voters."""

import pytest

from rlmm_daemon.core.raft.standing import cautions, reaches_majority, tolerated
from rlmm_daemon.core.raft.voters import ReplicaKey, Voter, VoterSet


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
