"""Retries of S3 calls, all of them: deadline, back-off, a budget for all, fewer at once.

botocore's retries and aiohttp's silent repetition are switched off (`client`), so that one attempt
here is one request on the wire.
"""

import asyncio
import collections
import contextlib
import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, Protocol, TypeVar

import msgspec
import structlog

from rlmm_daemon.adapters.storage.s3.errors import VENDOR_ERRORS, Remedy, Translated, judge
from rlmm_daemon.core.storage.pace import Pace
from rlmm_daemon.domain.errors import RlmmError

BACK_OFF_SECONDS: Final = 0.1
BACK_OFF_SECONDS_MAX: Final = 5.0
#: Retries of the whole process: a full bucket, what a success gives back, what a retry takes. With
#: nothing succeeding it is 100 retries; in the long run one retry for ten successes.
BUDGET_MAX: Final = 100.0
BUDGET_PER_SUCCESS: Final = 0.1
#: Calls that fail together count as one sign of overload.
SLOWER_EVERY_SECONDS: Final = 0.5

T = TypeVar("T")

logger = structlog.get_logger(__name__)


class Stats(msgspec.Struct):
    """Counts since the start, for gauges: plain numbers that only grow."""

    #: (operation, outcome) -> calls; outcome is "ok" or the error's reason.
    calls: collections.Counter[tuple[str, str]] = msgspec.field(default_factory=collections.Counter)
    retries: int = 0
    #: Retries that the budget refused.
    retries_refused: int = 0
    throttled: int = 0


class RetryBudget:
    """How many retries the whole process may still make; when all fail, nobody repeats."""

    def __init__(self) -> None:
        self._left = BUDGET_MAX

    @property
    def left(self) -> float:
        """Retries that may still be made."""
        return self._left

    def succeeded(self) -> None:
        """Earn a part of a retry."""
        self._left = min(self._left + BUDGET_PER_SUCCESS, BUDGET_MAX)

    def take(self) -> bool:
        """Return whether a retry may be made, and count it."""
        if self._left < 1:
            return False
        self._left -= 1
        return True


class Gate:
    """At most `limit` calls at once: halved when the storage asks for less, grown by successes."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._limit = float(most)
        self._inside = 0
        self._waiting: collections.deque[asyncio.Future[None]] = collections.deque()
        self._slower_at = -SLOWER_EVERY_SECONDS

    @property
    def limit(self) -> int:
        """Calls that may run at once now."""
        return int(self._limit)

    @property
    def inside(self) -> int:
        """Calls that run."""
        return self._inside

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a place, first come first served, and give it back at the end."""
        await self._enter()
        try:
            yield
        finally:
            self._inside -= 1
            self._wake()

    def succeeded(self) -> None:
        """Grow by one call per round of successes."""
        self._limit = min(self._limit + 1 / self._limit, float(self._most))
        self._wake()

    def slower(self) -> None:
        """Halve, once for all calls that were told so together."""
        now = asyncio.get_running_loop().time()
        if now - self._slower_at >= SLOWER_EVERY_SECONDS:
            self._slower_at = now
            self._limit = max(1.0, self._limit / 2)

    async def _enter(self) -> None:
        if self._inside < self.limit and not self._waiting:
            self._inside += 1
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self._inside -= 1
                self._wake()
            elif place in self._waiting:  # `_wake` may have met it first
                self._waiting.remove(place)
            raise

    def _wake(self) -> None:
        while self._waiting and self._inside < self.limit:
            place = self._waiting.popleft()
            if not place.done():
                self._inside += 1
                place.set_result(None)


class S3Call(msgspec.Struct, frozen=True, kw_only=True):
    """What is called, for limits and for words."""

    #: S3's name of the operation.
    name: str
    key: str = ""
    #: The whole of one attempt, apart from what it asks for at `on_attempt`.
    seconds: float
    attempts_max: int
    #: Whether it takes an object's bytes along.
    heavy: bool = False
    #: Told of each attempt that failed and may have taken effect.
    on_uncertain: Callable[[], None] = lambda: None
    #: Given each attempt's deadline, to put it off while the attempt waits for ourselves.
    on_attempt: Callable[[asyncio.Timeout], None] = lambda _: None


class Credentials(Protocol):
    """What calls are signed with."""

    @property
    def generation(self) -> int:
        """A number that grows with each change of the keys."""

    async def reload(self, since: int) -> bool:
        """Read them anew; return whether they are others than those of `since`."""


class Rim:
    """Runs calls: each attempt under a deadline and through the gate, repeats within the budget."""

    def __init__(
        self,
        *,
        bucket: str,
        rng: random.Random,
        credentials: Credentials,
        now: Callable[[], float],
    ) -> None:
        self._now = now
        self._bucket, self._rng, self._credentials = bucket, rng, credentials
        self.budget = RetryBudget()
        self.stats = Stats()
        self.pace = Pace()

    async def run(self, call: S3Call, gate: Gate, work: Callable[[], Awaitable[T]]) -> T:
        """Return what `work` returns.

        Raises:
            RlmmError: the last attempt's, or `work`'s own, which is never repeated.
        """
        for number in itertools.count(1):
            generation = self._credentials.generation
            verdict = await self._attempt(call, gate, work)
            if not isinstance(verdict, Translated):
                return verdict[0]
            if number >= call.attempts_max or not await self._worth_it(verdict, generation):
                raise verdict.error
            pause = verdict.retry_after or self.back_off(number)
            logger.warning(
                "a call to the storage is repeated",
                call=call.name,
                attempt=number + 1,
                pause_seconds=round(pause, 3),
                error=verdict.error.message,
            )
            await asyncio.sleep(pause)
        raise AssertionError("the last attempt returns or raises")

    def may_repeat(self) -> bool:
        """Return whether the budget lets one more retry be made, and count it either way."""
        if self.budget.take():
            self.stats.retries += 1
            return True
        self.stats.retries_refused += 1
        return False

    def back_off(self, failed: int) -> float:
        """Return how long to wait after so many failures in a row."""
        pause = min(BACK_OFF_SECONDS * 2.0 ** (failed - 1), BACK_OFF_SECONDS_MAX)
        return float(pause * self._rng.uniform(0.5, 1.0))

    async def _attempt(
        self, call: S3Call, gate: Gate, work: Callable[[], Awaitable[T]]
    ) -> tuple[T] | Translated:
        try:
            # The gate's wait is bounded by the deadlines of those inside, not by ours.
            async with gate.turn(), asyncio.timeout(call.seconds) as deadline:
                call.on_attempt(deadline)
                began = self._now()
                result = await work()
        except asyncio.CancelledError:
            call.on_uncertain()
            raise
        except (RlmmError, *VENDOR_ERRORS) as error:
            verdict = judge(error, call.name, bucket=self._bucket, key=call.key)
            if verdict.error is not error:
                verdict.error.__cause__ = error
            self._count(call, gate, verdict)
            return verdict
        self.stats.calls[call.name, "ok"] += 1
        now = self._now()
        self.pace.answered(None if call.heavy else now - began, now)
        self.budget.succeeded()
        gate.succeeded()
        return (result,)

    def _count(self, call: S3Call, gate: Gate, verdict: Translated) -> None:
        self.stats.calls[call.name, verdict.reason] += 1
        if verdict.remedy is Remedy.AGAIN:
            self.pace.failed(verdict.error.message, self._now())
        else:  # a refusal is an answer
            self.pace.answered(None, self._now())
        if verdict.uncertain:
            call.on_uncertain()
        if verdict.remedy is Remedy.SLOWER:
            self.stats.throttled += 1
            gate.slower()

    async def _worth_it(self, verdict: Translated, generation: int) -> bool:
        if verdict.remedy is Remedy.NONE:
            return False
        if verdict.remedy is Remedy.RELOAD and not await self._has_other_keys(generation):
            return False
        return self.may_repeat()

    async def _has_other_keys(self, generation: int) -> bool:
        try:
            return await self._credentials.reload(generation)
        except RlmmError:
            return False  # the call's own error says what is wrong
