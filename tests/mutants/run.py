"""`make mutants`: planted changes, one by one, that some test has to notice.

Each group has a session (`var/mutants/GROUP.sqlite`) that the next run goes on with. Mutants of a
module that was changed are tried anew, once tests were changed survivors of the others too; remove
the session to try all anew. cosmic-ray changes a copy of the working tree, never the tree,
and takes mutants in random order, so that a run that ends early has seen a sample of all.
Survivors that argued.toml names are not told again. Exit code 1: others survived.
"""

import argparse
import ast
import contextlib
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import dropwhile
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from tests.mutants.groups import GROUPS, Group

ROOT: Final = Path(__file__).resolve().parents[2]
HOME: Final = ROOT / "var" / "mutants"
CONSOLE: Final = Console(markup=False, highlight=False, soft_wrap=True)
ARGUED: Final = Path(__file__).with_name("argued.toml")
#: A mutant's trial bounds itself; beyond this that has failed.
TRIAL_SECONDS_MAX: Final = 1800
#: To run all tests of a group once, noting what each reaches.
LEARN_SECONDS_MAX: Final = 3600
#: Mutations that say little here: of types (`A | None`), one operator by nine others, one
#: comparison by those that no test can miss which notices the ones that are kept.
EXCLUDED: Final = (
    "core/RemoveDecorator",
    "core/ReplaceBinaryOperator_(?!Add_Sub|Sub_Add|Mul_|FloorDiv_Mul).*",
    "core/ReplaceBinaryOperator_Mul_(?!Add).*",
    (
        "core/ReplaceComparisonOperator_(?!(Eq_(NotEq|LtE|GtE)|NotEq_(Eq|Lt|Gt)|Lt_(LtE|NotEq)"
        "|Gt_(GtE|NotEq)|LtE_(Lt|Eq)|GtE_(Gt|Eq)|Is_IsNot|IsNot_Is)$).*"
    ),
)
#: Whoever is called like this only tells.
LOGGERS: Final = frozenset({"log", "_log", "logger"})


Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True, slots=True, kw_only=True)
class Survivor:
    """A change that no test noticed."""

    name: str
    line: int
    removed: str
    added: str

    @property
    def change(self) -> str:
        """The change under its qualified name, as argued.toml names it."""
        return f"{self.name}: {self.removed} => {self.added}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run for a while; print what survived so far."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("groups", nargs="*", help=f"of {', '.join(GROUPS)}; all by default")
    parser.add_argument("--seconds", type=float, default=3600, help="for all groups together")
    asked = parser.parse_args(argv)
    unknown = set(asked.groups) - set(GROUPS)
    if unknown:
        parser.error(f"no such group: {', '.join(sorted(unknown))}; there are {', '.join(GROUPS)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started is ended
    until, survived = time.monotonic() + asked.seconds, 0
    for name in asked.groups or GROUPS:
        survived += _run(name, GROUPS[name], until)
    return 1 if survived else 0


def _run(name: str, group: Group, until: float) -> int:
    """Go on with a group's session until then; return how many survived."""
    session = HOME / f"{name}.sqlite"
    learned = HOME / f"learned-{name}-{_digest(*group.modules)}"
    tried = session.with_suffix(".tests")
    tree = HOME / f"tree-{name}"
    _copy(tree)
    if time.monotonic() < until:
        config = session.with_suffix(".toml")
        _configure(config, group)
        sources = {path: _digest(path) for path in _files(*group.modules)}
        if _sources_of(session) != sources:
            _begin(session, config, tree, sources)
        tests = _digest(*group.tests)
        if not tried.exists() or tried.read_text() != tests:
            _try_survivors_again(session)
            tried.write_text(tests)
        with _trials(name, group, session, learned, tree):
            _execute(session, config, tree, until)
    return _report(name, session, tree) if session.exists() else 0


def _digest(*below: str) -> str:
    """Name the state of these files."""
    digest = hashlib.blake2b(digest_size=6)
    for path in sorted(_files(*below)):
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


def _socket() -> Path:
    return HOME / f"trials-{os.getpid()}.sock"  # its path has to be short


@contextmanager
def _trials(name: str, group: Group, session: Path, learned: Path, tree: Path) -> Iterator[None]:
    """Have mutants tried meanwhile: `trials`, which begins with the copy in its path."""
    modules = [f"--module={module}" for module in group.modules]
    python = str(ROOT / ".venv" / "bin" / "python")
    options = ["-m", "tests.mutants.trials", f"--socket={_socket()}", f"--learned={learned}"]
    with session.with_suffix(".log").open("w") as told:
        process = subprocess.Popen(
            [python, *options, *modules, *group.tests],
            cwd=tree, env=_environment(), stdout=told, stderr=told,
        )  # fmt: skip
        try:
            until = time.monotonic() + LEARN_SECONDS_MAX
            while not _socket().exists():
                if process.poll() is not None or time.monotonic() > until:
                    sys.exit(f"{name}: its tests fail without any mutant, see {told.name}")
                time.sleep(0.1)
            yield
        finally:
            process.terminate()
            process.wait()
            _socket().unlink(missing_ok=True)


def _environment() -> Mapping[str, str]:
    """Return ours, with the tool in the path, and another place for failing examples."""
    tools = HOME / "tools" / "bin"
    return {
        **os.environ,
        "PATH": f"{tools}:{os.environ['PATH']}",
        "RLMM_HYPOTHESIS": "brief",
        "PYTHONDONTWRITEBYTECODE": "1",
        "HYPOTHESIS_STORAGE_DIRECTORY": str(HOME / "examples"),
    }


def _configure(config: Path, group: Group) -> None:
    command = ["python3", "-I", "-S", str(ROOT / "tests/mutants/ask.py"), str(_socket())]
    config.write_text(
        "[cosmic-ray]\n"
        f"module-path = {json.dumps(list(group.modules))}\n"
        f"timeout = {TRIAL_SECONDS_MAX}\n"
        "excluded-modules = []\n"
        f"test-command = {json.dumps(shlex.join(command))}\n"
        "[cosmic-ray.distributor]\n"
        'name = "local"\n'
        "[cosmic-ray.filters.operators-filter]\n"
        f"exclude-operators = {json.dumps(EXCLUDED)}\n"
    )


def _sources_of(session: Path) -> Mapping[str, str]:
    """Return the state of each module that a session is of; nothing if there is no session."""
    if not session.exists():
        return {}
    with contextlib.closing(sqlite3.connect(session)) as database:
        return dict(database.execute("SELECT path, digest FROM sources"))


def _begin(session: Path, config: Path, tree: Path, sources: Mapping[str, str]) -> None:
    """Make a session under its name at the end, so that a half-made one is never gone on with."""
    made = session.with_suffix(".new")
    made.unlink(missing_ok=True)
    for command in (
        ["cosmic-ray", "init", str(config), str(made)],
        ["cr-filter-operators", str(made), str(config)],
    ):
        subprocess.run(command, cwd=tree, env=_environment(), check=True)
    _skip_idle(made, tree)
    with contextlib.closing(sqlite3.connect(made)) as database, database:
        database.execute("CREATE TABLE sources (path, digest)")
        database.executemany("INSERT INTO sources VALUES (?, ?)", sources.items())
    if session.exists():
        _take_over(made, session)
    made.rename(session)


def _take_over(made: Path, session: Path) -> None:
    """Keep what is known of the mutants of modules that are as they were."""
    with contextlib.closing(sqlite3.connect(made)) as database:
        database.execute("ATTACH ? AS old", (str(session),))
        with database:
            database.execute(
                "INSERT OR IGNORE INTO work_results (job_id, worker_outcome, test_outcome, diff) "
                "SELECT new.job_id, result.worker_outcome, result.test_outcome, result.diff "
                "FROM main.mutation_specs AS new "
                "JOIN old.mutation_specs AS known USING "
                "(module_path, operator_name, operator_args, occurrence) "
                "JOIN old.work_results AS result ON result.job_id = known.job_id "
                "JOIN main.sources ON main.sources.path = module_path "
                "JOIN old.sources ON old.sources.path = main.sources.path "
                "AND old.sources.digest = main.sources.digest"
            )


def _try_survivors_again(session: Path) -> None:
    with contextlib.closing(sqlite3.connect(session)) as database, database:
        database.execute("DELETE FROM work_results WHERE test_outcome = 'SURVIVED'")


def _skip_idle(session: Path, tree: Path) -> None:
    """Leave out what decides nothing that a test should hold."""
    with contextlib.closing(sqlite3.connect(session)) as database, database:
        items = "SELECT job_id, module_path, start_pos_row FROM mutation_specs"
        idle: dict[str, set[int]] = {}
        for job, path, row in database.execute(items).fetchall():
            if path not in idle:
                idle[path] = set(idle_lines((tree / path).read_text()))
            if row in idle[path]:
                database.execute(
                    "INSERT OR IGNORE INTO work_results (worker_outcome, job_id) "
                    "VALUES ('SKIPPED', ?)",
                    (job,),
                )


def idle_lines(source: str) -> Iterator[int]:
    """Yield the lines of calls of a logger, of options of classes, and of limits, a choice each."""
    module = ast.parse(source)
    idle: list[ast.AST] = [node for node in module.body if _is_a_number(node)]
    for scope in module.body:
        if isinstance(scope, ast.ClassDef) and scope.name.endswith("Options"):
            idle += [node for node in scope.body if _is_a_number(node)]
    for node in ast.walk(module):
        if isinstance(node, ast.ClassDef):
            idle += node.decorator_list
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            match node.value.func:
                case ast.Attribute(value=ast.Name(id=name)) if name in LOGGERS:
                    idle.append(node)
                case _:
                    pass
    for each in idle:
        assert isinstance(each, ast.expr | ast.stmt)
        yield from range(each.lineno, (each.end_lineno or each.lineno) + 1)


def _is_a_number(node: ast.stmt) -> bool:
    """Whether it gives a name to a number, or some, written out."""
    if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
        return False
    return all(
        isinstance(
            each, ast.BinOp | ast.UnaryOp | ast.operator | ast.unaryop | ast.Tuple | ast.Load
        )
        or (isinstance(each, ast.Constant) and isinstance(each.value, int | float))
        for each in ast.walk(node.value)
    )


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
    argued = argument(ARGUED.read_text())
    ran, pending, survivors = 0, 0, list[Survivor]()
    for item, result in _rows(session, tree):
        if result is None:
            pending += 1
        elif result["worker_outcome"] != "skipped":
            ran += 1
            if result["test_outcome"] == "survived":
                survivors.append(_survivor(tree, item["mutations"][0], result["diff"]))
    left = [each for each in survivors if not argued(each.change)]
    CONSOLE.print(
        f"{name}: {ran} mutants tried, {ran - len(survivors)} killed, "
        f"{len(survivors) - len(left)} argued, {len(left)} survived, {pending} are left"
    )
    for each in sorted(left, key=lambda each: (each.name, each.line)):
        CONSOLE.print(f"  {each.line:4d} {json.dumps(each.change, ensure_ascii=False)},")
    return len(left)


def argument(text: str) -> Callable[[str], bool]:
    """Return what knows the changes that may survive: by name, or by what kind of change it is."""
    reasons = tomllib.loads(text)["reason"]
    changes = {change for reason in reasons for change in reason.get("changes", ())}
    kinds = [re.compile(kind) for reason in reasons for kind in reason.get("kinds", ())]
    return lambda change: change in changes or any(kind.search(change) for kind in kinds)


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
    lines = diff.splitlines()
    return Survivor(
        name=f"{module}.{inside}" if inside else module,
        line=mutation["start_pos"][0],
        removed=_joined(lines, "-"),
        added=_joined(lines, "+"),
    )


def _joined(diff: Sequence[str], sign: str) -> str:
    """Return what a diff takes away or puts in, in one line: how it was laid out says nothing."""
    changes = dropwhile(lambda line: not line.startswith("@@"), diff)
    changed = (line[1:] for line in changes if line.startswith(sign))
    return " ".join(" ".join(line.split()) for line in changed).strip()


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
