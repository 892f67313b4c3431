"""`make mutants`: its groups name files that exist, its survivors functions that do."""

from pathlib import Path

import pytest

from tests.mutants.groups import GROUPS
from tests.mutants.run import ARGUED, _files, argument, idle_lines, qualified_name
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
