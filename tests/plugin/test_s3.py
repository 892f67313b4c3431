"""A real S3 server as the tier, and the proxy on the way to it killed while everything writes.

`make soak-cluster` runs the tests of test_tiering on such a fleet as well.
"""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.dev.stack.s3 import S3Server, weed_binary
from tests.plugin.conftest import PLUGIN
from tests.plugin.fleet import Fleet, until
from tests.plugin.storm import Fault, storm
from tests.plugin.tiers import S3Tier

pytestmark = [
    pytest.mark.s3,
    pytest.mark.skipif(weed_binary() is None, reason="no `weed` for this platform"),
]


@pytest.fixture(scope="module")
def fleet_on_s3(s3_server: S3Server) -> Iterator[Fleet]:
    """A fleet whose brokers try a failed delete again soon."""
    quick = {f"{part}.config.delete.fail.fast.ms": "3000" for part in ("rlmm", "rsm")}
    with tempfile.TemporaryDirectory(prefix="rlmm-fleet-", ignore_cleanup_errors=True) as directory:
        fleet = Fleet(Path(directory), PLUGIN, tier=S3Tier(s3_server), properties=quick)
        try:
            yield fleet.start()
        finally:
            fleet.end()


@pytest.fixture
def fleet(fleet_on_s3: Fleet) -> Iterator[Fleet]:
    """The fleet of this module, all of which runs again afterwards."""
    yield fleet_on_s3
    fleet_on_s3.heal()


@pytest.mark.slow
def test_what_was_tiered_is_read_back_from_s3_once_the_way_to_it_is_there(fleet: Fleet) -> None:
    assert isinstance(fleet.tier, S3Tier)
    fleet.create("bucket", [1, 2])
    end = fleet.write("bucket", 2500) + 1
    fleet.until_tiered("bucket", end, brokers=[1, 2])
    assert len(fleet.stored("bucket", ".log")) >= 2
    assert fleet.read("bucket").ranges == [[0, end - 1]]
    fleet.tier.proxy.kill()
    more = fleet.write("bucket", 1500, first=end) + 1
    assert fleet.read("bucket", offset=end).ranges == [[end, more - 1]], "local data is served"
    fleet.tier.proxy.start()
    fleet.until_tiered("bucket", more, brokers=[1, 2])
    assert fleet.read("bucket").ranges == [[0, more - 1]]
    fleet.delete("bucket")
    until(lambda: not fleet.stored("bucket"), "the bucket is empty")


@pytest.mark.timeout(600)
def test_the_proxy_killed_under_load_loses_and_doubles_nothing(fleet: Fleet) -> None:
    storm(fleet, "cut", rounds=2, seed=3, faults=[Fault.PROXY])


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_proxy_daemons_and_brokers_killed_many_times_under_load(fleet: Fleet) -> None:
    rounds = int(os.environ.get("RLMM_SOAK_ROUNDS", "30"))
    storm(fleet, "long-cut", rounds=rounds, seed=4, faults=list(Fault))
