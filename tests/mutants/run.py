"""`make mutants`: planted changes, one by one, that some test has to notice.

Each group has a session (`var/mutants/GROUP-DIGEST.sqlite`) that the next run goes on with; the
digest is of its modules and tests. cosmic-ray changes a copy of the working tree, never the tree.
Exit code 1: mutants survived.
"""

import argparse
import ast
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from tests.mutants.groups import GROUPS, Group

ROOT: Final = Path(__file__).resolve().parents[2]
HOME: Final = ROOT / "var" / "mutants"
CONSOLE: Final = Console(markup=False, highlight=False, soft_wrap=True)
#: A mutant may take so many times as long as the tests without it, and so many seconds more.
PATIENCE: Final = 4
PATIENCE_SECONDS: Final = 20
#: Mutations that say little here: of types (`A | None`), and one operator by nine others.
EXCLUDED: Final = (
    "core/RemoveDecorator",
    "core/ReplaceBinaryOperator_(?!Add_Sub|Sub_Add|Mul_|FloorDiv_Mul).*",
    "core/ReplaceBinaryOperator_Mul_(?!Add).*",
)


Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True, slots=True, kw_only=True)
class Survivor:
    """A change that no test noticed."""

    name: str
    operator: str
    diff: str


def main(argv: Sequence[str] | None = None) -> int:
    """Run for a while; print what survived so far."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("groups", nargs="*", help=f"of {', '.join(GROUPS)}; all by default")
    parser.add_argument("--seconds", type=float, default=3600, help="for all groups together")
    asked = parser.parse_args(argv)
    unknown = set(asked.groups) - set(GROUPS)
    if unknown:
        parser.error(f"no such group: {', '.join(sorted(unknown))}; there are {', '.join(GROUPS)}")
    until, survived = time.monotonic() + asked.seconds, 0
    for name in asked.groups or GROUPS:
        survived += _run(name, GROUPS[name], until)
    return 1 if survived else 0


def _run(name: str, group: Group, until: float) -> int:
    """Go on with a group's session until then; return how many survived."""
    session = HOME / f"{name}-{_digest(group)}.sqlite"
    tree = HOME / "tree"
    _copy(tree)
    config = session.with_suffix(".toml")
    if time.monotonic() < until:
        began = time.monotonic()
        if _tests(group, tree, stdout=subprocess.DEVNULL).wait():
            sys.exit(f"{name}: its tests fail without any mutant")
        _configure(config, group, time.monotonic() - began)
        if not session.exists():
            _begin(session, config, tree)
        _execute(session, config, tree, until)
    return _report(name, session, tree) if session.exists() else 0


def _digest(group: Group) -> str:
    """Name the state of the modules and their tests."""
    digest = hashlib.blake2b(digest_size=6)
    for path in sorted(_files(*group.modules, *group.tests)):
        digest.update(f"{path}\0".encode() + (ROOT / path).read_bytes())
    return digest.hexdigest()


def _files(*below: str) -> list[str]:
    """Return the files that git knows or would add."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *below]
    found = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [path for path in found.split("\0") if path and (ROOT / path).is_file()]


def _copy(tree: Path) -> None:
    """Make the copy anew: a run that was killed leaves a mutant in it."""
    shutil.rmtree(tree, ignore_errors=True)
    for path in _files("."):
        target = tree / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, target)


def _command(group: Group) -> list[str]:
    python = str(ROOT / ".venv" / "bin" / "python")  # begins with the copy in its path
    return [python, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *group.tests]


def _tests(group: Group, tree: Path, **more: Any) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(_command(group), cwd=tree, env=_environment(), **more)


def _environment() -> Mapping[str, str]:
    """Return ours, with the tool in the path, and another place for failing examples."""
    tools = HOME / "tools" / "bin"
    return {
        **os.environ,
        "PATH": f"{tools}:{os.environ['PATH']}",
        "HYPOTHESIS_STORAGE_DIRECTORY": str(HOME / "examples"),
    }


def _configure(config: Path, group: Group, seconds: float) -> None:
    timeout = PATIENCE * seconds + PATIENCE_SECONDS
    config.write_text(
        "[cosmic-ray]\n"
        f"module-path = {json.dumps(list(group.modules))}\n"
        f"timeout = {timeout:.0f}\n"
        "excluded-modules = []\n"
        f"test-command = {json.dumps(shlex.join(_command(group)))}\n"
        "[cosmic-ray.distributor]\n"
        'name = "local"\n'
        "[cosmic-ray.filters.operators-filter]\n"
        f"exclude-operators = {json.dumps(EXCLUDED)}\n"
    )


def _begin(session: Path, config: Path, tree: Path) -> None:
    """Make a session under its name at the end, so that a half-made one is never gone on with."""
    made = session.with_suffix(".new")
    made.unlink(missing_ok=True)
    for command in (
        ["cosmic-ray", "init", str(config), str(made)],
        ["cr-filter-operators", str(made), str(config)],
    ):
        subprocess.run(command, cwd=tree, env=_environment(), check=True)
    made.rename(session)


def _execute(session: Path, config: Path, tree: Path, until: float) -> None:
    """Let the tool work on what is left, and end it, with the tests that it runs, in time."""
    command = ["cosmic-ray", "exec", str(config), str(session)]
    process = subprocess.Popen(command, cwd=tree, env=_environment())
    try:
        process.wait(max(0.0, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        CONSOLE.print("time is up; the next run goes on from here")
    finally:
        if process.poll() is None:
            for child in _children(process.pid):
                os.killpg(child, signal.SIGKILL)  # each run of tests leads a group of its own
            process.kill()
            process.wait()


def _children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def _report(name: str, session: Path, tree: Path) -> int:
    _copy(tree)  # without the mutant that was being tried
    ran, pending, survivors = 0, 0, list[Survivor]()
    for item, result in _rows(session, tree):
        if result is None:
            pending += 1
        elif result["worker_outcome"] != "skipped":
            ran += 1
            if result["test_outcome"] == "survived":
                survivors.append(_survivor(tree, item["mutations"][0], result["diff"]))
    CONSOLE.print(f"{name}: {ran} mutants tried, {len(survivors)} survived, {pending} are left")
    by_name = defaultdict(list)
    for each in survivors:
        by_name[each.name].append(each)
    for qualified, found in sorted(by_name.items()):
        CONSOLE.print(f"  {qualified}")
        for each in found:
            CONSOLE.print(f"    {each.operator}\n{each.diff}")
    return len(survivors)


def _rows(session: Path, tree: Path) -> Iterator[tuple[dict[str, Any], dict[str, Any] | None]]:
    found = subprocess.run(
        ["cosmic-ray", "dump", str(session)],
        cwd=tree, env=_environment(), check=True, capture_output=True, text=True,
    )  # fmt: skip
    for line in found.stdout.splitlines():
        item, result = json.loads(line)
        yield item, result


def _survivor(tree: Path, mutation: Mapping[str, Any], diff: str) -> Survivor:
    path = Path(mutation["module_path"])
    inside = qualified_name((tree / path).read_text(), mutation["start_pos"][0])
    module = ".".join(path.with_suffix("").parts)
    changed = [line for line in diff.splitlines() if re.match(r"[-+](?![-+])", line)]
    return Survivor(
        name=f"{module}.{inside}" if inside else module,
        operator=f"{mutation['operator_name'].split('/')[-1]} at line {mutation['start_pos'][0]}",
        diff="\n".join(f"      {line}" for line in changed),
    )


def qualified_name(source: str, line: int) -> str:
    """Return the classes and functions around a line, joined by dots."""
    names: list[str] = []
    scope: ast.AST = ast.parse(source)
    while inner := [each for each in _definitions(scope) if _holds(each, line)]:
        scope = inner[0]
        names.append(inner[0].name)
    return ".".join(names)


def _definitions(node: ast.AST) -> Iterator[Definition]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Definition):
            yield child
        else:
            yield from _definitions(child)


def _holds(definition: Definition, line: int) -> bool:
    return definition.lineno <= line <= (definition.end_lineno or 0)


if __name__ == "__main__":
    sys.exit(main())
