"""Tests that `docs/promises.md` names exist, and each promise has one."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.daemon_process import REPOSITORY

PAGE = (REPOSITORY / "docs" / "promises.md").read_text()
NODE = re.compile(r"  \* `(tests/[\w/]+\.py(?:::\w+)+)`")


def promises() -> dict[str, list[str]]:
    """Each promise, and the tests below it."""
    found: dict[str, list[str]] = {}
    for line in PAGE.splitlines():
        if line.startswith("* "):
            found[line.removeprefix("* ")] = []
        elif line.startswith("  "):
            named = NODE.fullmatch(line)
            assert named, line
            found[[*found][-1]].append(named[1])
    return found


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


@pytest.mark.parametrize("promise", promises(), ids=lambda promise: promise[:40])
def test_a_promise_is_held_by_tests_that_there_are(promise):
    held = promises()[promise]
    assert promise.endswith(".")
    assert held, "nothing holds it"
    for node in held:
        file = REPOSITORY / node.partition("::")[0]
        assert file.exists(), file
        assert node in set(collected(file)), node


def test_no_promise_is_made_twice_or_lost_by_a_slip_of_the_pages_form():
    assert PAGE.count("\n* ") == len(promises()) > 30
    assert PAGE.count("`tests/") - 4 == sum(map(len, promises().values()))
