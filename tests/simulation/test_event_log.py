"""The embedded event log, unmodified, through crashes, lying disks and full ones."""

import pytest

from tests.simulation.embedded_log import scenario
from tests.simulation.world import run_seed


@pytest.mark.parametrize("block", range(5))
def test_the_embedded_log_keeps_its_promises(block: int):
    for seed in range(block * 8, block * 8 + 8):
        failure = run_seed(seed, scenario).failure
        assert failure is None, failure


def test_the_seeds_reach_acknowledgements_refusals_and_doubt():
    counts: dict[str, int] = {}
    for seed in range(40, 60):
        for name, count in run_seed(seed, scenario).counts.items():
            counts[name] = counts.get(name, 0) + count
    assert counts.keys() >= {"acknowledged", "unknown", "refused", "fdatasync EIO", "short write"}


#: Seeds that once showed a fault, with the fault.
REGRESSIONS = {
    0: "while it closed, the log answered 'no such partition' instead of 'draining'",
}


@pytest.mark.parametrize("seed", REGRESSIONS)
def test_a_seed_that_once_failed_passes(seed: int):
    failure = run_seed(seed, scenario).failure
    assert failure is None, failure
