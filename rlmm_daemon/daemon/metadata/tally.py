"""Sums over the user partitions of some folds, taken a few at a time: there may be 50,000."""

from collections.abc import Generator, Iterable
from operator import add
from typing import Final

import msgspec

from rlmm_daemon.core.fold.fold import Fold
from rlmm_daemon.core.fold.user_partitions import Sleeping
from rlmm_daemon.daemon.base.fair_scheduler import FairScheduler
from rlmm_daemon.domain.segment import SegmentState

#: User partitions of one step, which takes a tenth of a millisecond.
COUNTED_AT_ONCE: Final = 64
_FINISHED: Final = SegmentState.COPY_SEGMENT_FINISHED


class Tally(msgspec.Struct):
    """How much there is; each user partition as it was in its step."""

    user_partitions: int = 0
    #: By `SegmentState`.
    segments: list[int] = msgspec.field(default_factory=lambda: [0] * len(SegmentState))
    #: Of segments in COPY_SEGMENT_FINISHED.
    finished_bytes: int = 0
    #: Segments that are not answered from a snapshot.
    in_memory: int = 0
    asleep: int = 0
    aside_events: int = 0
    aside_bytes: int = 0


def steps(folds: Iterable[Fold]) -> Generator[None, None, Tally]:
    """Return the sums, giving way between two steps."""
    tally = Tally()
    for fold in folds:
        at_rest = list(fold.partitions.at_rest())
        tally.user_partitions += len(at_rest)
        for at in range(0, len(at_rest), COUNTED_AT_ONCE):
            for cache in at_rest[at : at + COUNTED_AT_ONCE]:
                tally.segments = list(map(add, tally.segments, cache.segments_by_state))
                tally.finished_bytes += cache.bytes_by_state[_FINISHED]
                if isinstance(cache, Sleeping):
                    tally.asleep += 1
                    tally.aside_events += cache.aside_events
                    tally.aside_bytes += cache.aside_bytes
                else:
                    tally.in_memory += cache.segments.in_memory
            yield
    return tally


async def taken(folds: Iterable[Fold], turns: FairScheduler) -> Tally:
    """Return the sums; others have their turn between two steps."""
    counting = steps(folds)
    while True:
        try:
            next(counting)
        except StopIteration as done:
            tally: Tally = done.value
            return tally
        await turns.wait()
