"""The benchmarks run, tiny: what they say is judged elsewhere."""

import json
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from tests.benchmarks import scale
from tests.benchmarks.curves import draw
from tests.benchmarks.rows import Row, Scale, table
from tests.benchmarks.run import GROUPS, keep, measure


def test_every_group_measures_something_and_keeps_it(tmp_path: Path):
    rows = measure(tmp_path, Scale.quick(), list(GROUPS))
    groups = {"look-up", "durable write", "segments", "announce", "start"}
    assert {row.group for row in rows} == groups
    assert all(row.value for row in rows)
    compared = [row for row in rows if row.peer]
    installed = shutil.which("redis-server") is not None
    assert all(row.ratio for row in compared if installed or "Redis" not in row.peer)
    kept = json.loads(keep(rows, tmp_path / "kept").read_text())
    assert len(kept["rows"]) == len(rows)
    console = Console(width=160)
    with console.capture() as shown:
        console.print(table(rows))
    assert "fdatasync" in shown.get()


@pytest.mark.parametrize(
    ("ratio", "at_most", "at_least", "met"),
    [(1.2, 1.25, None, True), (1.3, 1.25, None, False), (0.9, None, 0.9, True),
     (0.8, None, 0.9, False), (None, 1.25, None, None), (1.0, None, None, None)],
)  # fmt: skip
def test_a_budget_is_met_missed_or_not_judged(
    ratio: float | None, at_most: float | None, at_least: float | None, *, met: bool | None
):
    value = None if ratio is None else 1.0
    row = Row(
        group="g", what="w", value=value, unit="us", ratio=ratio, at_most=at_most, at_least=at_least
    )
    assert row.met is met


def test_the_curves_are_measured_and_drawn(tmp_path: Path):
    found = scale.point(tmp_path, 2_000, 500, list(scale.CHILDREN))
    rows = scale.rows_of(2_000, 500, found)
    assert all(row.value for row in rows)
    assert {row.peer for row in rows} == {"", "LMDB", "LMDB, one transaction"}
    drawn = draw({(2_000, 500): found})
    assert drawn.count("<polyline") >= len(scale.CHILDREN)
