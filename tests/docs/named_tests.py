"""Tests that pages name: whether they are there. Files are read, not imported: some need Spark."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.support.daemon_process import REPOSITORY

_PYTHON: Final = re.compile(r"`(tests/[\w/]+\.py)((?:::\w+)*)`")
_JAVA: Final = re.compile(r"`(\w+Test)\.(\w+)`")
_JAVA_HOME: Final = REPOSITORY / "deploy/plugin/src/test/java/rlmm/daemon/kafka"
_TARGET: Final = re.compile(r"`make ([\w-]+)`")


def named(text: str) -> list[str]:
    """Return the tests that a text names, and the files of tests."""
    return [*("".join(each) for each in _PYTHON.findall(text)), *map(".".join, _JAVA.findall(text))]


def targets(text: str) -> set[str]:
    """Return the targets of make that a text names."""
    return set(_TARGET.findall(text))


def is_there(name: str) -> bool:
    """Return whether a named test, or a file of tests, is there."""
    path, _, test = name.partition("::")
    if path.endswith(".py"):
        file = REPOSITORY / path
        return file.exists() and (not test or name in set(collected(file)))
    kind, _, method = name.partition(".")
    file = _JAVA_HOME / f"{kind}.java"
    return file.exists() and f"void {method}(" in file.read_text()


def collected(file: Path) -> Iterator[str]:
    """Return the node ids of a file as pytest would collect them."""
    name = str(file.relative_to(REPOSITORY))
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            promised = [file, *file.parent.glob("[!t]*.py")]  # contracts lie beside who keeps them
            for each in promised:
                yield from (f"{name}::{node.name}::{test}" for test in _defined_in(each))
    yield from (f"{name}::{test}" for test in _defined_in(file))


def _defined_in(file: Path) -> set[str]:
    return {
        node.name
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
    }
