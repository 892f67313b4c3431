"""`make mutants`: its groups name files that exist, its survivors functions that do."""

from pathlib import Path

import pytest

from tests.mutants.groups import GROUPS
from tests.mutants.run import _files, qualified_name

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
