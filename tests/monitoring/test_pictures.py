"""Pictures of the dashboard's panels, from a real Prometheus that watched a real daemon at work.

Asked for by RLMM_TEST_MONITORING=1: `make test-monitoring`; it needs Chromium, too. `--rewrite`
puts the picture into the docs.
"""

import os
from pathlib import Path
from typing import Any

import pytest

from deploy.monitoring import dashboard
from rlmm_daemon.domain.errors import RlmmError
from tests.docs.pages import DOCS
from tests.integration.conftest import forks as forks  # noqa: PLC0414 - a fixture
from tests.monitoring.test_prometheus import it as it  # noqa: PLC0414 - a fixture
from tests.monitoring.test_prometheus import prometheus as prometheus  # noqa: PLC0414 - a fixture
from tests.support.browser import browser
from tests.support.daemon_process import REPOSITORY
from tests.support.panels import Curve, curves, page
from tests.support.prometheus import Prometheus
from tests.support.stocked_daemon import Stocked

pytestmark = [
    pytest.mark.skipif(
        not os.environ.get("RLMM_TEST_MONITORING"),
        reason="needs Prometheus and Chromium: make test-monitoring",
    ),
    pytest.mark.timeout(300),
]
#: Scrapes, two a second.
SAMPLES = 60
PICTURE = REPOSITORY / "var" / "monitoring" / "dashboard.png"


def work(it: Stocked, prometheus: Prometheus) -> None:
    """Read and look up, and fail a copy, until Prometheus has seen enough of it."""
    begun = 0
    with it.daemon.client() as client:
        (segment, *_) = client.list_remote_log_segments(it.orders[0])
        while True:
            with client.fetch_log_segment(segment) as log:
                assert log.readall()
            client.list_remote_log_segments(it.orders[1])
            (seen, *_) = prometheus.result("count_over_time(rlmm_ready[10m])")
            if (count := int(seen["value"][1])) >= SAMPLES:
                return
            if count >= begun + SAMPLES // 6:
                begun = count
                with pytest.raises(RlmmError):
                    client.copy_segment(it.next(0).metadata, it.copied(0)[0].files)


def now(prometheus: Prometheus) -> float:
    return float(prometheus.get("query", query="time()")["result"][1])


def asked(prometheus: Prometheus, expr: str, start: float) -> list[dict[str, Any]]:
    shown = expr.replace("$instance", ".*").replace("$__rate_interval", "5s")
    between = {"start": str(start), "end": str(now(prometheus))}
    found = prometheus.get("query_range", query=shown, step="0.5", **between)
    result: list[dict[str, Any]] = found["result"]
    return result


async def test_panels_are_drawn_from_what_prometheus_saw(it, prometheus, tmp_path, pytestconfig):
    start = now(prometheus)
    it.stock()
    assert it.rlmm("snapshot", "now").exit_code == 0
    work(it, prometheus)
    drawn = dict[str, list[Curve]]()
    for panel in dashboard.panels():
        answers = [asked(prometheus, query.expr, start) for query in panel.queries]
        drawn[panel.title] = curves(panel, answers)
    rows = [
        (title, [(panel, drawn[panel.title]) for panel in row])
        for title, row in dashboard.ROWS.items()
    ]
    empty = {title for title, found in drawn.items() if not any(each.points for each in found)}
    assert empty <= {panel.title for panel in dashboard.panels() if panel.may_be_empty}
    assert not [each for found in drawn.values() for each in found if "{{" in each.legend]
    file = tmp_path / "panels.html"
    file.write_text(page(rows))
    async with browser(tmp_path / "chromium", file.as_uri()) as tab:
        await tab.look(1_280, dark=False)
        count = f"document.querySelectorAll('.panel').length === {len(drawn)}"
        await tab.until(count)
        await tab.picture(PICTURE)
        if pytestconfig.getoption("--rewrite"):
            await tab.picture(Path(DOCS / "pictures" / "dashboard.png"))
        assert tab.complaints == []
