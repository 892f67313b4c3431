"""One broker with the plugin and one daemon beside it.

Asked for by RLMM_TEST_KAFKA=1 or RLMM_TEST_KAFKA_LIBS, and only where the plugin was built
(`make plugin`); otherwise skipped.
"""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.dev.kafka import libs
from tests.plugin.rig import BrokerRig

HERE = Path(__file__).parent
PLUGIN = libs.REPOSITORY / "deploy" / "kafka-plugin" / "target" / "rlmm-kafka-plugin.jar"
REQUESTED = any(os.environ.get(name) for name in ("RLMM_TEST_KAFKA", "RLMM_TEST_KAFKA_LIBS"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker("kafka")
            item.add_marker(pytest.mark.timeout(180))
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
