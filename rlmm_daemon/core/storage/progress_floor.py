"""Floor under the speed of a copy: bytes against the time that the storage had for them."""

import msgspec


class TooSlow(msgspec.Struct, frozen=True, kw_only=True):
    """So few bytes in so long."""

    moved_bytes: int
    seconds: float


class ProgressFloor:
    """Looks at windows of the storage's own time; what a copy waits for on its own side is free."""

    def __init__(self, *, bytes_per_second: int, window_seconds: float) -> None:
        self._rate, self._window = bytes_per_second, window_seconds
        #: Bytes and seconds at the window's beginning; None: none began.
        self._begin: tuple[int, float] | None = None

    def forget(self) -> None:
        """Begin anew with the next look: what is done just now is no transfer."""
        self._begin = None

    def look(self, moved_bytes: int, waited_seconds: float) -> TooSlow | None:
        """Return a verdict at the end of a window, else None.

        Both counts only grow; a time before the window's is another clock's, and begins it anew.
        """
        if self._begin is None or waited_seconds < self._begin[1]:
            self._begin = (moved_bytes, waited_seconds)
            return None
        moved, seconds = moved_bytes - self._begin[0], waited_seconds - self._begin[1]
        if seconds < self._window:
            return None
        self._begin = (moved_bytes, waited_seconds)
        if moved < self._rate * seconds:
            return TooSlow(moved_bytes=moved, seconds=seconds)
        return None

    def left_seconds(self, waited_seconds: float) -> float:
        """Return when the window can end at the earliest."""
        return self._window - (waited_seconds - self._begin[1] if self._begin else 0.0)
