"""Submitters of several daemons on one log, where leaders go, answers are lost, and copies late.

Submitter, fold and checkpoints are the product's own; consensus is one list. Each daemon has
several lives: of one before nothing is left but its disk, where its log begins with a checkpoint,
or another daemon's takes its place while it runs. What is checked: nobody is told what is not so,
no record is there twice, none that was refused is there at all, those that are there of one life
stand in the order in which they were begun, unless their outcome was unknown, and every replica
reads the same events at the same offsets as one that has the whole log.
"""

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, Final, TypeAlias
from uuid import UUID, uuid5

import msgspec

from rlmm_daemon.adapters.quorum.event_log.checkpointer import Checkpointer
from rlmm_daemon.adapters.quorum.event_log.folding import Folding
from rlmm_daemon.adapters.quorum.event_log.options import QuorumLogOptions
from rlmm_daemon.adapters.quorum.event_log.submitter import Submitter
from rlmm_daemon.codec import records
from rlmm_daemon.codec.kraft.record_key import FOUNDING, RecordKey, pack_count, pack_key, read_key
from rlmm_daemon.core.fold.fold import Fold
from rlmm_daemon.core.partitioner import metadata_partition
from rlmm_daemon.core.quorum_log.checkpoint import NOTHING
from rlmm_daemon.core.quorum_log.fold import AcceptedEvent, LogFold
from rlmm_daemon.domain.errors import OutcomeUnknown, RlmmError, StorageUnavailable
from rlmm_daemon.domain.ids import (
    BrokerId,
    LeaderEpoch,
    MetadataPartition,
    Offset,
    SegmentId,
    TopicId,
    TopicIdPartition,
)
from rlmm_daemon.domain.segment import SegmentMetadata, SegmentState, SegmentUpdate
from tests.simulation.clock import SimClock
from tests.simulation.loop import Order, SimLoop, SimulationEnd, ended
from tests.simulation.quorum.shape import Outcome as SeedOutcome
from tests.simulation.quorum.toy_replica import ToyDisk, ToyLog, ToyNode

PARTITIONS: Final = 2
OPTIONS: Final = QuorumLogOptions(
    delivery_timeout_seconds=2.0, retry_seconds=0.05, batch_bytes_max=64, reach_seconds=1.0
)
#: A user partition of each metadata partition.
TPS: Final[dict[int, TopicIdPartition]] = {
    metadata_partition(tp.topic_id, tp.partition, PARTITIONS): tp
    for tp in (TopicIdPartition(TopicId(bytes(range(16))), "t", n) for n in range(9))
}
STATES: Final = (
    SegmentState.COPY_SEGMENT_STARTED,
    SegmentState.COPY_SEGMENT_FINISHED,
    SegmentState.DELETE_SEGMENT_STARTED,
    SegmentState.DELETE_SEGMENT_FINISHED,
)
Rows: TypeAlias = list[tuple[int, bytes | None]]
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
        #: So many bytes make a checkpoint due; a batch has some 120.
        self.checkpoint_bytes = rng.choice([1, 400, 2_000, 1 << 40])
        #: Another daemon's checkpoint takes the place of the log, where it is ahead.
        self.installed = rng.choice([0.0, 0.05, 0.5, 1.0])
        #: After a record, that a partition may be compacted, up to anywhere.
        self.compacted = rng.choice([0.0, 0.3])
        self.options = msgspec.structs.replace(
            OPTIONS,
            checkpoint_bytes_min=self.checkpoint_bytes,
            checkpoint_factor=rng.choice([0.0, 1.0]),
            chunk_bytes=rng.choice([1, 500]),
            cache_bytes=rng.choice([1, 2_000]),
            compact_events_min=rng.choice([1, 10]),
            compact_factor=rng.choice([0.0, 0.5]),
        )


class World:
    """The log, and what everybody was told."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.shape = Shape(rng)
        self.healed = False
        self.epoch = 1
        self.log = ToyLog()
        self.disks: dict[int, ToyDisk] = defaultdict(ToyDisk)
        #: Of the whole log.
        self.fold = LogFold()
        #: Names of its records.
        self.values: dict[tuple[int, int], bytes] = {}
        #: By record.
        self.names: dict[bytes | None, bytes] = {}
        self.told: dict[bytes, list[int | RlmmError]] = defaultdict(list)
        self.partition: dict[bytes, int] = {}
        #: By daemon and life, in the order in which they were begun.
        self.begun: dict[bytes, list[bytes]] = defaultdict(list)
        self.late: list[asyncio.Task[None]] = []
        self.counts: Counter[str] = Counter()
        self.append([(pack_key(RecordKey(FOUNDING, 0, 0, 0)), pack_count(PARTITIONS))])

    def append(self, records: Sequence[tuple[bytes | None, bytes | None]]) -> int:
        for key, value in records:
            outcome = self.fold.apply(self.epoch, read_key(key), value)
            if isinstance(outcome, AcceptedEvent):
                self.values[outcome] = self.names[value]
        return self.log.append(self.epoch, records)

    def record(self, name: bytes) -> tuple[int, bytes]:
        """Return a new record and its partition: four of a life's are one segment's events."""
        life, _, count = name.rpartition(b".")
        step = int(count) % 4 if count.isdigit() else 0
        segment = uuid5(UUID(int=0), f"{life!r} {int(count) // 4 if count.isdigit() else count!r}")
        partition = segment.int % PARTITIONS
        tp, start = TPS[partition], 10 * (len(self.names) // 4)
        event: SegmentMetadata | SegmentUpdate = SegmentUpdate(
            partition=tp,
            segment_id=SegmentId(segment.bytes),
            broker_id=BrokerId(1),
            event_timestamp_ms=1,
            state=STATES[step],
        )
        if step == 0:
            event = SegmentMetadata(
                partition=tp,
                segment_id=SegmentId(segment.bytes),
                start_offset=Offset(start),
                end_offset=Offset(start + 9),
                broker_id=BrokerId(1),
                max_timestamp_ms=1,
                event_timestamp_ms=1,
                segment_leader_epochs={LeaderEpoch(0): Offset(start)},
                segment_size_bytes=1,
            )
        value = records.encode(event)
        assert value not in self.names, "each is another one"
        self.names[value] = name
        return partition, value

    def chance(self, share: float) -> bool:
        return not self.healed and self.rng.random() < share

    def value_at(self, partition: int, offset: int) -> bytes | None:
        name = self.values[partition, offset]
        return next(value for value, each in self.names.items() if each == name)

    def newest_checkpoint_of_another(self, me: int) -> Any:
        found = [disk.newest for number, disk in self.disks.items() if number != me]
        synced = [each for each in found if each is not None and each.synced]
        return self.rng.choice(synced) if synced else None


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


class Life:
    """One daemon from its start to its death."""

    def __init__(self, world: World, me: int, clock: SimClock) -> None:
        self._world = world
        self._me = me
        options = world.shape.options
        self.submitter = Submitter(clock, world.rng, options, lambda: me)
        self.folding = Folding(options, self.submitter.hear, self.submitter.passed_over)
        self._checkpointer = Checkpointer(self.folding, options)
        self._node = ToyNode(world.log, world.disks[me], world.rng)
        node: Any = self._node
        self.folding.attach(node)
        leader: Any = Leader(world)
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(work)
            for work in (
                self.folding.run(),
                self.submitter.run(leader, self.folding),
                self.submitter.expire(),
                self._checkpointer.run(node),
                self._replicate(),
            )
        ]

    async def _replicate(self) -> None:
        """Have more of the log, or another one's checkpoint, with some delay."""
        world, node = self._world, self._node
        while True:
            lag = 0.0 if world.healed else world.shape.lag_seconds
            await asyncio.sleep(0.01 + world.rng.uniform(0, lag))
            other = world.newest_checkpoint_of_another(self._me)
            ahead = other is not None and other.point.end > node.replica.committed
            if ahead and world.chance(world.shape.installed):
                world.counts["installed"] += 1
                node.install(other)
            elif node.replica.committed < world.log.end:
                ends = [end for end in world.log.ends() if end > node.replica.committed]
                node.replicate(ends[-1] if world.healed else world.rng.choice(ends))

    def begin(self, value: bytes) -> None:
        world = self._world
        partition, record = world.record(value)
        world.partition[value] = partition
        world.begun[value.rpartition(b".")[0]].append(value)

        def told(outcome: int | RlmmError) -> None:
            world.told[value].append(outcome)
            if isinstance(outcome, int):
                assert world.values[partition, outcome] == value, f"{value!r} is not there"

        self.submitter.begin(partition, record, told)
        if world.chance(world.shape.compacted):
            which = world.rng.randrange(PARTITIONS)
            ends = self.folding.fold.ends or [0] * PARTITIONS
            self._checkpointer.allowed.allow(which, world.rng.randint(0, ends[which]))

    async def look(self, *, whole: bool = False) -> None:
        """Read what there is, from anywhere on."""
        world, folding = self._world, self.folding
        folding.require_whole()
        for partition in map(MetadataPartition, range(len(folding.fold.ends))):
            end = folding.range(partition).end
            at = 0 if whole else world.rng.randint(0, end)
            found: list[tuple[int, bytes | None]] = []
            begun, form, lacking = at, None, False
            while at < end:
                try:
                    batch = await folding.batch(partition, at)
                except StorageUnavailable:
                    assert not whole, "nothing fails any more"
                    assert folding.applied < self._node.log.start, "refused for no checkpoint"
                    world.counts["reads refused"] += 1
                    return
                assert batch.next_offset > at, "a read that goes nowhere"
                form = batch.dropped_to if form is None else form
                lacking |= batch.dropped_to not in (0, form)  # compacted meanwhile, as it is read
                found += batch.records
                at = batch.next_offset
            names = [(offset, world.names[value]) for offset, value in found]
            world.counts["dropped"] += at - begun - len(found)
            dropped_to = folding.dropped.get(partition, NOTHING).to
            there = {offset for offset, _ in found}
            expected = [
                (each, world.values[partition, each])
                for each in range(begun, at)
                if each in there or each >= dropped_to
            ]
            assert names == expected, f"read {names} of {partition}, not {expected}"
            if begun == 0 and not lacking:
                _compare(partition, found, [(n, world.value_at(partition, n)) for n in range(at)])
            epochs = world.fold.epochs[partition].entries
            mine = folding.fold.epochs[partition].entries
            assert mine == epochs[: len(mine)], f"epochs {mine}, not {epochs}"
        if whole:
            assert folding.fold.ends == world.fold.ends, "it has not all"

    async def end(self, *, crashes: bool = True) -> None:
        """Die; what was being written to the disk is lost."""
        self._node.dead = crashes
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        self._world.counts["checkpoints"] += self._checkpointer.counts.made
        self._world.disks[self._me].crash()
        self.folding.require_whole()
        for task in self._tasks:
            if not task.cancelled():
                task.result()


def _compare(partition: MetadataPartition, left: Rows, whole: Rows) -> None:
    """Hold what is read against what all events fold to."""
    states = []
    for rows in (left, whole):
        fold = Fold(partition, PARTITIONS)
        for offset, value in rows:
            fold.apply(offset, value)
        states.append({tp: cache.list_all() for tp, cache in fold.partitions.items()})
    assert states[0] == states[1], f"{partition} folds to something else"


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
        await life.look()
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
        await life.folding.reached(world.log.end, timeout_seconds=_HEALED_SECONDS)  # it lagged
        life.begin(value)
        async with asyncio.timeout(_HEALED_SECONDS):
            while not world.told[value]:  # noqa: ASYNC110 - a toy's own time
                await asyncio.sleep(0.05)
        assert isinstance(world.told[value][0], int), f"{value!r}: {world.told[value]}"
    if world.late:
        await asyncio.wait(world.late)
    for each in last:
        life = each.result()
        await life.folding.reached(world.log.end, timeout_seconds=_HEALED_SECONDS)
        await life.look(whole=True)
        await life.end()


def check(world: World) -> Counter[str]:
    """Hold what everybody was told against the log as it is in the end."""
    values = world.values
    counts = Counter(values.values())
    twice = [value for value, count in counts.items() if count > 1]
    assert not twice, f"{twice} are there twice"
    said: Counter[str] = Counter(records=len(world.partition), log=world.log.end)
    said += world.counts
    for value, told in world.told.items():
        assert len(told) <= 1, f"{value!r} was told of twice: {told}"
        for outcome in told:
            said["acknowledged" if isinstance(outcome, int) else type(outcome).__name__] += 1
            if isinstance(outcome, StorageUnavailable):
                assert not counts[value], f"{value!r} is there, and was refused"
            if isinstance(outcome, int):
                at = (world.partition[value], outcome)
                assert values.get(at) == value, f"{value!r} is not at {at}"
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
        met: BaseException = error
        while isinstance(met, BaseExceptionGroup):
            met = met.exceptions[0]
        outcome.failure = f"seed {seed}: {type(met).__name__}: {met}"
    outcome.events, outcome.trace = loop.steps, loop.trace
    return outcome
