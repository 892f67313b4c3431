"""Brokers with the plugin and daemons beside them, shared by the tests of a module or of the run.

Asked for by RLMM_TEST_KAFKA=1 or RLMM_TEST_KAFKA_LIBS, and only where the plugin was built
(`make plugin`); otherwise skipped.
"""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.dev.stack.kafka import libs
from deploy.dev.stack.s3 import weed_binary
from tests.plugin.fleet import LOCAL_TIERED, Fleet
from tests.plugin.rig import BrokerRig
from tests.plugin.tiers import QUICK_CLEANER, DirectoryTier, S3Tier, Tier
from tests.support.s3_world import s3_server

__all__ = ["s3_server"]  # a fixture

HERE = Path(__file__).parent
PLUGIN = libs.REPOSITORY / "deploy" / "plugin" / "target" / "rlmm-kafka-plugin.jar"
REQUESTED = any(os.environ.get(name) for name in ("RLMM_TEST_KAFKA", "RLMM_TEST_KAFKA_LIBS"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker("kafka")
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(400))
            if not REQUESTED:
                item.add_marker(pytest.mark.skip(reason="needs a broker: RLMM_TEST_KAFKA=1"))
            elif not PLUGIN.exists():
                item.add_marker(pytest.mark.skip(reason="needs the plugin: make plugin"))


@pytest.fixture(scope="module")
def rig() -> Iterator[BrokerRig]:
    """A broker that was started while there was no daemon; the daemon came later."""
    with tempfile.TemporaryDirectory(prefix="rlmm-plugin-") as directory:
        rig = BrokerRig(Path(directory), PLUGIN)
        try:
            rig.start()
            yield rig
        finally:
            rig.end()


ON_S3 = pytest.param(
    "s3",
    marks=[
        pytest.mark.s3,
        pytest.mark.slow,
        pytest.mark.skipif(weed_binary() is None, reason="no `weed` for this platform"),
    ],
)


@pytest.fixture(scope="module", params=["directory", ON_S3])
def module_fleet(request: pytest.FixtureRequest) -> Iterator[Fleet]:
    """Three brokers and three daemons for a module's tests, which use `fleet`."""
    with tempfile.TemporaryDirectory(prefix="rlmm-fleet-", ignore_cleanup_errors=True) as directory:
        tier: Tier = DirectoryTier(Path(directory) / "remote" / LOCAL_TIERED, QUICK_CLEANER)
        if request.param == "s3":
            tier = S3Tier(request.getfixturevalue("s3_server"))
        fleet = Fleet(Path(directory), PLUGIN, tier=tier)
        try:
            yield fleet.start()
        finally:
            fleet.end()


@pytest.fixture
def fleet(module_fleet: Fleet) -> Iterator[Fleet]:
    """The module's fleet, all of which runs again afterwards."""
    yield module_fleet
    module_fleet.heal()
