"""Panels of the dashboard drawn from Prometheus' answers. The drawing is ours, not Grafana's."""

from collections.abc import Sequence
from html import escape
from typing import Any, Final

import msgspec

from deploy.monitoring.dashboard import Panel
from rlmm_daemon.core import phrases

_WIDTH, _HEIGHT = 380, 130
_COLOURS: Final = ("#2f6fb2", "#c2571a", "#1a6b35", "#8a3ab9", "#a4191d", "#7a6a00", "#566072")
_CURVES_MAX: Final = 7
_STYLE: Final = """
body { margin: 16px; font: 13px system-ui, sans-serif; color: #1c2430; background: #fff; width: 1248px; }
h2 { font-size: 16px; margin: 16px 0 6px; } h3 { font-size: 13px; margin: 0 0 2px; }
.row { display: flex; flex-wrap: wrap; gap: 12px; }
.panel { width: 396px; border: 1px solid #c9d0da; border-radius: 6px; padding: 8px; box-sizing: border-box; }
.number { font-size: 34px; } .panel p { margin: 0 0 4px; color: #566072; }
li { list-style: none; break-inside: avoid; } ul { margin: 4px 0 0; padding: 0; columns: 2; } b { margin-right: 4px; }
"""  # noqa: E501 - a line a rule


class Curve(msgspec.Struct, frozen=True):
    """One series of a panel."""

    legend: str
    points: tuple[tuple[float, float], ...]


def legend_of(legend: str, labels: dict[str, str]) -> str:
    """Return a query's legend with labels in the place of their names."""
    for name, value in labels.items():
        legend = legend.replace(f"{{{{{name}}}}}", value)
    return legend


def curves(panel: Panel, answers: Sequence[list[dict[str, Any]]]) -> list[Curve]:
    """Return the curves of a panel from the answers to its queries."""
    return [
        Curve(
            legend_of(query.legend, series["metric"]),
            tuple((float(at), float(value)) for at, value in series["values"]
                  if value not in {"NaN", "+Inf", "-Inf"}),
        )
        for query, answer in zip(panel.queries, answers, strict=True)
        for series in answer
    ]  # fmt: skip


def page(rows: Sequence[tuple[str, Sequence[tuple[Panel, Sequence[Curve]]]]]) -> str:
    """Return rows of panels as a page that runs nothing."""
    body = "".join(
        f"<h2>{escape(title)}</h2><div class=row>"
        + "".join(_drawn(panel, found) for panel, found in row)
        + "</div>"
        for title, row in rows
    )
    return f"<!doctype html><meta charset=utf-8><title>panels</title><style>{_STYLE}</style>{body}"


def _drawn(panel: Panel, found: Sequence[Curve]) -> str:
    known = [curve for curve in found if curve.points][:_CURVES_MAX]
    inside = _numbers(panel, known) if panel.kind == "stat" else _chart(panel, known)
    empty = "" if known else "<p>No data: it moves beside S3 only, or after a fault.</p>"
    return f"<div class=panel><h3>{escape(panel.title)}</h3>{empty}{inside}</div>"


def _numbers(panel: Panel, found: Sequence[Curve]) -> str:
    return "".join(
        f"<div class=number>{_said(curve.points[-1][1], panel.unit)}</div>{escape(curve.legend)}"
        for curve in found
    )


def _chart(panel: Panel, found: Sequence[Curve]) -> str:
    if not found:
        return ""
    times = [at for curve in found for at, _ in curve.points]
    first, last = min(times), max(times)
    most = max(value for curve in found for _, value in curve.points)
    lines, words = list[str](), list[str]()
    for number, curve in enumerate(found):
        colour = _COLOURS[number % len(_COLOURS)]
        points = " ".join(
            f"{_WIDTH * (at - first) / max(last - first, 1e-9):.1f},"
            f"{_HEIGHT - (_HEIGHT - 4) * max(value, 0.0) / (most or 1.0):.1f}"
            for at, value in curve.points
        )
        lines.append(f'<polyline fill=none stroke="{colour}" stroke-width=1.5 points="{points}"/>')
        words.append(
            f'<li><b style="color:{colour}">&#9644;</b>{escape(curve.legend)}: '
            f"{_said(curve.points[-1][1], panel.unit)}</li>"
        )
    axis = f'<path stroke="#c9d0da" fill=none d="M0 {_HEIGHT}H{_WIDTH}M0 4H{_WIDTH}"/>'
    return (
        f"<p>up to {_said(most, panel.unit)}</p>"
        f'<svg width="{_WIDTH}" height="{_HEIGHT + 2}">{axis}{"".join(lines)}</svg>'
        f"<ul>{''.join(words)}</ul>"
    )


def _said(value: float, unit: str) -> str:
    match unit:
        case "bytes":
            return phrases.size(round(value))
        case "Bps":
            return f"{phrases.size(round(value))}/s"
        case "percentunit":
            return f"{100 * value:.1f} %"
        case "s":
            return f"{value:.3g} s"
        case "ops" | "reqps":
            return f"{value:.3g} a second"
        case _:
            return f"{value:,.6g}"
