"""Names of Kafka's own metrics of its tier, and those that docs/metrics.md has a row for."""

import re
from typing import Final

from tests.support.daemon_process import REPOSITORY

#: MBeans of Kafka 4.3; tests/kafka/test_metric_names.py holds them against Kafka's classes.
KEPT: Final = REPOSITORY / "tests" / "data" / "kafka_metrics.txt"
_USUAL: Final = "kafka.server:type=BrokerTopicMetrics"
_HEADING: Final = "## Beside Kafka's own"


def kept() -> list[str]:
    """Return the MBeans of Kafka's metrics."""
    return KEPT.read_text().splitlines()


def table(page: str) -> str:
    """Return the table of docs/metrics.md that has them."""
    return page.partition(_HEADING)[2]


def told(page: str) -> list[str]:
    """Return the MBeans of which the table has a row, each as often as it is there."""
    found = []
    for line in table(page).splitlines():
        first = re.match(r"\| (?P<names>\w[\w, ]*?)(?: \((?P<beans>`.*`)\))? \|", line)
        if first is None or first["names"] == "Kafka":
            continue
        beans = re.findall(r"`(.+?)`", first["beans"] or "") or [_USUAL]
        found += [f"{bean},name={name}" for name in first["names"].split(", ") for bean in beans]
    return found
