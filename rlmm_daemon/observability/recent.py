"""Newest log lines, kept in memory for the page: troubles, and whatever else was said."""

import threading
from collections import deque
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

import msgspec

from rlmm_daemon.domain.secret import HIDDEN, looks_secret
from rlmm_daemon.observability.escape import escape
from rlmm_daemon.observability.scrub import scrub
from rlmm_daemon.observability.without_rich import EventDict, WrappedLogger

#: Of each of the two.
LINES_MAX: Final = 100
TEXT_MAX: Final = 500
#: More of a line is not even looked at: to look for secrets takes up to microseconds a character.
_READ_MAX: Final = 800
_TROUBLES: Final = ("warning", "error", "critical", "exception")
#: Said of each segment, connection or order, when all is well: they would leave no room.
_ROUTINE: Final = frozenset(
    {"copy finished", "server.hello", "audit.order_begun", "audit.segment_deleted"}
)
#: Said in columns of their own, or by nobody: a traceback stays in the log.
_APART: Final = frozenset({"event", "level", "logger", "timestamp", "exception", "stack"})


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One line, or several equal ones in a row."""

    number: int
    at_ms: int | None
    level: str
    text: str
    count: int = 1


class RecentLines:
    """Two rings, so that no stream of changes pushes a trouble out. Any thread may write a line."""

    def __init__(self) -> None:
        self._troubles = deque[Line](maxlen=LINES_MAX)
        self._changes = deque[Line](maxlen=LINES_MAX)
        self._number = 0
        self._lock = threading.Lock()

    def keep(self, _logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
        """Keep a line without its secrets, and hand it on as it is."""
        level = str(event.get("level", method))
        if level != "debug" and not (level == "info" and event.get("event") in _ROUTINE):
            text = _clean(" ".join(_words(event))[:_READ_MAX])[:TEXT_MAX]
            with self._lock:
                self._add(level, text, _at_ms(event.get("timestamp")))
        return event

    def rows(self) -> list[Line]:
        """Return what there is, the newest first."""
        with self._lock:
            found = [*self._troubles, *self._changes]
        return sorted(found, key=lambda line: -line.number)

    def _add(self, level: str, text: str, at_ms: int | None) -> None:
        ring = self._troubles if level in _TROUBLES else self._changes
        count = 1
        if ring and (ring[-1].level, ring[-1].text) == (level, text):
            count += ring.pop().count
        self._number += 1
        ring.append(Line(number=self._number, at_ms=at_ms, level=level, text=text, count=count))


#: This process's: log lines are the process's, too.
RECENT: Final = RecentLines()


def _words(event: EventDict) -> Iterator[str]:
    yield str(event.get("event", ""))
    for name, value in event.items():
        if name not in _APART and not name.startswith("_"):
            yield f"{name}={HIDDEN if looks_secret(name) else str(value)[:_READ_MAX]}"


def _clean(text: str) -> str:
    # What is hidden already is hidden once more, but for its last bracket.
    return escape(scrub(text).replace(f"{HIDDEN}]", HIDDEN))


def _at_ms(timestamp: Any) -> int | None:
    """Return it by the text that the line has; a host's processors may have left none."""
    try:
        return round(datetime.fromisoformat(timestamp).timestamp() * 1000)
    except (TypeError, ValueError):
        return None
