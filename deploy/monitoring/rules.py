"""Rules for Prometheus, and promtool's test of each, as text: YAML without a library for it."""

import json
import re
from collections.abc import Iterator
from typing import Final

from deploy.monitoring.alert import CALM_MINUTES, DAY_MINUTES, STEP_MINUTES, Alert, labels_of
from deploy.monitoring.alerts import ALERTS

RULES: Final = "rlmm.rules.yml"
TESTS: Final = "rlmm.rules.test.yml"
_MADE: Final = "# Made by `make monitoring` from deploy/monitoring/alerts.py: change that."
_LINK: Final = re.compile(r"\[([^]]+)\]\(([^)]+)\)")


def rules() -> str:
    """Return the file that Prometheus' `rule_files` names."""
    lines = [_MADE, "groups:", "  - name: rlmm", "    rules:"]
    return "\n".join([*lines, *(line for alert in ALERTS for line in _rule(alert))]) + "\n"


def tests() -> str:
    """Return what `promtool test rules` reads: each fires on its fault, and not a day later."""
    lines = [_MADE, f"rule_files: [{RULES}]", f"evaluation_interval: {STEP_MINUTES}m", "tests:"]
    return "\n".join([*lines, *(line for alert in ALERTS for line in _test(alert))]) + "\n"


def annotations(alert: Alert) -> dict[str, str]:
    """Return what is sent along with an alert."""
    return {
        "summary": _LINK.sub(r"\1 (docs/\2)", alert.because).replace("`", ""),
        "runbook": f"docs/alerts.md#{alert.anchor}",
    }


def _rule(alert: Alert) -> Iterator[str]:
    yield f"      - alert: {alert.name}"
    yield f"        expr: {json.dumps(alert.expr)}"
    yield f"        for: {alert.lasting}"
    yield f"        labels: {{severity: {alert.severity}}}"
    yield "        annotations:"
    for name, text in annotations(alert).items():
        yield f"          {name}: {json.dumps(text)}"


def _test(alert: Alert) -> Iterator[str]:
    minutes = alert.minutes
    of_series = labels_of(alert.fault[0].series) if alert.labels is None else alert.labels
    expected = {"severity": alert.severity, **of_series}
    told = {"exp_labels": expected, "exp_annotations": annotations(alert)}
    yield f"  - name: {alert.name}"
    yield f"    interval: {STEP_MINUTES}m"
    yield "    input_series:"
    for each in alert.fault:
        yield f"      - series: {json.dumps(each.series)}"
        yield f"        values: {json.dumps(each.values(minutes))}"
    yield "    alert_rule_test:"
    over = CALM_MINUTES + minutes
    for at, alerts in (
        (CALM_MINUTES - STEP_MINUTES, []),
        (over - STEP_MINUTES, [told]),
        (over + DAY_MINUTES, []),
    ):
        yield f"      - eval_time: {at}m"
        yield f"        alertname: {alert.name}"
        yield f"        exp_alerts: {json.dumps(alerts)}"
