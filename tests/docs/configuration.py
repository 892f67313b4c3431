"""Tables of `docs/configuration.md`: every key with its kind, its bounds and its default."""

import typing
from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, Final

import msgspec

from rlmm_daemon.config.loading import _PATHS
from rlmm_daemon.config.model import READ_AGAIN, RELOADED, Config
from rlmm_daemon.config.reconcile import ReconcileConfig
from tests.docs.sources import docstring, field_comments
from tests.docs.tables import cell, table

_HEADS: Final = ("key", "values", "default", "meaning")
#: Paths that a run of the nightly job opens, not the loading of its configuration.
_FILES: Final = ("metadata.files", "snapshots")
_UNITS: Final = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
_NAMES: Final = {int: "integer", float: "number", str: "text", bool: "true or false"}


def daemon() -> str:
    """Return the sections of the daemon's file."""
    return "\n\n".join(_sections(Config, ""))


def nightly() -> str:
    """Return the sections of the nightly job's file."""
    return "\n\n".join(_sections(ReconcileConfig, ""))


def _sections(section: type[msgspec.Struct], path: str) -> Iterator[str]:
    comments = field_comments(section)
    rows = []
    below: list[tuple[str, type[msgspec.Struct]]] = []
    for field in msgspec.structs.fields(section):
        here = f"{path}.{field.encode_name}" if path else field.encode_name
        structs = _structs(field.type)
        below += [(here, each) for each in structs]
        if not structs:
            said = comments[field.name]
            assert said, f"{section.__module__}: {here} needs a comment that says what it does"
            rows.append((f"`{field.encode_name}`", *_value(field, here), said + _reload(here)))
    kind = section.__struct_config__.tag
    if path:
        yield f"### `[{path}]`" + (f' with `kind = "{kind}"`' if kind else "")
        yield docstring(section)
    if rows:
        yield table(_HEADS, rows)
    for here, each in below:
        yield from _sections(each, here)


def _structs(kind: Any) -> list[type[msgspec.Struct]]:
    options = typing.get_args(kind) if isinstance(kind, UnionType) else (kind,)
    return [each for each in options if isinstance(each, type) and issubclass(each, msgspec.Struct)]


def _reload(key: str) -> str:
    if key in RELOADED:
        return " *Reload: applied.*"
    return " *Reload: the file is read again.*" if key in READ_AGAIN else ""


def _value(field: msgspec.structs.FieldInfo, key: str) -> tuple[str, str]:
    default = field.default
    if field.default_factory is not msgspec.NODEFAULT:
        default = field.default_factory()
    shown = "required" if default is msgspec.NODEFAULT else _default(default, key)
    return _kind(field.type, key), shown


def _default(value: Any, key: str) -> str:
    if value is None:
        return "not set"
    shown = msgspec.json.encode(value).decode()
    return f"`{shown}`" + (f" ({size})" if "bytes" in key and (size := _size(value)) else "")


def _size(value: Any) -> str:
    for unit, name in _UNITS:
        if isinstance(value, int) and value >= unit and value % unit == 0:
            return f"{value // unit} {name}"
    return ""


def _kind(kind: Any, key: str) -> str:
    origin = typing.get_origin(kind)
    if origin is typing.Union or origin is UnionType:
        (kind,) = (each for each in typing.get_args(kind) if each is not type(None))
        origin = typing.get_origin(kind)
    bounds = ""
    if origin is Annotated:
        kind, meta = typing.get_args(kind)
        origin = typing.get_origin(kind)
        bounds = _bounds(meta, key)
    if origin is typing.Literal:
        return " or ".join(f'`"{each}"`' for each in typing.get_args(kind))
    if origin is tuple:
        return f"list: {_kind(typing.get_args(kind)[0], key)}{bounds}"
    if origin is dict:
        return "table of text"
    if key in _PATHS or key in _FILES:
        return "path"
    kind = getattr(kind, "__supertype__", kind)
    return _NAMES[kind] + bounds


def _bounds(meta: msgspec.Meta, key: str) -> str:
    said = []
    low, high = meta.ge, meta.le
    if low is not None and high is not None:
        said.append(f"{_number(low, key)} to {_number(high, key)}")
    elif meta.gt is not None:
        said.append(f"above {meta.gt}, at most {meta.le}")
    if meta.multiple_of is not None:
        said.append(f"a multiple of {_number(meta.multiple_of, key)}")
    if meta.max_length is not None:
        said.append(f"at most {meta.max_length}")
    elif meta.min_length is not None and meta.pattern is None:
        said.append("not empty")
    return cell("".join(f", {each}" for each in said))


def _number(value: float, key: str) -> str:
    if "bytes" in key and (size := _size(value)):
        return size
    return f"{value:,}"
