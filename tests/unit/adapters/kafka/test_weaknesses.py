"""The table of other managers' weaknesses names tests that exist, for every item."""

import re
from pathlib import Path

TESTS = Path(__file__).parents[3]
TABLE = (TESTS.parent / "docs" / "weaknesses.md").read_text()


def rows() -> dict[str, str]:
    found = re.findall(r"^(W?\d+b?) {2,}(.*(?:\n {5}.*)*)", TABLE, re.MULTILINE)
    return {number: re.sub(r"\s+", " ", row) for number, row in found}


def test_every_weakness_has_its_row():
    wanted = {f"W{number}" for number in range(1, 21)} | {str(number) for number in range(1, 25)}
    assert rows().keys() == wanted | {"24b"}


def test_every_test_that_a_row_names_exists():
    everything = "\n".join(
        name
        for file in TESTS.rglob("*.py")
        for name in re.findall(r"def test_(\w+)", file.read_text())
    )
    named = 0
    for number, row in rows().items():
        for place in re.findall(r"\b((?:unit|kafka)/[\w/]+)(?=[ ,;]|$)", row):
            path = TESTS / place
            assert path.is_dir() or path.with_suffix(".py").exists(), f"{number}: {place}"
        tests = re.sub(r"\b(?:unit|kafka)/\S+", "", row.partition(" T ")[2])
        for words in re.findall(r"[a-z0-9]+(?:_[a-z0-9]+)+", tests):
            if not words.startswith("test_"):  # a file, named before
                named += 1
                assert words in everything, f"{number}: {words}"
    assert named > 45
