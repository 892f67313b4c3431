"""A few seeds of the quorum's simulation; `make sim-quorum` runs more."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.simulation.mutants import mutated
from tests.simulation.quorum.mutants import MUTANTS
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


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_bug_fits(mutant):
    found = find_spec(mutant.module)
    assert found is not None
    assert found.origin is not None
    assert mutated(Path(found.origin).read_text(), mutant)
