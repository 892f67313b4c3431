"""The appends of one metadata partition whose fate is not known, and which apply is whose.

An append is completed only by the apply of the bytes it appended: at the answered offset or, where
none was answered, at the first offset that the fold had not passed when they were appended. Other
bytes at the answered offset, a dropped fold, or a lost answer make it `OutcomeUnknown`. There is
no fast path around the follower: applying a record earlier could put it on a divergent fold.
"""

import asyncio
from collections.abc import Callable
from typing import assert_never

from rlmm_daemon.core.outcome import Applied, Deferred, Outcome, Rejected, Repeated, Unreadable
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


class Pending:
    """Finds the append that an apply completes, in constant time."""

    def __init__(self) -> None:
        #: Where the fold stands.
        self.position = 0
        self._by_subject: dict[Subject, Append] = {}
        self._by_offset: dict[int, Append] = {}
        #: Those whose offset was not answered: equal bytes are of one subject, so of one append.
        self._by_value: dict[bytes, Append] = {}

    def __len__(self) -> int:
        return len(self._by_subject)

    def __contains__(self, subject: Subject) -> bool:
        return subject in self._by_subject

    def about(self, partition: TopicIdPartition) -> bool:
        """Return whether there is any about a user partition."""
        return any(partition == about for about, _ in self._by_subject)

    def get(self, subject: Subject) -> Append | None:
        """Return the append about a subject."""
        return self._by_subject.get(subject)

    def is_live(self, append: Append) -> bool:
        """Return whether an append's fate is still open."""
        return self._by_subject.get(append.subject) is append

    def add(self, append: Append) -> None:
        """Take an append that was handed to the log, the only one about its subject."""
        self._by_subject[append.subject] = append
        self._by_value[append.value] = append

    def conclude(self, append: Append, outcome: Outcome | RlmmError) -> None:
        """The fate is known: tell the caller, and let the next write about the subject go on."""
        append.hear(outcome)
        if not self.is_live(append):
            return
        del self._by_subject[append.subject]
        if append.offset is None:
            del self._by_value[append.value]
        else:
            self._by_offset.pop(append.offset, None)
        append.end()

    # What the log says.

    def answered(self, append: Append, offset: int) -> None:
        """The log named the offset, perhaps after the follower had passed it."""
        if not self.is_live(append):
            return
        del self._by_value[append.value]
        append.offset = offset
        self._by_offset[offset] = append
        if offset in append.seen:
            self.conclude(append, append.seen[offset])
        elif offset < self.position:
            self.conclude(append, _other_bytes(offset))

    def answer_lost(self, append: Append) -> None:
        """The log will not name an offset: the first apply of equal bytes is this append's."""
        append.lost = True
        if append.seen:
            self.conclude(append, append.seen[min(append.seen)])

    # What the follower says.

    def applied(self, offset: int, value: bytes, outcome: Outcome) -> Append | None:
        """The fold applied a record; returns the append that this completed by its offset."""
        append = self._by_offset.get(offset)
        if append is not None:
            if append.value == value:
                self.conclude(append, outcome)
                return append
            self.conclude(append, _other_bytes(offset))
        unanswered = self._by_value.get(value)
        if unanswered is not None and offset >= unanswered.position:
            if unanswered.lost:
                self.conclude(unanswered, outcome)
            else:
                unanswered.seen[offset] = outcome
        return None

    def passed(self, position: int) -> None:
        """The fold stands at `position`: an answered offset before it will not come any more."""
        self.position = position
        for append in [a for offset, a in self._by_offset.items() if offset < position]:
            assert append.offset is not None, "it stands there by its offset"
            self.conclude(append, _other_bytes(append.offset))

    def end_all(self, why: str) -> None:
        """Nobody can say any more what became of them; the next fold starts from nothing."""
        for append in list(self._by_subject.values()):
            self.conclude(append, OutcomeUnknown(why))
        self.position = 0

    # What the clock says.

    def overdue(self, now: float) -> float | None:
        """Tell those whose time is up; return when to look again, None if none is pending."""
        next_due: float | None = None
        for append in list(self._by_subject.values()):
            if append.give_up <= now:
                self.conclude(
                    append, OutcomeUnknown("the record did not come back from the log in time")
                )
                continue
            if append.deadline <= now:
                append.hear(OutcomeUnknown("the deadline passed while the record was on its way"))
            next_due = append.due if next_due is None else min(next_due, append.due)
        return next_due


def _other_bytes(offset: int) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"offset {offset}, which the log had answered, holds another record", offset=offset
    )
