"""Recent events for the page: the newest lines of the daemon's log."""

from collections.abc import Awaitable, Callable, Sequence

from rlmm_daemon.daemon.operator.http_get import Page, Query
from rlmm_daemon.daemon.operator.page.answer import ROWS_MAX, json_page, number_of
from rlmm_daemon.domain.errors import InvalidArgument
from rlmm_daemon.observability.recent import Line


class EventAnswers:
    """Troubles and changes of state, as the log says them."""

    def __init__(self, recent: Callable[[], Sequence[Line]], now_ms: Callable[[], int]) -> None:
        """`recent` returns lines, the newest first."""
        self._recent, self._now_ms = recent, now_ms

    def paths(self) -> dict[str, Callable[[Query], Awaitable[Page]]]:
        """Return what answers each path."""
        return {"/api/events": self.events}

    async def events(self, query: Query) -> Page:
        """So many of the newest as are asked for, or all that are kept."""
        try:
            newest = number_of(query.get("newest"))
        except InvalidArgument as error:
            return json_page({"error": error.message}, 400)
        lines = self._recent()
        shown = lines[: ROWS_MAX if newest is None else min(newest, ROWS_MAX)]
        return json_page({"as_of_ms": self._now_ms(), "count": len(lines), "events": shown})
