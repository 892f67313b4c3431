"""Pace of a storage: how long its last answers took, and whether it gives any."""

from collections import deque
from statistics import median
from typing import Final

import msgspec

#: Answers by which the storage is judged, and how many it takes.
ANSWERS_KEPT: Final = 10
ANSWERS_MIN: Final = 5
#: An older answer says nothing of now.
SECONDS_KEPT: Final = 300.0
#: A storage whose typical answer takes longer is slow.
SLOW_SECONDS: Final = 2.0
#: Calls in a row without an answer that make it silent; one may be anybody's.
SILENT_CALLS: Final = 3


class Silence(msgspec.Struct, frozen=True, kw_only=True):
    """A storage that answered none of its last calls."""

    #: What the last one failed of.
    message: str
    calls: int
    #: Since the first of them failed.
    seconds: float


class Pace:
    """Of one storage; times are seconds of a clock that never goes back."""

    def __init__(self) -> None:
        self._answers: deque[tuple[float, float]] = deque(maxlen=ANSWERS_KEPT)
        self._failed = 0
        self._failed_since = 0.0
        self._message = ""

    def answered(self, seconds: float | None, now: float) -> None:
        """Note an answer; None: it took a segment's bytes along, so its time is the line's."""
        self._failed = 0
        if seconds is not None:
            self._answers.append((now, seconds))

    def failed(self, message: str, now: float) -> None:
        """Note a call that got no answer, or only that the storage failed."""
        if not self._failed:
            self._failed_since = now
        self._failed += 1
        self._message = message

    def answer_seconds(self, now: float) -> float:
        """Return the median of the last answers; 0 if there were too few of late."""
        late = [seconds for at, seconds in self._answers if now - at <= SECONDS_KEPT]
        return median(late) if len(late) >= ANSWERS_MIN else 0.0

    def silence(self, now: float) -> Silence | None:
        """Return what is known of a storage that answers nothing; None of one that does."""
        if self._failed < SILENT_CALLS:
            return None
        return Silence(message=self._message, calls=self._failed, seconds=now - self._failed_since)


def slow_words(answer_seconds: float) -> str | None:
    """Return what to say of a storage whose typical answer takes so long; None: it is not slow."""
    if answer_seconds <= SLOW_SECONDS:
        return None
    return f"half of its last answers took {answer_seconds:.1f} s or longer"
