"""A copy's kind, phases and end, as `status`, `explain` and the metrics tell them."""

import enum
from typing import Final

import msgspec


class RollBack(enum.Enum):
    """What became of a roll-back."""

    OK = "ok"
    #: Somebody else wrote COPY_SEGMENT_FINISHED of the segment: nothing was deleted.
    FINISHED_ELSEWHERE = "finished_elsewhere"
    #: A repeat or the cleaner goes on.
    FAILED = "failed"


#: COPY_SEGMENT_FINISHED may be in the log from here on.
FINISHING: Final = "finish"
#: The last phase, of a copy that is no longer one.
ENDED: Final = "ended"


class CopyKind(enum.Enum):
    """Who writes the segment's events."""

    #: The broker does: the job stores objects, removes none and writes no metadata.
    DATA = "copy_log_segment_data"
    WHOLE = "copy_segment"


class RunningCopy(msgspec.Struct, frozen=True, kw_only=True):
    """A running copy as `status` and `explain` show it."""

    partition: str
    segment_id: str
    kind: str
    phase: str
    bytes_done: int
    bytes_total: int
    parts_done: int
    #: The storage's call in flight.
    call: str
    age_seconds: float
    waiters: int
