"""Forecast of one topic for the page: kept for a while, since each walks over all its segments."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from rlmm_daemon.daemon.base.bounded import Bounded
from rlmm_daemon.daemon.operator.forecasting import Forecasts
from rlmm_daemon.daemon.operator.http_get import Page, Query
from rlmm_daemon.daemon.operator.page.answer import json_page
from rlmm_daemon.daemon.operator.topics import Topics
from rlmm_daemon.domain.errors import RlmmError
from rlmm_daemon.domain.ids import uuid_text
from rlmm_daemon.ports.clock import Clock

#: That a forecast is shown; what it is made of changes by days.
KEPT_SECONDS: Final = 300.0
KEPT_MAX: Final = 64
#: Well below what the admin port gives an answer.
WALK_SECONDS: Final = 10.0
#: Of one topic; more are for `rlmm forecast`, whose asker waits for them.
SEGMENTS_MAX: Final = 200_000


class ForecastAnswers:
    """Forecasts of topics that this daemon's sums name, one walk at a time."""

    def __init__(self, forecasts: Forecasts, topics: Topics, clock: Clock) -> None:
        self._forecasts, self._topics, self._clock = forecasts, topics, clock
        self._kept: Bounded[str, tuple[float, dict[str, Any]]] = Bounded(KEPT_MAX)
        self._walks = False

    def paths(self) -> dict[str, Callable[[Query], Awaitable[Page]]]:
        """Return what answers each path."""
        return {"/api/forecast": self.forecast}

    async def forecast(self, query: Query) -> Page:
        """Of the topic of an id."""
        wanted = query.get("id", "")
        found = [each for each in self._topics.known() if uuid_text(each.topic_id) == wanted]
        if not found:
            return json_page({"why": "no sum names this topic yet"}, 404)
        kept = self._kept.get(wanted)
        if kept is not None and self._clock.monotonic() - kept[0] < KEPT_SECONDS:
            return json_page(kept[1])
        if sum(each.finished for each in found) > SEGMENTS_MAX:
            return json_page({"why": f"it has many segments: ask `rlmm forecast {wanted}`"}, 503)
        if self._walks:  # others may wait for their turn behind this answer
            return json_page({"why": "another topic's is being made"}, 503)
        return await self._made(wanted)

    async def _made(self, wanted: str) -> Page:
        self._walks = True
        try:
            async with asyncio.timeout(WALK_SECONDS):
                answer = await self._forecasts.of(wanted)
        except TimeoutError:
            return json_page({"why": f"it takes long: ask `rlmm forecast {wanted}`"}, 503)
        except RlmmError as error:
            return json_page({"why": error.message}, 503)
        finally:
            self._walks = False
        self._kept[wanted] = self._clock.monotonic(), answer
        return json_page(answer)
