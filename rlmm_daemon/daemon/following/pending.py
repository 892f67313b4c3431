"""The appends of one metadata partition whose fate is not known, and which apply is whose.

An append is completed only by the apply of the bytes it appended: at the answered offset or, where
none was answered, at the first offset that the fold had not passed when they were appended. Other
bytes at the answered offset, a dropped fold, or a lost answer make it `OutcomeUnknown`. There is
no fast path around the follower: applying a record earlier could put it on a divergent fold.
"""

from rlmm_daemon.core.fold.outcome import Outcome
from rlmm_daemon.daemon.base.appends import Append, Subject
from rlmm_daemon.domain.errors import OutcomeUnknown, RlmmError
from rlmm_daemon.domain.ids import TopicIdPartition


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
