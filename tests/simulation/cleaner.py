"""The cleaner's bad days: three daemons on one log and one bucket, owners that move, deaths.

A seed draws which faults there are. Brokers copy, delete and give up half-way, topics are deleted
and marked (twice, late, or before they are gone), records of brokers without our metadata manager
land unvalidated, and what was in flight lands after its sender's death. A daemon that comes back
begins with the snapshots that it left; one may be cut off from the log, not from the bucket, while
its copies go on, and one's copies may live longer than the others'. Held after each effect on the
bucket:

* an object goes only while its segment is DELETE_SEGMENT_STARTED (or gone) at the log's end, and
  never if a COPY_SEGMENT_FINISHED stood before that delete unseen (the segment is held);
* nothing finished of a topic that exists goes unless its broker asked for it;
* no copy is taken for stuck that runs in a daemon that lives, or before its time;
* no daemon ends a partition while a foreign metadata manager is registered.

When the faults stop, every marked partition of a gone topic reaches DELETE_PARTITION_FINISHED, its
prefixes are empty, nothing hangs, and the bucket holds exactly what the log says.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Collection, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, cast

from msgspec.structs import replace

from rlmm_daemon.codec import records
from rlmm_daemon.core.fold.outcome import Applied, Outcome
from rlmm_daemon.core.storage.layout import Layout, parse_key
from rlmm_daemon.daemon.base.caller import Caller
from rlmm_daemon.daemon.cleaner.options import CleanerOptions
from rlmm_daemon.daemon.cleaner.proof import ClusterProof
from rlmm_daemon.daemon.following import batches
from rlmm_daemon.daemon.following.snapshotter import SnapshotOptions
from rlmm_daemon.domain.errors import (
    OutcomeUnknown,
    RlmmError,
    StorageUnavailable,
)
from rlmm_daemon.domain.ids import BrokerId, MetadataPartition, SegmentId, TopicIdPartition
from rlmm_daemon.domain.partition_delete import PartitionDelete, PartitionDeleteState
from rlmm_daemon.domain.segment import SegmentMetadata, SegmentState, SegmentUpdate
from rlmm_daemon.ports.event_log import LogBatch, Told
from rlmm_daemon.ports.storage import ObjectInfo
from tests.simulation.cleaning import (
    COUNT,
    CUSTOM,
    OPTIONS,
    CleanWorld,
    SimCluster,
    SimDaemon,
    number_of,
    partition_of,
    segment,
)
from tests.simulation.disk import DiskFaults, SimDisk
from tests.simulation.loop import SimLoop
from tests.simulation.platter import Platter
from tests.support.memory_log import MemoryEventLog
from tests.support.memory_storage import MemoryStorage

if TYPE_CHECKING:
    from rlmm_daemon.ports.cluster import Cluster

BROKERS: Final = (1, 2, 3)
#: Runs Kafka's own metadata manager: validates nothing, has no daemon.
JVM: Final = 9
TOPICS: Final = 4
CHAOS_SECONDS: Final = 60.0
CALM_SECONDS: Final = 400.0
#: The longest that a request in flight outlives its sender.
FLIGHT_SECONDS: Final = 2.0
SIM_OPTIONS: Final = replace(
    OPTIONS,
    interval_seconds=2.0,
    round_seconds=15.0,
    copy_deadline_seconds=8.0,
    delivery_timeout_seconds=4.0,
    stuck_delete_seconds=20.0,
    settle_seconds=3.0,
    backoff_seconds_max=5.0,
    write_seconds=8.0,
    storage_seconds=10.0,
)
#: Its copies may live longer than the others', as its presence file says.
PATIENT: Final = 3
PATIENT_SECONDS: Final = 30.0
#: One directory a broker, over all lives of its daemon.
STATE_DIRECTORY: Final = "/state"
S, D = SegmentState, PartitionDeleteState


def options_of(broker_id: int) -> CleanerOptions:
    """How the daemon beside a broker is configured."""
    if broker_id != PATIENT:
        return SIM_OPTIONS
    return replace(SIM_OPTIONS, copy_deadline_seconds=PATIENT_SECONDS)


class Violation(Exception):
    """An invariant does not hold."""


@dataclass(frozen=True, slots=True)
class Swarm:
    """Which faults this seed has; a fault that is always there hides others."""

    storage_fails: bool
    log_fails: bool
    deaths: bool
    owners_move: bool
    jvm_peer: bool
    late_finishes: bool
    brokers_leave: bool
    copies_die: bool
    #: Every turn that may be given to others is: a batch is applied record by record.
    slow: bool
    #: No broker answers for a while.
    silent: bool
    #: A daemon hears nothing of the log for a while, and puts objects all the same.
    cut_off: bool
    #: Copies of the daemon with the longest deadline take nearly all of it.
    long_copies: bool

    @classmethod
    def draw(cls, luck: random.Random) -> "Swarm":
        return cls(*(luck.random() < 0.6 for _ in fields(cls)))


class ChaosLog:
    """One daemon's way to the log: slow, now and then without an answer, dead with its daemon."""

    def __init__(self, world: "ChaosWorld", broker_id: int, luck: random.Random) -> None:
        self._world, self._broker_id, self._luck = world, broker_id, luck
        self._inner = MemoryEventLog(world.store, heartbeat_seconds=5.0)
        self.dead = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def begin_append(self, partition: MetadataPartition, value: bytes, told: Told) -> None:
        """Let the record travel; it may land after its sender's death."""
        if self.dead:
            return
        loop, luck = self._world.loop, self._luck
        fails = self._world.faults and self._world.swarm.log_fails
        fate = luck.random() if fails else 1.0

        def tell(result: "int | RlmmError") -> None:
            lost = fate < 0.1 and not isinstance(result, RlmmError)
            answer = OutcomeUnknown("its answer was lost") if lost else result
            if not self.dead:
                loop.call_later(luck.expovariate(50), told, answer)

        def land() -> None:
            if self._world.cut_off_seconds(self._broker_id):
                tell(StorageUnavailable("no way to the brokers"))
            elif fate < 0.03:
                tell(StorageUnavailable("refused"))
            elif fate < 0.06:
                tell(OutcomeUnknown("lost on its way"))
            else:
                self._world.sent(value, luck)
                self._inner.begin_append(partition, value, tell)

        loop.call_later(luck.expovariate(50), land)

    def follow(
        self, partition: MetadataPartition, from_offset: int, *, epoch: int
    ) -> AsyncGenerator[LogBatch, None]:
        return self._follow(partition, from_offset, epoch=epoch)

    async def _follow(
        self, partition: MetadataPartition, from_offset: int, *, epoch: int
    ) -> AsyncGenerator[LogBatch, None]:
        async with aclosing(self._inner.follow(partition, from_offset, epoch=epoch)) as batches:
            async for batch in batches:
                await asyncio.sleep(self._luck.expovariate(10))
                await asyncio.sleep(self._world.cut_off_seconds(self._broker_id))
                self._alive()
                yield batch

    def _alive(self) -> None:
        if self.dead:
            raise asyncio.CancelledError


class ChaosStorage(MemoryStorage):
    """One daemon's way to the bucket; a request takes effect even if its sender dies meanwhile."""

    def __init__(self, world: "ChaosWorld", luck: random.Random) -> None:
        super().__init__(world.objects, clock=world.clock)
        self._world, self._luck = world, luck
        self.dead = False

    async def delete(self, keys: Collection[str]) -> Mapping[str, RlmmError | None]:
        await self._travel()
        outcome: dict[str, RlmmError | None] = {}
        doomed = []
        for key in keys:
            failed = self._fails() and self._luck.random() < 0.2
            outcome[key] = StorageUnavailable("not now") if failed else None
            if not failed:
                doomed.append(key)
        await self._effect(lambda: self._world.deleted(doomed))
        return outcome

    async def place(self, key: str) -> None:
        await self._travel()
        await self._effect(lambda: self._store(key, b"x"))

    async def list(self, prefix: str) -> AsyncGenerator[Sequence[ObjectInfo], None]:
        await self._travel()
        async with aclosing(super().list(prefix)) as pages:
            async for page in pages:
                yield page

    def _fails(self) -> bool:
        return self._world.faults and self._world.swarm.storage_fails

    async def _travel(self) -> None:
        if self.dead:
            raise asyncio.CancelledError
        await asyncio.sleep(self._luck.expovariate(20))
        if self._fails() and self._luck.random() < 0.1:
            raise StorageUnavailable("the bucket does not answer")

    async def _effect(self, change: Any) -> None:
        """Let it happen in a while, whatever becomes of whoever waits for it."""
        done = asyncio.get_running_loop().create_future()

        def happen() -> None:
            change()
            if not done.done():
                done.set_result(None)

        seconds = min(self._luck.expovariate(10), FLIGHT_SECONDS)
        self._world.loop.call_later(seconds, happen)
        await done
        if self.dead:
            raise asyncio.CancelledError


@dataclass(slots=True)
class Books:
    """What really happened, in the order of the log."""

    #: Segments whose COPY_SEGMENT_FINISHED was applied at some time.
    finished: set[SegmentId] = field(default_factory=set)
    deleted: set[SegmentId] = field(default_factory=set)
    #: Segments that their broker wanted gone.
    asked: set[SegmentId] = field(default_factory=set)


class ChaosWorld(CleanWorld):
    """The world of one seed."""

    seed: int
    swarm: Swarm

    def __init__(self, loop: SimLoop, group: asyncio.TaskGroup) -> None:
        super().__init__(loop, group)
        self.luck = random.Random(f"clean/{self.seed}")
        self.faults = True
        self.books = Books()
        self.violation: str | None = None
        self.views: dict[int, dict[int, int]] = {}
        self.leaders = {
            partition_of(number, at): self.luck.choice(BROKERS)
            for number in range(1, TOPICS + 1)
            for at in range(2)
        }
        self.everything = list(self.leaders)
        self.marked: set[TopicIdPartition] = set()
        self.abandoned: list[tuple[int, TopicIdPartition]] = []
        self.segments = 0
        self.removed_for_good: set[int] = set()
        #: Objects that no event ever told of: only a listing finds them.
        self.untold: dict[TopicIdPartition, set[str]] = {}
        self.snapshots = SnapshotOptions(after_events=15, after_seconds=10.0)
        self.platters = {broker_id: Platter() for broker_id in BROKERS}
        #: When a broker's daemon hears of the log again.
        self.cut_off_until: dict[int, float] = {}
        cluster = cast("Cluster", SimCluster(self.facts))
        self.proof_of = lambda manager: ClusterProof(cluster, manager.assignment)

    # The ports.

    def present(self, broker_id: int, *, lease_seconds: float = 1e6, **changes: Any) -> None:
        """Record the deadline that this world's copies have."""
        changes.setdefault("copy_deadline_seconds", options_of(broker_id).copy_deadline_seconds)
        super().present(broker_id, lease_seconds=lease_seconds, **changes)

    def log_of(self, broker_id: BrokerId) -> Any:
        luck = random.Random(f"log/{self.seed}/{broker_id}/{self.clock.now_ms()}")
        return ChaosLog(self, broker_id, luck)

    def disk_of(self, broker_id: BrokerId) -> SimDisk:
        luck = random.Random(f"disk/{self.seed}/{broker_id}/{self.lives}")
        return SimDisk(self.platters[broker_id], self.loop, luck, DiskFaults())

    def cut_off_seconds(self, broker_id: int) -> float:
        """How long a broker's daemon will hear nothing of the log yet."""
        until = self.cut_off_until.get(broker_id, 0.0) if self.faults else 0.0
        return max(0.0, until - self.loop.time())

    def storage_of(self, broker_id: BrokerId) -> Any:
        return ChaosStorage(
            self, random.Random(f"storage/{self.seed}/{broker_id}/{self.clock.now_ms()}")
        )

    def owned_by(self, broker_id: BrokerId) -> frozenset[MetadataPartition] | None:
        view = self.views.get(broker_id, {})
        return frozenset(MetadataPartition(n) for n, owner in view.items() if owner == broker_id)

    # The invariants.

    def folded(self, number: int, outcome: Outcome) -> None:
        del number
        if isinstance(outcome, Applied):
            event = outcome.event
            if isinstance(event, PartitionDelete):
                self._judge_mark(event)
            if isinstance(event, SegmentUpdate) and event.state is S.COPY_SEGMENT_FINISHED:
                self.books.finished.add(event.segment_id)
            if isinstance(event, SegmentUpdate) and event.state is S.DELETE_SEGMENT_FINISHED:
                self.books.deleted.add(event.segment_id)

    def _judge_mark(self, event: PartitionDelete) -> None:
        """Kafka's own manager ends at the last mark; the strangers' own marks are their affair."""
        last = event.state is D.DELETE_PARTITION_FINISHED
        if last and event.broker_id in BROKERS and JVM in self.facts.registered:
            self.fail(f"{event.partition}: ended while a foreign metadata manager reads")

    def _judge_end(self, event: SegmentUpdate) -> None:
        """A copy that runs in a living daemon, or is young, is nobody's to take for stuck."""
        running = any(
            daemon.task is not None and daemon.copies.is_running(event.segment_id)
            for daemon in self.daemons.values()
        )
        if event.partition.topic_id in self.facts.gone:
            return
        name = f"{event.partition} segment {int.from_bytes(event.segment_id, 'big')}"
        if running:
            self.fail(f"{name}: ended while its copy runs")
        cache = self.fold(number_of(event.partition)).partitions[event.partition]
        begun = records.decode(cache.get(event.segment_id) or b"")
        assert isinstance(begun, SegmentMetadata)
        options = options_of(begun.broker_id)
        patience = options.copy_deadline_seconds + options.delivery_timeout_seconds
        if event.event_timestamp_ms - begun.event_timestamp_ms <= 1000 * patience:
            self.fail(f"{name}: ended before its time")

    def deleted(self, keys: Sequence[str]) -> None:
        for key in keys:
            parsed = parse_key(Layout(), key)
            assert parsed is not None, key
            if key in self.objects.objects:
                self._judge(parsed.partition, parsed.segment_id)
            self.objects.objects.pop(key, None)

    def _judge(self, partition: TopicIdPartition, segment_id: SegmentId) -> None:
        cache = self.fold(number_of(partition)).partitions.get(partition)
        state = None if cache is None else cache.state(segment_id)
        name = f"{partition} segment {int.from_bytes(segment_id, 'big')}"
        being_removed = cache is not None and cache.delete_state in (
            D.DELETE_PARTITION_STARTED,
            D.DELETE_PARTITION_FINISHED,
        )
        if state in (S.COPY_SEGMENT_STARTED, S.COPY_SEGMENT_FINISHED):
            self.fail(f"{name}: an object goes in {state.name}")
        elif state is None and segment_id not in self.books.deleted and not being_removed:
            self.fail(f"{name}: an object goes that no event lets go")
        elif cache is not None and segment_id in cache.held:
            self.fail(f"{name}: an object goes although its finish was not seen")
        elif (
            partition.topic_id not in self.facts.gone
            and segment_id in self.books.finished
            and segment_id not in self.books.asked
        ):
            self.fail(f"{name}: an object of an existing topic goes unasked")

    def fail(self, what: str) -> None:
        self.violation = self.violation or f"at {self.loop.time():.3f}: {what}"

    # The brokers.

    async def broker(self, broker_id: int) -> None:
        """Copy, delete and give up, through whatever daemon stands beside it now."""
        luck = random.Random(f"broker/{self.seed}/{broker_id}")
        while self.faults:
            await asyncio.sleep(luck.expovariate(1 / 2))
            daemon = self.daemons.get(broker_id)
            mine = [p for p, leader in self.leaders.items() if leader == broker_id]
            if daemon is None or daemon.task is None or not mine:
                continue
            with suppress(RlmmError, TimeoutError):
                async with asyncio.timeout(15):
                    if luck.random() < 0.65:
                        await self._copy(daemon, luck.choice(mine), luck)
                    else:
                        await self._retire(daemon, luck.choice(mine), luck)

    async def _copy(
        self, daemon: SimDaemon, partition: TopicIdPartition, luck: random.Random
    ) -> None:
        self.segments += 1
        number = self.segments
        start = 100 * number
        begun = self.started(number, partition, start, broker_id=daemon.broker_id)
        await daemon.manager.events.add(records.encode(begun), Caller.OPERATOR, 5.0)
        storage = daemon.bucket.storage
        assert isinstance(storage, ChaosStorage)
        gives_up = self.swarm.copies_die and luck.random() < 0.3
        hangs = luck.uniform(10, 40) if self.swarm.copies_die and luck.random() < 0.15 else 0.0

        deadline = options_of(daemon.broker_id).copy_deadline_seconds
        is_long = self.swarm.long_copies and daemon.broker_id == PATIENT

        async def put() -> None:
            with suppress(RlmmError, TimeoutError):
                async with asyncio.timeout(deadline):
                    for key in self.keys(number, partition, start):
                        await storage.place(key)
                        pause = luck.expovariate(3)
                        await asyncio.sleep(deadline / 2.5 if is_long else pause)
                await asyncio.sleep(hangs)  # its broker may give it up meanwhile

        task = self.group.create_task(put(), name=f"copy-{number}")
        daemon.copies.begin(partition, segment(number), task)
        await asyncio.wait({task})
        if gives_up or task.cancelled() or not self._whole(number, partition, start):
            self.abandoned.append((number, partition))
            return
        update = self.updated(
            number, partition, S.COPY_SEGMENT_FINISHED, CUSTOM, broker_id=daemon.broker_id
        )
        await daemon.manager.events.update(records.encode(update), Caller.OPERATOR, 5.0)

    def _whole(self, number: int, partition: TopicIdPartition, start: int) -> bool:
        return all(key in self.objects.objects for key in self.keys(number, partition, start))

    async def _retire(
        self, daemon: SimDaemon, partition: TopicIdPartition, luck: random.Random
    ) -> None:
        """Retention: the broker's own delete sequence, which may end anywhere."""
        cache = self.fold(number_of(partition)).partitions.get(partition)
        live = [] if cache is None else sorted(cache.live_finished())
        if not live or cache is None:
            return
        segment_id = live[0]
        record = cache.get(segment_id)
        assert record is not None
        first = records.decode(record)
        assert isinstance(first, SegmentMetadata)
        self.books.asked.add(segment_id)
        number = int.from_bytes(segment_id, "big")
        await self._update(daemon, number, partition, S.DELETE_SEGMENT_STARTED)
        if luck.random() < 0.3:
            return
        await daemon.copies.end_copy(segment_id)
        keys = self.keys(number, partition, first.start_offset)
        outcome = await daemon.bucket.storage.delete(keys)
        if not any(outcome.values()):
            await self._update(daemon, number, partition, S.DELETE_SEGMENT_FINISHED)

    async def _update(
        self, daemon: SimDaemon, number: int, partition: TopicIdPartition, state: SegmentState
    ) -> None:
        update = self.updated(number, partition, state, CUSTOM, broker_id=daemon.broker_id)
        await daemon.manager.events.update(records.encode(update), Caller.OPERATOR, 5.0)

    async def jvm(self) -> None:
        """A broker without our manager: its records land as they are, in any order."""
        luck = random.Random(f"jvm/{self.seed}")
        lost = random.Random(f"jvm-lost/{self.seed}")
        storage = ChaosStorage(self, random.Random(f"jvm-storage/{self.seed}"))
        while self.faults:
            await asyncio.sleep(luck.expovariate(1 / 3))
            living = sorted(self.leaders)
            if not living:
                return
            partition = luck.choice(living)
            kind = luck.random()
            if kind < 0.5:
                self.segments += 1
                number, start = self.segments, 100 * self.segments
                keys = self.keys(number, partition, start)
                told = lost.random() > 0.2  # else its records never reach the log
                if told:
                    self.put(self.started(number, partition, start, broker_id=JVM))
                else:
                    self.untold.setdefault(partition, set()).update(keys)
                with suppress(RlmmError):
                    for key in keys:
                        await storage.place(key)
                    if told and self._whole(number, partition, start):
                        state = S.COPY_SEGMENT_FINISHED
                        self.put(self.updated(number, partition, state, CUSTOM, broker_id=JVM))
            elif kind < 0.8 and self.segments:
                # Nonsense about a segment that may be anywhere in its life, or of another place.
                # Only it never lies of objects that it was to delete that they are gone.
                number = luck.randint(1, self.segments)
                if self.state(number, partition) is S.DELETE_SEGMENT_STARTED:
                    continue
                self.put(self.updated(number, partition, S.DELETE_SEGMENT_FINISHED, broker_id=JVM))
            else:
                # Only before anybody marked it, where it is nonsense: behind a mark it would be
                # the same lie, of all the partition's objects.
                step = luck.randrange(1, 3)
                if self.removal(partition) is None:
                    self.mark(partition, step, broker_id=JVM)

    async def late_finishes(self) -> None:
        """A finish that was in flight when its broker died lands after all."""
        luck = random.Random(f"late/{self.seed}")
        while self.faults:
            await asyncio.sleep(luck.expovariate(1 / 5))
            ready = [
                each for each in self.abandoned if self._whole(each[0], each[1], 100 * each[0])
            ]
            if ready:
                number, partition = luck.choice(ready)
                self.abandoned.remove((number, partition))
                self.put(self.updated(number, partition, S.COPY_SEGMENT_FINISHED, CUSTOM))

    def sent(self, value: bytes, luck: random.Random) -> None:
        """Look at what a daemon appends; a copy's finish may land right before its delete.

        Only a cleaner deletes a segment that its fold has in COPY_SEGMENT_STARTED.
        """
        event = records.decode(value)
        if not isinstance(event, SegmentUpdate) or event.state is not S.DELETE_SEGMENT_STARTED:
            return
        number = int.from_bytes(event.segment_id, "big")
        if self.state(number, event.partition) is not S.COPY_SEGMENT_STARTED:
            return
        self._judge_end(event)
        slips = self.swarm.late_finishes and luck.random() < 0.5
        if slips and self._whole(number, event.partition, 100 * number):
            self.put(self.updated(number, event.partition, S.COPY_SEGMENT_FINISHED, CUSTOM))

    # The operators and the cluster.

    async def topics(self) -> None:
        """Delete topics; mark them early, late, twice."""
        luck = random.Random(f"topics/{self.seed}")
        for number in sorted(luck.sample(range(1, TOPICS + 1), 2)):
            await asyncio.sleep(luck.uniform(5, CHAOS_SECONDS / 3))
            parts = [p for p in self.everything if p.topic == f"t{number}"]
            if luck.random() < 0.3:
                self._mark(parts, luck)
                await asyncio.sleep(luck.uniform(0, 10))
            if self.swarm.cut_off and self.swarm.long_copies:
                await self._begin_long_copies(parts, luck)
            for partition in parts:
                del self.leaders[partition]
            self.facts.gone.add(parts[0].topic_id)
            await asyncio.sleep(luck.uniform(0, 5))
            for _ in range(luck.choice([1, 1, 2, 3])):
                self._mark(parts, luck)

    async def _begin_long_copies(self, parts: list[TopicIdPartition], luck: random.Random) -> None:
        """What is deleted soon is copied by a daemon that will not hear of it in time."""
        self.leaders.update(dict.fromkeys(parts, PATIENT))
        await asyncio.sleep(luck.uniform(2, 10))
        self.cut_off_until[PATIENT] = self.loop.time() + PATIENT_SECONDS

    def _mark(self, parts: list[TopicIdPartition], luck: random.Random) -> None:
        for partition in parts:
            if luck.random() < 0.9:
                self.mark(partition)
                self.marked.add(partition)

    async def owners(self) -> None:
        luck = random.Random(f"owners/{self.seed}")
        while self.faults:
            await asyncio.sleep(luck.expovariate(1 / 6))
            alive = [b for b, each in self.daemons.items() if each.task is not None]
            if alive:
                self.facts.owners[luck.randrange(COUNT)] = luck.choice(alive)
            for broker_id in BROKERS:
                if luck.random() < 0.6:  # the others go on with what they knew
                    self.views[broker_id] = dict(self.facts.owners)

    async def silences(self) -> None:
        luck = random.Random(f"silent/{self.seed}")
        while self.faults:
            await asyncio.sleep(luck.expovariate(1 / 8))
            self.facts.silent = True
            await asyncio.sleep(luck.uniform(1, 6))
            self.facts.silent = False

    async def cut_offs(self) -> None:
        luck = random.Random(f"cut/{self.seed}")
        while self.faults:
            await asyncio.sleep(luck.expovariate(1 / 6))
            broker_id = luck.choice((*BROKERS, PATIENT, PATIENT))
            self.cut_off_until[broker_id] = self.loop.time() + luck.uniform(3, PATIENT_SECONDS)

    async def deaths(self) -> None:
        luck = random.Random(f"deaths/{self.seed}")
        while self.faults:
            await asyncio.sleep(luck.expovariate(1 / 8))
            broker_id = luck.choice(BROKERS)
            if broker_id in self.removed_for_good:
                continue
            await self.kill(broker_id)
            if self.swarm.brokers_leave and not self.removed_for_good and luck.random() < 0.1:
                self.leave(broker_id)
                continue
            await asyncio.sleep(luck.expovariate(1 / 3))
            self.revive(broker_id, broker_too=luck.random() < 0.5)

    def leave(self, broker_id: int) -> None:
        """A broker is taken out of the cluster."""
        self.removed_for_good.add(broker_id)
        self.facts.registered.discard(BrokerId(broker_id))
        self.present(broker_id, lease_seconds=1.0)
        others = [each for each in BROKERS if each != broker_id]
        for partition, leader in self.leaders.items():
            if leader == broker_id:
                self.leaders[partition] = self.luck.choice(others)
        for number, owner in self.facts.owners.items():
            if owner == broker_id:
                self.facts.owners[number] = others[0]

    async def kill(self, broker_id: int) -> None:
        daemon = self.daemons[broker_id]
        log, storage = daemon.manager.log, daemon.bucket.storage
        log.dead = storage.dead = True  # type: ignore[attr-defined] # the simulation's own
        await daemon.stop()
        disk = daemon.manager.state.disk
        assert isinstance(disk, SimDisk)
        disk.dead = True
        await asyncio.sleep(0.05)  # what was asked of the disk by then is done
        self.platters[broker_id].kill(self.luck, evict=False)

    def revive(self, broker_id: int, *, broker_too: bool) -> None:
        incarnation = self.daemons[broker_id].manager.assignment.incarnation_ms
        daemon = self.daemon(broker_id, options_of(broker_id), STATE_DIRECTORY)
        now = self.clock.now_ms()
        daemon.manager.hello_from_broker(now if broker_too or not incarnation else incarnation)

    # The run.

    async def live(self) -> None:
        for broker_id in BROKERS:
            self.views[broker_id] = dict(self.facts.owners)
            made = self.daemon(broker_id, options_of(broker_id), STATE_DIRECTORY)
            made.manager.hello_from_broker(self.clock.now_ms())
        if self.swarm.jvm_peer:
            self.facts.registered.add(BrokerId(JVM))
            self.present(JVM, metadata_manager="foreign")
        await asyncio.sleep(2)
        chaos: dict[str, Any] = {f"broker-{b}": self.broker(b) for b in BROKERS}
        chaos["topics"] = self.topics()
        for name, wanted, work in (
            ("owners", self.swarm.owners_move, self.owners),
            ("deaths", self.swarm.deaths, self.deaths),
            ("jvm", self.swarm.jvm_peer, self.jvm),
            ("late", self.swarm.late_finishes, self.late_finishes),
            ("silent", self.swarm.silent, self.silences),
            ("cut", self.swarm.cut_off, self.cut_offs),
        ):
            if wanted:
                chaos[name] = work()
        async with asyncio.TaskGroup() as tasks:
            for name, each in chaos.items():
                tasks.create_task(each, name=name)
            end = self.loop.time() + CHAOS_SECONDS
            while self.loop.time() < end and self.violation is None:  # noqa: ASYNC110 - virtual
                await asyncio.sleep(0.5)
            self.faults = False
        if self.violation is None:
            await self._calm()
        if self.violation is not None:
            raise Violation(f"seed {self.seed}: {self.violation}; {self.swarm}")

    async def _calm(self) -> None:
        """Everybody who is left comes back; an operator repairs and says that the JVM is gone."""
        self._leave_jvm()
        for broker_id in BROKERS:
            if broker_id not in self.removed_for_good:
                await self.kill(broker_id)
                self.revive(broker_id, broker_too=True)
                self.views[broker_id] = self.facts.owners
        owner = next(b for b in BROKERS if b not in self.removed_for_good)
        self.facts.owners.update(dict.fromkeys(range(COUNT), owner))
        for partition in self.everything:
            if partition.topic_id in self.facts.gone and self.removal(partition) is None:
                self.mark(partition)
        until = self.loop.time() + CALM_SECONDS
        while (left := self._left()) and self.violation is None:
            if self.loop.time() > until:
                self.fail(f"calm, yet not done: {left}")
                return
            self._repair()
            await asyncio.sleep(2)
        await asyncio.sleep(FLIGHT_SECONDS)
        self._compare()

    def _leave_jvm(self) -> None:
        self.facts.registered.discard(BrokerId(JVM))
        self.present(JVM, lease_seconds=-60.0, metadata_manager="foreign")

    def _repair(self) -> None:
        """Put held segments back, as `rlmm log repair` does."""
        for number in range(COUNT):
            for record in self.fold(number).held_records():
                held = records.decode(record)
                assert isinstance(held, SegmentMetadata)
                n = int.from_bytes(held.segment_id, "big")
                self.put(
                    self.updated(n, held.partition, S.DELETE_SEGMENT_FINISHED),
                    replace(held, state=S.COPY_SEGMENT_STARTED, custom_metadata=None),
                    self.updated(n, held.partition, S.COPY_SEGMENT_FINISHED, held.custom_metadata),
                )
        for daemon in self.daemons.values():
            for each in daemon.manager.fleet.followers.values():
                if each.failure is not None:
                    each.retry()

    def _left(self) -> list[str]:
        """What still has to happen."""
        left = []
        for partition in self.everything:
            cache = self.fold(number_of(partition)).partitions.get(partition)
            gone = partition.topic_id in self.facts.gone
            if cache is None:
                continue
            if gone and cache.delete_state is not D.DELETE_PARTITION_FINISHED:
                left.append(f"{partition.topic}-{partition.partition} is not removed")
            hanging = cache.segments_by_state[0] + cache.segments_by_state[2]
            if not gone and hanging:
                left.append(f"{partition.topic}-{partition.partition}: {hanging} hang")
        return left

    def _compare(self) -> None:
        """Hold the bucket against the log."""
        wanted: set[str] = set()
        for partition in self.everything:
            if partition.topic_id not in self.facts.gone:  # whoever compares bucket and log has it
                wanted |= self.untold.get(partition, set()) & self.objects.objects.keys()
            cache = self.fold(number_of(partition)).partitions.get(partition)
            for segment_id in [] if cache is None else cache.live_finished():
                number = int.from_bytes(segment_id, "big")
                wanted.update(self.keys(number, partition, 100 * number))
        present = {key for key in self.objects.objects if not key.startswith("_rlmm")}
        if present != wanted:
            self.fail(f"leaked {sorted(present - wanted)[:3]}, lost {sorted(wanted - present)[:3]}")


@contextmanager
def _pace(*, slow: bool) -> Iterator[None]:
    """Let a follower give way after each record, as a busy machine does."""
    events, seconds = batches._SLICE_CHECK_EVENTS, batches.SLICE_SECONDS
    if slow:
        batches._SLICE_CHECK_EVENTS, batches.SLICE_SECONDS = 1, 0.0  # type: ignore[misc] # Final
    try:
        yield
    finally:
        batches._SLICE_CHECK_EVENTS = events  # type: ignore[misc] # likewise
        batches.SLICE_SECONDS = seconds  # type: ignore[misc] # likewise


def run_seed(seed: int) -> int:
    """Return how many steps a seed took.

    Raises:
        Violation: what does not hold, and when.
    """
    swarm = Swarm.draw(random.Random(f"swarm/{seed}"))
    kind = type("World", (ChaosWorld,), {"seed": seed, "swarm": swarm})
    loop = SimLoop(rng=random.Random(f"loop/{seed}"), steps_max=20_000_000)

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            world = kind(loop, group)
            try:
                await world.live()
            finally:
                for daemon in world.daemons.values():
                    await daemon.stop()

    try:
        with _pace(slow=swarm.slow):
            loop.run_until_complete(main())
    except* Violation as group:
        raise group.exceptions[0] from None
    finally:
        if not loop.is_closed():
            loop.abandon()
    return loop.steps
