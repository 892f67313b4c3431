"""The house: first lines that a stranger understands, rooms of a size that one can look over."""

import ast
from collections import Counter
from pathlib import Path

import pytest

import rlmm_daemon

PACKAGE = Path(rlmm_daemon.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
RIDDLES = {"What", "Which", "Who", "Whose", "Whether", "How", "Why", "Where", "When", "One", "May"}
ROOM_MODULES_MAX = 20
MODULE_LINES_MAX = 450
#: Modules that are longer, and may only become shorter.
LONGER = {
    "daemon/following/follower.py": 820,
    "daemon/bucket/bucket.py": 770,
    "core/fold/cache.py": 500,
    "daemon/cleaner/cleaner.py": 500,
    "core/explain/causes.py": 480,
    "daemon/copying/copy_job.py": 480,
    "daemon/reading/chunk_cache.py": 480,
    "daemon/reading/read_ahead.py": 480,
}


def name(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_a_modules_first_line_says_what_it_holds(path: Path):
    said = ast.get_docstring(ast.parse(path.read_text()))
    assert said, "it says what it is for"
    assert said.split()[0] not in RIDDLES, said.partition("\n")[0]


def test_a_room_can_be_looked_over():
    modules = Counter(name(path.parent) for path in MODULES if path.name != "__init__.py")
    assert {room for room, count in modules.items() if count > ROOM_MODULES_MAX} == set()


def test_a_module_has_a_length_that_one_reads_through():
    lines = {name(path): len(path.read_text().splitlines()) for path in MODULES}
    long = {each: count for each, count in lines.items() if count > MODULE_LINES_MAX}
    assert {each: count for each, count in long.items() if count > LONGER.get(each, 0)} == {}
    assert set(LONGER) == set(long), "what became short stays so"
