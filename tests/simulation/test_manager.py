"""The manager, its followers, writers and snapshots, unmodified, through crashes and repeats."""

import pytest

from tests.simulation.manager import scenario
from tests.simulation.world import run_seed


@pytest.mark.parametrize("block", range(3))
def test_the_manager_keeps_its_promises(block: int):
    for seed in range(block * 5, block * 5 + 5):
        failure = run_seed(seed, scenario).failure
        assert failure is None, failure


def test_the_seeds_reach_writes_answers_and_snapshots():
    counts: dict[str, int] = {}
    for seed in range(20, 28):
        for name, count in run_seed(seed, scenario).counts.items():
            counts[name] = counts.get(name, 0) + count
    assert min(counts[name] for name in ("steps_acknowledged", "answers", "snapshots")) > 0
