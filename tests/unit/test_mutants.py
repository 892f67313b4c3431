"""`make mutants`: its groups name files that exist, its survivors functions that do."""

import contextlib
import sqlite3
from pathlib import Path

import pytest

from tests.mutants.groups import GROUPS
from tests.mutants.run import ARGUED, _files, _take_over, argument, idle_lines, qualified_name
from tests.mutants.trials import changed_lines

ROOT = Path(__file__).resolve().parents[2]
SOURCE = """\
TABLE = 1
class Log:
    limit = 2
    async def recover(self):
        def inner():
            return 3
        if inner():
            await self.sync()
def other(): ...
"""


@pytest.mark.parametrize("name", GROUPS)
def test_each_group_has_modules_and_tests(name):
    for path in (*GROUPS[name].modules, *GROUPS[name].tests):
        found = _files(path)
        assert found, path
        assert all((ROOT / each).is_file() for each in found)


def test_a_survivor_is_called_by_what_it_is_in():
    names = [qualified_name(SOURCE, line) for line in range(1, 10)]
    recover, inner = "Log.recover", "Log.recover.inner"
    assert names == ["", "Log", "Log", recover, inner, inner, recover, recover, "other"]


def test_what_only_tells_or_is_a_limit_is_not_changed():
    lines = (
        "@dataclass(slots=True)",
        "class Log:",
        "    def sync(self):",
        "        logger.info(",
        "            1)",
        "        self.logger(2)",
        "SECONDS: Final = 2 * 60.0",
        "NAMES: Final = ('a', 2)",
    )
    assert sorted(idle_lines("\n".join(lines))) == [1, 4, 5, 7]


def test_the_lines_of_a_change_are_those_of_the_original():
    assert changed_lines("a\nb\nc\nd", "a\nB\nc\nd") == range(2, 3)
    assert changed_lines("a\nb\nc\nd", "a\nb\nd") == range(3, 4)
    assert changed_lines("a\nb\nb\nc", "a\nb\nc") == range(3, 4)


def test_an_argued_change_is_known_by_name_or_by_kind_and_no_other_is():
    may_survive = argument("[[reason]]\nwhy = 'so'\nchanges = ['m.f: a => b']\nkinds = ['^k: ']")
    assert [may_survive(change) for change in ("m.f: a => b", "k: a => b", "m.f: a => c")] == [
        True,
        True,
        False,
    ]
    assert not argument(ARGUED.read_text())("m.f: a => b")


def test_what_is_known_of_a_module_that_was_not_changed_is_kept(tmp_path):
    """Mutants have other names in each session; known ones are those of the same place."""

    def session(name: str, sources: dict[str, str], known: dict[str, str]) -> Path:
        path: Path = tmp_path / name
        with contextlib.closing(sqlite3.connect(path)) as database, database:
            database.executescript(
                "CREATE TABLE mutation_specs"
                " (job_id, module_path, operator_name, operator_args, occurrence);"
                "CREATE TABLE work_results"
                " (job_id PRIMARY KEY, worker_outcome, output, test_outcome, diff);"
                "CREATE TABLE sources (path, digest);"
            )
            database.executemany("INSERT INTO sources VALUES (?, ?)", sources.items())
            for module in sources:
                spec = (f"{name} {module}", module, "not", "{}", 3)
                database.execute("INSERT INTO mutation_specs VALUES (?, ?, ?, ?, ?)", spec)
            for module, outcome in known.items():
                row = (f"{name} {module}", "NORMAL", "", outcome, "the change")
                database.execute("INSERT INTO work_results VALUES (?, ?, ?, ?, ?)", row)
        return path

    old = session("old", {"a.py": "1", "b.py": "1"}, {"a.py": "KILLED", "b.py": "SURVIVED"})
    new = session("new", {"a.py": "1", "b.py": "2"}, {})
    _take_over(new, old)
    with contextlib.closing(sqlite3.connect(new)) as database:
        found = database.execute("SELECT job_id, test_outcome, diff FROM work_results").fetchall()
    assert found == [("new a.py", "KILLED", "the change")]
