"""Every recovery command, typed at every kind of failure of a real daemon: also the wrong ones.

`recovery_matrix.txt` has what came of each; `pytest --rewrite` writes it down anew.
"""

import fcntl
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from unittest import mock

import pytest

from rlmm_daemon.offline import log_naming
from tests.support import failures
from tests.support.failures import FAILURES, Failure
from tests.support.fork_server import ForkServer
from tests.support.recovery_matrix import (
    COLUMNS,
    NOTHING,
    Cell,
    Column,
    World,
    judged,
    leaves,
    walked_on,
)

TABLE = Path(__file__).with_name("recovery_matrix.txt")
DOCUMENT = Path(__file__).parents[2] / "docs" / "recovery.md"
BEGIN, END = "<!-- matrix:begin -->\n", "<!-- matrix:end -->\n"
#: Their like is among the others; `make soak-recovery` has them, too.
SELDOM = frozenset(
    {
        "damage of a COPY_SEGMENT_FINISHED",
        "an older copy of the log, and no snapshot",
        "a log that is gone, and no snapshots",
        "a log of a newer version",
        "a log that nobody can name",
        "a marker that cannot be read at the start",
        "a bucket of another cluster",
        "damage that no snapshot knows of",
        "damage of a COPY_SEGMENT_FINISHED, and an object is gone too",
        "another log in its place, and no snapshots",
        "a damaged positions.json",
        "a damaged announced.json",
        "a damaged marker.json",  # its hold is written in two steps
        "a bucket of a newer version",
        # They wait a second for the log at each command.
        "a log whose disk hangs",
        "an accepted loss that cannot be written down",
    }
)
#: How many segments are listed where the failure was ended by what is named, and nothing else.
WITHOUT = {
    stanza.splitlines()[0]: int(ended[1])
    for stanza in Path(__file__).with_name("recovery_walks.txt").read_text("utf-8").split("\n\n")
    if (ended := re.search(r"ready: (\d+) of", stanza))
}
#: Commands that change nothing of what a daemon keeps.
LOOKS = frozenset(
    {
        "status", "explain", "segments", "lookup", "partitions", "tail", "cleanup", "export",
        "fetch", "forecast", "storage doctor", "storage verify", "log verify", "snapshot show",
        "snapshot verify", "check-config", "config from-properties", "doctor", "decode", "encode",
        "partition-of", "quorum describe", "reconcile findings", "reconcile lease",
        "reconcile manifests", "support-bundle", "top",
    }
)  # fmt: skip
#: Commands that change something and are tried elsewhere, with the reason.
ELSEWHERE: Mapping[str, str] = MappingProxyType(
    {
        "run": "it is the daemon",
        "drain": "it ends the daemon, as the makers of failures do",
        "pause": "integration/test_pause.py: it ends no failure",
        "resume": "integration/test_pause.py",
        "setup": "integration/test_setup.py: it writes a configuration, before there is a daemon",
        "log copy": "integration/test_quorum_moving.py and tests/kafka: it ends no failure",
        "reconcile run": "on Spark: tests/reconcile",
        "reconcile restore": "tests/reconcile",
        "reconcile approve": "tests/reconcile",
        "reconcile hold": "tests/reconcile",
        "reconcile release": "tests/reconcile",
        "reconcile break-lease": "tests/reconcile",
        "reconcile accept-record": "tests/reconcile",
        "quorum run": "it is a replica, which no daemon uses yet",
        "quorum format": "integration/test_quorum_processes.py: of a replica's own directory",
        "quorum add": "integration/test_quorum_processes.py",
        "quorum user": "integration/test_quorum_processes.py",
        "quorum remove": "integration/test_quorum_processes.py",
        "quorum force-voters": "integration/test_quorum_processes.py",
    }
)
ROWS = (NOTHING, *FAILURES)
#: Commands that read the log's own files, and hang as long as their disk does.
HANGING = ("log seal LOG", "log name", "storage rebuild-marker")


def columns_of(row: Failure) -> list[Column]:
    """Return the commands that are typed at a failure."""
    if row.make is not failures.log_whose_disk_hangs:
        return [*COLUMNS]
    return [column for column in COLUMNS if not column.words.startswith(HANGING)]


def table() -> dict[str, dict[str, Cell]]:
    """Return what is written down, by the failure's name and the command's words."""
    found = dict[str, dict[str, Cell]]()
    for stanza in TABLE.read_text("utf-8").split("\n\n") if TABLE.exists() else []:
        name, *lines = stanza.strip().splitlines()
        cells = (line.strip().split(" -> ", 1) for line in lines)
        found[name] = {words: Cell.of(line) for words, line in cells}
    return found


def write_down(name: str, words: str, cell: Cell) -> None:
    directory = os.open(TABLE.parent, os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)  # pytest may run in several processes
        _write(table() | {name: table().get(name, {}) | {words: cell}})
    finally:
        os.close(directory)


def _write(every: Mapping[str, Mapping[str, Cell]]) -> None:
    told = [
        "\n".join(
            [
                row.name,
                *(f"  {c.words} -> {cells[c.words].line()}" for c in COLUMNS if c.words in cells),
            ]
        )
        for row in ROWS
        if (cells := every.get(row.name))
    ]
    written = TABLE.with_suffix(".tmp")
    written.write_text("\n\n".join(told) + "\n", "utf-8")
    written.replace(TABLE)  # others read meanwhile


class Worlds:
    """The failure that cells are about just now: one daemon runs at a time."""

    def __init__(self, factory: pytest.TempPathFactory, forks: ForkServer) -> None:
        self._factory, self._forks = factory, forks
        self._made: World | None = None

    def of(self, failure: Failure) -> World:
        if self._made is None or self._made.failure is not failure:
            self.close()
            self._made = World.made(failure, self._factory.mktemp("w"), self._forks)
        return self._made

    def close(self) -> None:
        if self._made is not None:
            self._made.it.daemon.kill()


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory, forks: ForkServer) -> Iterator[Worlds]:
    every = Worlds(tmp_path_factory, forks)
    # Seconds, in which a daemon that looks for its log might let go of it: ours looks more often.
    with mock.patch.object(log_naming, "_LOCK_SECONDS", 0.3):
        yield every
    every.close()


def name_of(value: Failure | Column) -> str:
    return (value.name if isinstance(value, Failure) else value.words).replace(" ", "-")


def cell(failure: Failure, column: Column) -> object:
    seldom = failure.name in SELDOM
    return pytest.param(failure, column, marks=[pytest.mark.slow] * seldom)


@pytest.mark.parametrize(
    ("failure", "column"),
    [cell(row, column) for row in ROWS for column in columns_of(row)],
    ids=name_of,
)
def test_no_command_makes_a_failure_worse(
    failure: Failure, column: Column, worlds: Worlds, request: pytest.FixtureRequest
):
    rewrites = request.config.getoption("--rewrite", default=False)
    told = table().get(failure.name, {}).get(column.words)
    cell = judged(worlds.of(failure), column, None if rewrites else told)
    if rewrites:
        write_down(failure.name, column.words, cell)
    else:
        assert told == cell


def walked(*, everything: bool) -> list[tuple[Failure, Column]]:
    """Return the cells after which a failure goes on: all of them, or those that it goes on from.

    What was refused, or was dry, changed no file: from there the walk is that of the failure.
    """
    every = table()
    return [
        (row, column)
        for row in ROWS
        if row.cause is not None
        for column in COLUMNS
        if (cell := every.get(row.name, {}).get(column.words)) is not None
        and not (column.dry or column.deletes or cell.came == "refused" or cell.after == "ready")
        if everything or cell.after != row.cause
    ]


STEPS, GOES_ON = walked(everything=False), walked(everything=True)


@pytest.mark.parametrize(("failure", "column"), STEPS, ids=name_of)
def test_a_step_on_the_way_can_be_walked_to_the_end(
    failure: Failure, column: Column, worlds: Worlds
):
    costs_no_more(failure, column, worlds)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("failure", "column"), [each for each in GOES_ON if each not in STEPS], ids=name_of
)
def test_a_command_that_did_not_help_stands_in_no_ones_way(
    failure: Failure, column: Column, worlds: Worlds
):
    costs_no_more(failure, column, worlds)


def costs_no_more(failure: Failure, column: Column, worlds: Worlds) -> None:
    """Hold that from a cell on, the named commands lose no more than they do without it."""
    world = worlds.of(failure)
    listed = walked_on(world, column, table()[failure.name][column.words])
    assert listed >= WITHOUT[failure.name]


def test_every_command_that_changes_something_is_a_column_or_tried_elsewhere():
    columns = {column.command for column in COLUMNS}
    assert columns | LOOKS | ELSEWHERE.keys() == set(leaves())
    assert not columns & LOOKS
    assert not columns & ELSEWHERE.keys()


def test_the_table_has_every_cell_and_no_other():
    assert {name: list(cells) for name, cells in table().items()} == {
        row.name: [column.words for column in columns_of(row)] for row in ROWS
    }


def test_the_operators_document_shows_the_table(request: pytest.FixtureRequest):
    text = DOCUMENT.read_text("utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    shown = BEGIN + "\n".join(document_rows()) + "\n" + END
    if request.config.getoption("--rewrite", default=False):
        DOCUMENT.write_text(before + shown + after, "utf-8")
    assert DOCUMENT.read_text("utf-8") == before + shown + after


def document_rows() -> list[str]:
    """Return the table as an operator reads it: what each failure's wrong commands do, too."""
    rows = [
        "| failure | it is called | ends it | a step on the way | everything else |",
        "|---|---|---|---|---|",
    ]
    every = table()
    for failure in ROWS:
        cells = every[failure.name]
        ends, steps, rest = list[str](), list[str](), 0
        for column in columns_of(failure):
            cell = cells[column.words]
            words = column.words.removesuffix(" --yes").replace(" --config FILE", "")
            typed = f"`{words}`"
            if column.dry or cell.after == (failure.cause or "ready"):
                rest += 1
            elif cell.after == "ready":
                ends.append(f"{typed} ({cell.listed} segments)")
            else:
                steps.append(f"{typed} to `{cell.after}`")
        if failure.cause is not None:
            row = [failure.name, f"`{failure.cause}`", ", ".join(ends), ", ".join(steps)]
            rows.append("| " + " | ".join([*row, f"{rest} change nothing of it"]) + " |")
    return rows
