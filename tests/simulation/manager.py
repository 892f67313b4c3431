"""The manager as a scenario: a broker announces, clients write and repeat, readers judge answers.

Followers, writers, snapshotter, assignment and the embedded log run unmodified. Two oracles: what
clients were told must show in every answer from then on, and each fold must equal the dumb model
of the records that the log gave out.
"""

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncGenerator, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final
from unittest import mock

from rlmm_daemon.adapters.event_log.embedded import EmbeddedLog, compacted_files, compacting
from rlmm_daemon.codec import records
from rlmm_daemon.codec.snapshot import decode_directory
from rlmm_daemon.core.fold import user_partitions
from rlmm_daemon.core.fold.outcome import Outcome
from rlmm_daemon.core.fold.user_partitions import Sleeping
from rlmm_daemon.daemon.base.appends import Append, MustWait, error_of
from rlmm_daemon.daemon.base.caller import Caller
from rlmm_daemon.daemon.following import compactor, snapshotter
from rlmm_daemon.daemon.following.fleet import FleetOptions
from rlmm_daemon.daemon.following.snapshotter import SnapshotOptions
from rlmm_daemon.daemon.metadata.manager import Manager, ManagerOptions
from rlmm_daemon.domain.errors import (
    CorruptError,
    Malformed,
    NotReady,
    RefusedError,
    RlmmError,
    UnavailableError,
)
from rlmm_daemon.domain.ids import (
    BrokerId,
    LeaderEpoch,
    MetadataPartition,
    Offset,
    SegmentId,
    TopicId,
    TopicIdPartition,
)
from rlmm_daemon.domain.partition_delete import PartitionDelete
from rlmm_daemon.domain.segment import CustomMetadata, SegmentMetadata, SegmentState, SegmentUpdate
from rlmm_daemon.ports.event_log import (
    Compacted,
    EpochEnd,
    LogBatch,
    LogIdentity,
    LogRange,
    Steady,
    Told,
    Turn,
)
from tests.simulation import embedded_log, removal
from tests.simulation.model import Model, spans
from tests.simulation.platter import Platter
from tests.simulation.removal import Removal
from tests.simulation.swarm import Swarm
from tests.simulation.world import Life, Violation

#: How often a snapshot is damaged between two lives.
ROT_SHARE: Final = 0.3
STATE_DIRECTORY: Final = "/var/lib/rlmm/state"
USER_PARTITIONS: Final = 4
SEGMENT_OFFSETS: Final = 100
#: Virtual seconds within which a daemon on a calm disk answers whatever is asked.
CALM_SECONDS_MAX: Final = 120.0
ATTEMPTS_MAX: Final = 6
#: Virtual seconds after its deadline within which a write is answered, whatever the disk does.
LATE_SECONDS_MAX: Final = 1.0
#: Of a broker's writes: begun without a task, as the socket does it first.
DIRECT_SHARE: Final = 0.6
#: Of new segments: they overlap what was copied before, as after an unclean leader election.
OVERLAP_SHARE: Final = 0.3
#: Of lives: they begin without a snapshot.
LOST_SHARE: Final = 0.25

S = SegmentState
STEPS: Final = (
    S.COPY_SEGMENT_STARTED,
    S.COPY_SEGMENT_FINISHED,
    S.DELETE_SEGMENT_STARTED,
    S.DELETE_SEGMENT_FINISHED,
)


class _Stopping(Exception):  # an order, not an error
    """The life is over as planned."""


@dataclass(slots=True, eq=False)
class Segment:
    """One segment's script, as the broker that owns it remembers it over the daemon's lives."""

    first: SegmentMetadata
    #: How many of `STEPS` were acknowledged, and how many ever asked for.
    acknowledged: int = 0
    asked: int = 0
    #: Where the script ends: some segments are never deleted.
    goal: int = 2
    busy: bool = False

    @property
    def may_be(self) -> set[SegmentState | None]:
        """The states that a true answer can show now; None is gone, or never there."""
        states: set[SegmentState | None] = set()
        for done in range(self.acknowledged, self.asked + 1):
            states.add(None if done in (0, len(STEPS)) else STEPS[done - 1])
        return states

    def request(self, step: int, time_ms: int) -> bytes:
        """Return the record of a step; asked again, it differs in nothing but its time."""
        if step == 0:
            return records.encode(self.first)
        return records.encode(
            SegmentUpdate(
                partition=self.first.partition,
                segment_id=self.first.segment_id,
                broker_id=self.first.broker_id,
                event_timestamp_ms=time_ms,
                custom_metadata=CustomMetadata(b"where it is") if step == 1 else None,
                state=STEPS[step],
            )
        )


class TappedLog:
    """The product's log; what it gives out to followers is written down for the model."""

    def __init__(
        self, log: EmbeddedLog, given: dict[int, list[bytes]], steps: set[tuple[bytes, int]]
    ) -> None:
        self._log = log
        self._given = given
        self._steps = steps
        self.compactions = 0

    async def open(self, *, create: bool) -> LogIdentity:
        return await self._log.open(create=create)

    @property
    def identity(self) -> LogIdentity | None:
        return self._log.identity

    def begin_append(self, partition: MetadataPartition, value: bytes, told: Told) -> None:
        self._log.begin_append(partition, value, told)

    async def append(self, partition: MetadataPartition, value: bytes) -> int:
        return await self._log.append(partition, value)

    async def end_offsets(
        self, partitions: Collection[MetadataPartition]
    ) -> Mapping[MetadataPartition, LogRange]:
        return await self._log.end_offsets(partitions)

    async def epoch_end(self, partition: MetadataPartition, epoch: int) -> EpochEnd:
        return await self._log.epoch_end(partition, epoch)

    async def compact(
        self, partition: MetadataPartition, upto: int, *, turn: Turn, steady: Steady
    ) -> Compacted | None:
        done = await self._log.compact(partition, upto, turn=turn, steady=steady)
        self.compactions += done is not None
        return done

    async def follow(
        self, partition: MetadataPartition, from_offset: int, *, epoch: int
    ) -> AsyncGenerator[LogBatch, None]:
        position = from_offset
        async with contextlib.aclosing(
            self._log.follow(partition, from_offset, epoch=epoch)
        ) as batches:
            async for batch in batches:
                given = self._given.setdefault(partition, [])
                self._require_vouched(position, batch)
                self._write_down(given, batch)
                position = batch.next_offset
                yield batch

    def _require_vouched(self, position: int, batch: LogBatch) -> None:
        """Nothing is missing but what a compaction dropped, and that is told."""
        there = {offset for offset, _ in batch.records}
        lacking = [at for at in range(position, batch.next_offset) if at not in there]
        if batch.unvouched or any(at >= batch.dropped_to for at in lacking):
            raise Violation(f"offsets {lacking} are missing, dropped to {batch.dropped_to}")

    def _write_down(self, given: list[bytes], batch: LogBatch) -> None:
        for offset, value in batch.records:
            assert value is not None
            if offset < len(given) and given[offset] != value:
                raise Violation(f"offset {offset} was another record before")
            if offset > len(given):
                raise Violation(f"offset {offset} came after {len(given)} records")
            if offset == len(given):
                self._once(value)
                given.append(value)

    def _once(self, value: bytes) -> None:
        """A request sent twice ends as if sent once: each step is in the log at most once."""
        event = records.decode(value)
        assert isinstance(event, SegmentMetadata | SegmentUpdate | PartitionDelete)
        subject: bytes = event.partition.topic_id
        if not isinstance(event, PartitionDelete):
            subject = event.segment_id
        step = (subject, int(event.state))
        if step in self._steps:
            raise Violation(f"{event.state.name} of {subject.hex()[-6:]} is in twice")
        self._steps.add(step)

    async def close(self) -> None:
        await self._log.close()


@dataclass(slots=True)
class ManagerScenario:
    """What outlives the daemon's lives: the broker's memory, and what the log gave out."""

    seed: int
    swarm: Swarm
    segments: list[Segment] = field(default_factory=list)
    removal: Removal = field(default_factory=Removal)
    given: dict[int, list[bytes]] = field(default_factory=dict)
    models: dict[int, Model] = field(default_factory=dict)
    announced: set[TopicIdPartition] = field(default_factory=set)
    answers: int = 0
    writes: int = 0
    snapshots: int = 0
    compactions: int = 0
    #: Bits of snapshots that were flipped between two lives.
    flips: int = 0
    #: Metadata partition -> the offset of the newest snapshot that was said to be written.
    written: dict[int, int] = field(default_factory=dict)
    #: How often a fold was judged that keeps a finished segment out of Kafka's two sets.
    third_sets: int = 0
    crash_stretch: int = 6
    _manager: Manager | None = None
    _platter: Platter | None = None
    #: Metadata partition -> what was judged last: it is judged again when any of it changed.
    _verified: dict[int, tuple[object, ...]] = field(default_factory=dict)
    #: (segment, state) of what the log gave out: a repeated request appends nothing.
    given_steps: set[tuple[bytes, int]] = field(default_factory=set)

    @property
    def partitions(self) -> list[TopicIdPartition]:
        """The user partitions of the broker."""
        return [
            TopicIdPartition(TopicId(bytes([number + 1]) * 16), f"topic{number}", number)
            for number in range(USER_PARTITIONS)
        ]

    def summary(self) -> dict[str, int]:
        steps = sum(segment.acknowledged for segment in self.segments)
        return {
            "steps_acknowledged": steps,
            "writes": self.writes,
            "answers": self.answers,
            "snapshots": self.snapshots,
            "compactions": self.compactions,
            "flips": self.flips,
            "third_sets": self.third_sets,
            "removal_steps": self.removal.acknowledged,
        }

    # -- after each step --

    def verify(self) -> None:
        if self._manager is None:
            return
        for number, follower in self._manager.fleet.followers.items():
            fold = follower.fold
            facts = (id(fold), fold.position, follower.state, len(follower.confirmation.confirmed))
            if self._verified.get(number) == facts:
                continue
            self._verified[number] = facts
            if 0 < fold.position < self._compacted_to(number):
                continue  # in the middle it lacks what is gone at the end
            model = self.models.setdefault(number, Model())
            model.advance(self.given.get(number, []), fold.position)
            try:
                model.verify(fold)
            except NotReady:
                if not self.flips:  # only a damaged table sends a fold that is followed back
                    raise
                continue
            self.third_sets += any(
                index.third
                for cache in fold.partitions.at_rest()
                if not isinstance(cache, Sleeping)
                for index in cache.epochs.values()
            )
            if follower.failure is not None:
                raise Violation(f"a false alarm: {follower.failure}")
            self._judge_all(self._manager)

    def _compacted_to(self, number: int) -> int:
        """Return the offset before which the log has dropped events, as its files say."""
        assert self._platter is not None, "there is a life"
        record = f"{embedded_log.DIRECTORY}/{number}/{compacted_files.RECORD_NAME}"
        inode = self._platter.names.get(record)
        return 0 if inode is None else int(json.loads(bytes(inode.data))["until"])

    def _judge_all(self, manager: Manager) -> None:
        for partition in self.partitions:
            with contextlib.suppress(UnavailableError, RefusedError):
                self._judge_answers(manager, partition)
        self.removal.judge(manager)

    # -- one life --

    async def live(self, life: Life) -> None:
        self._verified.clear()
        for segment in self.segments:
            segment.busy = False
        self._platter = life.disk.platter
        self._require_snapshots(life)
        self._rot(life)
        await self._lose_snapshots(life)
        # In half of the seeds every table is long, and read through before it is touched.
        touched = 0 if self.seed % 2 else user_partitions.TOUCHED_BYTES_MAX
        try:
            with (
                mock.patch.object(user_partitions, "TOUCHED_BYTES_MAX", touched),
                # Virtual time stands while a snapshot is drawn: others have a turn at each step.
                mock.patch.object(snapshotter, "SLICE_SECONDS", 0.0),
                mock.patch.object(compacting, "SLICE_SECONDS", 0.0),
                mock.patch.object(compactor, "POLL_SECONDS", 0.5),
                mock.patch.object(compactor, "AGAIN_SECONDS", 2.0),
            ):
                await self._live(life)
        finally:
            self._manager = None

    async def _live(self, life: Life) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                log = TappedLog(
                    embedded_log.build(life, lambda w, name: tasks.create_task(w, name=name)),
                    self.given,
                    self.given_steps,
                )
                manager = self._manager = self._make(life, log)
                running = tasks.create_task(self._run(life, manager), name="manager")
                await self._work(life, manager)
                if life.last or life.rng("drain").random() < 0.5:
                    await manager.drain()
                running.cancel()
                await asyncio.wait([running])
                await log.close()
                self.compactions += log.compactions
                raise _Stopping
        except* _Stopping:
            pass

    def _require_snapshots(self, life: Life) -> None:
        """A snapshot that was said to be written is there after a crash, whole, or a newer one."""
        if self.flips:  # a damaged one is set aside, which an older one follows
            return
        files = life.disk.platter.names
        found = dict.fromkeys(self.written, -1)
        for path in files:
            if path.endswith(".snapshot"):
                try:
                    header, _ = decode_directory(bytes(files[path].data))
                except (CorruptError, Malformed) as error:
                    raise Violation(f"{path} is no whole snapshot: {error}") from error
                number = int(header.metadata_partition)
                found[number] = max(found.get(number, -1), header.next_offset)
        for number, offset in self.written.items():
            if found[number] < offset:
                raise Violation(
                    f"the snapshot of metadata partition {number} at {offset} was written; "
                    f"the disk has one at {found[number]}"
                )

    def _rot(self, life: Life) -> None:
        """Flip a bit of a snapshot now and then, as a disk does while nobody looks."""
        rng = life.rng("rot")
        inodes = life.disk.platter.names
        paths = sorted(path for path in inodes if path.endswith(".snapshot"))
        if paths and not life.last and rng.random() < ROT_SHARE:
            content = inodes[rng.choice(paths)].data
            if content:
                content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
                self.flips += 1

    async def _lose_snapshots(self, life: Life) -> None:
        """Remove all snapshots now and then: the log alone has to say everything that they did."""
        directory = f"{STATE_DIRECTORY}/snapshots"
        if life.rng("lose snapshots").random() < LOST_SHARE:
            with contextlib.suppress(OSError):
                for name in sorted(await life.disk.list(directory)):
                    await life.disk.remove(f"{directory}/{name}")
                await life.disk.fsync_directory(directory)
            self.written.clear()

    def _make(self, life: Life, log: TappedLog) -> Manager:
        options = random.Random(f"{self.seed}/manager")
        return Manager(
            log=log,
            disk=life.disk,
            clock=life.clock,
            rng=life.rng("manager"),
            options=ManagerOptions(
                state_dir=STATE_DIRECTORY,
                fleet=FleetOptions(on_demand_linger_seconds=1.0),
                snapshots=SnapshotOptions(
                    after_events=options.choice([1, 4, 1000]),
                    after_seconds=options.choice([2.0, 300.0]),
                ),
            ),
        )

    async def _run(self, life: Life, manager: Manager) -> None:
        """Run the manager; an IO error at its start ends the process, as it may."""
        try:
            await manager.run()
        except* OSError as errors:
            if life.last:
                raise Violation(f"calm, yet it ended: {errors.exceptions}") from errors
            raise _Stopping from errors

    async def _work(self, life: Life, manager: Manager) -> None:
        rng = life.rng("broker")
        await asyncio.sleep(rng.expovariate(1.0))
        self._judge_gate(manager)
        self._announce(life, manager, set(self.partitions))
        if life.last:
            await self._settle(life, manager)
            return
        async with asyncio.TaskGroup() as side:
            others = [
                side.create_task(self._broker(life, manager, rng), name="broker"),
                side.create_task(self._operator(life, manager), name="operator"),
                side.create_task(self._reader(life, manager), name="reader"),
                side.create_task(self.removal.run(life, manager), name="removal"),
            ]
            async with asyncio.TaskGroup() as clients:
                for number in range(self.swarm.clients):
                    clients.create_task(
                        self._client(life, manager, number), name=f"client-{number}"
                    )
            for task in others:
                task.cancel()

    def _announce(
        self, life: Life, manager: Manager, partitions: Collection[TopicIdPartition]
    ) -> None:
        manager.hello_from_broker(life.number)
        manager.replace_assignment([*sorted(partitions), removal.PARTITION], [])
        self.announced = set(partitions)

    # -- the broker's doings --

    async def _broker(self, life: Life, manager: Manager, rng: random.Random) -> None:
        """Stop and announce partitions again, in every way that the SPI has."""
        while True:
            await asyncio.sleep(rng.expovariate(1 / 3))
            chosen = sorted(rng.sample(self.partitions, rng.randint(1, USER_PARTITIONS)))
            way = rng.randrange(3)
            if way == 0:
                manager.on_stop_partitions(chosen)
                self.announced -= set(chosen)
            elif way == 1:
                manager.on_partition_leadership_changes(chosen, [])
                self.announced |= set(chosen)
            else:
                self._announce(life, manager, chosen)
            if rng.random() < 0.7:
                await asyncio.sleep(rng.expovariate(10))
                self._announce(life, manager, self.partitions)

    async def _operator(self, life: Life, manager: Manager) -> None:
        """Ask for snapshots at any moment."""
        rng = life.rng("operator")
        while True:
            await asyncio.sleep(rng.expovariate(0.5))
            for follower in manager.followed():
                with contextlib.suppress(OSError, NotReady):
                    if (done := await manager.snapshotter.write(follower)) is not None:
                        self.snapshots += 1
                        self.written[int(done.metadata_partition)] = done.next_offset

    async def _client(self, life: Life, manager: Manager, number: int) -> None:
        rng = life.rng(f"client-{number}")
        for _ in range(self.swarm.requests):
            segment = self._take_up(rng)
            segment.busy = True
            try:
                await self._step(life, manager, segment, rng)
            finally:
                segment.busy = False
            await asyncio.sleep(rng.expovariate(1 / (life.swarm.disk.latency_seconds * 10)))

    def _take_up(self, rng: random.Random) -> Segment:
        """Return a segment with steps left, or a new one."""
        open_ones = [s for s in self.segments if not s.busy and s.acknowledged < s.goal]
        if open_ones and rng.random() < 0.7:
            return rng.choice(open_ones)
        partition = rng.choice(self.partitions)
        mine = [each for each in self.segments if each.first.partition == partition]
        start, epoch = len(mine) * SEGMENT_OFFSETS, len(mine) // 2
        size = SEGMENT_OFFSETS
        overlaps, back, longer = rng.random(), rng.choice([1, 2]), rng.choice([0, 50, 100])
        if mine and overlaps < OVERLAP_SHARE:
            start, epoch = max(0, start - back * SEGMENT_OFFSETS), max(0, epoch - 1)
            size += longer
        epochs = {LeaderEpoch(epoch): Offset(start)}
        if rng.random() < 0.3:
            epochs[LeaderEpoch(epoch + 1)] = Offset(start + size // 2)
        first = SegmentMetadata(
            partition=partition,
            segment_id=SegmentId(len(self.segments).to_bytes(16, "big")),
            start_offset=Offset(start),
            end_offset=Offset(start + size - 1),
            broker_id=BrokerId(1),
            max_timestamp_ms=1,
            event_timestamp_ms=rng.randint(1, 10**12),
            segment_leader_epochs=epochs,
            segment_size_bytes=1000,
        )
        segment = Segment(first=first, goal=rng.choice([1, 2, 2, 3, 4, 4]))
        self.segments.append(segment)
        return segment

    async def _step(
        self, life: Life, manager: Manager, segment: Segment, rng: random.Random
    ) -> None:
        """Ask for the next step until it is acknowledged; now and then ask twice at once."""
        step = segment.acknowledged
        for _ in range(ATTEMPTS_MAX):
            async with asyncio.TaskGroup() as repeats:
                for _ in range(rng.choice([1, 1, 1, 2])):
                    repeats.create_task(self._ask(life, manager, segment, step, rng))
            if segment.acknowledged > step:
                return
            await asyncio.sleep(rng.expovariate(5))

    async def _ask(
        self, life: Life, manager: Manager, segment: Segment, step: int, rng: random.Random
    ) -> None:
        request = segment.request(step, rng.randint(1, 10**12))
        patience = rng.choice([0.05, 1.0, 30.0])
        direct = rng.random() < DIRECT_SHARE
        cancelled = rng.random() < self.swarm.impatience
        self.writes += 1
        segment.asked = max(segment.asked, step + 1)
        try:
            async with asyncio.timeout(patience / 3 if cancelled else patience + LATE_SECONDS_MAX):
                await _write(manager, request, step, patience, direct=direct)
        except TimeoutError:
            if not cancelled:
                raise Violation(f"no answer to a write:\n{life.loop.waiting()}") from None
        except UnavailableError as error:
            life.loop.note(f"{STEPS[step].name}: {error!r}")
        except RefusedError as error:
            self._refused(segment, error)
        else:
            if life.alive:
                life.loop.note(f"acknowledged {STEPS[step].name}")
                segment.acknowledged = max(segment.acknowledged, step + 1)
                self._must_be_given(segment)

    def _refused(self, segment: Segment, error: RefusedError) -> None:
        gone = segment.first.partition not in self.announced
        if not (gone or type(error).__name__ in ("NotAssigned", "NotLeader")):
            raise Violation(f"a legal step was refused: {error!r}")

    def _must_be_given(self, segment: Segment) -> None:
        """A success is this daemon's own apply: the log gave the record out before."""
        wanted = STEPS[segment.acknowledged - 1]
        given = [value for values in self.given.values() for value in values]
        for event in map(records.decode, given):
            if isinstance(event, SegmentMetadata | SegmentUpdate) and (
                event.segment_id == segment.first.segment_id and event.state is wanted
            ):
                return
        raise Violation(f"{wanted.name} was acknowledged and is not in the log")

    # -- readers --

    async def _reader(self, life: Life, manager: Manager) -> None:
        rng = life.rng("reader")
        while True:
            await asyncio.sleep(rng.expovariate(4))
            self._judge_all(manager)

    def _judge_answers(self, manager: Manager, partition: TopicIdPartition) -> None:
        """Ask everything about a partition; an answer that is given must hold all promises.

        Look-ups come first: a stale or unconfirmed fold may still answer them with hits.
        """
        mine = [each for each in self.segments if each.first.partition == partition]
        for segment in mine:
            self._judge_lookup(manager, partition, segment)
        records_listed = manager.lookups.list_remote_log_segments(partition, None, Caller.BROKER)
        listed = {}
        for event in map(records.decode, records_listed):
            assert isinstance(event, SegmentMetadata)
            listed[event.segment_id] = event.state
        for segment in mine:
            found = listed.pop(segment.first.segment_id, None)
            if found not in segment.may_be:
                raise Violation(f"{partition} shows {found!r}, true were {segment.may_be}")
        if listed:
            raise Violation(f"{partition} lists segments that nobody added: {listed}")
        self._judge_highest(manager, partition, mine)
        self.answers += 1

    def _judge_gate(self, manager: Manager) -> None:
        """Before the broker's full announcement every question is "not ready", and so no more."""
        for partition in self.partitions:
            try:
                found = manager.lookups.list_remote_log_segments(partition, None, Caller.BROKER)
            except NotReady:
                continue
            except RefusedError as error:
                raise Violation(f"{partition} was refused before the gate opened") from error
            raise Violation(f"{partition} was answered before the gate opened: {found}")

    def _judge_lookup(
        self, manager: Manager, partition: TopicIdPartition, segment: Segment
    ) -> None:
        for epoch, offsets in spans(segment.first):
            found = manager.lookups.remote_log_segment_metadata(
                partition, epoch, offsets[-1], Caller.BROKER
            )
            if found is not None:
                self._judge_hit(found, epoch, offsets[-1])
            elif segment.may_be == {S.COPY_SEGMENT_FINISHED}:
                raise Violation(f"{partition} {epoch}/{offsets[-1]}: empty, though it is there")

    def _judge_hit(self, found: bytes, epoch: LeaderEpoch, offset: int) -> None:
        """A look-up may find any segment that can be finished now and covers the offset."""
        event = records.decode(found)
        assert isinstance(event, SegmentMetadata)
        segment = self.segments[int.from_bytes(event.segment_id, "big")]
        if S.COPY_SEGMENT_FINISHED not in segment.may_be:
            raise Violation(f"{epoch}/{offset}: found {event.segment_id.hex()[-6:]}, not finished")
        if offset not in dict(spans(segment.first)).get(epoch, range(0)):
            raise Violation(f"{epoch}/{offset}: found {event.segment_id.hex()[-6:]} beside it")

    def _judge_highest(
        self, manager: Manager, partition: TopicIdPartition, mine: list[Segment]
    ) -> None:
        least: dict[LeaderEpoch, int] = {}
        most: dict[LeaderEpoch, int] = {}
        for segment in mine:
            for epoch, offsets in spans(segment.first):
                if segment.acknowledged >= 2:
                    least[epoch] = max(least.get(epoch, -1), offsets[-1])
                if segment.asked >= 2:
                    most[epoch] = max(most.get(epoch, -1), offsets[-1])
        for epoch in sorted({epoch for each in mine for epoch, _ in spans(each.first)}):
            found = manager.lookups.highest_offset_for_epoch(partition, epoch, Caller.BROKER)
            if not least.get(epoch, -1) <= (-1 if found is None else found) <= most.get(epoch, -1):
                raise Violation(f"{partition} epoch {epoch}: highest is {found}, {least} to {most}")

    # -- the calm last life --

    async def _settle(self, life: Life, manager: Manager) -> None:
        """Everything answers within a bounded time, and every script can be brought to its end."""
        rng = life.rng("settle")
        try:
            async with asyncio.timeout(CALM_SECONDS_MAX):
                await self._settle_partitions(manager)
                for segment in self.segments:
                    while segment.acknowledged < segment.goal:
                        await self._step(life, manager, segment, rng)
                while not self.removal.done:
                    await self.removal.step(life, manager, rng)
                await self._settle_partitions(manager)
        except TimeoutError:
            raise Violation(f"calm, yet not done:\n{life.loop.waiting()}") from None

    async def _settle_partitions(self, manager: Manager) -> None:
        await manager.lookups.until_readable(removal.PARTITION, Caller.BROKER, CALM_SECONDS_MAX)
        self.removal.judge(manager)
        for partition in self.partitions:
            await manager.lookups.until_readable(partition, Caller.BROKER, CALM_SECONDS_MAX)
            try:
                self._judge_answers(manager, partition)
            except (UnavailableError, RefusedError, CorruptError) as error:
                raise Violation(f"calm, yet {partition} answers {error!r}") from error


async def _write(
    manager: Manager, request: bytes, step: int, patience: float, *, direct: bool
) -> None:
    """Write as a task does, or as the socket's read callback does, which falls back to that."""
    if direct:
        answer: asyncio.Future[Outcome | RlmmError] = asyncio.get_running_loop().create_future()
        begin = manager.events.begin_add if step == 0 else manager.events.begin_update
        try:
            append = begin(request, patience, answer.set_result)
        except MustWait:
            pass
        else:
            await _told(append, answer)
            return
    method = manager.events.add if step == 0 else manager.events.update
    await method(request, Caller.BROKER, patience)


async def _told(append: Append | None, answer: asyncio.Future[Outcome | RlmmError]) -> None:
    if append is None:
        return
    try:
        error = error_of(await answer)
    except asyncio.CancelledError:
        append.leave()
        raise
    if error is not None:
        raise error


def scenario(seed: int, swarm: Swarm) -> ManagerScenario:
    """Return the scenario of one seed."""
    return ManagerScenario(seed, swarm)
