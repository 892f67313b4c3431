"""Tables of `docs/metrics.md`: every metric with its kind, its labels, and when to be alarmed."""

from collections.abc import Iterator
from typing import Any, Final

from rlmm_daemon.observability.metrics import Metrics
from tests.docs.alarms import ALARMS
from tests.docs.sources import attribute_comments, docstring
from tests.docs.tables import table

_HEADS: Final = ("metric", "kind", "what it says")
_ALARM_HEADS: Final = ("be alarmed when", "because")


def tables() -> str:
    """Return a table for each group of metrics."""
    return "\n\n".join(_groups())


def names() -> set[str]:
    """Return every name, as Prometheus has it."""
    return {name for group in _members() for name in _names(group)}


def _members() -> list[Any]:
    return [each for name, each in vars(Metrics()).items() if name != "registry"]


def _metrics(group: Any) -> dict[str, Any]:
    return {name: each for name, each in vars(group).items() if hasattr(each, "describe")}


def _names(group: Any) -> list[str]:
    return [_name(metric) for metric in _metrics(group).values()]


def _groups() -> Iterator[str]:
    for group in _members():
        head, _, more = docstring(type(group)).partition("\n\n")
        comments = attribute_comments(type(group))
        rows = [
            _row(metric, comments.get(attribute, ""))
            for attribute, metric in _metrics(group).items()
        ]
        yield f"## {head.rstrip('.').split('. ')[0]}"
        aside = head.rstrip(".").split(". ")[1:]
        if aside:
            yield f"{'. '.join(aside)}."
        if more:
            yield more
        yield table(_HEADS, rows)
        alarms = [
            ALARMS[name] for each in _metrics(group).values() if (name := _name(each)) in ALARMS
        ]
        if alarms:
            yield table(_ALARM_HEADS, [_alarm(*each) for each in alarms])


def _alarm(condition: str, since: str) -> tuple[str, str]:
    condition, lasting, seconds = condition.partition(" for ")
    return f"`{condition}`" + (f" for {seconds}" if lasting else ""), since


def _row(metric: Any, comment: str) -> tuple[str, ...]:
    (family,) = metric.describe()
    labels = getattr(metric, "_labelnames", None) or getattr(metric, "_labels", None) or ()
    name = _name(metric) + (f"{{{', '.join(labels)}}}" if labels else "")
    said = " ".join(filter(None, (family.documentation, comment)))
    return f"`{name}`", family.type, said


def _name(metric: Any) -> str:
    (family,) = metric.describe()
    name: str = family.name
    return f"{name}_total" if family.type == "counter" else name


def registered() -> set[str]:
    """Return the names that a daemon serves, those of the process itself left out."""
    return {
        f"{family.name}_total" if family.type == "counter" else family.name
        for family in Metrics().registry.collect()
        if family.name.startswith("rlmm_")
    }
