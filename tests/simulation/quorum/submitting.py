"""Submitters of several daemons on one log, where leaders go, answers are lost, and copies late.

The submitter and the fold are the product's own; consensus is one list. Each daemon has several
lives, of which none remembers the one before. What is checked: nobody is told what is not so, no
record is there twice, none that was refused is there at all, and those that are there of one life
stand in the order in which they were begun, unless their outcome was unknown.
"""

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Final

from rlmm_daemon.adapters.quorum.event_log.options import QuorumLogOptions
from rlmm_daemon.adapters.quorum.event_log.submitter import Submitter
from rlmm_daemon.codec.kraft.record_key import FOUNDING, RecordKey, pack_count, pack_key, read_key
from rlmm_daemon.core.quorum_log.fold import Accepted, LogFold, Outcome
from rlmm_daemon.domain.errors import OutcomeUnknown, RlmmError, StorageUnavailable
from tests.simulation.clock import SimClock
from tests.simulation.loop import Order, SimLoop, SimulationEnd, ended
from tests.simulation.quorum.shape import Outcome as SeedOutcome

PARTITIONS: Final = 2
OPTIONS: Final = QuorumLogOptions(
    delivery_timeout_seconds=2.0, retry_seconds=0.05, batch_bytes_max=64, reach_seconds=1.0
)
#: A new record is acknowledged by then, once nothing fails any more.
_HEALED_SECONDS: Final = 30.0


class Shape:
    """What goes wrong in one seed."""

    def __init__(self, rng: random.Random) -> None:
        self.refused = rng.choice([0.0, 0.1, 0.4])
        self.lost = rng.choice([0.0, 0.2, 0.5])
        #: Not appended when it was sent: later, perhaps behind what its sender did since.
        self.late = rng.choice([0.0, 0.1, 0.4])
        self.twice = rng.choice([0.0, 0.2])
        self.late_seconds = rng.choice([0.2, 2.0, 8.0])
        self.lag_seconds = rng.choice([0.0, 0.05, 1.5])
        self.lives = rng.randint(1, 4)
        self.daemons = rng.randint(1, 3)
        self.records = rng.randint(3, 25)


class World:
    """The log, and what everybody was told."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.shape = Shape(rng)
        self.healed = False
        self.epoch = 1
        founding = pack_key(RecordKey(FOUNDING, 0, 0, 0)), pack_count(PARTITIONS)
        self.log: list[tuple[int, tuple[bytes | None, bytes | None]]] = [(1, founding)]
        self.told: dict[bytes, list[int | RlmmError]] = defaultdict(list)
        self.partition: dict[bytes, int] = {}
        #: By daemon and life, in the order in which they were begun.
        self.begun: dict[bytes, list[bytes]] = defaultdict(list)
        self.late: list[asyncio.Task[None]] = []

    def append(self, records: Sequence[tuple[bytes | None, bytes | None]]) -> int:
        base = len(self.log)
        self.log += [(self.epoch, record) for record in records]
        return base

    def chance(self, share: float) -> bool:
        return not self.healed and self.rng.random() < share


class Leader:
    """Whoever leads, from one daemon's side."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def submit(self, records: Sequence[tuple[bytes | None, bytes | None]]) -> int:
        world, shape = self._world, self._world.shape
        await asyncio.sleep(world.rng.uniform(0.001, 0.05))
        if world.chance(shape.refused):
            world.epoch += 1
            raise StorageUnavailable("no leader")
        if world.chance(shape.late):
            self._later(records)
            await asyncio.sleep(world.rng.choice([0.0, 0.3]))
            raise OutcomeUnknown("nobody answered")
        base = world.append(records)
        if world.chance(shape.twice):
            self._later(records)
        await asyncio.sleep(world.rng.uniform(0.001, 0.05))
        if world.chance(shape.lost):
            raise OutcomeUnknown("the answer is lost")
        return base

    def _later(self, records: Sequence[tuple[bytes | None, bytes | None]]) -> None:
        async def append() -> None:
            await asyncio.sleep(self._world.rng.uniform(0, self._world.shape.late_seconds))
            self._world.append(records)

        self._world.late.append(asyncio.get_running_loop().create_task(append()))


class Folding:
    """One replica's fold, which lags behind the log."""

    def __init__(self, world: World, hear: Callable[[RecordKey, Outcome], None]) -> None:
        self.fold = LogFold()
        self.applied = 0
        self._world = world
        self._hear = hear
        self.values: dict[tuple[int, int], bytes | None] = {}

    async def run(self) -> None:
        while True:
            while self.applied < len(self._world.log):
                self.apply()
            lag = 0.0 if self._world.healed else self._world.shape.lag_seconds
            await asyncio.sleep(0.01 + self._world.rng.uniform(0, lag))

    def apply(self) -> Outcome:
        epoch, (packed, value) = self._world.log[self.applied]
        key = read_key(packed)
        outcome = self.fold.apply(epoch, key, value)
        self.applied += 1
        if isinstance(outcome, Accepted):
            self.values[outcome] = value
        if key is not None:
            self._hear(key, outcome)
        return outcome

    async def reached(self, end: int, *, timeout_seconds: float) -> None:
        try:
            async with asyncio.timeout(timeout_seconds):
                while self.applied < end:  # noqa: ASYNC110 - a toy's own time
                    await asyncio.sleep(0.01)
        except TimeoutError as error:
            raise StorageUnavailable("the replica lags") from error


class Life:
    """One daemon from its start to its death."""

    def __init__(self, world: World, me: int, clock: SimClock) -> None:
        self._world = world
        self.submitter = Submitter(clock, world.rng, OPTIONS, lambda: me)
        self.folding = Folding(world, self.submitter.hear)
        leader: Any = Leader(world)
        folding: Any = self.folding
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(work)
            for work in (
                self.folding.run(),
                self.submitter.run(leader, folding),
                self.submitter.expire(),
            )
        ]

    def begin(self, value: bytes) -> None:
        world = self._world
        partition = world.rng.randrange(PARTITIONS)
        world.partition[value] = partition
        world.begun[value.rpartition(b".")[0]].append(value)

        def told(outcome: int | RlmmError) -> None:
            world.told[value].append(outcome)
            if isinstance(outcome, int):
                assert self.folding.values[partition, outcome] == value, f"{value!r} is not there"

        self.submitter.begin(partition, value, told)

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        for task in self._tasks:
            if not task.cancelled():
                task.result()


async def _lives(world: World, me: int, clock: SimClock) -> Life:
    """Return the last one, which goes on."""
    rng, shape = world.rng, world.shape
    number = 0
    while True:
        life = Life(world, me, clock)
        for count in range(shape.records):
            life.begin(b"%d.%d.%d" % (me, number, count))
            await asyncio.sleep(rng.choice([0.0, 0.01, 0.3]))
        await asyncio.sleep(rng.choice([0.0, 0.5, 5.0]))
        number += 1
        if number == shape.lives:
            return life
        await life.end()


async def _run(world: World, clock: SimClock) -> None:
    async with asyncio.TaskGroup() as tasks:
        last = [
            tasks.create_task(_lives(world, me, clock)) for me in range(1, world.shape.daemons + 1)
        ]
    world.healed = True
    for me, life in enumerate((each.result() for each in last), 1):
        value = b"%d.last" % me
        life.begin(value)
        async with asyncio.timeout(_HEALED_SECONDS):
            while not world.told[value]:  # noqa: ASYNC110 - a toy's own time
                await asyncio.sleep(0.05)
        assert isinstance(world.told[value][0], int), f"{value!r}: {world.told[value]}"
        await life.end()
    if world.late:
        await asyncio.wait(world.late)


def check(world: World) -> Counter[str]:
    """Hold what everybody was told against the log as it is in the end."""
    folding = Folding(world, lambda _key, _outcome: None)
    while folding.applied < len(world.log):
        folding.apply()
    counts = Counter(folding.values.values())
    twice = [value for value, count in counts.items() if count > 1]
    assert not twice, f"{twice} are there twice"
    said: Counter[str] = Counter(records=len(world.partition), log=len(world.log))
    for value, told in world.told.items():
        assert len(told) <= 1, f"{value!r} was told of twice: {told}"
        for outcome in told:
            said["acknowledged" if isinstance(outcome, int) else type(outcome).__name__] += 1
            if isinstance(outcome, StorageUnavailable):
                assert not counts[value], f"{value!r} is there, and was refused"
            if isinstance(outcome, int):
                at = (world.partition[value], outcome)
                assert folding.values.get(at) == value, f"{value!r} is not at {at}"
    for begun in world.begun.values():
        for partition in range(PARTITIONS):
            mine = [each for each in begun if world.partition[each] == partition]
            told = [outcome for each in mine for outcome in world.told[each]]
            known = [outcome for outcome in told if isinstance(outcome, int)]
            assert known == sorted(known), f"{mine} stand in another order: {known}"
    return said


def run_seed(seed: int, *, keep_tail: bool = False) -> SeedOutcome:
    """Run a seed."""
    del keep_tail  # nothing but the loop's own trace is kept
    rng = random.Random(f"{seed}/submitting")
    loop = SimLoop(rng=rng, order=rng.choice(list(Order)), steps_max=2_000_000)
    outcome = SeedOutcome(seed)
    world = World(rng)
    try:
        with ended(loop) as running:
            running.run_until_complete(_run(world, SimClock(loop, rng)))
        outcome.counts = check(world)
    except (Exception, SimulationEnd) as error:  # noqa: BLE001 - whatever it is, it is found
        outcome.failure = f"seed {seed}: {type(error).__name__}: {error}"
    outcome.events, outcome.trace = loop.steps, loop.trace
    return outcome
