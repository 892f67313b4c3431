"""`make bench-growth`: processor time against size for everything that a user can have many of.

Each curve's exponent is the slope of a straight line through its points, both axes logarithmic:
1 means that the total grows as the work does. The holds are the longest single steps of the loop.
Figures are kept as JSON and drawn as curves below `var/bench/`. The quick form ends with exit code
1 if a curve is steeper than its budget, for CI: it judges exponents alone.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Final

from rich.console import Console
from rich.table import Table

from rlmm_daemon.observability import logging
from tests.benchmarks import growth_daemon, growth_log, growth_segments
from tests.benchmarks.curves import sheet
from tests.benchmarks.growth_curves import EXPONENT_MAX, Curve, curves
from tests.benchmarks.rows import Row
from tests.benchmarks.run import RESULTS, keep
from tests.support.daemon_process import REPOSITORY

GROWTHS: Final = (*growth_segments.GROWTHS, *growth_daemon.GROWTHS, *growth_log.GROWTHS)
#: What noise and the processor's caches may add to an exponent over two decades.
NOISE: Final = 0.15
HOLD_MAX_SECONDS: Final = 0.005


def budget(*, quick: bool) -> float:
    return EXPONENT_MAX + NOISE if quick else EXPONENT_MAX


def rows_of(curve: Curve) -> list[Row]:
    """Return what is kept of a curve."""
    size, cost = curve.largest
    note = f"{min(curve.points):,} to {size:,}; {cost.each(size)} each at the end"
    what = f"{curve.of}: {curve.what}"
    return [
        Row(group=curve.of, what=f"{what}, exponent", value=curve.exponent, unit="",
            limit=EXPONENT_MAX, note=note),
        Row(group=curve.of, what=f"{what}, longest hold", value=cost.hold * 1e3, unit="ms",
            limit=HOLD_MAX_SECONDS * 1e3 if curve.holds else None, note=f"at {size:,}"),
    ]  # fmt: skip


def shown(found: Sequence[Curve], *, quick: bool) -> Table:
    of, limit = found[0].of, budget(quick=quick)
    made = Table(title=of, title_justify="left")
    columns = ("", "sizes", "each, at the last", f"exponent, at most {limit:g}")
    for number, heading in enumerate((*columns, *(() if quick else ("longest hold, ms",)))):
        made.add_column(heading, justify="right" if number else "left", min_width=14)
    for curve in found:
        size, cost = curve.largest
        exponent, hold = f"{curve.exponent:.2f}", f"{cost.hold * 1e3:.2f}"
        if curve.exponent > limit:
            exponent = f"[red]{exponent}[/]"
        if curve.holds and cost.hold > HOLD_MAX_SECONDS:
            hold = f"[red]{hold}[/]"
        sizes = f"{min(curve.points):,} to {size:,}"
        cells = (curve.what, sizes, cost.each(size), exponent)
        made.add_row(*cells, *(() if quick else (hold,)))
    return made


def picture(found: Sequence[Curve]) -> str:
    """Draw totals, and holds, of all curves of one kind in one chart each."""
    kinds = list(dict.fromkeys(curve.of for curve in found))
    return sheet(
        [
            (f"{kind}: {title}", {
                curve.what: [
                    (size, value) for size, cost in curve.points.items()
                    if (value := 1e3 * getattr(cost, measure)) > 0
                ]
                for curve in found if curve.of == kind
            })
            for kind in kinds
            for measure, title in (("seconds", "total, ms"), ("hold", "longest hold, ms"))
        ]
    )  # fmt: skip


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m tests.benchmarks.growth", description=__doc__)
    options.add_argument("--quick", action="store_true", help="two decades, exponents alone")
    options.add_argument("--only", action="append", help="kinds that contain this; repeatable")
    chosen = options.parse_args()
    logging.configure(level="error", style="console")
    console = Console(width=None if sys.stdout.isatty() else 150)
    wanted = [g for g in GROWTHS if not chosen.only or any(o in g.of for o in chosen.only)]
    found = list[Curve]()
    for growth in wanted:
        drawn = curves(growth, quick=chosen.quick)
        console.print(shown(drawn, quick=chosen.quick))  # a run that is ended was not in vain
        found += drawn
    if chosen.quick:
        steep = [each for each in found if each.exponent > budget(quick=True)]
        for curve in steep:
            points = ", ".join(f"{n:,}: {c.each(n)} each" for n, c in curve.points.items())
            console.print(f"[red]outgrows its work:[/] {curve.of}: {curve.what} ({points})")
        return 1 if steep else 0
    rows = [row for curve in found for row in rows_of(curve)]
    kept = keep(rows, RESULTS)
    picture_at = kept.with_suffix(".svg")
    picture_at.write_text(picture(found))
    console.print(
        f"kept in {kept.relative_to(REPOSITORY)} and {picture_at.relative_to(REPOSITORY)}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
