"""Every recovery command, typed at every kind of failure of a real daemon: also the wrong ones.

`recovery_matrix.txt` has what came of each; `pytest --rewrite` writes it down anew.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.failures import FAILURES, Failure
from tests.support.fork_server import ForkServer
from tests.support.recovery_matrix import COLUMNS, NOTHING, Column, World, judged, leaves

TABLE = Path(__file__).with_name("recovery_matrix.txt")
BY_NAME = {failure.name: failure for failure in FAILURES}
ROWS = (
    NOTHING,
    *(
        BY_NAME[name]
        for name in (
            "damage amid the newest file of the log",
            "damage of a COPY_SEGMENT_FINISHED",
            "damage of every batch",
            "a log that lost its head",
            "an older copy of the log, and a snapshot that knows more",
            "an older copy of the log, and no snapshot",
            "another log in its place",
            "a finished segment that is held",
            "a log that is gone, and snapshots of it",
            "a log that is gone, and no snapshots",
            "a log that lost its name",
            "another number of partitions",
            "a log of a newer version",
            "a snapshot of a newer version",
            "three crashes within a minute",
            "a list of lost segments that is damaged",
            "a marker that cannot be read at the start",
            "a bucket whose marker is gone",
        )
    ),
)


@pytest.fixture(scope="module")
def forks() -> Iterator[ForkServer]:
    with ForkServer() as server:
        yield server


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
    yield every
    every.close()


@pytest.mark.parametrize("column", COLUMNS, ids=lambda each: each.words.replace(" ", "-"))
@pytest.mark.parametrize("failure", ROWS, ids=lambda each: each.name.replace(" ", "-"))
def test_no_command_makes_a_failure_worse(
    failure: Failure, column: Column, worlds: Worlds, request: pytest.FixtureRequest
):
    rewrites = request.config.getoption("--rewrite", default=False)
    told = table().get(failure.name, {}).get(column.words)
    cell = judged(worlds.of(failure), column, None if rewrites else told)
    if rewrites:
        write_down(failure.name, column.words, cell.line())
    assert table()[failure.name][column.words] == cell.line()


def table() -> dict[str, dict[str, str]]:
    """Return what is written down, by the failure's name and the command's words."""
    found = dict[str, dict[str, str]]()
    for stanza in TABLE.read_text("utf-8").split("\n\n") if TABLE.exists() else []:
        name, *lines = stanza.strip().splitlines()
        cells = (line.strip().split(" -> ", 1) for line in lines)
        found[name] = {words: line for words, line in cells}
    return found


def write_down(name: str, words: str, line: str) -> None:
    every = table()
    every.setdefault(name, {})[words] = line
    told = [
        "\n".join([row.name, *(f"  {c.words} -> {cells[c.words]}" for c in COLUMNS if c.words in cells)])
        for row in ROWS
        if (cells := every.get(row.name))
    ]
    TABLE.write_text("\n\n".join(told) + "\n", "utf-8")
