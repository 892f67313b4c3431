"""`make soak-cluster`: what takes too long for every run."""

import os

import pytest

from tests.plugin.fleet import Fleet
from tests.plugin.storm import storm

pytestmark = pytest.mark.slow


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("module_fleet", ["directory"], indirect=True)  # test_s3 has its own storm
def test_many_kills_under_load(fleet: Fleet) -> None:
    storm(fleet, "long-storm", rounds=int(os.environ.get("RLMM_SOAK_ROUNDS", "30")), seed=2)
