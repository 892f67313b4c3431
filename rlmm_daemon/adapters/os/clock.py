"""The machine's clocks."""

import time


class SystemClock:
    """The wall clock, and the monotonic clock that asyncio's loops read too."""

    def now_ms(self) -> int:
        """Return milliseconds since 1970 as the machine believes them."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Return the seconds of CLOCK_MONOTONIC: what `loop.time()` answers."""
        return time.monotonic()
