"""What `rlmm doctor` finds wrong comes with what to do about it."""

import ast
from pathlib import Path

import rlmm_daemon
from rlmm_daemon.domain.errors import UnsupportedProtocol
from rlmm_daemon.offline.checkup import _unreadable
from rlmm_daemon.ports.event_log import LogUnnamed

OFFLINE = Path(rlmm_daemon.__file__).parent / "offline"
FINE = ("'ok'", "'skipped'")


def test_each_finding_that_is_not_fine_has_its_advice() -> None:
    findings = [
        (
            f"{path.name}:{call.lineno}",
            {word.arg: ast.unparse(word.value) for word in call.keywords},
        )
        for path in sorted(OFFLINE.rglob("*.py"))
        for call in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "CheckResult"
    ]
    assert len(findings) > 50
    bare = [
        place
        for place, words in findings
        if words["verdict"] not in FINE and words.get("advice", "''") == "''"
    ]
    assert bare == []


def test_what_can_not_be_read_is_told_apart_by_what_ends_it() -> None:
    damaged = "put it back"
    assert _unreadable(LogUnnamed("damaged"), damaged) == damaged
    assert "--version" in _unreadable(UnsupportedProtocol("format 9"), damaged)
    assert "dmesg" in _unreadable(OSError(5, "Input/output error"), damaged)
