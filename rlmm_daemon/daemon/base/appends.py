"""Appends that were handed to the log, and what their callers are told of them."""

import asyncio
from collections.abc import Callable
from typing import assert_never

from rlmm_daemon.core.fold.outcome import Applied, Deferred, Outcome, Rejected, Repeated, Unreadable
from rlmm_daemon.domain.errors import OutcomeUnknown, RlmmError
from rlmm_daemon.domain.event import Event
from rlmm_daemon.domain.ids import SegmentId, TopicIdPartition
from rlmm_daemon.domain.partition_delete import PartitionDelete

#: Writes about one thing are validated one after another: a segment, or a partition's marks.
Subject = tuple[TopicIdPartition, SegmentId | None]
#: Hears once what became of a write; called in the loop, and returns at once.
Tell = Callable[[Outcome | RlmmError], None]


def subject_of(event: Event) -> Subject:
    """Return what an event is about."""
    if isinstance(event, PartitionDelete):
        return event.partition, None
    return event.partition, event.segment_id


def error_of(outcome: Outcome | RlmmError) -> RlmmError | None:
    """Return what a caller is to be told as an error; None if the write is in the fold."""
    match outcome:
        case Applied() | Repeated():
            return None
        case RlmmError():
            return outcome
        case Rejected(error=error):
            return error
        case Deferred():
            return OutcomeUnknown("the record that was written is not applied yet")
        case Unreadable(reason=reason):
            return OutcomeUnknown(f"the record that was written cannot be read: {reason}")
        case _:
            assert_never(outcome)


class Append:
    """One record handed to the log.

    Its caller is told an outcome; its fate ends when the record was applied, was certainly not
    taken, or the delivery timeout gave it up. In between the caller may know "unknown" while the
    record still blocks other writes about the same subject.
    """

    __slots__ = (
        "_fate", "_tell", "began", "deadline", "due", "durable", "give_up", "lost", "offset",
        "position", "seen", "subject", "value",
    )  # fmt: skip

    def __init__(
        self,
        subject: Subject,
        value: bytes,
        position: int,
        tell: Tell,
        *,
        deadline: float,
        give_up: float,
    ) -> None:
        self.subject = subject
        self.value = value
        #: Where the fold stood; an apply before it cannot be this record.
        self.position = position
        #: When the caller has waited long enough, and when nobody waits any more.
        self.deadline = deadline
        self.give_up = give_up
        #: When something has to be done if nothing happens.
        self.due = min(deadline, give_up)
        #: When it was handed to the log and when that named its offset, on the clock's own scale.
        self.began = self.durable = 0.0
        self.offset: int | None = None
        #: The log will not name an offset any more: the first apply of equal bytes is ours.
        self.lost = False
        #: Applies of equal bytes while the log's answer is still out.
        self.seen: dict[int, Outcome] = {}
        self._tell: Tell | None = tell
        self._fate: asyncio.Future[None] | None = None

    def hear(self, outcome: Outcome | RlmmError) -> None:
        """Tell the caller, once; the fate may stay open."""
        tell, self._tell, self.due = self._tell, None, self.give_up
        if tell is not None:
            tell(outcome)

    def leave(self) -> None:
        """The caller left: it is told nothing, and the record is not taken back."""
        self._tell, self.due = None, self.give_up

    def fate(self) -> asyncio.Future[None]:
        """Return what completes with the fate; only of an append that is pending."""
        if self._fate is None:
            self._fate = asyncio.get_running_loop().create_future()
        return self._fate

    def end(self) -> None:
        """The fate is known."""
        if self._fate is not None and not self._fate.done():
            self._fate.set_result(None)


class MustWait(Exception):  # an order, not an error
    """A write cannot be begun at once; nothing was done."""
