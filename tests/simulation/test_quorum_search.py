"""Every order of events of one election; `make sim-quorum-search` goes further."""

import pytest

from rlmm_daemon.core.raft import elections, leading
from tests.simulation.quorum.exhaustive import Search
from tests.simulation.quorum.truth import Broken


@pytest.mark.timeout(300)  # thousands of states, on a processor that others use
def test_no_order_of_events_of_one_epoch_breaks_it():
    search = Search(epochs=1, appends=0, standing=2, states_max=10_000)
    search.run()
    assert search.complete
    assert search.states > 4_000


def test_a_second_vote_in_one_epoch_would_be_found(monkeypatch):
    monkeypatch.setattr(elections, "_grants", lambda *_: True)
    with pytest.raises((Broken, AssertionError)):
        Search(epochs=1, appends=0, standing=2, states_max=10_000).run()


def test_a_commit_without_a_majority_would_be_found(monkeypatch):
    monkeypatch.setattr(leading, "majority_reached", lambda ends, _: max(ends))
    with pytest.raises(Broken, match="is committed, and on 1 disks"):
        Search(epochs=1, appends=0, standing=2, states_max=10_000).run()
