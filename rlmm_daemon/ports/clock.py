"""Time as an argument: the wall clock for timestamps, the loop's clock for waiting."""

from typing import Protocol


class Clock(Protocol):
    """Where "now" comes from. Waiting is asyncio's business (`sleep`, `timeout`)."""

    def now_ms(self) -> int:
        """Return milliseconds since 1970, which may jump in either direction."""

    def monotonic(self) -> float:
        """Return seconds that never go back; comparable with the running loop's `time()`."""
