"""A quorum as its leader sees it, in the words of `rlmm quorum describe`."""

from rlmm_daemon.adapters.quorum.client import Description, ReplicaState
from rlmm_daemon.cli.quorum import seen
from rlmm_daemon.core.raft.voters import Endpoint, ReplicaKey

NOW = 1_700_000_000_000


def state(node_id: int, end: int = 100, ago_ms: int | None = 5) -> ReplicaState:
    at = -1 if ago_ms is None else NOW - ago_ms
    return ReplicaState(ReplicaKey(node_id, bytes([node_id]) * 16), end, at, at)


def quorum(*voters: ReplicaState, committed: int = 100) -> Description:
    return Description(
        leader=1,
        epoch=3,
        high_watermark=committed,
        voters=(state(1, ago_ms=0), *voters),
        observers=(state(9, end=40),),
        endpoints={1: (Endpoint("QUORUM", "::1", 9391),)},
    )


def test_lags_are_told_by_the_leaders_clock():
    told = seen.told("c", quorum(state(2, end=90, ago_ms=250), state(3, end=-1, ago_ms=None)))
    one, two, three = told["voters"]
    assert (one["leads"], one["behind"], one["listeners"]) == (True, 0, ["[::1]:9391"])
    assert (two["behind"], two["fetched_ms_ago"]) == (10, 250)
    assert (three["end"], three["behind"], three["fetched_ms_ago"]) == (None, None, None)
    assert told["observers"][0]["behind"] == 60


def test_a_quorum_in_health_has_no_trouble():
    assert seen.troubles(quorum(state(2), state(3))) == []


def test_voters_that_are_away_are_named_with_what_is_left():
    away = seen.AWAY_MS + 1
    found = seen.troubles(quorum(state(2), state(3, ago_ms=away)))
    assert found == ["voter 3 has not fetched for 10 s", "the next loss stops the quorum"]
    found = seen.troubles(quorum(state(2, ago_ms=away), state(3, ago_ms=None)))
    assert found == ["voters 2, 3 have not fetched for 10 s", "too few are left to commit anything"]
    four = (state(2), state(3), state(4), state(5, ago_ms=None))
    assert seen.troubles(quorum(*four))[-1] == "1 more may be lost"


def test_an_epoch_without_a_commit_is_trouble():
    found = quorum(state(2), state(3), committed=-1)
    assert seen.troubles(found) == ["nothing is committed yet in this epoch"]
    assert seen.told("c", found)["high_watermark"] is None
