"""Log lines: JSON for machines, colours for people, nothing secret, nothing forged.

Modules take their logger with `structlog.get_logger(__name__)` and bind fields; lines of libraries
that use the standard library's `logging` pass through the same processors.
"""

import contextlib
import functools
import logging
import os
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, TextIO

from rlmm_daemon.domain.secret import HIDDEN, Secret, looks_secret
from rlmm_daemon.observability.escape import escape, escape_lines
from rlmm_daemon.observability.recent import RECENT
from rlmm_daemon.observability.without_rich import (
    EventDict,
    Processor,
    WrappedLogger,
    structlog,
)

#: Libraries whose INFO is for their own developers.
_CHATTY: Final = ("aiohttp.access", "aiokafka", "asyncio", "botocore", "urllib3")
#: `password=hunter2`, `secret_key: 'x'`, `"token": "y"` inside a sentence or an error text.
_SECRET_IN_TEXT: Final = re.compile(
    r"""(?P<name>[\w.-]*(?:secret|password|passwd|passphrase|token|credential|access_?key)[\w.-]*)
        (?P<between>["']?\s*[=:]\s*)(?P<value>"[^"]*"|'[^']*'|[^\s,;&"'})\]]+)""",
    re.IGNORECASE | re.VERBOSE,
)
#: A text of ASCII without one of these holds none of the above, which is found out much faster.
_SECRET_WORDS: Final = ("secret", "passw", "passphrase", "token", "credential", "access")
#: Names of fields, nearly all of them written in this program.
_is_secret_name: Final = functools.lru_cache(1024)(looks_secret)
#: Fields whose text has line breaks of our own.
_MULTI_LINE: Final = frozenset({"exception", "stack"})
#: Values nested deeper are shown by their type only.
_DEPTH_MAX: Final = 6
#: syslog's numbers; journald reads them from the start of a line (sd-daemon(3)).
_PRIORITIES: Final = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}


def begin_quiet(stream: TextIO | None = None) -> None:
    """Where the host has not configured structlog: warnings and worse alone, to standard error.

    structlog by itself writes every line, of any level, into the host's standard output.
    """
    if not structlog.is_configured():
        structlog.configure(
            wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
            logger_factory=structlog.PrintLoggerFactory(stream or sys.stderr),
        )


def configure(
    *,
    level: str,
    style: str = "auto",
    stream: TextIO | None = None,
    environ: Mapping[str, str] = os.environ,
) -> None:
    """Send every log line of the process to `stream` (default: standard error).

    `style` is "auto", "json" or "console"; auto is JSON unless the stream is a terminal and systemd
    is not reading it. Calling it again replaces what was set before.
    """
    stream = stream or sys.stderr
    journal = _is_journal(stream, environ)
    as_json = style == "json" or (style == "auto" and (journal or not stream.isatty()))
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        structlog.processors.StackInfoRenderer(),
        RECENT.keep,  # which looks for more kinds of secrets, and whole ones
        redact,
        escape_values,
    ]
    handler = logging.StreamHandler(stream)
    renderers = _renderers(as_json=as_json, journal=journal)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.PositionalArgumentsFormatter(), *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
        )
    )
    logging.basicConfig(handlers=[handler], force=True)
    logging.captureWarnings(capture=True)
    set_level(level)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.stdlib.PositionalArgumentsFormatter(),
            *shared,
            *renderers,
            _Written(handler),
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,  # or a second `configure` would not reach old loggers
    )


def beside_answers() -> None:
    """Send what a command logs to standard error: its standard output is its answer."""
    structlog.configure(logger_factory=lambda *_: structlog.PrintLogger(sys.stderr))


def set_level(level: str) -> None:
    """Change from which level on lines are written; takes effect at once (SIGHUP)."""
    number = logging.getLevelNamesMapping()[level.upper()]
    logging.getLogger().setLevel(number)
    quiet = number if number == logging.DEBUG else max(number, logging.WARNING)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(quiet)


def redact(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Hide values under secret-looking names, however deep, and `name=value` inside texts."""
    return {
        name: value if name.startswith("_") else _redacted(name, value, 0)  # structlog's own
        for name, value in event.items()
    }


def escape_values(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Escape every string; tracebacks keep their line breaks."""
    return {
        name: escape_lines(value)
        if name in _MULTI_LINE and isinstance(value, str)
        else _escaped(value)
        for name, value in event.items()
    }


def _is_journal(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Return whether systemd's journal reads this very stream (systemd.exec(5))."""
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):  # a stream without a descriptor, or a closed one
        return False
    return environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


def _renderers(*, as_json: bool, journal: bool) -> Sequence[Processor]:
    if not as_json:
        plain = structlog.dev.plain_traceback  # rich's shows local variables, secrets among them
        return [structlog.dev.ConsoleRenderer(exception_formatter=plain)]
    render = structlog.processors.JSONRenderer(sort_keys=False)
    return [render, *([_Prefixed()] if journal else [])]


class _Written:
    """Write a rendered line where a handler writes its own.

    The way through a record of the standard library, which names the caller's file and line too,
    takes as long as all the rest.
    """

    def __init__(self, handler: "logging.StreamHandler[TextIO]") -> None:
        self._handler = handler

    def __call__(self, _logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        self._handler.acquire()
        try:
            # A stream that is closed, or full, has nobody whom it could be told.
            with contextlib.suppress(OSError, ValueError):
                self._handler.stream.write(f"{event}\n")
                self._handler.flush()
        finally:
            self._handler.release()
        raise structlog.DropEvent


class _Prefixed:
    """Put the priority before a rendered line; journald takes it off again."""

    def __call__(self, _logger: WrappedLogger, method: str, event: EventDict) -> str:
        return f"<{_PRIORITIES.get(method, 6)}>{event}"


def _redacted(name: str, value: Any, depth: int) -> Any:
    if isinstance(value, Secret) or (value is not None and _is_secret_name(name)):
        return HIDDEN
    if isinstance(value, str):
        return _redacted_text(value)
    if isinstance(value, bool | int | float | None):
        return value
    if isinstance(value, Mapping | list | tuple | set | frozenset):
        return _redacted_container(value, depth) if depth < _DEPTH_MAX else type(value).__name__
    return _redacted_text(value.hex() if isinstance(value, bytes) else str(value))


def _redacted_text(text: str) -> str:
    if text.isascii():
        lower = text.lower()
        if not any(word in lower for word in _SECRET_WORDS):
            return text
    return _SECRET_IN_TEXT.sub(rf"\g<name>\g<between>{HIDDEN}", text)


def _redacted_container(value: Mapping[Any, Any] | Collection[Any], depth: int) -> Any:
    if isinstance(value, Mapping):
        return {key: _redacted(str(key), each, depth + 1) for key, each in value.items()}
    return [_redacted("", each, depth + 1) for each in value]


def _escaped(value: Any) -> Any:
    if isinstance(value, str):
        return escape(value)
    if isinstance(value, dict):
        return {_escaped(key): _escaped(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_escaped(each) for each in value]
    return value
