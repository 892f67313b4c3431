"""Every planted bug still fits the code it is planted in; `make sim-mutants` hunts them."""

import importlib.util
from pathlib import Path

import pytest

from tests.simulation.mutants import MUTANTS, Mutant, mutated


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_text_that_a_mutant_replaces_is_there_once(mutant: Mutant):
    spec = importlib.util.find_spec(mutant.module)
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin).read_text()
    compile(mutated(source, mutant), spec.origin, "exec")
