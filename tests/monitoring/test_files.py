"""What Prometheus and Grafana are given is what its definition says, and names what there is."""

import json
import re

import click
import pytest

from deploy.monitoring import dashboard
from deploy.monitoring.alerts import ALERTS
from deploy.monitoring.files import DIRECTORY, FILES
from rlmm_daemon.cli import main
from tests.docs import metrics
from tests.docs.pages import DOCS


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_what_its_definition_makes(name):
    stale = "the definition says otherwise now: make monitoring writes it anew"
    assert (DIRECTORY / name).read_text() == FILES[name](), stale


def test_an_alert_is_named_once():
    names = [each.name for each in ALERTS]
    assert len(set(names)) == len(names)
    assert len({each.lower() for each in names}) == len(names), "each has its own anchor"


def served() -> set[str]:
    parts = {f"{each}{part}" for each in metrics.names() for part in ("_bucket", "_sum", "_count")}
    of_process = {"process_cpu_seconds_total", "process_resident_memory_bytes"}
    return metrics.names() | parts | of_process | {"up"}


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_an_alert_is_about_what_a_daemon_serves_and_names_commands_that_there_are(alert):
    text = f"{alert.because} {alert.meanwhile} {alert.ends}"
    assert set(re.findall(r"\b(?:rlmm_\w+|up)\b", alert.expr)) <= served()
    for command in re.findall(r"`rlmm ([^`]+)`", text):
        at: click.Command = main
        for word in command.split():
            if not isinstance(at, click.Group):
                break
            found = at.get_command(click.Context(at), word)
            assert found is not None, f"rlmm {command}"
            at = found
    assert f"\n## {alert.name}\n" in (DOCS / "alerts.md").read_text()


@pytest.mark.parametrize("panel", list(dashboard.panels()), ids=lambda panel: panel.title)
def test_a_panel_is_about_what_a_daemon_serves(panel):
    for query in panel.queries:
        named = set(re.findall(r"\b(?:rlmm|process)_\w+", query.expr))
        assert named
        assert named <= served()


def test_the_dashboards_panels_lie_beside_each_other():
    model = json.loads(dashboard.dashboard())
    taken = set[tuple[int, int]]()
    for panel in model["panels"]:
        place = panel["gridPos"]
        cells = {
            (place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
    assert len({panel["id"] for panel in model["panels"]}) == len(model["panels"])
