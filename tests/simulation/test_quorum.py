"""A few seeds of the quorum's simulation; `make sim-quorum` runs more."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.simulation.mutants import mutated
from tests.simulation.quorum import submitting
from tests.simulation.quorum.mutants import BY_NAME
from tests.simulation.quorum.world import run_seed


@pytest.mark.parametrize("seed", range(8))
def test_the_quorum_keeps_its_promises(seed):
    outcome = run_seed(seed)
    assert outcome.failure is None
    assert outcome.events > 100


def test_a_seed_goes_the_same_way_each_time():
    first, again, other = run_seed(3), run_seed(3, keep_tail=True), run_seed(4)
    assert (first.trace, first.events, first.counts) == (again.trace, again.events, again.counts)
    assert first.trace != other.trace


@pytest.mark.parametrize("seed", range(8))
def test_what_daemons_submit_lands_once_and_is_told_as_it_is(seed):
    outcome, again = submitting.run_seed(seed), submitting.run_seed(seed)
    assert outcome.failure is None
    assert outcome.counts["acknowledged"] > 0
    assert (outcome.trace, outcome.counts) == (again.trace, again.counts)


@pytest.mark.parametrize("mutant", BY_NAME.values(), ids=lambda mutant: mutant.name)
def test_a_planted_bug_fits(mutant):
    found = find_spec(mutant.module)
    assert found is not None
    assert found.origin is not None
    assert mutated(Path(found.origin).read_text(), mutant)
