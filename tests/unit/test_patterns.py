"""Ways to write things that cost more than they look."""

import ast
from pathlib import Path

import rlmm_daemon

PACKAGE = Path(rlmm_daemon.__file__).parent


def first_of(node: ast.AST) -> str | None:
    """Return whose first key `next(iter(it))` asks for."""
    match node:
        case ast.Call(
            func=ast.Name(id="next"),
            args=[ast.Call(func=ast.Name(id="iter"), args=[of])],
        ):
            return ast.unparse(of)
        case _:
            return None


def test_no_dict_is_bounded_by_deleting_its_first_key():
    """Looking for it passes all that were deleted before: `daemon.base.bounded` does not."""
    found = []
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case (
                    ast.Delete(targets=[ast.Subscript(value=of, slice=key)])
                    | ast.Call(func=ast.Attribute(value=of, attr="pop"), args=[key])
                ) if first_of(key) == ast.unparse(of):
                    found.append(f"{path.relative_to(PACKAGE)}:{node.lineno}")
    assert found == []
