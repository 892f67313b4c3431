"""A write: validate against the fold, append, wait for the apply of that very record.

A waiter is completed only by the apply of the bytes it appended: at the answered offset or, where
none was answered, at the first offset that the fold had not passed when they were appended. Other
bytes at the answered offset, a dropped fold, or a lost answer make it `OutcomeUnknown`. There is
no fast path around the follower: applying a record earlier could put it on a divergent fold.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from rlmm_daemon.core.fold import Fold
from rlmm_daemon.core.outcome import Applied, Outcome, Rejected, Repeat, Repeated, Unreadable
from rlmm_daemon.daemon.bell import Bell
from rlmm_daemon.domain.errors import IllegalTransition, OutcomeUnknown, Overloaded, RlmmError
from rlmm_daemon.domain.event import Event
from rlmm_daemon.domain.ids import MetadataPartition, SegmentId, TopicIdPartition
from rlmm_daemon.domain.partition_delete import PartitionDelete
from rlmm_daemon.ports.clock import Clock
from rlmm_daemon.ports.event_log import EventLog

#: Starts a task of that name in the group that owns the writes.
Spawn = Callable[[Coroutine[Any, Any, None], str], object]

#: Writes of one metadata partition that may be in flight at once.
IN_FLIGHT_MAX: Final = 4096
END_RETRY_SECONDS: Final = 0.1

#: Writes about one thing are validated one after another: a segment, or a partition's marks.
Subject = tuple[TopicIdPartition, SegmentId | None]


def subject_of(event: Event) -> Subject:
    """Return what an event is about."""
    if isinstance(event, PartitionDelete):
        return event.partition, None
    return event.partition, event.segment_id


@dataclass(slots=True, eq=False)
class _Append:
    """One record handed to the log.

    `answer` is what its caller is told; `fate` ends when the record was applied, was certainly
    not taken, or the delivery timeout gave it up. In between the caller may know "unknown" while
    the record still blocks other writes about the same subject.
    """

    subject: Subject
    value: bytes
    #: Where the fold stood; an apply before it cannot be this record.
    position: int
    answer: asyncio.Future[Outcome]
    fate: asyncio.Future[None]
    offset: int | None = None
    #: Applies of equal bytes while the log's answer is still out.
    seen: dict[int, Outcome] = field(default_factory=dict)
    #: The log will not name an offset any more: the first apply of equal bytes is ours.
    answer_lost: bool = False

    def tell(self, outcome: Outcome | RlmmError) -> None:
        """Answer the caller, once; the fate may stay open."""
        if self.answer.done():
            return
        if isinstance(outcome, RlmmError):
            self.answer.set_exception(outcome)
            self.answer.exception()  # the caller may have left: not an error nobody retrieved
        else:
            self.answer.set_result(outcome)


class Writer:
    """The writes of one metadata partition."""

    def __init__(
        self,
        partition: MetadataPartition,
        *,
        log: EventLog,
        clock: Clock,
        spawn: Spawn,
        delivery_timeout_seconds: float,
    ) -> None:
        self.partition = partition
        self._log = log
        self._clock = clock
        self._spawn = spawn
        self._delivery_timeout_seconds = delivery_timeout_seconds
        self._appends: dict[Subject, _Append] = {}
        self._fenced: set[Subject] = set()
        self._position = 0
        self._progress = Bell()

    @property
    def in_flight(self) -> int:
        """Appends whose fate is not known yet."""
        return len(self._appends)

    @asynccontextmanager
    async def fence(self, subject: Subject, timeout_seconds: float) -> AsyncGenerator[None, None]:
        """Refuse writes about a subject, but for those `inside`, once those in flight have ended.

        Raises:
            OutcomeUnknown: one in flight did not end in time.
        """
        deadline = self._clock.monotonic() + timeout_seconds
        if subject in self._fenced:
            raise IllegalTransition("the segment is being removed already")
        self._fenced.add(subject)
        try:
            while (earlier := self._appends.get(subject)) is not None:
                if not await self._completed(earlier.fate, deadline):
                    raise OutcomeUnknown("an earlier write about the segment is still in flight")
            yield
        finally:
            self._fenced.discard(subject)

    async def write(
        self,
        event: Event,
        value: bytes,
        fold: Callable[[], Fold],
        timeout_seconds: float,
        *,
        inside: bool = False,
    ) -> Outcome | None:
        """Return once this daemon has applied `event`, or found that it had been applied before.

        Returns what the apply came to; None if nothing had to be appended. `value` is the event in
        normal form, as it goes to the log. `fold` is asked when it is needed, just before the
        record is handed on, since the present one may be dropped while we wait; it raises when
        there is none that may judge. `inside` is a write of whoever holds the fence.

        Raises:
            RefusedError: by validation (nothing was appended) or by the apply itself.
            UnavailableError: nothing was appended, now or later; but for
            OutcomeUnknown: the record, or an earlier one about the same segment, may be in the
                log, now or later.
        """
        deadline = self._clock.monotonic() + timeout_seconds
        subject = subject_of(event)
        while (earlier := self._appends.get(subject)) is not None:
            if not await self._completed(earlier.fate, deadline):
                raise OutcomeUnknown("an earlier write about the same segment is still in flight")
        if subject in self._fenced and not inside:
            raise IllegalTransition("the segment is being removed as a copy that nobody finishes")
        present = fold()
        if isinstance(present.validate(event), Repeat):
            return None
        if len(self._appends) >= IN_FLIGHT_MAX:
            raise Overloaded(f"{IN_FLIGHT_MAX} writes are in flight", limit="writes_in_flight")
        append = self._hand_on(subject, value, present.position)
        if not await self._completed(append.answer, deadline):
            raise OutcomeUnknown("the deadline passed while the record was on its way")
        outcome = append.answer.result()
        match outcome:
            case Applied() | Repeated():
                return outcome
            case Rejected(error=error):
                raise error
            case Unreadable(reason=reason):
                raise OutcomeUnknown(f"the record that was written cannot be read: {reason}")

    def applied(self, offset: int, value: bytes | None, outcome: Outcome) -> None:
        """The fold applied a record: tell whoever appended it."""
        if not self._appends or value is None:
            return
        for append in list(self._appends.values()):
            if append.offset == offset:
                self._conclude(append, outcome if append.value == value else _other_bytes(offset))
            elif append.offset is None and append.value == value and offset >= append.position:
                if append.answer_lost:
                    self._conclude(append, outcome)
                    return
                append.seen[offset] = outcome

    def passed(self, position: int) -> None:
        """The fold stands at `position` now: an offset before it that never came is unknown."""
        self._position = position
        self._progress.ring()
        for append in list(self._appends.values()):
            if append.offset is not None and append.offset < position:
                self._conclude(append, _other_bytes(append.offset))

    def dropped(self) -> None:
        """The fold is being dropped: nobody can say any more what became of the appends."""
        for append in list(self._appends.values()):
            self._conclude(
                append, OutcomeUnknown("the fold was dropped while the record was on its way")
            )
        self._position = 0

    def _hand_on(self, subject: Subject, value: bytes, position: int) -> _Append:
        loop = asyncio.get_running_loop()
        append = _Append(subject, value, position, loop.create_future(), loop.create_future())
        self._appends[subject] = append
        self._spawn(self._deliver(append), f"append-{self.partition}")
        return append

    async def _completed(self, future: asyncio.Future[Any], deadline: float) -> bool:
        """Wait for a future that is not ours to cancel; False at the deadline.

        As `asyncio.wait` with a timeout, at a fifth of its price: this is done for every write.
        """
        left = deadline - self._clock.monotonic()
        if future.done() or left <= 0:
            return future.done()
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()

        def wake(_: object = None) -> None:
            if not waiter.done():
                waiter.set_result(None)

        timer = loop.call_later(left, wake)
        future.add_done_callback(wake)
        try:
            await waiter
        finally:
            timer.cancel()
            future.remove_done_callback(wake)
        return future.done()

    async def _deliver(self, append: _Append) -> None:
        """Hand a record to the log, and see to it that both its futures complete."""
        give_up = self._clock.monotonic() + self._delivery_timeout_seconds
        try:
            try:
                offset = await self._log.append(self.partition, append.value)
            except OutcomeUnknown as unknown:
                await self._seek(append, unknown, give_up)
            except RlmmError as error:
                self._conclude(append, error)
            else:
                self._answered(append, offset)
            await self._completed(append.fate, give_up)
        finally:
            self._conclude(
                append, OutcomeUnknown("the record did not come back from the log in time")
            )

    def _conclude(self, append: _Append, outcome: Outcome | RlmmError) -> None:
        """The fate is known: tell the caller, and let the next write about the subject go on."""
        append.tell(outcome)
        if not append.fate.done():
            append.fate.set_result(None)
            del self._appends[append.subject]

    def _answered(self, append: _Append, offset: int) -> None:
        """The log named the offset, perhaps after the follower had passed it."""
        append.offset = offset
        if offset in append.seen:
            self._conclude(append, append.seen[offset])
        elif offset < self._position:
            self._conclude(append, _other_bytes(offset))

    async def _seek(self, append: _Append, unknown: OutcomeUnknown, give_up: float) -> None:
        """The answer was lost: read on to where the log ends now; the record may show up there."""
        append.answer_lost = True
        if append.seen:
            self._conclude(append, append.seen[min(append.seen)])
            return
        end = await self._end(give_up)
        try:
            async with asyncio.timeout(max(0.0, give_up - self._clock.monotonic())):
                while not append.fate.done() and (end is None or self._position < end):
                    await self._progress.wait()
        except TimeoutError:
            pass
        append.tell(unknown)

    async def _end(self, give_up: float) -> int | None:
        while self._clock.monotonic() < give_up:
            try:
                ranges = await self._log.end_offsets([self.partition])
            except RlmmError:
                ranges = {}
            if (known := ranges.get(self.partition)) is not None:
                return known.end
            await asyncio.sleep(END_RETRY_SECONDS)
        return None


def _other_bytes(offset: int) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"offset {offset}, which the log had answered, holds another record", offset=offset
    )
