"""The calls that a copy has in flight: which, since when, and for how long it waited for them.

A copy waits for two reasons. Its own side's: a place for a part, the gate, the rate, the source's
disk, the pause before a repeat. Or the storage's: it took a block slowly, or its answer is due.
Only the second says anything of the storage.
"""

import contextlib
from collections.abc import Callable, Iterator


class Call:
    """One attempt at a call, begun with the storage's turn."""

    __slots__ = ("_calls", "_over", "_theirs", "begun", "name")

    def __init__(self, calls: "Calls", name: str, begun: float) -> None:
        self.name, self.begun = name, begun
        self._calls = calls
        self._theirs = self._over = False
        self.theirs()

    def theirs(self) -> None:
        """Say that the storage has to do something now: take a block, answer."""
        if not self._theirs and not self._over:
            self._theirs = True
            self._calls.waits(+1)

    def ours(self) -> None:
        """Say that the next step is ours: to read a block, to wait for the rate."""
        if self._theirs:
            self._theirs = False
            self._calls.waits(-1)

    def end(self) -> None:
        """Wait for nothing any more, whoever may still say so."""
        self.ours()
        self._over = True


class Calls:
    """A copy's calls in flight. O(1) for each change; all from one thread."""

    def __init__(self, now: Callable[[], float]) -> None:
        """`now`: seconds of a clock that never goes back."""
        self._now = now
        #: In the order in which they began.
        self._open: dict[Call, None] = {}
        self._theirs = 0
        self._since = self._waited = 0.0

    @contextlib.contextmanager
    def made(self, name: str) -> Iterator[Call]:
        """Count the block as one call in flight, in the storage's own words."""
        call = Call(self, name, self._now())
        self._open[call] = None
        try:
            yield call
        finally:
            call.end()
            del self._open[call]

    def waits(self, change: int) -> None:
        """Count a call for which the storage has to do something, or no longer."""
        now = self._now()
        if self._theirs:
            self._waited += now - self._since
        self._since = now
        self._theirs += change

    @property
    def waited_seconds(self) -> float:
        """How long the storage had to do something for at least one of the calls, so far."""
        return self._waited + (self._now() - self._since if self._theirs else 0.0)

    def __str__(self) -> str:
        """Return the oldest call, its age and how many there are; "" while there is none."""
        oldest = next(iter(self._open), None)
        if oldest is None:
            return ""
        age = f"{self._now() - oldest.begun:.0f} s"
        more = f", {len(self._open)} in flight" if len(self._open) > 1 else ""
        return f"{oldest.name} ({age}{more})"
