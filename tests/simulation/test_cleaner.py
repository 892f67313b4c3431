"""A few seeds of the cleaner's simulation; `make sim-cleaner` runs more."""

import pytest

from tests.simulation.cleaner import run_seed


@pytest.mark.parametrize("seed", range(6))
def test_the_cleaner_keeps_its_promises(seed):
    assert run_seed(seed) > 1_000
