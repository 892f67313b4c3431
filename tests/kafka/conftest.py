"""One real cluster for the whole run, healed between tests, and a daemon's manager on it.

Asked for by RLMM_TEST_KAFKA=1 (`make test-kafka`) or by RLMM_TEST_KAFKA_LIBS; otherwise skipped.
"""

import gc
import os
import re
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.dev.stack.kafka.cluster import Cluster
from tests.kafka.probe import Probe, classes
from tests.kafka.proxy import Proxy
from tests.kafka.rig import KafkaRig, told, tried_by_all

HERE = Path(__file__).parent
KEPT = os.environ.get("RLMM_TEST_KAFKA_KEEP")
#: Holds on to processes that are not waited for, which is what is wanted of them.
_left_running: list[Cluster] = []
REQUESTED = any(os.environ.get(name) for name in ("RLMM_TEST_KAFKA", "RLMM_TEST_KAFKA_LIBS"))


def tiering() -> dict[str, str]:
    """Let topics have remote.storage.enable; nothing is ever moved."""
    storage, metadata = "remote.log.storage", "remote.log.metadata"
    return {
        f"{storage}.system.enable": "true",
        f"{storage}.manager.class.name": "NoStorage",
        f"{storage}.manager.class.path": f"{classes()}/",
        f"{metadata}.manager.class.name": "NoMetadata",
        f"{metadata}.manager.class.path": f"{classes()}/",
        f"{metadata}.manager.listener.name": "PLAINTEXT",
    }


def sessions() -> dict[str, str]:
    """Let the sessions of one way in end quickly, as they do where credentials are short-lived."""
    return {"listener.name.sasltls.scram-sha-256.connections.max.reauth.ms": "2000"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker("kafka")
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(120))
            if not REQUESTED:
                item.add_marker(pytest.mark.skip(reason="needs a broker: make test-kafka"))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand what was told in a process of xdist's to the one that shows it."""
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        output["told"] = told


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take what another process was told."""
    told.extend(getattr(node, "workeroutput", {}).get("told", []))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show how long recoveries took: nothing is asserted of them, everybody wants to know."""
    if told:
        terminalreporter.section("times to recover")
        for line in told:
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def kafka_cluster() -> Iterator[Cluster]:
    """Three nodes with every kind of listener; a fault's test uses `cluster`.

    RLMM_TEST_KAFKA_KEEP names a directory whose cluster is used, and left running: for quick turns
    while writing tests. `python -m deploy.dev.stack.kafka.cluster down --directory` ends it.
    """
    if KEPT:
        yield _kept(Path(KEPT))
        return
    directory = Path(tempfile.mkdtemp(prefix="rlmm-kafka-"))
    count = int(os.environ.get("RLMM_TEST_KAFKA_NODES", "3"))
    cluster = Cluster(directory=directory, count=count, properties=tiering() | sessions())
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.destroy()


def _kept(directory: Path) -> Cluster:
    try:
        cluster = Cluster.read(directory)
    except FileNotFoundError:
        cluster = Cluster(directory=directory, count=3)
    cluster.properties = tiering() | sessions()
    cluster.start()
    _left_running.append(cluster)
    return cluster


@pytest.fixture
def cluster(kafka_cluster: Cluster) -> Iterator[Cluster]:
    """The session's cluster, whose nodes all run again afterwards."""
    yield kafka_cluster
    for node_id in kafka_cluster.nodes:
        kafka_cluster.thaw(node_id)
    kafka_cluster.start_nodes(kafka_cluster.nodes)


@pytest.fixture(scope="session")
def probe(kafka_cluster: Cluster) -> Iterator[Probe]:
    """Kafka's own classes."""
    with Probe(kafka_cluster.bootstrap(), kafka_cluster.directory / "probe.log") as probe:
        yield probe


@pytest.fixture
async def proxies(kafka_cluster: Cluster) -> AsyncIterator[dict[int, Proxy]]:
    """A proxy before each broker's PROXIED listener, by node."""
    proxies = {
        node.node_id: Proxy(node.node_id, node.ports["proxy"], node.ports["PROXIED"])
        for node in kafka_cluster.nodes.values()
    }
    for proxy in proxies.values():
        await proxy.start()
    yield proxies
    for proxy in proxies.values():
        await proxy.close()


@pytest.fixture
def rig(
    cluster: Cluster, probe: Probe, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[KafkaRig]:
    """Managers over a topic of this test's own."""
    # Its parameters too: tests that differ only in them must not meet in one topic.
    topic = re.sub(r"[^A-Za-z0-9._-]", "_", f"rlmm.{request.node.name}")[:200]
    if KEPT:
        topic += f".{os.urandom(3).hex()}"  # an earlier run's topic is still there
    rig = KafkaRig(cluster, probe, tmp_path, topic)
    tried_by_all.clear()
    yield rig
    rig.close()
    gc.collect()  # a connection left open is this test's failure, not a later one's
