"""The benchmarks run, tiny: what they say is judged elsewhere."""

import json
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from tests.benchmarks import daemon, daemon_restart, held, latency, scale
from tests.benchmarks.curves import CHARTS, draw, lines
from tests.benchmarks.rows import Row, Scale, table
from tests.benchmarks.run import GROUPS, keep, measure
from tests.support.daemon_process import DaemonProcess


def test_every_group_measures_something_and_keeps_it(tmp_path: Path):
    rows = measure(tmp_path, Scale.quick(), list(GROUPS))
    groups = {"look-up", "durable write", "segments", "small copies", "announce", "start"}
    assert {row.group for row in rows} == groups
    assert all(row.value is not None for row in rows)  # memory that came to nothing is 0
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
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed")
    found = scale.point(tmp_path, 2_000, 500, list(scale.CHILDREN))
    # So few segments may take no page that the process did not have.
    aside = found["aside"]
    found = {**found, "aside": {**aside, "most_aside_bytes": max(aside["most_aside_bytes"], 1.0)}}
    rows = scale.rows_of(2_000, 500, found)
    assert all(row.value for row in rows)
    (flat,) = scale.flat({(2_000, 500): found, (2_000, 1_000): found})
    assert flat.ratio == 1.0
    peers = {"", "LMDB", "LMDB, one transaction", "Redis", "Redis, its process too", "SQLite"}
    assert {row.peer for row in rows} == peers
    drawn = draw({(2_000, 500): found})
    assert drawn.count("<polyline") >= len(scale.CHILDREN)
    for fact, title in CHARTS:
        assert any("rlmm" in name for name in lines({(2_000, 500): found}, fact)), fact
        assert title in drawn


class Soon:
    """An order to stop that comes when it was asked after so often."""

    def __init__(self, after: int) -> None:
        self._left = after

    def is_set(self) -> bool:
        self._left -= 1
        return self._left < 0


def test_what_keeps_a_daemon_busy_can_do_so_phase_after_phase(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(latency, "COPY_BYTES", 4 * 1024 * 1024)
    settings = {"event_log.partition_count": daemon.PARTITION_COUNT}
    log = tmp_path / "var" / "state" / "log"
    daemon.fill(log, {daemon.LARGE: 20, latency.REPLAYED: 20})
    with DaemonProcess(tmp_path, settings, spawn=held.spawn) as process:
        daemon.until_ready(process.socket_path, [daemon.LARGE])
        for busy in (*latency.PHASES.values(), latency.mutating):  # the latter twice
            if busy is not None:
                busy(process.socket_path, process.log_dir, Soon(2))
        told = held.ask(process)
        assert held.row("busy", told).value
        assert any("Follower.run" in who for who in told["longest"]), told


def test_a_daemon_that_was_restarted_on_a_snapshot_answers(tmp_path: Path):
    taken = daemon_restart.first_answer(daemon_restart.stocked(tmp_path, 400, 20))
    assert taken.imports > 0 < taken.serving


def test_restarts_are_held_against_their_limit_and_each_other(tmp_path: Path, monkeypatch):
    taken = daemon_restart.Taken
    monkeypatch.setattr(daemon_restart, "stocked", lambda _, __, each: each)
    monkeypatch.setattr(daemon_restart, "first_answer", lambda each: taken(500.0, 40.0 + each))
    monkeypatch.setattr(daemon_restart, "libraries", lambda: 250.0)
    rows = daemon_restart.measure(tmp_path, 400, [30, 10])
    found = [(row.value, row.limit, row.ratio, row.met) for row in rows]
    assert found == [
        (500.0, None, 2.0, False),
        (50.0, 60, None, True),
        (70.0, 60, None, False),
        (70.0, None, 1.4, True),
    ]
