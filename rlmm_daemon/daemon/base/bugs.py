"""Unexpected exceptions that ended one request: told, counted, and kept for `rlmm status`.

The process goes on. A bug in a fold is none of these: it crashes its partition (`crash_guard`).
"""

from collections import Counter
from collections.abc import Callable
from time import monotonic
from typing import Any, Final

import msgspec
import structlog

from rlmm_daemon.daemon.base.os_errors import from_os_error
from rlmm_daemon.domain.errors import InternalError, OutcomeUnknown, RlmmError

#: Of one place, so that a caller who asks again and again does not fill the disk.
TRACEBACK_SECONDS: Final = 1.0

_log = structlog.get_logger(__name__)


class MetBug(msgspec.Struct, frozen=True, kw_only=True):
    """The last one."""

    where: str
    error: str
    at: float


class Bugs(msgspec.Struct):
    """What requests of one daemon met."""

    clock: Callable[[], float] = monotonic
    #: By place: a method of the socket, or a step of the daemon on behalf of one request.
    counts: Counter[str] = msgspec.field(default_factory=Counter)
    last: MetBug | None = None
    _told: dict[str, float] = msgspec.field(default_factory=dict)

    def met(self, where: str, bug: BaseException) -> InternalError:
        """Tell and count a bug; returns what its request is answered."""
        now = self.clock()
        self.counts[where] += 1
        error = type(bug).__name__
        self.last = MetBug(where=where, error=f"{error}: {bug}"[:200], at=now)
        quiet = now - self._told.get(where, -TRACEBACK_SECONDS) < TRACEBACK_SECONDS
        if not quiet:
            self._told[where] = now
            _log.error("internal error", where=where, count=self.counts[where], exc_info=bug)
        return InternalError(f"the daemon met a bug in {where} ({error}); its log says more")

    def error_for(self, where: str, error: Exception) -> RlmmError:
        """Return what a request is answered that ended with an exception which is none of ours."""
        if isinstance(error, OSError) and not isinstance(error, TimeoutError):
            return from_os_error(error)
        return self.met(where, error)

    def met_after_append(self, where: str, bug: BaseException) -> OutcomeUnknown:
        """As `met`, where the record was handed to the log before."""
        self.met(where, bug)
        return OutcomeUnknown(
            f"the daemon met a bug in {where} after the record was handed to the log"
        )

    def facts(self) -> dict[str, Any]:
        """Return what `rlmm status` shows."""
        last = self.last
        return {
            "count": self.counts.total(),
            "last": last
            and {
                "where": last.where,
                "error": last.error,
                "seconds_ago": round(self.clock() - last.at, 3),
            },
        }
