"""Reads at a leader: what may answer them, what must not, and how they end."""

import pytest
from msgspec.structs import replace

from rlmm_daemon.core.raft.inputs import (
    Answered,
    Asked,
    Effect,
    Input,
    Moment,
    Peer,
    ReadAsked,
    ReadAt,
    ReadRefused,
    Resign,
    SavedState,
    Send,
    Submitted,
    Synced,
    Tick,
    Unanswered,
)
from rlmm_daemon.core.raft.log_facts import LogFacts, LogPoint
from rlmm_daemon.core.raft.messages import Answer, BeginEpochRequest, Code, FetchRequest
from rlmm_daemon.core.raft.roles import Follower, Leader, Replica, Role
from rlmm_daemon.core.raft.step import deadline, step
from rlmm_daemon.core.raft.voters import (
    Endpoint,
    ReplicaKey,
    Voter,
    VoterHistory,
    VotersAt,
    VoterSet,
)

NOW = 10_000
KEYS = [ReplicaKey(n, bytes([n]) * 16) for n in range(6)]
ME, SECOND, THIRD = KEYS[1:4]


def leads(*, voters: int = 3, high_watermark: int = 5) -> Replica:
    """A leader of epoch 2, by default with a record of its own committed."""
    known = (Voter(KEYS[n], (Endpoint("Q", "host", n),)) for n in range(1, voters + 1))
    return Replica(
        me=ME,
        cluster_id="c",
        role=Leader(epoch=2, epoch_start=4, since=NOW, high_watermark=high_watermark),
        voters=VoterHistory((VotersAt(-1, VoterSet.of(known)),)),
        log=LogFacts(0, 5, 5, ((1, 0), (2, 4))),
        saved=SavedState(2, 1),
        committed=max(high_watermark, 0),
    )


class Quorum:
    """A leader, and what it said."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.now = NOW
        self.said: list[Effect] = []

    def happen(self, happened: Input) -> list[Effect]:
        self.replica, effects = step(self.replica, happened, Moment(self.now, 0.5))
        self.said += effects
        return effects

    def ask(self, token: int) -> dict[int, int]:
        """Read; return the serials under which voters were asked."""
        return asks(self.happen(ReadAsked(token)))

    def answer(self, serial: int, error: Code = Code.NONE, epoch: int = 2) -> list[Effect]:
        return self.happen(Answered(serial, Answer(error=error, epoch=epoch)))

    def fetch(self, key: ReplicaKey) -> list[Effect]:
        request = FetchRequest(
            epoch=2, replica=key, point=LogPoint(2, 5), high_watermark=5, wait_ms=250
        )
        return self.happen(Asked(1, request, Peer(key.id), "c"))


def asks(effects: list[Effect]) -> dict[int, int]:
    return {
        effect.to: effect.serial
        for effect in effects
        if isinstance(effect, Send)
        and isinstance(effect.request, BeginEpochRequest)
        and effect.to is not None
    }


def answers(effects: list[Effect]) -> list[Effect]:
    return [each for each in effects if isinstance(each, ReadAt | ReadRefused)]


def test_a_read_is_answered_by_one_voter_more_than_the_leader_of_three():
    quorum = Quorum(leads())
    asked = quorum.ask(7)
    assert asked.keys() == {SECOND.id, THIRD.id}
    assert answers(quorum.said) == []
    assert answers(quorum.answer(asked[THIRD.id])) == [ReadAt(7, 5)]
    assert answers(quorum.answer(asked[SECOND.id])) == []


def test_of_five_two_have_to_answer():
    quorum = Quorum(leads(voters=5))
    asked = quorum.ask(7)
    assert answers(quorum.answer(asked[2])) == []
    assert answers(quorum.answer(asked[4])) == [ReadAt(7, 5)]


def test_alone_a_read_is_answered_at_once():
    quorum = Quorum(leads(voters=1))
    assert quorum.ask(7) == {}
    assert answers(quorum.said) == [ReadAt(7, 5)]


def test_what_was_sent_before_a_read_says_nothing_of_it():
    quorum = Quorum(leads())
    first = quorum.ask(7)
    assert quorum.ask(8) == {}, "nobody is asked twice at a time"
    after = quorum.answer(first[SECOND.id])
    assert answers(after) == [ReadAt(7, 5)]
    again = asks(after)
    assert again.keys() == {SECOND.id}
    assert answers(quorum.answer(again[SECOND.id])) == [ReadAt(8, 5)]


def test_a_fetch_says_nothing_of_a_read_nor_do_two():
    """One that was given up on was sent long ago, and so was its successor.

    A leader that was paused finds both when it wakes, and behind them nothing more: their sender
    follows another by now, and what that one acknowledged is not here.
    """
    quorum = Quorum(leads())
    quorum.ask(7)
    for key in (SECOND, THIRD, SECOND, THIRD):
        quorum.fetch(key)
    assert answers(quorum.said) == []


@pytest.mark.parametrize("error", [Code.INVALID_VOTER_KEY, Code.FENCED_LEADER_EPOCH])
def test_a_refusal_says_nothing_and_is_not_asked_again_at_once(error):
    quorum = Quorum(leads())
    asked = quorum.ask(7)
    assert quorum.answer(asked[SECOND.id], error) == []
    due = deadline(quorum.replica)
    assert due == NOW + quorum.replica.timing.retry
    quorum.now = due
    again = asks(quorum.happen(Tick()))
    assert again.keys() == {SECOND.id}
    assert answers(quorum.answer(again[SECOND.id])) == [ReadAt(7, 5)]


def test_a_voter_that_did_not_answer_is_asked_again_a_moment_later():
    quorum = Quorum(leads())
    asked = quorum.ask(7)
    for serial in asked.values():
        assert quorum.happen(Unanswered(serial, refused=True)) == []
    assert quorum.ask(8) == {}
    quorum.now += quorum.replica.timing.retry
    again = asks(quorum.happen(Tick()))
    assert again.keys() == asked.keys()
    assert answers(quorum.answer(again[THIRD.id])) == [ReadAt(7, 5), ReadAt(8, 5)]


def test_a_read_waits_for_a_record_of_this_epoch():
    quorum = Quorum(leads(high_watermark=-1))
    asked = quorum.ask(7)
    assert answers(quorum.answer(asked[SECOND.id])) == []
    assert answers(quorum.fetch(SECOND)) == [ReadAt(7, 5)]


def test_a_read_sees_what_was_committed_while_it_waited():
    quorum = Quorum(leads(voters=1))
    quorum.happen(Submitted(1, 2))
    quorum.happen(Synced(7, 0))
    quorum.ask(7)
    assert answers(quorum.said) == [ReadAt(7, 7)]


def test_a_newer_epoch_refuses_all_that_wait():
    quorum = Quorum(leads())
    asked = quorum.ask(7)
    quorum.ask(8)
    assert answers(quorum.answer(asked[SECOND.id], Code.FENCED_LEADER_EPOCH, epoch=3)) == [
        ReadRefused(7, None),
        ReadRefused(8, None),
    ]


def test_a_leader_that_goes_refuses_all_that_wait():
    quorum = Quorum(leads())
    quorum.ask(7)
    assert answers(quorum.happen(Resign())) == [ReadRefused(7, None)]


def test_a_leader_that_hears_fetches_and_no_answers_refuses_in_the_end():
    quorum = Quorum(leads())
    asked = quorum.ask(7)
    quorum.now += quorum.replica.timing.check_quorum - 1
    for key in (SECOND, THIRD):
        quorum.fetch(key)
    assert answers(quorum.happen(Tick())) == []
    quorum.now += 1
    assert answers(quorum.happen(Tick())) == [ReadRefused(7, None)]
    assert isinstance(quorum.replica.role, Leader)
    assert answers(quorum.answer(asked[SECOND.id])) == []


@pytest.mark.parametrize(
    "role",
    [Follower(epoch=2, leader=SECOND.id, fetch_by=NOW + 1)],
    ids=lambda role: type(role).__name__,
)
def test_who_does_not_lead_says_who_does(role: Role):
    quorum = Quorum(replace(leads(), role=role))
    quorum.ask(7)
    assert answers(quorum.said) == [ReadRefused(7, SECOND.id)]


def test_a_failed_replica_refuses_reads():
    quorum = Quorum(replace(leads(), failed="its log diverges"))
    quorum.ask(7)
    assert answers(quorum.said) == [ReadRefused(7, None)]
