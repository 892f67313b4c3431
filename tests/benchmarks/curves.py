"""Curves over the number of segments, as an SVG: one small chart for each measure."""

import math
from collections.abc import Mapping, Sequence
from typing import Final

WIDTH, HEIGHT, EDGE, ACROSS = 320, 200, 40, 3
COLOURS: Final = ("#1f6feb", "#d1242f", "#1a7f37", "#9a6700", "#8250df", "#57606a")
#: (measure, title); both axes are logarithmic.
CHARTS: Final = (
    ("restart_ms", "restart to first answer, ms"),
    ("snapshot_seconds", "snapshot, s"),
    ("snapshot_bytes", "snapshot, bytes a segment"),
    ("lookup_us", "look-up in process, us"),
    ("events_per_second", "replay, events/s"),
    ("tail_per_second", "replay of a tail onto a snapshot, events/s"),
    ("merge_seconds", "snapshot, 5 % changed, s"),
    ("plain_bytes", "memory replayed, bytes a segment"),
    ("untouched_bytes", "memory untouched, bytes a segment"),
    ("changed_bytes", "memory 5 % changed, bytes a segment"),
    ("asleep_bytes", "private, unannounced, bytes a segment"),
    ("most_aside_bytes", "private, most put aside, bytes a segment"),
    ("shared_bytes", "private, one in 30 in use, bytes a segment"),
)
Points = Mapping[tuple[int, int], Mapping[str, Mapping[str, float]]]
Line = list[tuple[float, float]]


def lines(points: Points, measure: str) -> dict[str, Line]:
    found: dict[str, Line] = {}
    for (segments, each), kinds in sorted(points.items()):
        for kind, facts in kinds.items():
            if measure in facts and facts[measure] > 0:
                ours = kind in {"replay", "restart", "aside"}
                name = f"{'rlmm' if ours else kind}, {each:,} a partition"
                found.setdefault(name, []).append((segments, facts[measure]))
    return found


def draw(points: Points) -> str:
    return sheet([(title, lines(points, measure)) for measure, title in CHARTS])


def sheet(titled: Sequence[tuple[str, Mapping[str, Line]]]) -> str:
    """Return charts, each with its title, as one SVG."""
    charts = [_chart(index, title, drawn) for index, (title, drawn) in enumerate(titled)]
    down = -(-len(charts) // ACROSS)
    size = f'width="{ACROSS * WIDTH}" height="{down * HEIGHT}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="9">'
        f'<rect width="100%" height="100%" fill="white"/>{"".join(charts)}</svg>\n'
    )


def _chart(index: int, title: str, drawn: Mapping[str, Line]) -> str:
    left, top = index % ACROSS * WIDTH, index // ACROSS * HEIGHT
    all_points = [each for line in drawn.values() for each in line]
    if not all_points:
        return ""
    x_low, x_high = _decades([x for x, _ in all_points])
    y_low, y_high = _decades([y for _, y in all_points])

    def place(x: float, y: float) -> str:
        across = (math.log10(x) - x_low) / (x_high - x_low) * (WIDTH - 2 * EDGE)
        up = (math.log10(y) - y_low) / (y_high - y_low) * (HEIGHT - 2 * EDGE)
        return f"{left + EDGE + across:.1f},{top + HEIGHT - EDGE - up:.1f}"

    parts = [f'<text x="{left + EDGE}" y="{top + 16}" font-size="11">{title}</text>']
    for decade in range(y_low, y_high + 1):
        x, y = place(10**x_low, 10**decade).split(",")
        parts.append(f'<text x="{float(x) - 34}" y="{y}" fill="#57606a">1e{decade}</text>')
    for decade in range(x_low, x_high + 1):
        x, y = place(10**decade, 10**y_low).split(",")
        parts.append(f'<text x="{x}" y="{float(y) + 12}" fill="#57606a">1e{decade}</text>')
    for number, (name, line) in enumerate(drawn.items()):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(place(x, y) for x, y in line)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}"/>')
        parts += [
            f'<circle cx="{at.split(",")[0]}" cy="{at.split(",")[1]}" r="2" fill="{colour}"/>'
            for at in path.split()
        ]
        key_y = top + 28 + 10 * number
        parts.append(f'<text x="{left + WIDTH - 130}" y="{key_y}" fill="{colour}">{name}</text>')
    return "".join(parts)


def _decades(values: list[float]) -> tuple[int, int]:
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return low, max(high, low + 1)
