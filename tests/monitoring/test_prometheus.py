"""Rules and dashboard before a real Prometheus that scrapes a real daemon.

Asked for by RLMM_TEST_MONITORING=1; `make test-monitoring` also builds Prometheus and promtool.
"""

import json
import os
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from deploy.monitoring import dashboard, rules
from deploy.monitoring.alerts import ALERTS
from deploy.monitoring.files import DIRECTORY
from rlmm_daemon.domain.errors import RlmmError
from tests.integration.conftest import forks as forks  # noqa: PLC0414 - a fixture
from tests.support.daemon_process import REPOSITORY
from tests.support.fork_server import ForkServer
from tests.support.stocked_daemon import Stocked, eventually, free_address, make

pytestmark = pytest.mark.skipif(
    not os.environ.get("RLMM_TEST_MONITORING"),
    reason="needs Prometheus: make test-monitoring",
)

TOOLS = REPOSITORY / "var" / "monitoring"
CONFIG = """\
global: {{scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 1s}}
rule_files: [{rules}]
scrape_configs:
  - job_name: rlmm
    static_configs: [{{targets: ["{daemon}"]}}]
"""


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


class Prometheus:
    def __init__(self, address: str) -> None:
        self._address = address

    def get(self, path: str, **asked: str) -> Any:
        query = urllib.parse.urlencode(asked)
        try:
            with urllib.request.urlopen(
                f"http://{self._address}/api/v1/{path}?{query}", timeout=10
            ) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            with error:
                if error.code == HTTPStatus.SERVICE_UNAVAILABLE:
                    raise  # it starts
                raise AssertionError(f"{asked}: {error.read().decode()}") from error

    def is_up(self) -> bool:
        try:
            return bool(self.get("query", query='up{job="rlmm"} == 1')["result"])
        except OSError:
            return False

    def result(self, expr: str) -> list[Any]:
        shown = expr.replace("$instance", ".*").replace("$__rate_interval", "1m")
        found: list[Any] = self.get("query", query=shown)["result"]
        return found


@pytest.fixture
def it(tmp_path: Path, forks: ForkServer) -> Iterator[Stocked]:
    stocked = make(tmp_path, forks, {"admin.listen": free_address()})
    with stocked.daemon:
        yield stocked


@pytest.fixture
def prometheus(tmp_path: Path, it: Stocked) -> Iterator[Prometheus]:
    address, listen = free_address(), it.daemon.settings["admin.listen"]
    home = tmp_path / "prometheus"
    home.mkdir()
    config = home / "prometheus.yml"
    config.write_text(CONFIG.format(rules=DIRECTORY / rules.RULES, daemon=listen))
    with (home / "output").open("w") as output:
        running = subprocess.Popen(
            [
                TOOLS / "prometheus",
                f"--config.file={config}",
                f"--storage.tsdb.path={home / 'data'}",
                f"--web.listen-address={address}",
            ],
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            found = Prometheus(address)
            eventually(found.is_up, bool)
            yield found
        finally:
            running.kill()
            running.wait(timeout=30)


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
