"""Tests that `docs/promises.md` names exist, and each promise has one."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.daemon_process import REPOSITORY

PAGE = (REPOSITORY / "docs" / "promises.md").read_text()
ROWS = [
    tuple(cell.strip() for cell in line.strip("| ").split(" | "))
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith(("| ---", "| promise"))
]
NODE = re.compile(r"`(tests/[\w/]+\.py(?:::\w+)+)`")


def collected(file: Path) -> Iterator[str]:
    """The node ids of a file as pytest would collect them; read, not imported: some need Spark."""
    name = str(file.relative_to(REPOSITORY))
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            promised = [file, *file.parent.glob("[!t]*.py")]  # contracts lie beside who keeps them
            for each in promised:
                yield from (f"{name}::{node.name}::{test}" for test in defined_in(each))
    yield from (f"{name}::{test}" for test in defined_in(file))


def defined_in(file: Path) -> set[str]:
    return {
        node.name
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
    }


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:40])
def test_a_promise_names_tests_that_there_are_and_nothing_else(row):
    promise, held = row
    assert promise.endswith(".")
    named = NODE.findall(held)
    assert named, "nothing holds it"
    assert not re.sub(r"[\s,]", "", NODE.sub("", held))
    for node in named:
        file = REPOSITORY / node.partition("::")[0]
        assert file.exists(), file
        assert node in set(collected(file)), node


def test_the_page_promises_what_it_did_not_lose_by_a_slip_of_its_form():
    assert len(ROWS) == sum(line.startswith("| ") for line in PAGE.splitlines()) - 2 * PAGE.count(
        "| promise | held by |"
    )
    assert len(ROWS) > 30
