"""A clone: the machine as it was at some moment, brought up beside it under the same broker id.

It has a disk of its own and the bucket of all. Its brokers go on where those of the original were:
they copy new segments and begun ones, and have segments deleted. Whatever it acknowledges stands in
no log but its own, so all that is promised of it is that the objects stay (`docs/recovery.md`).
It goes on in later lives, and is stopped for good before the last one.
"""

import asyncio
import contextlib
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final
from unittest import mock

import msgspec

from rlmm_daemon.core.readiness import twins
from rlmm_daemon.daemon.bucket import presence
from rlmm_daemon.domain.errors import RlmmError
from rlmm_daemon.domain.ids import uuid_text
from tests.simulation.beside import beside, ended
from tests.simulation.disk import ProcessDead, SimDisk
from tests.simulation.operators.bucket import FLIGHT_SECONDS, World
from tests.simulation.operators.clients import copy
from tests.simulation.operators.daemon import (
    BROKER_DIRECTORY,
    CLEANER,
    STATE_DIRECTORY,
    Daemon,
)
from tests.simulation.operators.people import Person
from tests.simulation.operators.rot import Rot
from tests.simulation.operators.truth import Segment
from tests.simulation.platter import Platter
from tests.simulation.swarm import Swarm
from tests.simulation.world import Life, Violation

#: How many seeds have one.
SHARE: Final = 0.15
#: How often a daemon shows itself here, and is silent, and gone, after: a seventh of the product's,
#: and longer than the storage is ever away.
REWRITE_SECONDS: Final = 8.0
QUIET_SECONDS: Final = 14.0
GONE_SECONDS: Final = 26.0
#: How long a machine takes to come up, at least: no request of before flies that long.
BOOT_SECONDS: Final = FLIGHT_SECONDS + 1.0
#: How often the state directory is copied at another moment than the log.
APART_SHARE: Final = 0.3
#: How often it goes on in the next life, and is stopped in order.
LASTING_SHARE: Final = 0.75
DRAIN_SHARE: Final = 0.5
#: How often it has the broker's directories, too.
BROKER_SHARE: Final = 0.7
#: Virtual seconds that it runs, and what its brokers ask for.
SECONDS: Final = (3.0, 20.0)
DELETE_SHARE: Final = 0.2
BEGUN_SHARE: Final = 0.6
SANE_SHARE: Final = 0.7
ON_FILES: Final = ("rlmm doctor", "rlmm log name", "rlmm storage")
#: It takes a copy for abandoned sooner than a clone of the original's options would.
HASTY: Final = msgspec.structs.replace(
    CLEANER, interval_seconds=0.5, copy_deadline_seconds=1.0, delivery_timeout_seconds=0.5
)
PLACE: Final = "the lock of the clone's state directory"


class _Stopped(Exception):  # an order, not an error
    """It is stopped in order."""


class _Person(Person):
    """Whoever sits before the clone, and follows its advice there.

    What is accepted there is accepted: the marker says so to both, by the log's name and offsets.
    """

    async def type(self, text: str) -> Any:
        """Type one command, unless it works on files: here they are the original's."""
        return None if text.startswith(ON_FILES) else await super().type(text)

    async def _find_log(self, command: str) -> None:
        del command


@dataclass(slots=True)
class Clone:
    """The clone of one seed, over all lives."""

    #: The first life in which it can be made.
    earliest: int
    #: Whoever sits before it types what is named, accepts losses at once, types other things, too.
    sane: bool
    hasty: bool
    restless: bool
    platter: Platter | None = None
    over: bool = False
    counts: dict[str, int] = field(default_factory=dict)
    _disk: SimDisk | None = None
    #: Its clients were told to end.
    _ending: bool = False

    @classmethod
    def draw(cls, seed: int, swarm: Swarm) -> "Clone | None":
        """Return that of a seed, if it has one; every draw is made from a stream of its own."""
        rng = random.Random(f"{seed}/clone")
        there = rng.random() < SHARE
        clone = cls(
            earliest=rng.randrange(swarm.lives - 1),
            sane=rng.random() < 0.8,
            hasty=rng.random() < 0.5,
            restless=rng.random() < 0.3,
        )
        return clone if there else None

    @contextlib.contextmanager
    def quick(self) -> Iterator[None]:
        """Have daemons wait for each other as long as lives are here."""
        with (
            mock.patch.object(presence, "REWRITE_SECONDS", REWRITE_SECONDS),
            mock.patch.object(twins, "QUIET_SECONDS", QUIET_SECONDS),
            mock.patch.object(twins, "GONE_SECONDS", GONE_SECONDS),
        ):
            yield

    def verify(self) -> None:
        """Its daemon handles its disk as any does."""
        if self._disk is not None and self._disk.misuse:
            raise Violation(f"misuse of the clone's disk: {self._disk.misuse}")

    async def run(self, life: Life, world: World) -> None:
        """Run beside one life, from some moment on, if its time has come and is not over."""
        if self.over or life.number < self.earliest:
            return
        rng = life.rng("clone")
        if self.platter is None:
            await asyncio.sleep(rng.expovariate(0.6))
            self.platter = await _copied(life.disk.platter, rng)
            life.loop.note("a clone is made")
            self._count("clone made")
        else:
            ended(life, self.platter, rng)
        self.over = rng.random() > LASTING_SHARE or life.number + 2 == life.swarm.lives
        await asyncio.sleep(BOOT_SECONDS)
        own = beside(life, self.platter, last=False)
        disk = self._disk = own.disk
        life.loop.note("the clone starts")
        self._count("clone started")
        try:
            async with asyncio.TaskGroup() as group:
                daemon = Daemon(own, world, group, place=PLACE, cleaner=HASTY)
                try:
                    await self._work(daemon)
                    raise _Stopped
                finally:
                    disk.dead = True
        except* (_Stopped, ProcessDead, RlmmError, OSError):
            life.loop.note("the clone ends")

    async def _work(self, daemon: Daemon) -> None:
        """Do what a broker and people do before it, until it is stopped."""
        rng = daemon.life.rng("broker")
        self._ending = False
        daemon.start()
        await asyncio.sleep(rng.expovariate(2.0))
        has_broker = _has_broker(daemon.life.disk.platter)
        daemon.manager.hello_from_broker(daemon.life.clock.now_ms())
        living = sorted(daemon.world.books.living) if has_broker else []
        daemon.manager.replace_assignment(living, [])
        tasks = [self._client(daemon, number) for number in range(2)]
        if self.sane or self.restless:
            tasks.append(self._person(daemon))
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(each, name=f"clone.{n}") for n, each in enumerate(tasks)]
            try:
                await asyncio.sleep(rng.uniform(*SECONDS))
            finally:
                self._ending = True
            for task in running:
                task.cancel()
        if rng.random() < DRAIN_SHARE:
            await daemon.drain()

    async def _client(self, daemon: Daemon, number: int) -> None:
        rng = daemon.life.rng(f"client-{number}")
        while not self._ending:  # a copy answers a cancel with "unknown"
            await asyncio.sleep(rng.expovariate(2.0))
            segment, deletes = self._take_up(daemon, rng)
            name, note = segment.name, daemon.life.loop.note
            try:
                async with asyncio.timeout(rng.choice([0.3, 5.0, 5.0])):
                    if deletes:
                        segment.unwanted = True
                        first = segment.first
                        await daemon.copier.delete_segment(first.partition, first.segment_id)
                        self._count("clone deleted")
                    else:
                        await copy(daemon, segment, rng)
                        if daemon.life.alive:
                            note(f"the clone acknowledged {name}")
                            segment.elsewhere = True
                            self._count("clone finished")
            except (RlmmError, TimeoutError) as error:
                note(f"the clone's {name}: {error!r}")

    def _take_up(self, daemon: Daemon, rng: random.Random) -> tuple[Segment, bool]:
        """Return a segment, and whether it is to be deleted: a new one, or one of the other's."""
        books = daemon.world.books
        drawn = rng.random()
        over = [e for e in books.segments if e.finished and not (e.unwanted or e.lost)]
        begun = [e for e in books.segments if not (e.finished or e.unwanted or e.given_up)]
        if over and drawn < DELETE_SHARE:
            return rng.choice(over), True
        if begun and drawn < BEGUN_SHARE:
            return rng.choice(begun), False
        made = books.begin(rng.choice(books.partitions), daemon.life.clock.now_ms())
        made.given_up = True  # no broker of the original knows of it
        return made, False

    async def _person(self, daemon: Daemon) -> None:
        person = _Person(daemon, Rot(), name="clone's person", hasty=self.hasty)
        rng, books = person.rng, daemon.world.books
        while True:
            await asyncio.sleep(rng.expovariate(1.0))
            if not self.restless or rng.random() < SANE_SHARE:
                await person.step()
                continue
            number = rng.randrange(books.partition_count)
            topic = uuid_text(rng.choice(books.partitions).topic_id)
            orders = [
                f"rlmm purge {topic} --execute",
                f"rlmm partition rebuild {number}",
                f"rlmm log repair {number}",
                f"rlmm log recover {number} --execute",
                "rlmm snapshot now",
            ]
            await person.type(rng.choice(orders))

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1


async def _copied(platter: Platter, rng: random.Random) -> Platter:
    """Return the machine's files: all of one moment, or the state directory's of a later one."""
    taken = _image(platter)
    if rng.random() < APART_SHARE:
        await asyncio.sleep(rng.expovariate(0.5))
        for path in [each for each in taken.names if each.startswith(f"{STATE_DIRECTORY}/")]:
            taken.lose(path)
        later = _image(platter)
        for path, inode in later.names.items():
            if path.startswith(f"{STATE_DIRECTORY}/"):
                taken.names[path] = taken.durable[path] = inode
        taken.directories |= later.directories
    if rng.random() > BROKER_SHARE:
        for path in [each for each in taken.names if each.startswith(f"{BROKER_DIRECTORY}/")]:
            if not path.endswith("meta.properties"):
                taken.lose(path)
                taken.directories.discard(path.rpartition("/")[0])
    return taken


def _image(platter: Platter) -> Platter:
    """Return the files as they are read now."""
    taken = Platter()
    for path, inode in platter.names.items():
        taken.place(path, bytes(inode.data))
    taken.directories = set(platter.directories)
    return taken


def _has_broker(platter: Platter) -> bool:
    return any(path.endswith("partition.metadata") for path in platter.names)
