"""The table of others' complaints names tests that exist, and has a test for each complaint."""

import ast
import functools
import re
from pathlib import Path

TESTS = Path(__file__).parents[3]
TABLE = (TESTS.parent / "docs" / "complaints.md").read_text().split("```")[1]


@functools.cache
def names() -> set[str]:
    return {
        node.name
        for path in TESTS.rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    } | {
        node.name
        for path in (TESTS / "contract").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    }


def test_every_test_that_the_table_names_exists():
    named = set(re.findall(r"^ +(test_\w+)$", TABLE, re.MULTILINE))
    assert len(named) > 40
    assert named <= names(), named - names()


def test_each_complaint_is_there_once_and_each_has_a_test():
    rows = re.split(r"^(?=\d|C )", TABLE, flags=re.MULTILINE)[1:]
    numbers = [int(row.split()[0]) for row in rows if row[0].isdigit()]
    assert numbers == list(range(1, 16))
    assert all("        test_" in row for row in rows)
