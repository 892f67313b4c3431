"""Requests to other replicas: each ends in an input, whatever becomes of it."""

from typing import Any

import pytest

from rlmm_daemon.adapters.quorum.asking import Asking
from rlmm_daemon.adapters.quorum.links import Unreachable
from rlmm_daemon.adapters.quorum.notices import Notices
from rlmm_daemon.core.raft.inputs import Answered, Probe, SavedState, Send, Unanswered
from rlmm_daemon.core.raft.log_facts import BEGINNING, LogFacts
from rlmm_daemon.core.raft.messages import Answer, Code, VoteRequest
from rlmm_daemon.core.raft.roles import Replica, Unattached
from rlmm_daemon.core.raft.voters import (
    Endpoint,
    ReplicaKey,
    Voter,
    VoterHistory,
    VotersAt,
    VoterSet,
)

HERE = Endpoint("QUORUM", "127.0.0.1", 9)
OTHER = ReplicaKey(2)
VOTE = VoteRequest(epoch=1, candidate=ReplicaKey(1), last=BEGINNING, voter=OTHER)


class Links:
    """Connections of which each call ends so."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def ask(self, *_: Any) -> Any:
        raise self._error

    versions = ask


@pytest.mark.parametrize(
    ("error", "refused"),
    [
        (Unreachable("nobody listens", refused=True), True),
        (Unreachable("no answer in time"), False),
        (KeyError("a defect of ours"), False),
    ],
    ids=str,
)
async def test_what_is_not_answered_is_said_to_be(error: Exception, refused: bool) -> None:  # noqa: FBT001 - a case's
    """Else its answer is awaited for ever, and that replica is asked nothing more."""
    heard: list[Any] = []
    links: Any = Links(error)
    asking = Asking(links, (), heard.append, Notices({}))
    await asking.send(Send(7, 2, VOTE, (HERE,)))
    await asking.probe(Probe(8, OTHER, (HERE,)))
    assert heard == [Unanswered(7, refused=refused), Unanswered(8)]


class Leader:
    """A leader that counts these."""

    def __init__(self, counted: frozenset[ReplicaKey] | None) -> None:
        self._counted = counted

    async def voters(self, *_: Any) -> frozenset[ReplicaKey] | None:
        return self._counted


ME = ReplicaKey(1)
SAME = frozenset({ME, OTHER})


@pytest.mark.parametrize(
    ("counted", "leader", "forced"),
    [
        (SAME, 2, False),
        (frozenset({OTHER}), 2, True),
        (None, 2, False),  # it leads no more
        (frozenset({OTHER}), None, False),
    ],
)
async def test_only_other_voters_prove_that_they_were_forced(
    counted: frozenset[ReplicaKey] | None,
    leader: int | None,
    forced: bool,  # noqa: FBT001 - a case's
) -> None:
    """An epoch far ahead alone is none: whoever reaches a port in the clear can bring one about."""
    links: Any = Leader(counted)
    heard: list[Any] = []
    asking = Asking(links, (), heard.append, Notices({}))
    voters = VoterSet.of([Voter(ME), Voter(OTHER)])
    replica = Replica(
        me=ME,
        cluster_id="c",
        role=Unattached(epoch=1, election_at=0),
        voters=VoterHistory((VotersAt(-1, voters),)),
        log=LogFacts(),
        saved=SavedState(1),
    )
    answer = Answer(error=Code.FENCED_LEADER_EPOCH, epoch=1 << 17, leader=leader, endpoints=(HERE,))
    error = await asking.confirm(replica, Answered(7, answer))
    assert (error is not None) == forced
