"""Pytest plugins of the trials: what each test reaches, and only those tests that are asked for."""

import sys
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from types import FrameType
from typing import Any

import pytest

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
        began = time.process_time()
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)
            self.tests[-1] = (item.nodeid, time.process_time() - began)

    def _call(self, frame: FrameType, _event: str, _arg: Any) -> Any:
        return self._line if frame.f_code.co_filename in self._files else None

    def _line(self, frame: FrameType, event: str, _arg: Any) -> Any:
        if event == "line":
            self._lines[frame.f_code.co_filename][frame.f_lineno].add(len(self.tests) - 1)
        return self._line


class Only:
    """Runs these tests and no others, in this order."""

    def __init__(self, tests: Sequence[str]) -> None:
        self._ranks = {test: rank for rank, test in enumerate(tests)}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items):
        chosen = [item for item in items if item.nodeid in self._ranks]
        items[:] = sorted(chosen, key=lambda item: self._ranks[item.nodeid])
