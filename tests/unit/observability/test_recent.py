"""Newest lines of the log: bounded, without secrets, and no stream of changes hides a trouble."""

import io
import logging
import threading
from typing import Any

import pytest
import structlog

from rlmm_daemon.domain.secret import HIDDEN
from rlmm_daemon.observability.logging import configure
from rlmm_daemon.observability.recent import LINES_MAX, RECENT, TEXT_MAX, RecentLines
from tests.support.planted import PLANTED
from tests.unit.observability.test_logging import (
    _restored as _restored,  # noqa: PLC0414 - a fixture
)

STAMP = "2026-11-26T10:00:00.250000Z"


@pytest.fixture
def kept() -> RecentLines:
    return RecentLines()


def say(kept: RecentLines, level: str, event: str, **fields: Any) -> None:
    said = {"event": event, "level": level, "timestamp": STAMP, "logger": "x", **fields}
    assert kept.keep(None, level, said) is said


def test_a_line_is_its_words_and_when(kept):
    say(kept, "info", "partition.state", partition=3, exception="Traceback\n...", _record=object())
    (line,) = kept.rows()
    assert line.text == "partition.state partition=3"
    assert (line.level, line.count, line.at_ms) == ("info", 1, 1_795_687_200_250)


def test_changes_without_end_push_out_changes_only(kept):
    say(kept, "error", "it broke")
    for number in range(10 * LINES_MAX):
        say(kept, "info", f"change {number}")
    rows = kept.rows()
    assert len(rows) == LINES_MAX + 1
    assert [rows[0].text, rows[-1].text] == [f"change {10 * LINES_MAX - 1}", "it broke"]


def test_troubles_without_end_are_bounded_and_equal_ones_in_a_row_are_one(kept):
    for number in range(5 * LINES_MAX):
        say(kept, "warning", "again" if number % 2 == 0 else f"other {number // 10}" + "x" * 9_999)
    assert len(kept.rows()) == LINES_MAX
    assert max(len(line.text) for line in kept.rows()) == TEXT_MAX
    for _ in range(7):
        say(kept, "error", "the same", why="refused")
    newest = kept.rows()[0]
    assert (newest.text, newest.count) == ("the same why=refused", 7)


def test_routine_is_not_kept_and_a_stamp_that_is_none_do_no_harm(kept):
    say(kept, "debug", "much")
    say(kept, "info", "copy finished", bytes=7)
    kept.keep(None, "info", {"event": "of a host", "timestamp": "yesterday"})
    assert [(line.text, line.at_ms) for line in kept.rows()] == [("of a host", None)]


@pytest.mark.parametrize("kind", PLANTED, ids=lambda each: each.kind)
def test_no_secret_is_kept_however_it_is_said(kept, kind):
    for field in ("event", "error"):
        kept.keep(None, "error", {"event": "failed", field: f"before {kind.text}"})
    rows = str(kept.rows())
    assert kind.secret not in rows
    assert HIDDEN in rows
    assert rows.count("before") == 2


def test_every_line_of_the_process_passes_and_none_forges_another():
    configure(level="info", style="json", stream=io.StringIO())
    structlog.get_logger("ours").warning(
        "bad name", topic="a\nb\x1b[2J", password="hunter2", deep={"x": [{"api_key": "hunter2"}]}
    )
    logging.getLogger("theirs").error("said %s", "so")
    structlog.get_logger("ours").debug("unsaid")
    theirs, ours = RECENT.rows()[:2]
    assert theirs.text == "said so"
    assert ours.text.startswith(rf"bad name topic=a\nb\x1b[2J password={HIDDEN} deep=")
    assert "hunter2" not in ours.text


def test_threads_lose_no_line(kept):
    def many() -> None:
        for _ in range(500):
            say(kept, "info", "one")

    threads = [threading.Thread(target=many) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(30)
    assert [line.count for line in kept.rows()] == [2_000]
