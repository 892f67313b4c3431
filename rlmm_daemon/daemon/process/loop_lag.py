"""Lag of the event loop: the one number behind every slow answer."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from rlmm_daemon.observability.metrics import ProcessMetrics

PROBE_SECONDS: Final = 0.25
#: The worst lag is shown over this many probes: a minute.
WINDOW_PROBES: Final = 240


class LoopLag:
    """Measures the lag by sleeping and looking at the clock."""

    def __init__(self, metrics: ProcessMetrics, monotonic: Callable[[], float]) -> None:
        self._metrics = metrics
        self._monotonic = monotonic
        self._window: deque[float] = deque(maxlen=WINDOW_PROBES)
        self._worst_since_asked = 0.0

    async def run(self) -> None:
        """Probe for ever."""
        while True:
            due = self._monotonic() + PROBE_SECONDS
            await asyncio.sleep(PROBE_SECONDS)
            self.observe(self._monotonic() - due)

    def observe(self, lag_seconds: float) -> None:
        """Take one measurement; a clock's rounding may make it negative."""
        lag = max(0.0, lag_seconds)
        self._window.append(lag)
        self._worst_since_asked = max(self._worst_since_asked, lag)
        self._metrics.loop_lag.observe(lag)
        self._metrics.loop_lag_max.set(self.worst_seconds)

    @property
    def worst_seconds(self) -> float:
        """The worst lag of the last minute."""
        return max(self._window, default=0.0)

    def sane(self, lag_seconds_max: float) -> bool:
        """Return whether the lag stayed within bounds since this was asked last."""
        worst, self._worst_since_asked = self._worst_since_asked, 0.0
        return worst <= lag_seconds_max
