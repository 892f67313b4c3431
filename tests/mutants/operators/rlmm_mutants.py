"""A mutation that cosmic-ray lacks: a statement that is not there.

Runs in the tool's own environment.
"""

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from cosmic_ray.operators.operator import Example, Operator
from parso.python.tree import Keyword

#: What begins with one of these only tells.
_LOGGERS = frozenset({"log", "_log", "logger"})
#: Calls, waits, assignments, deletions and errors; what is no more than a name does nothing.
_REMOVED = frozenset({"atom_expr", "await_expr", "expr_stmt", "del_stmt", "raise_stmt"})


class RemoveStatement(Operator):
    """Puts `pass` in the place of one statement of a function."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[Any, Any]]:
        """Yield where a statement is that can go."""
        if node.type != "simple_stmt":
            return
        statement = node.children[0]
        tells = statement.get_first_leaf().value in _LOGGERS and statement.type == "atom_expr"
        if statement.type in _REMOVED and not tells and _in_function(node):
            yield statement.start_pos, statement.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        """Return the line without its statement."""
        assert index == 0
        first = node.children[0].get_first_leaf()
        node.children[0] = Keyword("pass", first.start_pos, first.prefix)
        return node

    @classmethod
    def examples(cls) -> Sequence[Example]:
        """Return one."""
        return (Example("def f():\n    sync()\n", "def f():\n    pass\n"),)


def _in_function(node: Any) -> bool:
    """Whether the nearest scope is a function's: a class's lines are declarations."""
    while (node := node.parent) is not None:
        if node.type in {"funcdef", "classdef"}:
            return bool(node.type == "funcdef")
    return False


class Provider:
    """What the tool finds by the entry point."""

    _operators: ClassVar = {"RemoveStatement": RemoveStatement}

    def __iter__(self) -> Iterator[str]:
        """Yield the operators' names."""
        return iter(self._operators)

    def __getitem__(self, name: str) -> type[Operator]:
        """Return an operator."""
        return self._operators[name]
