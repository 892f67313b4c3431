"""Trials of mutants, each in a fork of a process that has imported all that no mutant changes.

Of a group's tests only those run that reach a changed line, first the file with most of them per
second. Whoever connects to the socket has what is in the tree now tried, and gets a byte: 0 when
no test noticed. Runs in the tree, which is a copy.
"""

import argparse
import ast
import contextlib
import gc
import hashlib
import importlib
import importlib.abc
import json
import os
import resource
import select
import signal
import socket
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.mutants.covering import Covering, Trial

#: A trial that does not end by itself may take so many times as long as its tests did without a
#: mutant, and seconds more.
PATIENCE: Final = 8
PATIENCE_SECONDS: Final = 60
#: What a mutant that allocates without end may take.
MEMORY_BYTES_MAX: Final = 8 << 30
#: To run all tests of a group once, noting what each reaches.
LEARN_SECONDS_MAX: Final = 3600
#: To begin pytest and collect a file.
COLLECT_SECONDS: Final = 0.2
#: What pytest imports anew.
TESTS: Final = ("tests", "conftest", "__mp_main__", "__main__")


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """What a run without any mutant showed."""

    tests: Sequence[tuple[str, float]]
    #: By file below the tree and line, positions in `tests`.
    reached: Mapping[str, Mapping[int, Sequence[int]]]
    #: What can be imported once for all trials.
    imports: Sequence[str]


def main() -> int:
    """Learn what the tests reach, unless that is known, and try what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--learned", type=Path, required=True, help="directory")
    parser.add_argument("--module", action="append", default=[])
    parser.add_argument("tests", nargs="+")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that a fork does not outlive us
    files = [path for module in asked.module for path in _python_files(Path(module))]
    known = {path: asked.learned / f"{_digest(path)}.json" for path in _test_files(asked.tests)}
    new = {path: target for path, target in known.items() if not target.exists()}
    asked.learned.mkdir(exist_ok=True)
    if new and _forked(lambda place: _learn(files, new, place), seconds=LEARN_SECONDS_MAX):
        return 1
    learned = _joined(_read(path) for path in known.values())
    originals = {path: Path(path).read_text() for path in files}
    _import(learned.imports, files)
    gc.collect()
    gc.freeze()
    _serve(asked.socket, originals, learned)
    return 0


class _MutantError(Exception):
    """Something that is imported may be changed by a mutant, or knows what may be."""


def _import(names: Iterable[str], mutated: Sequence[str]) -> None:
    """Import once for all trials what no mutant changes."""
    refused = frozenset(module_name(path) for path in mutated)

    class Refusing(importlib.abc.MetaPathFinder):
        def find_spec(self, name: str, *_: object) -> None:
            if name in refused:
                raise _MutantError(name)

    finder = Refusing()
    sys.meta_path.insert(0, finder)
    for name in names:
        # An ImportError: made by another module, under a name of its own.
        with contextlib.suppress(ImportError, _MutantError):
            importlib.import_module(name)
    sys.meta_path.remove(finder)


def module_name(path: str) -> str:
    """Return the name by which a file of the tree is imported."""
    return ".".join(Path(path).with_suffix("").parts).removesuffix(".__init__")


def _python_files(module: Path) -> list[str]:
    return [str(module)] if module.suffix else sorted(str(path) for path in module.rglob("*.py"))


def _test_files(tests: Sequence[str]) -> list[str]:
    paths = (Path(test) for test in tests)
    found = (sorted(path.rglob("test_*.py")) if path.is_dir() else [path] for path in paths)
    return list(dict.fromkeys(str(path) for several in found for path in several))


def _digest(path: str) -> str:
    """Name a test file as it is now: what it reaches is learned again once it was changed."""
    return hashlib.blake2b(
        f"{path}\0".encode() + Path(path).read_bytes(), digest_size=8
    ).hexdigest()


def _learn(files: Sequence[str], new: Mapping[str, Path], place: str) -> int:
    covering = Covering([str(Path(path).resolve()) for path in files])
    status = _pytest(list(new), [covering], place)
    if status:
        return status
    here = f"{Path.cwd()}/"
    reached = {path.removeprefix(here): lines for path, lines in covering.reached.items()}
    # In their own order: an extension before its package can be another one.
    imports = [name for name in sys.modules if name.split(".")[0] not in TESTS]
    for path, target in new.items():
        own = [n for n, (test, _) in enumerate(covering.tests) if test.split("::")[0] == path]
        numbers = {number: place for place, number in enumerate(own)}
        learned = {
            "tests": [covering.tests[number] for number in own],
            "reached": {
                file: {
                    line: [numbers[number] for number in tests if number in numbers]
                    for line, tests in lines.items()
                }
                for file, lines in reached.items()
            },
            "imports": imports,
        }
        made = target.with_suffix(".new")
        made.write_text(json.dumps(learned))
        made.rename(target)
    return 0


def _read(path: Path) -> Learned:
    found = json.loads(path.read_text())
    reached = {
        file: {int(line): tests for line, tests in lines.items() if tests}
        for file, lines in found["reached"].items()
    }
    return Learned(tests=found["tests"], reached=reached, imports=found["imports"])


def _joined(several: Iterable[Learned]) -> Learned:
    tests: list[tuple[str, float]] = []
    reached: dict[str, dict[int, list[int]]] = {}
    imports: dict[str, None] = {}
    for one in several:
        for file, lines in one.reached.items():
            for line, numbers in lines.items():
                known = reached.setdefault(file, {}).setdefault(line, [])
                known += [len(tests) + number for number in numbers]
        tests += one.tests
        imports |= dict.fromkeys(one.imports)
    return Learned(tests=tests, reached=reached, imports=list(imports))


def _pytest(files: Sequence[str], plugins: Sequence[object], place: str, *more: str) -> int:
    quiet = ("-x", "-q", "--no-header", "--tb=line", "--assert=plain")
    options = ("-pno:cacheprovider", "-pno:xdist", f"--basetemp={place}/t", *quiet, *more)
    return int(pytest.main([*options, *files], list(plugins)))


def _fast_directory() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _serve(path: Path, originals: Mapping[str, str], learned: Learned) -> None:
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        while True:
            caller, _ = server.accept()
            with caller:
                stages = list(_stages(_chosen(originals, learned), learned))
                status = any(_tried(stage, learned, caller) for stage in stages)
                try:
                    caller.sendall(bytes([status]))
                except BrokenPipeError:  # whoever asked was ended
                    continue


def _chosen(originals: Mapping[str, str], learned: Learned) -> list[int]:
    """Return the tests that reach what is changed in the tree now."""
    found: set[int] = set()
    for path, before in originals.items():
        after = Path(path).read_text()
        if after != before:
            lines = learned.reached.get(path, {})
            touched = set(_statement_lines(before, changed_lines(before, after)))
            if any(line in lines for line in touched):
                found.update(*(lines[line] for line in touched if line in lines))
            elif _is_at_import(before, touched):
                found.update(_beside(set().union(*lines.values()), learned))
    return sorted(found)


def _beside(numbers: set[int], learned: Learned) -> Iterator[int]:
    """Yield all tests of the files of some: what a module names can be seen without a call."""
    files = {learned.tests[number][0].split("::")[0] for number in numbers}
    for number, (test, _) in enumerate(learned.tests):
        if test.split("::")[0] in files:
            yield number


def changed_lines(before: str, after: str) -> range:
    """Return the lines of `before`, from 1, from the first to the last that differ."""
    old, new = before.split("\n"), after.split("\n")
    first = 0
    while first < min(len(old), len(new)) and old[first] == new[first]:
        first += 1
    last = 0
    while last < min(len(old), len(new)) - first and old[-1 - last] == new[-1 - last]:
        last += 1
    return range(first + 1, max(len(old) - last, first + 1) + 1)


def _statement_lines(source: str, changed: range) -> Iterator[int]:
    """Yield the lines of the smallest statements, without what they enclose, of some lines."""
    for statement in ast.walk(ast.parse(source)):
        if isinstance(statement, ast.stmt | ast.ExceptHandler):
            body = getattr(statement, "body", None)
            end = body[0].lineno - 1 if body else statement.end_lineno or statement.lineno
            head = range(statement.lineno, max(end, statement.lineno) + 1)
            if head.start <= changed[-1] and changed[0] <= head[-1]:
                yield from head


def _is_at_import(source: str, touched: set[int]) -> bool:
    """Whether the lines run when the module is imported: tests that reach any of it may notice."""
    inside: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inside.update(range(node.body[0].lineno, (node.end_lineno or 0) + 1))
    return not touched <= inside


def _stages(chosen: Sequence[int], learned: Learned) -> Iterator[list[int]]:
    """Yield the best file's tests, then those of all others, quick ones first in each file."""
    by_file: defaultdict[str, list[int]] = defaultdict(list)
    for number in sorted(chosen, key=lambda each: learned.tests[each][1]):
        by_file[learned.tests[number][0].split("::")[0]].append(number)

    def worth(tests: list[int]) -> float:
        return len(tests) / (COLLECT_SECONDS + sum(learned.tests[each][1] for each in tests))

    first, *rest = sorted(by_file.values(), key=worth, reverse=True) or [[]]
    if first:
        yield first
    if rest:
        yield [number for tests in rest for number in tests]


def _tried(stage: Sequence[int], learned: Learned, caller: socket.socket) -> int:
    seconds = dict(learned.tests[number] for number in stage)
    files = list(dict.fromkeys(name.split("::")[0] for name in seconds))
    patience = PATIENCE_SECONDS + PATIENCE * sum(seconds.values())
    return _forked(
        lambda place: _pytest(files, [Trial(seconds)], place, f"--timeout={patience:.0f}"),
        seconds=patience,
        caller=caller,
    )


def _forked(
    work: Callable[[str], int], *, seconds: float, caller: socket.socket | None = None
) -> int:
    """Do the work in a process of its own, and end that and its own when time or asker are gone.

    It is given a directory for its files, which goes with it.
    """
    place = tempfile.TemporaryDirectory(
        prefix="rlmm-mutants-", dir=_fast_directory(), ignore_cleanup_errors=True
    )
    with place as home:
        return _in_a_fork(lambda: work(home), seconds, caller)


def _in_a_fork(work: Callable[[], int], seconds: float, caller: socket.socket | None) -> int:
    child = os.fork()
    if not child:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
        status = 1
        try:
            status = work()
        finally:
            sys.stdout.flush()
            os._exit(status)
    descriptor = os.pidfd_open(child)
    try:
        until = time.monotonic() + seconds
        watched = [descriptor] if caller is None else [descriptor, caller.fileno()]
        select.select(watched, [], [], max(0.0, until - time.monotonic()))
        ended, _, _ = select.select([descriptor], [], [], 0)
    finally:
        os.close(descriptor)
        try:
            os.killpg(child, signal.SIGKILL)
        except ProcessLookupError:
            ended = [descriptor]
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) if ended else 1


if __name__ == "__main__":
    sys.exit(main())
