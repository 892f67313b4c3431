"""What a log line shows, and what it never shows."""

import errno
import io
import json
import logging
import os
from collections.abc import Iterator

import pytest
import structlog

from rlmm_daemon.domain.secret import Secret
from rlmm_daemon.observability.escape import escape
from rlmm_daemon.observability.logging import configure, set_level


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(capture=False)
    structlog.reset_defaults()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def out() -> io.StringIO:
    stream = io.StringIO()
    configure(level="info", style="json", stream=stream)
    return stream


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_lines_of_libraries_take_the_same_way(out: io.StringIO):
    structlog.get_logger("ours").info("said", number=1)
    logging.getLogger("theirs").warning("said %s", "so")
    ours, theirs = lines(out)
    assert (ours["event"], ours["number"], ours["logger"]) == ("said", 1, "ours")
    assert (theirs["event"], theirs["level"], theirs["logger"]) == ("said so", "warning", "theirs")


def test_no_secret_gets_out_however_it_is_wrapped(out: io.StringIO):
    log = structlog.get_logger("ours")
    log.info("a", password="hunter2", deep={"x": [{"api_key": "hunter2"}]}, s=Secret("hunter2"))
    log.info("b", error="sasl.password=hunter2, retry", config={"token": {"a": "hunter2"}})
    logging.getLogger("theirs").warning("with %r", {"secret_key": "hunter2"})
    try:
        raise RuntimeError("connect: secret_access_key='hunter2'")
    except RuntimeError:
        log.exception("c")
    assert len(lines(out)) == 4
    assert "hunter2" not in out.getvalue()
    assert "[hidden]" in out.getvalue()


def test_a_log_that_takes_nothing_ends_no_work():
    class Full(io.StringIO):
        def write(self, _text: str) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    closed = io.StringIO()
    closed.close()
    for stream in (Full(), closed):
        configure(level="info", style="json", stream=stream)
        structlog.get_logger("ours").info("said")


@pytest.mark.parametrize("word", ["secret", "PASSWORD", "Passwd", "passphrase", "token"])
@pytest.mark.parametrize("case", ["{}=hunter2", "x.{}: 'hunter2'", "a {} = hunter2, b"])
def test_a_secret_in_a_text_is_hidden_whatever_it_is_called(out: io.StringIO, word: str, case: str):
    structlog.get_logger("ours").info("a", error=case.format(word))
    assert "hunter2" not in out.getvalue()


@pytest.mark.parametrize(
    "name", ["credential", "access_key", "AccessKey", "\u017fecret", "to\u212aen"]
)
def test_letters_that_only_look_like_others_hide_no_secret(out: io.StringIO, name: str):
    """A long s and the sign of Kelvin are those letters to whoever ignores case."""
    structlog.get_logger("ours").info("a", error=f"{name}=hunter2")
    assert "hunter2" not in out.getvalue()


def test_a_traceback_shows_no_local_variables():
    for style in ("json", "console"):
        stream = io.StringIO()
        configure(level="info", style=style, stream=stream)
        local = "hunter" + "2"
        try:
            raise RuntimeError(len(local))
        except RuntimeError:
            structlog.get_logger("ours").exception("failed")
        assert "RuntimeError: 7" in stream.getvalue()
        assert "hunter2" not in stream.getvalue()


@pytest.mark.parametrize("style", ["json", "console"])
def test_a_foreign_string_can_neither_steer_the_terminal_nor_forge_a_line(style: str):
    stream = io.StringIO()
    configure(level="info", style=style, stream=stream)
    evil = "orders\x1b[2J\nforged\u202e"
    structlog.get_logger("ours").info("seen", topic=evil, names=[evil], by={evil: 1})
    logging.getLogger("theirs").warning(evil)
    assert len(stream.getvalue().splitlines()) == 2
    assert "\x1b[2J" not in stream.getvalue()
    assert "\u202e" not in stream.getvalue()


@pytest.mark.parametrize(
    ("text", "shown"),
    [("plain ünï 日本", "plain ünï 日本"), ("a\x00\x7f", r"a\x00\x7f"), ("\ud800", r"\ud800")],
)
def test_what_prints_stays_and_the_rest_is_spelled_out(text: str, shown: str):
    assert escape(text) == shown


def test_the_level_can_change_while_running(out: io.StringIO):
    log = structlog.get_logger("ours")
    log.debug("no")
    set_level("debug")
    log.debug("yes")
    set_level("error")
    log.warning("no")
    assert [line["event"] for line in lines(out)] == ["yes"]


def test_libraries_chatter_only_at_debug(out: io.StringIO):
    logging.getLogger("botocore").info("no")
    set_level("debug")
    logging.getLogger("botocore").info("yes")
    assert [line["event"] for line in lines(out)] == ["yes"]


def test_a_terminal_gets_colours_and_a_pipe_gets_json():
    terminal, pipe = Terminal(), io.StringIO()
    for stream in (terminal, pipe):
        configure(level="info", stream=stream, environ={})
        structlog.get_logger("ours").info("said")
    assert "\x1b[" in terminal.getvalue()
    assert lines(pipe)[0]["event"] == "said"


def test_the_journal_gets_json_with_the_priority_in_front(tmp_path):
    with (tmp_path / "journal").open("w+") as stream:
        status = os.fstat(stream.fileno())
        environ = {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"}
        configure(level="info", stream=stream, environ=environ)
        structlog.get_logger("ours").error("said")
        stream.seek(0)
        line = stream.read()
    assert line.startswith("<3>{")
    assert json.loads(line.removeprefix("<3>"))["event"] == "said"
