"""Warnings of what others cause: not more than a few lines, however often they cause it."""

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

_SECONDS: Final = 10.0
#: Of those that are counted; the ones written longest ago are forgotten.
_KEPT_MAX: Final = 256


class RareLog:
    """Writes the first warning of each event, then one in ten seconds, which says how many."""

    def __init__(self, log: Any, now: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._now = now
        #: By event: when it was last written, and how often it came since.
        self._events: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def warning(self, event: str, *, about: str = "", **fields: object) -> None:
        """Write it, or count it; those `about` different things are counted apart."""
        key = f"{event} {about}"
        at, left_out = self._events.get(key, (float("-inf"), 0))
        now = self._now()
        if now - at < _SECONDS:
            self._events[key] = (at, left_out + 1)
            return
        self._events.pop(key, None)
        self._events[key] = (now, 0)
        if len(self._events) > _KEPT_MAX:
            self._events.popitem(last=False)
        more = {"left_out": left_out} if left_out else {}
        self._log.warning(event, **fields, **more)
