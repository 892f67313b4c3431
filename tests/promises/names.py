"""Names that users hold: scripts, dashboards, alerts, brokers and other programs depend on them.

`names.txt` keeps them; `test_names` compares, and writes it anew with `--rewrite`.
"""

import ast
import functools
import inspect
import re
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from rlmm_daemon import client, embed
from rlmm_daemon.adapters.event_log.embedded import compacted_files
from rlmm_daemon.adapters.quorum.files.formatted import ABANDONED, WITHHELD
from rlmm_daemon.cli import main
from rlmm_daemon.cli.group import Exit
from rlmm_daemon.codec.api import METHODS
from rlmm_daemon.codec.marker import PRESENCE_PREFIX
from rlmm_daemon.config import Config
from rlmm_daemon.config.reconcile import ReconcileConfig
from rlmm_daemon.core.disposal.findings import Finding
from rlmm_daemon.core.explain.causes import CAUSES
from rlmm_daemon.core.explain.verdict import Verdict
from rlmm_daemon.core.readiness.states import FailureReason, PartitionState, TroubleKind
from rlmm_daemon.daemon.base import state_directory
from rlmm_daemon.daemon.bucket.storage_clock import CLOCK_KEY
from rlmm_daemon.domain.errors import BY_CODE
from rlmm_daemon.reconcile import workspace
from rlmm_daemon.reconcile.act.lease import LEASE_KEY
from rlmm_daemon.reconcile.act.quarantine import MANIFESTS
from rlmm_daemon.reconcile.control import ACCEPTED_KEY
from tests.support.daemon_process import REPOSITORY

KEPT: Final = Path(__file__).with_name("names.txt")
#: A kind that only a run of a daemon tells: see `made`.
FILES: Final = "files and objects"
_LEVELS: Final = ("debug", "info", "warning", "error", "exception", "critical")
#: Those that an ordinary run does not make.
RARE: Final = (
    state_directory.ACCEPTED,
    state_directory.OBSERVED,
    state_directory.LOST_SUFFIX,
    compacted_files.RECORD_NAME,
    PRESENCE_PREFIX,
    ACCEPTED_KEY,
    LEASE_KEY,
    MANIFESTS,
    CLOCK_KEY,
    workspace.AUDIT,
    ABANDONED,
    WITHHELD,
    "summary.json",  # of a run; the report's own module needs Spark
    "report.html",
)
#: Kafka's form of a UUID, with a digit or a capital: words of our own names have neither.
_ID: Final = r"(?=[\w-]*[A-Z0-9])[\w-]{22}(?![\w-])"
#: What prometheus_client appends to their names.
_COUNTERS: Final = ("Counter", "QuickCounter", "CounterMetricFamily")


@functools.cache
def current() -> dict[str, list[str]]:
    """Return the names of each kind as the code has them, sorted."""
    return {
        "commands": sorted(_commands(main, "rlmm")),
        "exit codes": [f"{each.value} {each.name.lower()}" for each in Exit],
        "configuration": sorted(_keys(Config, "")),
        "configuration of the nightly job": sorted(_keys(ReconcileConfig, "")),
        "methods": [f"{name} {_shape(name)}" for name in sorted(METHODS)],
        "reasons": sorted(set(_reasons())),
        "errors": [f"{code} {kind.wire_name()}" for code, kind in sorted(BY_CODE.items())],
        "metrics": sorted(set(_metrics())),
        "log events": sorted(set(_events())),
        "rare files and keys": sorted(RARE),
        "python": sorted(_python()),
    }


def made(*directories: Path) -> list[str]:
    """Return what lies below a daemon's directories, without what differs from run to run."""
    return sorted(
        {
            f"{directory.name}/{_masked(str(file.relative_to(directory)))}"
            for directory in directories
            for file in directory.rglob("*")
            if file.is_file()
        }
    )


def _masked(path: str) -> str:
    masks = ((r"[0-9a-f]{32,}", "HASH"), (_ID, "ID"), (r"\d{20}", "OFFSET"), (r"\d+", "N"))
    for pattern, mask in masks:
        path = re.sub(pattern, mask, path)
    return path


def read() -> dict[str, list[str]]:
    """Return what was kept."""
    kinds: dict[str, list[str]] = {}
    for line in KEPT.read_text().splitlines():
        if line.startswith("["):
            kinds[line.strip("[]")] = []
        elif line:
            kinds[[*kinds][-1]].append(line)
    return kinds


def write(kinds: dict[str, list[str]]) -> None:
    """Keep them."""
    KEPT.write_text("\n".join("\n".join((f"[{kind}]", *kinds[kind], "")) for kind in kinds))


def _commands(command: click.Command, path: str) -> Iterator[str]:
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from _commands(found, f"{path} {name}")
    else:
        yield path
    for parameter in command.params:
        if isinstance(parameter, click.Argument):
            yield f"{path} {parameter.make_metavar(click.Context(command))}"
        else:
            yield from (f"{path} {each}" for each in (*parameter.opts, *parameter.secondary_opts))


def _keys(section: type[msgspec.Struct], path: str) -> Iterator[str]:
    for field in msgspec.structs.fields(section):
        name = f"{path}{field.encode_name}"
        sections = list(_sections(field.type))
        for each in sections:
            kind = each.__struct_config__.tag
            yield from (
                _keys(each, f"{name}.")
                if kind is None
                else (
                    f"{name}.kind = {kind}",
                    *_keys(each, f"{name}({kind})."),
                )
            )
        if not sections:
            yield name


def _sections(kind: Any) -> Iterator[type[msgspec.Struct]]:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield kind
    else:
        for each in getattr(kind, "__args__", ()):
            yield from _sections(each)


def _shape(name: str) -> str:
    method = METHODS[name]
    fields = ", ".join(method.params.__struct_fields__)
    return f"({fields}) {method.right.value} {method.shape.value}"


def _reasons() -> Iterator[str]:
    for cause in CAUSES:
        yield f"explain {cause.name}"
    for kind in (PartitionState, FailureReason, TroubleKind, Verdict, Finding):
        yield from (f"{kind.__name__} {each.value}" for each in kind)


def _metrics() -> Iterator[str]:
    for call in _calls():
        texts = _written(call.args)
        if not texts or not texts[0].startswith("rlmm_"):
            continue
        name = texts[0]
        if _called(call) in _COUNTERS and not name.endswith("_total"):
            name += "_total"
        labels = [
            _written(given.elts)
            for given in (*call.args, *(each.value for each in call.keywords))
            if isinstance(given, ast.List | ast.Tuple)
        ]
        yield f"{name}{{{', '.join(labels[0])}}}" if labels and labels[0] else name


def _events() -> Iterator[str]:
    for call in _calls():
        if isinstance(call.func, ast.Attribute) and call.func.attr in _LEVELS and call.args:
            yield from _texts(call.args[0])


def _texts(expression: ast.expr) -> Iterator[str]:
    if isinstance(expression, ast.IfExp):
        yield from _texts(expression.body)
        yield from _texts(expression.orelse)
    else:
        yield from _written([expression])


def _calls() -> Iterator[ast.Call]:
    for file in sorted((REPOSITORY / "rlmm_daemon").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call):
                yield node


def _called(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _written(nodes: Iterable[ast.expr]) -> list[str]:
    """Return the texts among them that stand there as they are."""
    return [
        node.value
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


def _python() -> Iterator[str]:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    yield from (f"{name} = {where}" for name, where in project["scripts"].items())
    for module in (client, embed):
        for name in getattr(module, "__all__", None) or [
            name
            for name, each in vars(module).items()
            if getattr(each, "__module__", None) == module.__name__ and not name.startswith("_")
        ]:
            found = getattr(module, name)
            where = f"{module.__name__}.{name}"
            yield where
            if inspect.isclass(found):
                yield from (f"{where}.{each}" for each in dir(found) if not each.startswith("_"))
