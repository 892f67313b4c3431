"""A write: validate against the fold, append, wait for the apply of that very record.

Which apply that is, `pending` knows. A write that has nothing to wait for before its append is
begun without a task and answered by a call: that is nearly every write of a broker.
"""

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

from rlmm_daemon.core.fold.fold import Fold
from rlmm_daemon.core.fold.outcome import Outcome, Repeat
from rlmm_daemon.daemon.base.appends import Append, MustWait, Subject, Tell, error_of, subject_of
from rlmm_daemon.daemon.base.broadcast import Broadcast
from rlmm_daemon.daemon.base.bugs import Bugs
from rlmm_daemon.daemon.following.pending import Pending
from rlmm_daemon.domain.errors import (
    CorruptError,
    IllegalTransition,
    OutcomeUnknown,
    Overloaded,
    RefusedError,
    RlmmError,
    TimedOut,
)
from rlmm_daemon.domain.event import Event
from rlmm_daemon.domain.ids import MetadataPartition, TopicIdPartition
from rlmm_daemon.observability.metrics import LogMetrics
from rlmm_daemon.ports.clock import Clock
from rlmm_daemon.ports.event_log import EventLog

#: Starts a task of that name in the group that owns the writes.
Spawn = Callable[[Coroutine[Any, Any, None], str], object]

#: Writes of one metadata partition that may be in flight at once.
IN_FLIGHT_MAX: Final = 4096
END_RETRY_SECONDS: Final = 0.1
#: A timer may fire a little early; it is not set again for less than this.
_TIMER_SECONDS_MIN: Final = 0.001


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
        metrics: LogMetrics | None = None,
        bugs: Bugs | None = None,
        may_append: Callable[[], None] = lambda: None,
    ) -> None:
        """`may_append` is asked before each append, and raises where none may begin."""
        self._may_append = may_append
        self.partition = partition
        self._bugs = Bugs() if bugs is None else bugs
        self._metrics = metrics
        self._log = log
        self._clock = clock
        self._spawn = spawn
        self._delivery_timeout_seconds = delivery_timeout_seconds
        self._pending = Pending()
        #: Since this process began.
        self.has_appended = False
        self._fenced: set[Subject] = set()
        self._progress = Broadcast()
        #: One timer for all appends: when the first of them may have waited long enough.
        self._timer: asyncio.TimerHandle | None = None
        self._due = math.inf

    @property
    def in_flight(self) -> int:
        """Appends whose fate is not known yet."""
        return len(self._pending)

    def writes_to(self, partition: TopicIdPartition) -> bool:
        """Whether an append about this user partition is in flight."""
        return self._pending.about(partition)

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
            await self._until_free(subject, deadline)
            yield
        finally:
            self._fenced.discard(subject)

    async def write(
        self,
        event: Event,
        value: bytes,
        fold: Callable[[], Fold],
        deadline: float,
        *,
        inside: bool = False,
    ) -> Outcome | None:
        """Return once this daemon has applied `event`, or found that it had been applied before.

        Returns what the apply came to; None if nothing had to be appended. `value` is the event in
        normal form, as it goes to the log; `deadline` is on the monotonic clock. `fold` is asked
        just before the record is handed on, since the present one may be dropped while we wait; it
        raises when there is none that may judge. `inside` is a write of whoever holds the fence.

        Raises:
            RefusedError: by validation (nothing was appended) or by the apply itself.
            UnavailableError: nothing was appended, now or later; but for
            OutcomeUnknown: the record, or an earlier one about the same segment, may be in the
                log, now or later.
        """
        await self._until_free(subject_of(event), deadline)
        answer: asyncio.Future[Outcome | RlmmError] = asyncio.get_running_loop().create_future()

        def tell(outcome: Outcome | RlmmError) -> None:
            if not answer.done():
                answer.set_result(outcome)

        append = self.begin(event, value, fold(), deadline, tell, inside=inside)
        if append is None:
            return None
        try:
            outcome = await answer
        except asyncio.CancelledError:
            append.leave()
            raise
        error = error_of(outcome)
        if error is not None:
            raise error
        assert not isinstance(outcome, RlmmError), "that would be the error"
        return outcome

    def begin(
        self,
        event: Event,
        value: bytes,
        fold: Fold,
        deadline: float,
        tell: Tell,
        *,
        inside: bool = False,
    ) -> Append | None:
        """Hand a write to the log; `tell` hears once, and later, what it came to.

        Returns None where nothing had to be appended; `tell` then hears nothing. Otherwise see
        `write`.

        Raises:
            MustWait: an earlier write about the same segment is in flight.
            RefusedError, UnavailableError: nothing was appended.
        """
        subject = subject_of(event)
        if subject in self._pending:
            raise MustWait
        if subject in self._fenced and not inside:
            raise IllegalTransition(
                "the segment is being removed: its copy failed, or nobody finishes it"
            )
        if isinstance(fold.validate(event), Repeat):
            return None
        self._may_append()
        now = self._clock.monotonic()
        if now >= deadline:
            raise TimedOut("no time was left to append the record; nothing was begun")
        if len(self._pending) >= IN_FLIGHT_MAX:
            raise Overloaded(f"{IN_FLIGHT_MAX} writes are in flight", limit="writes_in_flight")
        append = Append(
            subject,
            value,
            fold.position,
            tell,
            deadline=deadline,
            give_up=now + self._delivery_timeout_seconds,
        )
        append.began, self.has_appended = now, True
        try:
            self._log.begin_append(self.partition, value, partial(self._delivered, append))
        except RlmmError as error:
            self._count(error)
            raise
        except Exception as bug:
            self._handed_on(append)
            append.leave()
            self._delivered(append, unknown := self._bugs.met_after_append("append", bug))
            raise unknown from bug
        self._handed_on(append)
        return append

    def _handed_on(self, append: Append) -> None:
        self._pending.add(append)
        if append.due < self._due:
            self._look_again(append.due)

    # What the follower reports.

    def applied(self, offset: int, value: bytes | None, outcome: Outcome) -> None:
        """The fold applied a record: tell whoever appended it."""
        if value is not None:
            append = self._pending.applied(offset, value, outcome)
            if append is not None and append.durable and self._metrics is not None:
                self._metrics.apply_wait.observe(self._clock.monotonic() - append.durable)

    def passed(self, position: int) -> None:
        """The fold stands at `position` now: an offset before it that never came is unknown."""
        self._pending.passed(position)
        self._progress.ring()

    def dropped(self) -> None:
        """The fold is being dropped: nobody can say any more what became of the appends."""
        self._pending.end_all("the fold was dropped while the record was on its way")

    def end(self) -> None:
        """The daemon stops: whoever still waits is told that nobody knows."""
        self._pending.end_all("the daemon stopped while the record was on its way")
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._due = None, math.inf

    # What the log reports.

    def _count(self, outcome: int | RlmmError) -> None:
        if self._metrics is None:
            return
        match outcome:
            case int():
                kind = "ok"
            case OutcomeUnknown():
                kind = "unknown"
            case RefusedError():
                kind = "refused"
            case CorruptError():
                kind = "corrupt"
            case _:
                kind = "unavailable"
        self._metrics.appends.count(kind)

    def _delivered(self, append: Append, outcome: int | RlmmError) -> None:
        self._count(outcome)
        if isinstance(outcome, int):
            if self._metrics is not None:
                append.durable = self._clock.monotonic()
                self._metrics.append.observe(append.durable - append.began)
            self._pending.answered(append, outcome)
        elif isinstance(outcome, OutcomeUnknown):
            self._pending.answer_lost(append)
            if self._pending.is_live(append):
                work = self._seek(append, outcome)
                try:
                    self._spawn(work, f"append-{self.partition}")
                except RuntimeError:  # the task group is ending, and nothing will be read any more
                    work.close()
                    self._pending.conclude(append, outcome)
        else:
            self._pending.conclude(append, outcome)

    async def _seek(self, append: Append, unknown: OutcomeUnknown) -> None:
        """The answer was lost: read on to where the log ends now; the record may show up there."""
        end = await self._end(append.give_up)
        try:
            async with asyncio.timeout(max(0.0, append.give_up - self._clock.monotonic())):
                while self._pending.is_live(append) and (end is None or self._position < end):
                    await self._progress.wait()
        except TimeoutError:
            pass
        append.hear(unknown)

    async def _end(self, give_up: float) -> int | None:
        while self._clock.monotonic() < give_up:
            try:
                ranges = await self._log.end_offsets([self.partition])
            except (RlmmError, OSError):
                ranges = {}
            except Exception as bug:  # noqa: BLE001 - the caller is told "unknown"; nobody else
                self._bugs.met("append", bug)
                return None
            if (known := ranges.get(self.partition)) is not None:
                return known.end
            await asyncio.sleep(END_RETRY_SECONDS)
        return None

    @property
    def _position(self) -> int:
        return self._pending.position

    # Time.

    async def _until_free(self, subject: Subject, deadline: float) -> None:
        """Wait for earlier writes about a subject.

        Raises:
            OutcomeUnknown: one was still in flight at the deadline.
        """
        while (earlier := self._pending.get(subject)) is not None:
            fate = earlier.fate()
            left = deadline - self._clock.monotonic()
            if left > 0:
                await asyncio.wait((fate,), timeout=left)
            if not fate.done():
                raise OutcomeUnknown("an earlier write about the same segment is still in flight")

    def _look_again(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        delay = max(due - self._clock.monotonic(), _TIMER_SECONDS_MIN)
        self._timer = asyncio.get_running_loop().call_later(delay, self._sweep)
        self._due = due

    def _sweep(self) -> None:
        """Tell those whose deadline passed, end those that the delivery timeout gives up."""
        self._timer, self._due = None, math.inf
        next_due = self._pending.overdue(self._clock.monotonic())
        if next_due is not None:
            self._look_again(next_due)
