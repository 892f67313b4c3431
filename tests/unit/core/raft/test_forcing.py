"""Forced voters: whose log is taken, in which epoch, and who must go no further."""

import msgspec
import pytest

from rlmm_daemon.core.raft import forcing
from rlmm_daemon.core.raft.elections import EPOCH_STEP_MAX
from rlmm_daemon.core.raft.forcing import FORCED_STEP, Left
from rlmm_daemon.core.raft.inputs import Answered, Moment, SavedState
from rlmm_daemon.core.raft.log_facts import Batch, LogFacts, LogPoint
from rlmm_daemon.core.raft.messages import Answer, Code
from rlmm_daemon.core.raft.roles import Replica, Sent
from rlmm_daemon.core.raft.step import start
from rlmm_daemon.core.raft.voters import (
    Endpoint,
    ReplicaKey,
    Voter,
    VoterHistory,
    VotersAt,
    VoterSet,
)
from rlmm_daemon.domain.errors import InvalidArgument

HERE = Endpoint("QUORUM", "127.0.0.1", 9393)
LUCK = Moment(0, 0.5)


def key(node_id: int) -> ReplicaKey:
    return ReplicaKey(node_id, bytes([node_id]) * 16)


def voters(*ids: int) -> VotersAt:
    return VotersAt(-1, VoterSet.of(Voter(key(each)) for each in ids))


def left(node_id: int, epoch: int, end: int, *, known: int = 0, of: VotersAt | None = None) -> Left:
    return Left(
        directory=f"/{node_id}",
        key=key(node_id),
        last=LogPoint(epoch, end),
        epoch=max(known, epoch),
        voters=of or voters(1, 2, 3),
    )


def test_the_newest_log_is_taken_an_observers_too():
    found = forcing.plan([left(1, 5, 100), left(4, 5, 200), left(5, 4, 900)], HERE)
    assert (found.chosen.key, found.unread) == (key(4), (key(2), key(3)))
    assert found.after.voters == (Voter(key(4), (HERE,)),)


def test_of_equal_logs_a_voters_is_taken():
    assert forcing.plan([left(1, 5, 100), left(4, 5, 100)], HERE).chosen.key == key(1)


@pytest.mark.parametrize("known", [0, 1, 65_535, 65_536, 65_537, 131_072, 200_000])
def test_no_election_leads_to_the_epoch_and_everybody_takes_its_word(known):
    found = forcing.plan([left(1, 0, 100, known=known)], HERE)
    assert FORCED_STEP // 2 <= found.epoch - known < EPOCH_STEP_MAX
    assert forcing.times_forced(found.epoch) > forcing.times_forced(known)
    assert forcing.times_forced(found.epoch + 1000) == forcing.times_forced(found.epoch)


def test_an_epoch_that_only_the_state_knows_counts():
    found = forcing.plan([left(1, 5, 100), left(4, 4, 50, known=FORCED_STEP)], HERE)
    assert (found.chosen.key, found.epoch) == (key(1), 2 * FORCED_STEP)


@pytest.mark.parametrize(
    ("found", "why"),
    [
        ([], "no directory"),
        ([left(1, 0, 0)], "format a new quorum"),
        ([left(1, 5, 100), left(2, 5, 90)], "they are a majority"),
        ([left(1, 5, 100), left(1, 5, 90)], "one replica's"),
        ([left(1, 5, 100, of=VotersAt(-1, voters(1, 2, 3).voters, 0))], "kraft.version 0"),
    ],
)
def test_what_would_lose_more_than_it_saves_is_refused(found, why):
    with pytest.raises(InvalidArgument, match=why):
        forcing.plan(found, HERE)


def replica(*, end: int, epoch: int = 7) -> Replica:
    log = LogFacts().append(Batch(0, end, epoch)).sync(end) if end else LogFacts()
    begun, _ = start(
        me=key(2),
        cluster_id="c",
        saved=SavedState(epoch),
        log=log,
        voters=VoterHistory((voters(1, 2, 3),)),
        now=LUCK,
    )
    return msgspec.structs.replace(begun, sent={9: Sent(1, None)})


def answered(epoch: int, serial: int = 9) -> Answered:
    return Answered(serial, Answer(error=Code.FENCED_LEADER_EPOCH, epoch=epoch, leader=1))


def test_a_voter_of_the_abandoned_set_goes_no_further():
    forced = forcing.plan([left(1, 7, 100)], HERE).epoch
    assert forcing.is_abandoned(replica(end=100), answered(forced))
    assert forcing.is_abandoned(replica(end=100), answered(forced + 50))


def test_others_are_not_taken_for_abandoned():
    forced = forcing.plan([left(1, 7, 100)], HERE).epoch
    assert not forcing.is_abandoned(replica(end=0, epoch=0), answered(forced)), "a new directory"
    assert not forcing.is_abandoned(replica(end=100), answered(7 + 1000)), "many elections"
    assert not forcing.is_abandoned(replica(end=100), answered(forced, serial=8)), "nobody asked"
    assert not forcing.is_abandoned(replica(end=100, epoch=forced), answered(forced + 3))
    assert not forcing.is_abandoned(replica(end=100), answered(7 + EPOCH_STEP_MAX + 1)), "an attack"
