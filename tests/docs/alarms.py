"""Conditions on which an operator is to be woken, by metric, in PromQL, and what to type then."""

from collections.abc import Iterator
from typing import Final

from deploy.monitoring.alert import Alert
from deploy.monitoring.alerts import ALERTS

#: Metric -> condition, what it means, what to do. A metric that is not here tells no trouble alone.
#: Prometheus' own `up` is none of ours.
ALARMS: Final[dict[str, tuple[str, str]]] = {
    each.metric: (
        each.expr + ("" if each.lasting == "0m" else f" for {each.lasting}"),
        each.because,
    )
    for each in ALERTS
    if each.metric != "up"
}


def sections() -> str:
    """Return a section for each alert."""
    return "\n\n".join(part for alert in ALERTS for part in _section(alert))


def _section(alert: Alert) -> Iterator[str]:
    yield f"## {alert.name}"
    lasting = "" if alert.lasting == "0m" else f" for {alert.lasting}"
    yield f"`{alert.expr}`{lasting}. Severity: {alert.severity}."
    yield f"**What is wrong.** {alert.because[0].upper()}{alert.because[1:]}."
    yield f"**What is safe.** {alert.meanwhile}"
    yield f"**What ends it.** {alert.ends}"
