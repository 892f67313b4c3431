"""The event log as a scenario: clients append, followers read, the process dies, and again.

The product's log runs unmodified on the simulated disk. The oracle is told only what reaches a
client or a follower while the process lives: what comes after the crash reached nobody.
"""

import asyncio
import contextlib
import errno
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

from rlmm_daemon.domain.errors import OutcomeUnknown, RlmmError, StorageFull, UnavailableError
from rlmm_daemon.domain.ids import MetadataPartition
from rlmm_daemon.ports.event_log import NO_EPOCH, Compactable, EventLog
from tests.simulation.oracle import LogOracle
from tests.simulation.swarm import Swarm
from tests.simulation.world import Life, Violation

#: Starts a named task in the life's task group.
Spawn = Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]]
Build = Callable[[Life, Spawn], EventLog]
#: Where a follower stands, and the leader epoch of the last batch before that.
At = tuple[int, int]

#: Virtual seconds: a healthy disk that stalls for five of them now and then is far below.
ANSWER_SECONDS_MAX: Final = 600.0
CALM_SECONDS_MAX: Final = 30.0
OPENS_MAX: Final = 4
#: How often a life begins on a full disk, which does not keep it from being read.
STARTS_FULL: Final = 0.15
VALUE_BYTES: Final = (10, 30, 30, 90, 300, 700)


class _Stopping(Exception):  # an order, not an error
    """The life is over as planned."""


@dataclass(slots=True)
class EventLogScenario:
    """Appends, follows, cancels, closes; `build` makes the log under test."""

    seed: int
    swarm: Swarm
    build: Build
    oracle: LogOracle
    #: Whether it promises to be read while the disk is full.
    reads_full: bool
    serial: int = 0
    compactions: int = 0
    crash_stretch: int = 1

    @classmethod
    def of(
        cls, build: Build, *, reads_full: bool = True
    ) -> Callable[[int, Swarm], "EventLogScenario"]:
        """Return the scenario for one kind of log."""
        return lambda seed, swarm: cls(seed, swarm, build, LogOracle(swarm.partitions), reads_full)

    def verify(self) -> None:
        """Nothing to do after each step: the oracle judges every answer as it comes."""

    def summary(self) -> dict[str, int]:
        oracle = self.oracle
        return {
            "acknowledged": oracle.acknowledged,
            "unknown": oracle.unknown,
            "refused": oracle.refused,
            "compactions": self.compactions,
        }

    async def live(self, life: Life) -> None:
        self.oracle.new_life()
        try:
            async with asyncio.TaskGroup() as tasks:
                log = self.build(life, lambda work, name: tasks.create_task(work, name=name))
                await self._open(life, log)
                await (self._judge(life, log) if life.last else self._load(life, log))
                raise _Stopping
        except* _Stopping:
            pass

    @property
    def _is_readable(self) -> bool:
        """Whether a full disk does not keep it from being read."""
        return self.reads_full and self.oracle.exists

    async def _open(self, life: Life, log: EventLog) -> None:
        luck = life.rng("full")
        if self._is_readable and not life.last and luck.random() < STARTS_FULL:
            life.disk.fill(luck.expovariate(1 / life.swarm.disk.full_seconds))
        for _ in range(OPENS_MAX):
            try:
                async with asyncio.timeout(ANSWER_SECONDS_MAX):
                    self.oracle.opened(await log.open(create=not self.oracle.exists))
            except (OSError, UnavailableError) as error:
                life.loop.note(f"open failed: {error!r}")
                if life.last or isinstance(error, TimeoutError):
                    raise Violation(f"a healthy disk, yet no open: {error!r}") from error
                if self._is_readable and _says_full(error):
                    raise Violation(f"a full disk, yet not to be read: {error!r}") from error
                continue
            return
        raise _Stopping  # a process that can't open its log ends, and is started again

    # -- a life under load --

    async def _load(self, life: Life, log: EventLog) -> None:
        stop_early = life.rng("stop").random() < 0.3
        async with asyncio.TaskGroup() as readers:
            reading = [
                readers.create_task(self._follow(life, log, number), name=f"follower-{number}")
                for number in range(self.swarm.partitions + 1)
            ]
            compacting = self._keep_compacting(life, log)
            reading.append(readers.create_task(compacting, name="compactor"))
            async with asyncio.TaskGroup() as writers:
                clients = [
                    writers.create_task(self._client(life, log, number), name=f"client-{number}")
                    for number in range(self.swarm.clients)
                ]
                if stop_early:
                    await asyncio.wait(clients, return_when=asyncio.FIRST_COMPLETED)
                    await self._close(log)
            if isinstance(log, Compactable):
                for number in range(self.swarm.partitions):
                    await self._compact(life, log, MetadataPartition(number))
            await self._close(log)
            for task in reading:
                task.cancel()

    async def _close(self, log: EventLog) -> None:
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            with contextlib.suppress(OSError):
                await log.close()

    async def _client(self, life: Life, log: EventLog, number: int) -> None:
        rng = life.rng(f"client-{number}")
        for _ in range(self.swarm.requests):
            burst = rng.choice([1, 1, 1, 4])
            async with asyncio.TaskGroup() as requests:
                for _ in range(burst):
                    requests.create_task(self._append(life, log, rng, f"client-{number}"))
            if rng.random() < 0.5:
                await asyncio.sleep(rng.expovariate(1 / (life.swarm.disk.latency_seconds * 10)))

    async def _append(self, life: Life, log: EventLog, rng: random.Random, name: str) -> None:
        partition = rng.randrange(self.swarm.partitions)
        self.serial += 1
        value = f"{name}/{life.number}/{self.serial}/".encode().ljust(rng.choice(VALUE_BYTES), b".")
        patience = ANSWER_SECONDS_MAX
        if rng.random() < self.swarm.impatience:
            patience = rng.expovariate(1 / (life.swarm.disk.latency_seconds * 3))
        self.oracle.sending(partition, value)
        try:
            async with asyncio.timeout(patience):
                offset = await log.append(MetadataPartition(partition), value)
        except TimeoutError:
            if patience == ANSWER_SECONDS_MAX:
                raise Violation(f"an append was not answered:\n{life.loop.waiting()}") from None
            self.oracle.lose_track()
        except OutcomeUnknown:
            self.oracle.lose_track()
        except UnavailableError as error:
            life.loop.note(f"refused {value[:20]!r}: {error}")
            if life.alive:
                self.oracle.refuse(partition, value)
        else:
            if life.alive:
                life.loop.note(f"acknowledged {value[:20]!r} at {partition}/{offset}")
                self.oracle.acknowledge(partition, value, offset)

    async def _follow(self, life: Life, log: EventLog, number: int) -> None:
        """Read on and on, with pauses, now and then starting over; only "not now" is an answer."""
        rng = life.rng(f"follower-{number}")
        partition = MetadataPartition(number % self.swarm.partitions)
        at = (0, NO_EPOCH)
        while True:
            if rng.random() < 0.3:
                at = (rng.randint(0, self.oracle.end(partition)), NO_EPOCH)
            try:
                await self._confirm(life, log, partition, rng)
                at = await self._read(life, log, partition, at, rng.randint(1, 8))
            except (OSError, UnavailableError) as error:
                life.loop.note(f"follower-{number} told: {error!r}")
                if self.reads_full and isinstance(error, StorageFull):
                    raise Violation(f"a full disk, yet not to be read: {error!r}") from error
                await asyncio.sleep(0.05)
            await asyncio.sleep(rng.expovariate(0.1 / life.swarm.disk.latency_seconds))

    async def _keep_compacting(self, life: Life, log: EventLog) -> None:
        rng = life.rng("compactor")
        while isinstance(log, Compactable):
            await asyncio.sleep(rng.expovariate(0.1 / life.swarm.disk.latency_seconds))
            await self._compact(life, log, MetadataPartition(rng.randrange(self.swarm.partitions)))

    async def _compact(self, life: Life, log: Compactable, partition: MetadataPartition) -> None:
        """Compact up to some offset: what clients append can't be read, and stays.

        So files and batches change, and nothing that a reader is given.
        """
        rng = life.rng(f"compaction/{life.loop.steps}")
        end = self.oracle.end(partition)
        upto, holds = rng.choice([end, end, rng.randint(0, end)]), rng.random() < 0.8

        patience = rng.expovariate(0.02 / life.swarm.disk.latency_seconds)

        @contextlib.asynccontextmanager
        async def steady() -> AsyncIterator[bool]:
            dies_at = life.loop.steps + rng.randint(1, 100)
            if not life.last and rng.random() < self.swarm.ambush / 2:
                life.loop.crash_at = dies_at  # in the middle of what comes now
            yield holds

        try:
            async with asyncio.timeout(rng.choice([patience, ANSWER_SECONDS_MAX])):
                done = await log.compact(
                    partition, upto, turn=lambda: asyncio.sleep(0), steady=steady
                )
        except TimeoutError:
            life.loop.note("compaction cancelled")
        except (OSError, UnavailableError) as error:
            life.loop.note(f"not compacted: {error!r}")
        else:
            self.compactions += done is not None

    async def _read(
        self, life: Life, log: EventLog, partition: MetadataPartition, at: At, batches: int
    ) -> At:
        """Read some batches; return where that ended, and in which leader epoch."""
        position, epoch = at
        async with contextlib.aclosing(log.follow(partition, position, epoch=epoch)) as stream:
            async for batch in stream:
                if life.alive:
                    position = self.oracle.delivered(partition, position, batch)
                    epoch = batch.leader_epoch
                batches -= 1
                if not batches:
                    break
        ranges = await log.end_offsets([partition])
        if life.alive and partition in ranges:
            self.oracle.ranged(partition, ranges[partition])
        return position, epoch

    async def _confirm(
        self, life: Life, log: EventLog, partition: MetadataPartition, rng: random.Random
    ) -> None:
        positions = self.oracle.positions(partition)
        if positions:
            position, epoch = rng.choice(positions)
            answer = await log.epoch_end(partition, epoch)
            if life.alive:
                self.oracle.confirmed(partition, position, epoch, answer)

    # -- the calm last life --

    async def _judge(self, life: Life, log: EventLog) -> None:
        """Read everything back, append once more, see that too: within a bounded time."""
        try:
            async with asyncio.timeout(CALM_SECONDS_MAX * self.swarm.partitions):
                for number in range(self.swarm.partitions):
                    await self._judge_partition(life, log, MetadataPartition(number))
                await log.close()
        except TimeoutError:
            raise Violation(f"calm, yet not done:\n{life.loop.waiting()}") from None
        except (RlmmError, OSError) as error:
            raise Violation(f"calm, yet refused: {error!r}") from error

    async def _judge_partition(
        self, life: Life, log: EventLog, partition: MetadataPartition
    ) -> None:
        position = await self._read_to_end(log, partition)
        self.oracle.complete(partition, position)
        for stood, epoch in self.oracle.positions(partition):
            answer = await log.epoch_end(partition, epoch)
            self.oracle.confirmed(partition, stood, epoch, answer)
        value = f"last/{partition}/{life.number}".encode()
        self.oracle.sending(partition, value)
        self.oracle.acknowledge(partition, value, await log.append(partition, value))
        self.oracle.complete(partition, await self._read_to_end(log, partition))

    async def _read_to_end(self, log: EventLog, partition: MetadataPartition) -> int:
        position = 0
        async with contextlib.aclosing(log.follow(partition, 0, epoch=NO_EPOCH)) as stream:
            async for batch in stream:
                position = self.oracle.delivered(partition, position, batch)
                if position >= batch.range.end:
                    break
        return position


def _says_full(error: BaseException | None) -> bool:
    return (isinstance(error, OSError) and error.errno == errno.ENOSPC) or (
        error is not None and error.__cause__ is not None and _says_full(error.__cause__)
    )
