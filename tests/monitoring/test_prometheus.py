"""Rules and dashboard before a real Prometheus that scrapes a real daemon.

Asked for by RLMM_TEST_MONITORING=1; `make test-monitoring` also builds Prometheus and promtool.
"""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.monitoring import dashboard, rules
from deploy.monitoring.alerts import ALERTS
from deploy.monitoring.files import DIRECTORY
from rlmm_daemon.domain.errors import RlmmError
from tests.integration.conftest import forks as forks  # noqa: PLC0414 - a fixture
from tests.support.fork_server import ForkServer
from tests.support.prometheus import TOOLS, Prometheus, scraping
from tests.support.stocked_daemon import Stocked, eventually, free_address, make

pytestmark = pytest.mark.skipif(
    not os.environ.get("RLMM_TEST_MONITORING"),
    reason="needs Prometheus: make test-monitoring",
)


@pytest.mark.timeout(600)
def test_each_alert_fires_on_its_fault_and_is_silent_a_day_after():
    for words in (("check", "rules", rules.RULES), ("test", "rules", rules.TESTS)):
        ran = subprocess.run(
            [TOOLS / "promtool", *words],
            cwd=DIRECTORY,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.fixture
def it(tmp_path: Path, forks: ForkServer) -> Iterator[Stocked]:
    stocked = make(tmp_path, forks, {"admin.listen": free_address()})
    with stocked.daemon:
        yield stocked


@pytest.fixture
def prometheus(tmp_path: Path, it: Stocked) -> Iterator[Prometheus]:
    listen = str(it.daemon.settings["admin.listen"])
    with scraping(tmp_path / "prometheus", listen, DIRECTORY / rules.RULES) as found:
        yield found


@pytest.mark.timeout(180)
def test_every_query_of_the_dashboard_and_every_rule_is_answered(it, prometheus):
    it.stock()
    assert it.rlmm("snapshot", "now").exit_code == 0
    with it.daemon.client() as client:
        (segment, *_) = client.list_remote_log_segments(it.orders[0])
        with client.fetch_log_segment(segment) as log:
            assert log.readall()
        with pytest.raises(RlmmError):
            client.copy_segment(it.next(0).metadata, it.copied(0)[0].files)

    def unanswered() -> list[str]:
        return [
            query.expr
            for panel in dashboard.panels()
            if not panel.may_be_empty
            for query in panel.queries
            if not prometheus.result(query.expr)
        ]

    eventually(unanswered, lambda left: not left)
    for panel in dashboard.panels():
        for query in panel.queries:
            prometheus.result(query.expr)
    eventually(lambda: prometheus.result('rlmm_topic_bytes{topic="orders"} > 0'), bool)

    def judged() -> list[Any]:
        (group,) = prometheus.get("rules")["groups"]
        return [rule for rule in group["rules"] if rule["health"] == "ok"]

    eventually(judged, lambda found: len(found) == len(ALERTS))


@pytest.mark.timeout(180)
def test_a_daemon_that_is_killed_brings_its_alert_about(it, prometheus):
    def state() -> str:
        (group,) = prometheus.get("rules")["groups"]
        (found,) = (rule["state"] for rule in group["rules"] if rule["name"] == "RlmmDown")
        return str(found)

    eventually(state, lambda found: found == "inactive")
    it.daemon.kill()
    eventually(state, lambda found: found == "pending")
