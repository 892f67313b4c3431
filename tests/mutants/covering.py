"""Pytest plugins of the trials: what each test reaches, and the tests that one trial runs."""

import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Final, Never

import pytest

#: A test may take so many times as long as without a mutant, and seconds more.
PATIENCE: Final = 4
PATIENCE_SECONDS: Final = 3

#: By file and line, positions in the list of tests; and each test's seconds.
Reached = dict[str, dict[int, list[int]]]


class Covering:
    """Notes which lines of some files each test reaches; lines of an import belong to no test."""

    def __init__(self, files: Sequence[str]) -> None:
        self._files = frozenset(files)
        self.tests: list[tuple[str, float]] = []
        self._lines: defaultdict[str, defaultdict[int, set[int]]] = defaultdict(
            lambda: defaultdict(set)
        )

    @property
    def reached(self) -> Reached:
        """Return what was noted so far."""
        return {
            file: {line: sorted(tests) for line, tests in lines.items()}
            for file, lines in self._lines.items()
        }

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        self.tests.append((item.nodeid, 0.0))
        threading.settrace(self._call)
        sys.settrace(self._call)
        began = own_seconds()
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)
            self.tests[-1] = (item.nodeid, max(0.0, own_seconds() - began))

    def _call(self, frame: FrameType, _event: str, _arg: Any) -> Any:
        return self._line if frame.f_code.co_filename in self._files else None

    def _line(self, frame: FrameType, event: str, _arg: Any) -> Any:
        if event == "line":
            self._lines[frame.f_code.co_filename][frame.f_lineno].add(len(self.tests) - 1)
        return self._line


class Trial:
    """Runs these tests and no others, in this order, and ends the process once one fails or hangs.

    What waits for something that never comes would else wait as long as the test is patient.
    """

    def __init__(self, tests: Mapping[str, float]) -> None:
        """Take each test's seconds without a mutant."""
        self._seconds = tests
        self._ranks = {test: rank for rank, test in enumerate(tests)}
        self._until = float("inf")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items):
        chosen = [item for item in items if item.nodeid in self._ranks]
        items[:] = sorted(chosen, key=lambda item: self._ranks[item.nodeid])
        threading.Thread(target=self._watch, daemon=True).start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        self._until = own_seconds() + PATIENCE_SECONDS + PATIENCE * self._seconds[item.nodeid]
        return (yield)

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report):
        if report.failed:
            os._exit(1)

    def _watch(self) -> Never:
        # That clock has no alarm, so a thread beside the tests looks at it.
        while own_seconds() < self._until:
            time.sleep(0.1)
        os._exit(1)


def own_seconds() -> float:
    """Return a clock that stands still while others have the processor that we wait for."""
    waited_ns = 0
    for task in Path("/proc/self/task").glob("*/schedstat"):
        try:
            waited_ns += int(task.read_text().split()[1])
        except (FileNotFoundError, ProcessLookupError):  # the thread has ended
            continue
    return time.monotonic() - waited_ns / 1e9
