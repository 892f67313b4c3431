"""Changes of voters: what is refused before anybody is asked, and what an unknown outcome says."""

from collections.abc import Callable

import pytest

from rlmm_daemon.adapters.quorum.client import Description, ReplicaState
from rlmm_daemon.cli.quorum import changing
from rlmm_daemon.cli.quorum.addresses import Quorum
from rlmm_daemon.core.raft.voters import Endpoint, ReplicaKey
from rlmm_daemon.domain.errors import InvalidArgument, NotReady, OutcomeUnknown

NOW = 1_700_000_000_000
HERE = Endpoint("QUORUM", "127.0.0.1", 9394)
ASKED = Quorum(servers=(HERE,), timeout_seconds=1.0, proof={})
AWAY_MS = 60_000


def state(node_id: int, ago_ms: int = 5, *, disk: int = 0, caught_up: bool = True) -> ReplicaState:
    key = ReplicaKey(node_id, bytes([node_id + disk]) * 16)
    return ReplicaState(key, 10, NOW - ago_ms, NOW - ago_ms if caught_up else -1)


def quorum(*voters: ReplicaState, observers: tuple[ReplicaState, ...] = ()) -> Description:
    return Description(
        leader=1,
        epoch=1,
        high_watermark=10,
        voters=(state(1, 0), *voters),
        observers=observers,
        endpoints={},
    )


@pytest.fixture
def sees(monkeypatch) -> Callable[[Description], None]:
    def set_to(found: Description) -> None:
        monkeypatch.setattr(changing, "described", lambda _: ("c", found))

    return set_to


def test_an_observer_becomes_a_voter(sees):
    sees(quorum(state(2), state(3), observers=(state(4),)))
    change = changing.added(ASKED, 4, None, HERE)
    assert [key.id for key in change.after.keys] == [1, 2, 3, 4]
    assert change.after.voters[3].endpoints == (HERE,)
    assert change.cautions == ["4 voters tolerate no more failures than 3"]


@pytest.mark.parametrize(
    ("found", "error", "why"),
    [
        (quorum(state(4)), InvalidArgument, "is a voter already"),
        (quorum(state(2)), InvalidArgument, "no observer 4 fetches"),
        (quorum(observers=(state(4, caught_up=False),)), NotReady, "has not caught up"),
        (quorum(observers=(state(4), state(4, disk=9))), InvalidArgument, "several directories"),
        (
            quorum(state(2, AWAY_MS), state(3), observers=(state(4, AWAY_MS),)),
            NotReady,
            "nothing could be committed",
        ),
    ],
)
def test_an_observer_that_must_not_count_yet_is_refused(sees, found, error, why):
    sees(found)
    with pytest.raises(error, match=why):
        changing.added(ASKED, 4, None, HERE)


def test_a_directory_that_is_no_more_does_not_stand_in_the_way(sees):
    sees(quorum(state(2), observers=(state(4, AWAY_MS), state(4, disk=9))))
    assert changing.added(ASKED, 4, None, HERE).after.keys[-1].directory == bytes([13]) * 16


@pytest.mark.parametrize(
    ("found", "node_id", "error", "why"),
    [
        (quorum(state(2)), 3, InvalidArgument, "no such voter"),
        (quorum(), 1, InvalidArgument, "the last voter"),
        (quorum(state(2, AWAY_MS), state(3)), 3, NotReady, "nothing could be committed"),
    ],
)
def test_a_voter_that_is_needed_stays(sees, found, node_id, error, why):
    sees(found)
    with pytest.raises(error, match=why):
        changing.removed(ASKED, node_id, None)


def test_a_voter_that_is_away_can_go(sees):
    sees(quorum(state(2, AWAY_MS), state(3)))
    assert [key.id for key in changing.removed(ASKED, 2, None).after.keys] == [1, 3]


def test_a_leader_that_goes_is_told_of(sees):
    sees(quorum(state(2), state(3)))
    assert "replica 1 leads, and hands over first" in changing.removed(ASKED, 1, None).cautions


@pytest.mark.parametrize(
    ("later", "words"),
    [
        (quorum(state(2)), "counts the new voters by now"),
        (quorum(state(2), state(3)), "counts the old voters"),
        (quorum(state(2), state(5)), "the voters are 1, 2, 5"),
    ],
)
def test_an_unknown_outcome_says_what_the_leader_sees_and_where_to_look(
    sees, monkeypatch, later, words
):
    sees(quorum(state(2), state(3)))
    change = changing.removed(ASKED, 3, None)

    def asked(*_: object) -> None:
        raise OutcomeUnknown("its answer is lost")

    monkeypatch.setattr(changing, "ask", asked)
    sees(later)
    with pytest.raises(OutcomeUnknown) as told:
        changing.carry_out(ASKED, change)
    assert told.value.message.startswith("its answer is lost; ")
    assert words in told.value.message
    assert told.value.message.endswith("rlmm quorum describe --server 127.0.0.1:9394")
