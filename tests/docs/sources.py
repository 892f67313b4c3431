"""Comments in front of fields and assignments, read from the source that declares them."""

import ast
import functools
import inspect
import textwrap
from types import ModuleType
from typing import Any


@functools.cache
def _parsed(module: ModuleType) -> tuple[ast.Module, list[str]]:
    text = inspect.getsource(module)
    return ast.parse(text), text.splitlines()


def field_comments(struct: type) -> dict[str, str]:
    """Return what the `#:` comment in front of each field of a class, and of its bases, says."""
    found: dict[str, str] = {}
    for kind in reversed(struct.__mro__):
        module = inspect.getmodule(kind)
        if module is None or not module.__name__.startswith("rlmm_daemon."):
            continue
        tree, lines = _parsed(module)
        (node,) = (
            each
            for each in ast.walk(tree)
            if isinstance(each, ast.ClassDef) and each.name == kind.__name__
        )
        found |= {
            field.target.id: comment_above(lines, field.lineno)
            for field in node.body
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        }
    return found


def attribute_comments(group: type) -> dict[str, str]:
    """Return what the `#:` comment in front of each `self.NAME = ...` of a class says."""
    module = inspect.getmodule(group)
    assert module is not None
    tree, lines = _parsed(module)
    (node,) = (
        each
        for each in ast.walk(tree)
        if isinstance(each, ast.ClassDef) and each.name == group.__name__
    )
    return {
        target.attr: comment_above(lines, each.lineno)
        for each in ast.walk(node)
        if isinstance(each, ast.Assign)
        for target in each.targets
        if isinstance(target, ast.Attribute)
    }


def comment_above(lines: list[str], number: int) -> str:
    """Return the `#:` comment that ends in the line before this one, on one line."""
    said: list[str] = []
    for line in reversed(lines[: number - 1]):
        bare = line.strip()
        if not bare.startswith("#"):
            break
        said.append(bare.lstrip("#:").strip())
    return " ".join(reversed(said))


def docstring(thing: Any) -> str:
    """Return a docstring as paragraphs of one line each."""
    paragraphs = textwrap.dedent(inspect.getdoc(thing) or "").split("\n\n")
    return "\n\n".join(" ".join(each.split()) for each in paragraphs)
