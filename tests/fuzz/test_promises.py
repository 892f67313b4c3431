"""Inputs that once broke a promise of a parser keep it now; coverage-guided fuzzing found them."""

from pathlib import Path

import pytest

from tests.fuzz.guided import seeds
from tests.fuzz.promises import JUDGES

FOUND = sorted((Path(__file__).parents[1] / "data" / "fuzz").rglob("*.bin"))


@pytest.mark.parametrize("path", FOUND, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_an_input_that_broke_a_promise_keeps_it(path):
    JUDGES[path.parent.name](path.read_bytes())


@pytest.mark.parametrize("name", [*JUDGES])
def test_what_the_fuzzer_begins_with_keeps_every_promise_and_so_does_each_cut_of_it(name):
    for seed in seeds(name):
        for size in {len(seed), len(seed) // 2, len(seed) - 1, 0}:
            JUDGES[name](seed[:size])


def test_every_parser_has_an_input_to_begin_with():
    assert all(any(seeds(name)) for name in JUDGES)
