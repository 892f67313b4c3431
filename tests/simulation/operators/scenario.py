"""Lives of one daemon among clients, decay and operators; what holds at each step and at the end.

* No object of an acknowledged COPY_SEGMENT_FINISHED goes, unless a caller deleted the segment, its
  topic is gone, or an operator accepted that very loss and ended the hold.
* A look-up of such a segment is never empty, unless that loss was accepted; a deleted one does not
  come back.
* On a calm machine the commands that are named next end every failure.
"""

import asyncio
import contextlib
import random
from dataclasses import dataclass, field, replace
from typing import Final

from rlmm_daemon.codec import records
from rlmm_daemon.core.readiness.states import PartitionState
from rlmm_daemon.daemon.base.caller import Caller
from rlmm_daemon.domain.errors import (
    ConfigError,
    CorruptError,
    IllegalTransition,
    RefusedError,
    RlmmError,
    SegmentNotFound,
    UnavailableError,
)
from rlmm_daemon.domain.ids import LeaderEpoch
from rlmm_daemon.domain.partition_delete import PartitionDelete, PartitionDeleteState
from tests.simulation.operators import night, offline, stopped
from tests.simulation.operators.bucket import World
from tests.simulation.operators.calamity import Calamity
from tests.simulation.operators.clients import copy
from tests.simulation.operators.clone import Clone
from tests.simulation.operators.daemon import (
    STATE_DIRECTORY,
    Daemon,
    install_broker,
    read_slowly,
    small,
)
from tests.simulation.operators.explaining import Asker
from tests.simulation.operators.people import Person, random_of
from tests.simulation.operators.rot import Rot
from tests.simulation.operators.truth import BROKER, Books, Segment
from tests.simulation.swarm import Swarm
from tests.simulation.world import Life, Violation

#: Virtual seconds that a life lasts unless it dies or is told to stop.
LIFE_SECONDS: Final = (4.0, 25.0)
CALM_SECONDS_MAX: Final = 900.0
#: After everything was mended: for cleaner and night to do what they should not.
AFTERMATH_SECONDS: Final = 25.0
#: How often the log is read anew at most, for one command after another.
READINGS: Final = 4
#: And to begin anew after the last command.
READY_SECONDS: Final = 60
#: How often somebody ends a hold before that.
TIDY_SHARE: Final = 0.5
#: Share of new segments.
NEW_SHARE: Final = 0.6
REFUSED: Final = (IllegalTransition, SegmentNotFound)


class _Stopping(Exception):  # an order, not an error
    """The life is over as planned."""


@dataclass(frozen=True, slots=True)
class Manners:
    """What the operators of one seed are like."""

    #: Type what is named next.
    sane: bool
    #: Type whatever comes to mind, acceptances too.
    reckless: bool
    #: Who follows the advice accepts a loss before anybody looked for objects.
    hasty: bool
    #: Whether topics are deleted.
    topics_go: bool
    #: Whether the nightly job runs.
    nights: bool
    #: Restore what a night is about to delete.
    sparing: bool
    #: Nobody looks before the last life: the log loses its end, and nights go on beside that. In
    #: the last one it is read slowly.
    unwatched: bool
    #: A night's share has room for nothing: whatever it deletes needs an approval.
    tight: bool
    #: Who follows the advice asks `rlmm explain` for it.
    asking: bool
    #: Objects lie in the bucket before its first marker, which then holds everything.
    littered: bool

    @classmethod
    def draw(cls, seed: int) -> "Manners":
        rng = random.Random(f"{seed}/manners")
        drawn = cls(
            sane=rng.random() < 0.7,
            reckless=rng.random() < 0.5,
            topics_go=rng.random() < 0.3,
            nights=rng.random() < 0.75,
            hasty=rng.random() < 0.4,
            sparing=rng.random() < 0.4,
            unwatched=rng.random() < 0.08,
            tight=rng.random() < 0.4,
            littered=rng.random() < 0.3,
            asking=rng.random() < 0.35,
        )
        if not drawn.unwatched:
            return drawn
        return replace(drawn, sane=False, reckless=False, nights=True, littered=False)


@dataclass(slots=True)
class OperatorsScenario:
    """What outlives the daemon's lives."""

    seed: int
    swarm: Swarm
    manners: Manners
    world: World
    clone: Clone | None
    rot: Rot = field(default_factory=Rot)
    calamity: Calamity = field(default_factory=Calamity)
    counts: dict[str, int] = field(default_factory=dict)
    crash_stretch: int = 12
    #: The clients of this life were told to end.
    _over: bool = False
    _daemon: Daemon | None = None
    _verified: dict[int, tuple[object, ...]] = field(default_factory=dict)

    @property
    def books(self) -> Books:
        return self.world.books

    def summary(self) -> dict[str, int]:
        return {
            "finished": sum(each.finished for each in self.books.segments),
            "deleted": sum(each.deleted for each in self.books.segments),
            "given_up": sum(e.lost and e.finished and not e.unwanted for e in self.books.segments),
            "risen": len(self.books.risen_segments),
            "judged": self.books.judged,
            **self.books.manifests.counts,
            **self.counts,
            **self.rot.counts,
            **self.calamity.counts,
            **(self.clone.counts if self.clone else {}),
        }

    # After each step.

    def verify(self) -> None:
        if self.books.violation is not None:
            raise Violation(self.books.violation)
        if self.clone is not None:
            self.clone.verify()
        if self._daemon is None:
            return
        manager = self._daemon.manager
        for number, follower in manager.fleet.followers.items():
            fold = follower.fold
            facts = (
                id(fold), fold.position, follower.state, len(follower.confirmation.confirmed),
                manager.fleet.whole_failure,
            )  # fmt: skip
            if self._verified.get(number) == facts:
                continue
            self._verified[number] = facts
            if follower.state is PartitionState.READY:
                self._judge(self._daemon, number)
        if self.books.violation is not None:
            raise Violation(self.books.violation)

    def _judge(self, daemon: Daemon, number: int) -> None:
        """Ask for every segment of a metadata partition whose follower is ready."""
        for segment in self.books.segments:
            if segment.metadata_partition != number:
                continue
            if segment.first.partition.topic_id in self.books.gone:
                continue
            try:
                found = daemon.manager.lookups.remote_log_segment_metadata(
                    segment.first.partition,
                    LeaderEpoch(0),
                    segment.first.end_offset,
                    Caller.BROKER,
                )
            except RlmmError:
                continue
            self.books.wounded.discard(number)
            if segment.deleted and found is not None:
                self.books.risen(segment)
            elif segment.promised or segment.lost or segment.doubted:
                self.books.seen(segment, there=found is not None)

    # One life.

    async def live(self, life: Life) -> None:
        self._verified.clear()
        self._over = False
        for segment in self.books.segments:
            segment.busy = False
        if life.number and not stopped.is_under_way(life.disk.platter):
            self._strike(life)
        install_broker(life, self.world)
        if life.number or self.manners.littered:
            self.world.stray(life.rng("stray"), life)
        self.world.land(life.rng("landing"), life.loop)
        try:
            with (
                small(self.world, life),
                offline.simulated(life, self.world),
                night.simulated(life, self.world),
                self.clone.quick() if self.clone else contextlib.nullcontext(),
            ):
                if life.number and (self.manners.sane or life.last):
                    await stopped.Keeper(self.counts).work(life, self.world, self.rot)
                while not await self._live(life) and life.last:
                    self._move_aside(life)
        finally:
            self._daemon = None

    def _strike(self, life: Life) -> None:
        if self.manners.unwatched:
            self.calamity.forget(life, self.world)
        elif not self.calamity.strike(life, self.world, self.rot):
            self.rot.strike(life, self.world)

    def _move_aside(self, life: Life) -> None:
        """Do what a start that was refused says, since nobody would start it again otherwise."""
        path = f"{STATE_DIRECTORY}/identity.json"
        if path not in life.disk.platter.names:
            raise Violation("a start is refused, and what its words name is not there")
        life.disk.platter.lose(path)

    async def _live(self, life: Life) -> bool:
        """Return whether the daemon ran; False: its start was refused for what a person mends."""
        ran = True
        try:
            async with asyncio.TaskGroup() as group:
                daemon = self._daemon = Daemon(life, self.world, group)
                if self.manners.unwatched and life.last:
                    read_slowly(daemon.log, life.rng("slow disk"))
                daemon.start()
                await self._work(life, daemon)
                with contextlib.suppress(OSError):
                    await daemon.drain()
                if (compactor := daemon.manager.compactor) is not None:
                    before = self.counts.get("compactions", 0)
                    self.counts["compactions"] = before + compactor.counts.done
                raise _Stopping
        except* _Stopping:
            pass
        except* ConfigError as errors:
            life.loop.note(f"refused to start: {errors.exceptions}")
            ran = False
        except* OSError as errors:
            if life.last:
                raise Violation(f"calm, yet it ended: {errors.exceptions}") from errors
        return ran

    async def _work(self, life: Life, daemon: Daemon) -> None:
        rng = life.rng("broker")
        await asyncio.sleep(rng.expovariate(2.0))
        daemon.announce()
        if life.last:
            await self._settle(life, daemon)
            return
        tasks = [self._client(life, daemon, number) for number in range(min(3, self.swarm.clients))]
        if self.clone is not None:
            tasks.append(self.clone.run(life, self.world))
        if self.manners.topics_go and life.number == 1:
            tasks.append(self._delete_topic(life, daemon))
        if self.manners.nights:
            tasks.append(self._nights(daemon))
            if self.manners.sparing:
                tasks.append(self._operator(daemon, "sparing"))
        if self.manners.sane:
            tasks.append(self._operator(daemon, "sane"))
        if self.manners.reckless:
            tasks.append(self._operator(daemon, "reckless"))
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(each, name=f"world.{n}") for n, each in enumerate(tasks)]
            try:
                async with asyncio.timeout(rng.uniform(*LIFE_SECONDS)):
                    await daemon.runtime.stopped.wait()
            except TimeoutError:
                pass
            finally:
                self._over = True
            for task in running:
                task.cancel()

    async def _operator(self, daemon: Daemon, name: str) -> None:
        follows = Asker if name == "sane" and self.manners.asking else Person
        person = follows(daemon, self.rot, name=name, hasty=self.manners.hasty)
        try:
            # A delete answers "unknown" to whoever cancels it, and the cancel is spent.
            while not self._over:
                if name == "sparing":
                    await asyncio.sleep(person.rng.expovariate(2.0))
                    await person.spare()
                    continue
                await asyncio.sleep(random_of(person.rng))
                if name == "sane":
                    await person.step()
                else:
                    await person.anything()
        finally:
            self._count(person)

    async def _nights(self, daemon: Daemon) -> None:
        made = night.Night(daemon)
        try:
            await made.run()
        finally:
            self._count(made)

    def _count(self, whose: Person | night.Night) -> None:
        for name, count in whose.counts.items():
            self.counts[name] = self.counts.get(name, 0) + count

    # Clients.

    async def _client(self, life: Life, daemon: Daemon, number: int) -> None:
        rng = life.rng(f"client-{number}")
        while not self._over:  # a copy answers a cancel with "unknown", as whoever left deserves
            await asyncio.sleep(rng.expovariate(2.0))
            segment = self._take_up(life, rng)
            if segment is None:
                continue
            segment.busy = True
            try:
                async with asyncio.timeout(rng.choice([0.3, 5.0, 5.0])):
                    if segment.finished:
                        await self._delete(daemon, segment, rng)
                    else:
                        await self._copy(life, daemon, segment, rng)
            except (UnavailableError, CorruptError, TimeoutError) as error:
                life.loop.note(f"{segment.name}: {error!r}")
            except RefusedError as error:
                life.loop.note(f"{segment.name}: {error!r}")
                segment.given_up = segment.given_up or isinstance(error, REFUSED)
            finally:
                segment.busy = False

    def _take_up(self, life: Life, rng: random.Random) -> Segment | None:
        """Return a new segment, one whose copy goes on, or one whose time is over."""
        free = [
            each
            for each in self.books.segments
            if not (each.busy or each.given_up or each.deleted or each.lost)
            and each.first.partition in self.books.living
        ]
        begun = [each for each in free if not each.finished]
        over = [each for each in free if each.finished]
        drawn = rng.random()
        if begun and drawn < 0.3:
            return rng.choice(begun)
        if over and drawn > NEW_SHARE:
            return rng.choice(over[: len(over) // 3 + 1])
        if not self.books.living:
            return None
        return self.books.begin(rng.choice(self.books.living), life.clock.now_ms())

    async def _copy(self, life: Life, daemon: Daemon, segment: Segment, rng: random.Random) -> None:
        await copy(daemon, segment, rng)
        if life.alive:
            life.loop.note(f"acknowledged {segment.name}")
            segment.finished = True
            self._require_objects(segment)

    async def _delete(self, daemon: Daemon, segment: Segment, rng: random.Random) -> None:
        del rng
        segment.unwanted = True
        first = segment.first
        await daemon.copier.delete_segment(first.partition, first.segment_id)
        if daemon.life.alive:
            daemon.life.loop.note(f"deleted {segment.name}")
            segment.deleted = True

    async def _delete_topic(self, life: Life, daemon: Daemon) -> None:
        """Delete a topic: the broker's directories go, it announces the rest, and it is marked."""
        rng = life.rng("topics")
        await asyncio.sleep(rng.expovariate(0.3))
        gone = self.books.partitions[0].topic_id
        self.books.gone.add(gone)
        install_broker(life, self.world)
        daemon.announce()
        for partition in [each for each in self.books.partitions if each.topic_id == gone]:
            mark = PartitionDelete(
                partition=partition,
                broker_id=BROKER,
                event_timestamp_ms=life.clock.now_ms(),
                state=PartitionDeleteState.DELETE_PARTITION_MARKED,
            )
            with contextlib.suppress(RlmmError):
                await daemon.manager.events.put_partition_delete(
                    records.encode(mark), Caller.OPERATOR, 5.0
                )

    def _require_objects(self, segment: Segment) -> None:
        if not segment.maimed and not self.world.is_whole(segment):
            raise Violation(f"{segment.name} was acknowledged, and its objects are not whole")

    # The calm last life.

    async def _settle(self, life: Life, daemon: Daemon) -> None:
        follows = Asker if self.manners.asking else Person
        person = follows(daemon, self.rot, name="settle", hasty=self.manners.hasty)
        if self.manners.nights:
            daemon.runtime.spawn("world.nights", self._nights(daemon))
            if self.manners.sparing:
                daemon.runtime.spawn("world.sparing", self._operator(daemon, "sparing"))
        try:
            async with asyncio.timeout(CALM_SECONDS_MAX):
                await person.heal()
                if person.rng.random() < TIDY_SHARE:
                    await person.tidy(harmless=True)
                await asyncio.sleep(AFTERMATH_SECONDS)
                await person.heal()
                await self._until_ready(daemon)
                named = await person.named()
                # What a command had read anew fails only when it was read, which may take a while.
                for _ in range(READINGS):
                    if not named:
                        break
                    await person.heal()
                    await self._until_ready(daemon)
                    named = await person.named()
        except TimeoutError:
            raise Violation(f"calm, yet not healed:\n{life.loop.waiting()}") from None
        finally:
            self._count(person)
        self._require_calm(daemon, named, person.typed)

    async def _until_ready(self, daemon: Daemon) -> None:
        """Give whoever began anew after the last command the time to read the log."""
        for _ in range(READY_SECONDS):
            if not self._not_ready(daemon):
                return
            await asyncio.sleep(1.0)

    def _not_ready(self, daemon: Daemon) -> dict[str, str]:
        fleet = daemon.manager.fleet
        if fleet.trouble is not None:
            return {"the event log": fleet.trouble.message}
        return {
            str(number): follower.state.value
            for number, follower in fleet.followers.items()
            if follower.state is not PartitionState.READY
        }

    def _require_calm(self, daemon: Daemon, named: list[str], typed: int) -> None:
        """Nothing is wrong any more, and everything that was promised is there."""
        if named:
            raise Violation(f"{typed} commands, and these are named yet: {named}")
        for what, state in self._not_ready(daemon).items():
            raise Violation(f"calm, yet {what} is {state}")
        for segment in self.books.segments:
            if segment.promised and segment.first.partition.topic_id not in self.books.gone:
                self._require_objects(segment)
                found = daemon.manager.lookups.remote_log_segment_metadata(
                    segment.first.partition, LeaderEpoch(0), segment.first.end_offset, Caller.BROKER
                )
                if found is None and not segment.lost:
                    raise Violation(f"calm, yet {segment.name} is not found")


def scenario(seed: int, swarm: Swarm) -> OperatorsScenario:
    """Return the scenario of one seed."""
    manners = Manners.draw(seed)
    books = Books(partition_count=swarm.partitions, tight=manners.tight)
    return OperatorsScenario(seed, swarm, manners, World(books), Clone.draw(seed, swarm))
