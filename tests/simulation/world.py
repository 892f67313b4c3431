"""One seed: draw its shape, live and die on one platter, judge after each step and at the end.

A scenario brings the product's code and the oracle. The last life is calm: no faults, no crash,
and everything that was promised in the lives before must be there.
"""

import asyncio
import contextlib
import gc
import random
import zlib
from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn, Protocol

import structlog

from tests.simulation.clock import SimClock
from tests.simulation.disk import ProcessDead, SimDisk
from tests.simulation.loop import Crash, SimLoop, SimulationEnd
from tests.simulation.platter import Platter
from tests.simulation.swarm import Swarm

#: Virtual seconds within which a life must end by itself: what takes longer hangs.
LIFE_SECONDS_MAX: Final = 3600.0
STEPS_MAX: Final = 400_000
TAIL_LINES: Final = 50
#: A record that calls files put in their place, and how they were called before.
RECORD: Final = "/compaction.json"
BEFORE: Final = ".cleaned"


class Violation(AssertionError):
    """A promise was broken; raised by oracles and invariants only."""


@dataclass(slots=True, eq=False)
class Life:
    """What one process has: a loop, a disk and a clock of its own, and streams of luck."""

    seed: int
    number: int
    #: Without faults and crash: what was promised must be there now.
    last: bool
    swarm: Swarm
    loop: SimLoop
    disk: SimDisk
    clock: SimClock

    def rng(self, concern: str) -> random.Random:
        """Return the stream of one concern: no other concern shifts it."""
        return random.Random(f"{self.seed}/{self.number}/{concern}")

    @property
    def alive(self) -> bool:
        """Whether anything said now still reaches anybody."""
        return not self.disk.dead


class Scenario(Protocol):
    """The product's code under simulation, with the model that judges it."""

    #: Lives are so many times longer than the draw's span: a bigger product takes longer to start.
    crash_stretch: int

    async def live(self, life: Life) -> None:
        """Start the product, put load on it, stop it; the crash comes at any step of this."""
        ...

    def verify(self) -> None:
        """Check what must hold after each step; cheap, and raises `Violation`."""
        ...

    def summary(self) -> dict[str, int]:
        """Return counts that show how much happened."""
        ...


@dataclass(slots=True, kw_only=True)
class Outcome:
    """How a seed went; `failure` is the whole report, None when every promise was kept."""

    seed: int
    trace: int = 0
    steps: int = 0
    lives: int = 0
    virtual_seconds: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)
    failure: str | None = None
    cause: str = ""


class World:
    """Runs one seed of one scenario."""

    def __init__(
        self, seed: int, scenario: Callable[[int, Swarm], Scenario], swarm: Swarm | None = None
    ) -> None:
        self.seed = seed
        self.swarm = swarm or Swarm.draw(seed)
        self.platter = Platter()
        self.scenario = scenario(seed, self.swarm)
        self.outcome = Outcome(seed=seed)
        self._rng = random.Random(f"{seed}/world")
        self._records = random.Random(f"{seed}/records")
        self._started = 0.0
        self._tails: list[str] = []

    def run(self, *, keep_tail: bool = False) -> Outcome:
        """Return how it went; with `keep_tail` the report is made even without a failure."""
        try:
            for number in range(self.swarm.lives):
                self._run_life(number)
        except (Exception, SimulationEnd, ProcessDead) as error:  # noqa: BLE001  # any of them fails
            self.outcome.cause = _cause(error)
            self.outcome.failure = self._report(error)
        else:
            if keep_tail:
                self.outcome.failure = self._report(None)
        self.outcome.counts |= self.scenario.summary()
        return self.outcome

    def _run_life(self, number: int) -> None:
        life = self._begin(number)
        self.outcome.lives += 1
        ended = "ended by itself"
        try:
            with _log_lines_to(life.loop):
                life.loop.run_until_complete(self._bounded(life))
                self.scenario.verify()
        except Crash:
            ended = "crashed"
        finally:
            life.disk.dead = True
            with _log_lines_to(life.loop):  # whoever is torn apart may have something to say
                life.loop.abandon()
            self._account(life)
            self._tails.append(f"life {number}, {ended} at step {life.loop.steps}\n" + _tail(life))
        if life.disk.misuse:
            raise Violation(f"misuse of the disk: {life.disk.misuse}")
        lost = self._crash_platter()
        self._tails[-1] += f"\n  then: {lost}"

    async def _bounded(self, life: Life) -> None:
        limit = asyncio.timeout(LIFE_SECONDS_MAX)
        try:
            async with limit:
                await self.scenario.live(life)
        except TimeoutError as error:
            if limit.expired():
                raise Violation(f"a life hung; tasks:\n{life.loop.waiting()}") from error
            raise

    def _begin(self, number: int) -> Life:
        swarm, last = self.swarm, number == self.swarm.lives - 1
        calm = self._rng.random() < swarm.calm_share
        crash_at = self._rng.randint(1, swarm.crash_span * self.scenario.crash_stretch)
        loop = SimLoop(
            rng=random.Random(f"{self.seed}/{number}/order"),
            order=swarm.order,
            start=self._started,
            crash_at=-1 if last or calm else crash_at,
            steps_max=STEPS_MAX,
            coarse_timers=swarm.coarse_timers,
        )
        faults = swarm.disk.calm() if last else swarm.disk
        luck = random.Random(f"{self.seed}/{number}/disk")
        disk = SimDisk(self.platter, loop, luck, faults)
        if not last:
            disk.on_fault = lambda: self._ambush(loop)
            disk.on_rename = lambda target: self._ambush_record(loop, target)
        jumps = random.Random(f"{self.seed}/clock")
        clock = SimClock(loop, jumps, jumps=swarm.clock_jumps)
        loop.after_step = self.scenario.verify
        return Life(
            seed=self.seed,
            number=number,
            last=last,
            swarm=swarm,
            loop=loop,
            disk=disk,
            clock=clock,
        )

    def _ambush(self, loop: SimLoop) -> None:
        """A fault happened: perhaps die right behind it, before its damage is repaired."""
        hit, steps = self._rng.random() < self.swarm.ambush, self._rng.randint(1, 12)
        if hit and (loop.crash_at < 0 or loop.steps + steps < loop.crash_at):
            loop.crash_at = loop.steps + steps

    def _ambush_record(self, loop: SimLoop, record: str) -> None:
        """Die before a record is durable that stands before the names that it speaks of.

        A power loss keeps any of them. By chance alone no seed of thousands met that moment.
        """
        if not record.endswith(RECORD):
            return
        home = record.removesuffix(RECORD)
        names = [each for each in self.platter.unsynced if each.directory == home]
        if any(each.removed and each.added and each.removed.endswith(BEFORE) for each in names):
            steps = loop.steps + self._records.randint(1, 3)
            loop.crash_at = steps if loop.crash_at < 0 else min(steps, loop.crash_at)

    def _account(self, life: Life) -> None:
        outcome = self.outcome
        outcome.steps += life.loop.steps
        outcome.virtual_seconds += life.loop.time() - self._started
        outcome.trace = hash((outcome.trace, life.loop.trace, self.platter.fingerprint()))
        for fault, count in life.disk.injected.items():
            outcome.counts[fault] = outcome.counts.get(fault, 0) + count
        self._started = life.loop.time() + 1.0

    def _crash_platter(self) -> str:
        # A clean end is followed by a crash of the machine too: what it left must be synced.
        swarm = self.swarm.disk
        if self._rng.random() < self.swarm.kill_share:
            return self.platter.kill(self._rng, evict=swarm.evict)
        return self.platter.lose_power(self._rng, tear=swarm.tear, names=swarm.names)

    def _report(self, error: BaseException | None) -> str:
        lines = [f"seed {self.seed}: {_cause(error) if error else 'no failure'}"]
        lines += [f"  life {self.outcome.lives - 1}, trace {self.outcome.trace:#x}, swarm draw:"]
        lines += [self.swarm.text(), *self._tails[-2:]]
        return "\n".join(lines)


def _tail(life: Life) -> str:
    return life.loop.tail_text(TAIL_LINES)


def _cause(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = min(error.exceptions, key=lambda each: not isinstance(each, Violation))
    if isinstance(error.__cause__, Violation):
        error = error.__cause__
    where = ""
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        where = f" ({code.co_name}, {code.co_filename.rpartition('/')[2]}:{trace.tb_lineno})"
        trace = trace.tb_next
    return f"{type(error).__name__}: {error}{where}"


@contextlib.contextmanager
def _log_lines_to(loop: SimLoop) -> Iterator[None]:
    """Put the product's log lines into the trace tail, and their names into the trace hash."""

    def keep(_: Any, level: str, line: MutableMapping[str, Any]) -> NoReturn:
        loop.mix(zlib.crc32(str(line.get("event")).encode()))
        loop.note(f"log {level} {dict(line)}")
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(processors=[keep], cache_logger_on_first_use=False)
    try:
        yield
    finally:
        structlog.configure(**before)


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Keep the garbage collector out of a run: it would close generators at steps of its own."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def run_seed(
    seed: int, scenario: Callable[[int, Swarm], Scenario], *, keep_tail: bool = False
) -> Outcome:
    """Run one seed; the collector is paused meanwhile."""
    with collector_paused():
        return World(seed, scenario).run(keep_tail=keep_tail)


def helpful_switches(
    seed: int, scenario: Callable[[int, Swarm], Scenario], swarm: Swarm
) -> list[str]:
    """Return the faults that, switched off one at a time, let this seed pass.

    A hint and no proof: switching a fault off shifts the timing of what follows.
    """
    with collector_paused():
        return [
            fault
            for fault in swarm.active_faults()
            if World(seed, scenario, swarm.without(fault)).run().failure is None
        ]
