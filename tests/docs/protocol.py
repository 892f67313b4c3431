"""Tables of `docs/protocol.md`: methods, what they carry, and the codes of errors."""

import types
import typing
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from rlmm_daemon.codec import api, frames
from rlmm_daemon.codec.api import METHODS
from rlmm_daemon.daemon.socket import handlers
from rlmm_daemon.domain import errors
from rlmm_daemon.domain.errors import BY_CODE
from tests.docs.sources import docstring, field_comments
from tests.docs.tables import table

_WORDS: Final[dict[Any, str]] = {
    int: "integer",
    bool: "boolean",
    str: "text",
    bytes: "bytes",
    type(None): "nil",
    None: "nil",
    Any: "anything",
}
_BRANCHES: Final[dict[type[errors.RlmmError], str]] = {
    errors.RefusedError: "the caller",
    errors.UnavailableError: "nobody: ask again",
    errors.CorruptError: "an operator",
}


def methods() -> str:
    """Return the table of methods."""
    rows = [
        (
            f"`{row.name}`",
            f"[{row.params.__name__}](#{row.params.__name__.lower()})",
            _word(row.result),
            row.right.value,
            row.shape.value,
            "a job's" if row.name in handlers.JOBS else "a request's",
        )
        for row in METHODS.values()
    ]
    return table(("method", "params", "result", "right", "answer", "deadline"), rows)


def structs() -> str:
    """Return a section for each array that goes over the wire."""
    return "\n\n".join(part for each in _structs() for part in _section(each))


def codes() -> str:
    """Return the table of errors."""
    rows = [
        (
            str(code),
            f"`{kind.wire_name()}`",
            docstring(kind).partition("\n")[0],
            next(who for branch, who in _BRANCHES.items() if issubclass(kind, branch)),
        )
        for code, kind in sorted(BY_CODE.items())
    ]
    return table(("code", "name", "meaning", "who has to act"), rows)


def _structs() -> list[type[msgspec.Struct]]:
    """Return hello's, those of the methods in their order, and what these hold."""
    found: dict[type[msgspec.Struct], None] = {api.HelloParams: None, api.HelloResult: None}
    for row in METHODS.values():
        for kind in (row.params, row.result):
            _gather(kind, found)
    _gather(frames.ErrorBody, found)
    return list(found)


def _gather(kind: Any, into: dict[type[msgspec.Struct], None]) -> None:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        if kind not in into:
            into[kind] = None
            for field in msgspec.structs.fields(kind):
                _gather(field.type, into)
        return
    for each in typing.get_args(kind):
        _gather(each, into)


def _section(struct: type[msgspec.Struct]) -> Iterator[str]:
    comments = field_comments(struct)
    comments |= {"timeout_ms": "The caller's own deadline; it can only shorten the daemon's."}
    rows = [
        (
            str(at),
            f"`{field.encode_name}`",
            _word(field.type),
            _default(field),
            comments[field.name],
        )
        for at, field in enumerate(msgspec.structs.fields(struct))
    ]
    yield f"### {struct.__name__}"
    yield docstring(struct)
    yield table(("index", "field", "type", "default", "meaning"), rows)


def _fields(struct: type[msgspec.Struct]) -> dict[str, msgspec.structs.FieldInfo]:
    return {field.name: field for field in msgspec.structs.fields(struct)}


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.default_factory is not msgspec.NODEFAULT:
        return "{}"
    if field.default is msgspec.NODEFAULT:
        return "required"
    return "nil" if field.default is None else f"`{msgspec.json.encode(field.default).decode()}`"


def _word(kind: Any) -> str:
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        said = _word(parts[0]) + _bounds(parts[1])
    elif origin in (typing.Union, types.UnionType):
        said = " or ".join(map(_word, parts))
    elif origin is list:
        said = f"list of {_word(parts[0])}"
    elif origin is dict:
        said = "map"
    elif isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        said = f"[{kind.__name__}](#{kind.__name__.lower()})"
    else:
        said = _WORDS[getattr(kind, "__supertype__", kind)]
    return said


def _bounds(meta: msgspec.Meta) -> str:
    if meta.min_length is not None:
        low, high = meta.min_length, meta.max_length
        return f" of {low}" if low == high else f" of {low} to {high}"
    return f", {meta.ge} to 2^{int(meta.le).bit_length()} - 1" if meta.le is not None else ""
