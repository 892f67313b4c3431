"""The manager with the real Kafka adapter: brokers lose what they acknowledged, daemons die.

The oracles: every fold is that of what the log gave out; a partition that is ready has the fold of
one history of the log, whole but for what an operator accepted as lost; nothing that this daemon
knew is missing unless that was said; an answer holds every record that was acknowledged in that
history; what is refused for good never appears; each failure ends by the command that it names.
"""

import asyncio
import contextlib
import random
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from unittest import mock

from rlmm_daemon.codec import records
from rlmm_daemon.codec.snapshot import decode_directory
from rlmm_daemon.codec.state_files import Position, Positions, from_json, lost_from
from rlmm_daemon.core.partitioner import metadata_partition
from rlmm_daemon.core.readiness.states import FailureReason, PartitionState
from rlmm_daemon.daemon.base.caller import Caller
from rlmm_daemon.daemon.base.state_directory import LOST_SUFFIX, POSITIONS
from rlmm_daemon.daemon.following import snapshotter
from rlmm_daemon.daemon.following.fleet import FleetOptions
from rlmm_daemon.daemon.following.follower import Follower
from rlmm_daemon.daemon.following.snapshotter import SnapshotOptions
from rlmm_daemon.daemon.metadata.manager import Manager, ManagerOptions
from rlmm_daemon.daemon.operator.methods import Operator
from rlmm_daemon.domain.errors import (
    CorruptError,
    Malformed,
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
from rlmm_daemon.domain.segment import SegmentMetadata, SegmentState, SegmentUpdate
from tests.simulation.kafka.chaos import Chaos, ClusterFaults
from tests.simulation.kafka.cluster import Cluster
from tests.simulation.kafka.given import Given
from tests.simulation.kafka.network import Network, NetworkFaults
from tests.simulation.kafka.tapped import SLACK_SECONDS, Taken, TappedLog, configuration
from tests.simulation.kafka.truth import Lineage
from tests.simulation.manager import STEPS, Segment
from tests.simulation.model import Model
from tests.simulation.swarm import Swarm
from tests.simulation.world import Life, Violation

if TYPE_CHECKING:
    from tests.simulation.kafka.peer import Peer

S = SegmentState
STATE_DIRECTORY: Final = "/var/lib/rlmm/state"
USER_PARTITIONS: Final = 4
SEGMENT_OFFSETS: Final = 100
#: How the ids of other brokers' segments begin.
FOREIGN: Final = b"foreign"
ATTEMPTS_MAX: Final = 4
#: Virtual seconds after its deadline within which a write is answered, whatever the cluster does.
LATE_SECONDS_MAX: Final = 1.0
#: Virtual seconds within which a daemon on a calm cluster serves again, an operator at its side.
CALM_SECONDS_MAX: Final = 300.0
#: Orders that one failure may take on a calm cluster.
ORDERS_MAX: Final = 4
#: A fold is held against the model once in so many events, and whenever its state changed.
VERIFIED_EVERY: Final = 7
#: Virtual seconds of a life under faults.
LOAD_SECONDS: Final = (5.0, 15.0, 40.0)


class _Stopping(Exception):  # an order, not an error
    """The life is over as planned."""


@dataclass(frozen=True, slots=True)
class Known:
    """What a daemon knows: a history of the log, and what of it went into its fold."""

    lineage: Lineage
    values: list[bytes | None]
    position: int


@dataclass(slots=True)
class KafkaScenario:
    """What outlives the daemon: the cluster, the brokers' memory, and what was ever true."""

    seed: int
    swarm: Swarm
    faults: ClusterFaults
    cluster: Cluster
    chaos: Chaos = field(init=False)
    given: Given = field(init=False)
    segments: list[Segment] = field(default_factory=list)
    foreign: int = 0
    serial: int = 0
    taken: dict[tuple[int, bytes], Taken] = field(default_factory=dict)
    #: (topic id, metadata partition) -> offsets whose loss an operator accepted.
    accepted: dict[tuple[bytes, int], set[int]] = field(default_factory=dict)
    #: Metadata partition -> what the last ready fold of this life, or its snapshot, was made of.
    known: dict[int, "Known"] = field(default_factory=dict)
    #: Metadata partition -> the position that the state directory recorded before this life.
    recorded: dict[int, tuple[str, Position]] = field(default_factory=dict)
    #: Metadata partition -> finished segments that the state directory names as lost.
    lost: dict[int, set[bytes]] = field(default_factory=dict)
    answers: int = 0
    acknowledged: int = 0
    verified_ready: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    orders: dict[str, int] = field(default_factory=dict)
    crash_stretch: int = 12
    #: Whose acknowledgements and segments they are, of two daemons.
    name: str = ""
    peer: "Peer | None" = None
    _manager: Manager | None = None
    _life: Life | None = None
    _verified: dict[int, tuple[object, ...]] = field(default_factory=dict)
    #: Metadata partition -> the fold and state of it that were held against the model last.
    _settled: dict[int, tuple[object, PartitionState]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.given = Given(self.cluster.truth, self._fold_of)
        self.chaos = Chaos(self.cluster, self.faults, self._foreign_events)
        if self.seed % 4:
            self.cluster.create(self.swarm.partitions)
            self.cluster.settle()

    def _fold_of(self, number: int):
        follower = self._manager and self._manager.fleet.followers.get(MetadataPartition(number))
        return follower.fold if follower else None

    @property
    def partitions(self) -> list[TopicIdPartition]:
        """The user partitions of the broker."""
        return [
            TopicIdPartition(TopicId(bytes([number + 1]) * 16), f"topic{number}", number)
            for number in range(USER_PARTITIONS)
        ]

    def summary(self) -> dict[str, int]:
        return {
            "acknowledged": self.acknowledged,
            "answers": self.answers,
            "ready": self.verified_ready,
            "cuts": self.cluster.truth.cuts,
            **{f"did_{kind}": count for kind, count in self.chaos.done.items()},
            **{f"failed_{reason}": count for reason, count in self.failures.items()},
            **{f"ordered_{order}": count for order, count in self.orders.items()},
            **({"peers": 1, "peer_ready": self.peer.verified_ready} if self.peer else {}),
        }

    # -- after each step --

    def verify(self) -> None:
        if self.peer is not None:
            self.peer.verify()
        manager = self._manager
        if manager is None:
            return
        for number, follower in manager.fleet.followers.items():
            facts = (
                follower.fold,
                follower.fold.position,
                follower.state,
                follower.failure,
                self.given.turns.get(number),
            )
            if self._verified.get(number) != facts:
                self._verified[number] = facts
                self._verify_follower(manager, follower)

    def _verify_follower(self, manager: Manager, follower: Follower) -> None:
        number, fold = follower.partition, follower.fold
        if follower.failure is not None:
            self._judge_failure(follower)
        if number not in self.given.models or follower.state is PartitionState.STARTING:
            return
        model = self.given.models[number]
        self.given.passed_over(number, fold.position)
        model.advance(self.given.now(number), fold.position)
        settled = (fold, follower.state)
        if fold.position % VERIFIED_EVERY == 0 or self._settled.get(number) != settled:
            self._settled[number] = settled
            model.verify(fold)
        served = (PartitionState.READY, PartitionState.STALE)
        if follower.state in served and manager.fleet.whole_failure is None:
            lineage = self._history_of(follower)
            self._judge_memory(follower, lineage)
            self.known[number] = Known(lineage, self.given.now(number), fold.position)
            self.verified_ready += 1

    def _judge_failure(self, follower: Follower) -> None:
        failure = follower.failure
        assert failure is not None, "asked for"
        if not self.cluster.truth.may_fail(follower.partition):
            raise Violation(f"a false alarm: {failure}")
        if failure.reason is not FailureReason.HISTORY_LOST:
            raise Violation(f"another failure than what happened: {failure}")

    def _history_of(self, follower: Follower) -> Lineage:
        """Return the history of the log that a ready fold is of; it was so until just now."""
        number, position = follower.partition, follower.fold.position
        given = self.given.now(number)[:position]
        heard = self.cluster.now() - follower.silent_seconds - SLACK_SECONDS
        why = ""
        for lineage in reversed(self.cluster.truth.of(number)):
            if lineage.ended_at < heard:
                break
            found = self._differs(lineage, given)
            if found is None:
                return lineage
            why = why or found
        why = why or "no history lives"
        raise Violation(f"metadata partition {number} is ready at {position}: {why}")

    def _differs(self, lineage: Lineage, given: list[bytes | None]) -> str | None:
        """Return how a fold of `given` differs from the whole history's, None if it doesn't."""
        if lineage.values[: len(given)] == given:
            return None
        if len(given) > len(lineage.values):
            return f"the log ends at {len(lineage.values)}"
        accepted = self.accepted.get((lineage.topic_id, lineage.partition), set())
        for offset, (value, true) in enumerate(zip(given, lineage.values, strict=False)):
            if value is None and true is not None and offset not in accepted:
                return f"the event at {offset} is missing, and nobody said so"
            if value is not None and value != true:
                return f"the event at {offset} is another one than the log's"
        return None

    def _judge_memory(self, follower: Follower, lineage: Lineage) -> None:
        """Nothing that this daemon knew may be missing, unless it was said and accepted."""
        number = follower.partition
        known, lost = self.known.get(number), self.lost.pop(number, set())
        if known and known.lineage is not lineage and known.position > known.lineage.shared:
            lost = lost | self._finished_in(known.values[: known.position])
        if lost:
            lost = lost - self._accounted_for(self.given.now(number)[: follower.fold.position])
        if lost:
            raise Violation(
                f"metadata partition {number} is ready, and {len(lost)} finished segments "
                f"that it knew are not in the log"
            )
        topic_id, recorded = self.recorded.pop(number, ("", Position(0, -1)))
        same = topic_id == str(TopicIdPartition(TopicId(lineage.topic_id), "", 0)).partition(":")[0]
        if same and not lineage.confirms(recorded.next_offset, recorded.leader_epoch):
            raise Violation(f"metadata partition {number} is ready, though {recorded} is gone")

    def _finished_in(self, values: list[bytes | None]) -> set[bytes]:
        model = Model()
        model.advance(values, len(values))
        return {
            bytes(segment_id)
            for partition in model.partitions.values()
            for segment_id, segment in partition.segments.items()
            if segment.state is S.COPY_SEGMENT_FINISHED
        }

    def _accounted_for(self, values: list[bytes | None]) -> set[bytes]:
        events = [records.decode(value) for value in values if value is not None]
        return {
            bytes(event.segment_id)
            for event in events
            if isinstance(event, SegmentUpdate)  # which finishes it, or ends it on a broker's word
        }

    # -- one life --

    def _begin(self, life: Life) -> None:
        self._life = life
        self._verified.clear()
        self._settled.clear()
        self.known.clear()
        self._read_recorded(life)
        for segment in self.segments:
            segment.busy = False

    async def live(self, life: Life) -> None:
        self._begin(life)
        network = self._connect(life)
        self.chaos.note = life.loop.note
        if not life.last:
            self.chaos.offline(life.rng("offline"))
        elif self.cluster.image.topic_id is not None:
            self.chaos.calm()
        if self.cluster.image.topic_id is None and life.last and self.cluster.topics:
            self.cluster.create(self.swarm.partitions)
            self.chaos.calm()
        try:
            # Virtual time stands while a snapshot is drawn: others have a turn at each step.
            with mock.patch.object(snapshotter, "SLICE_SECONDS", 0.0):
                if self.peer is None:
                    await self._live(life)
                    return
                async with asyncio.TaskGroup() as both:
                    both.create_task(self.peer.beside(life), name="peer")
                    await self._live(life)
        finally:
            self._manager = None
        del network

    def _connect(self, life: Life) -> Network:
        faults = NetworkFaults(delay_seconds=self.faults.network.delay_seconds)
        network = Network(
            life.loop,
            self.cluster,
            life.rng("network"),
            faults if life.last else self.faults.network,
            produce_by_id=self.faults.produce_by_id,
        )
        life.loop.network = network
        self.chaos.on_death = network.broken
        self.cluster.attach(life.loop.time, life.loop.call_at)
        return network

    def _read_recorded(self, life: Life) -> None:
        """Take up what the state directory says of how far the log had been read."""
        inode = life.disk.platter.names.get(f"{STATE_DIRECTORY}/{POSITIONS}")
        self.recorded = {}
        if inode is not None:
            positions = from_json(bytes(inode.data), Positions, POSITIONS)
            self.recorded = {
                number: (positions.topic_id, position)
                for number, position in positions.numbered().items()
            }
        self.lost = {}
        for path, written in sorted(life.disk.platter.names.items()):
            if path.endswith(".snapshot"):
                self._read_snapshot(bytes(written.data))
        for path, written in life.disk.platter.names.items():
            if path.endswith(LOST_SUFFIX):  # newer than any snapshot
                lost = lost_from(bytes(written.data), path)
                self.known.pop(lost.metadata_partition, None)
                segments = map(records.decode, lost.records)
                self.lost[lost.metadata_partition] = {
                    bytes(each.segment_id) for each in segments if isinstance(each, SegmentMetadata)
                }

    def _read_snapshot(self, data: bytes) -> None:
        """A snapshot that reaches as far as the position that was recorded answers for it."""
        try:
            header, _ = decode_directory(data)
        except (CorruptError, Malformed):
            return
        number = int(header.metadata_partition)
        _, recorded = self.recorded.get(number, ("", Position(0, -1)))
        for lineage in reversed(self.cluster.truth.of(number)):
            same = lineage.topic_id == header.topic_id
            if same and lineage.confirms(header.next_offset, header.leader_epoch):
                if header.next_offset >= recorded.next_offset:
                    self.recorded.pop(number, None)
                    gone = self.accepted.get((lineage.topic_id, number), set())
                    left = [None if o in gone else v for o, v in enumerate(lineage.values)]
                    self.known[number] = Known(lineage, left, header.next_offset)
                return

    async def _live(self, life: Life) -> None:
        ambushes = life.rng("ambush")
        try:
            async with asyncio.TaskGroup() as tasks:
                log = TappedLog(
                    life,
                    configuration(random.Random(f"{self.seed}/kafka"), self.swarm.partitions),
                    spawn=lambda work, name: tasks.create_task(work, name=name),
                    truth=self.cluster.truth,
                    given=self.given,
                    taken=self.taken,
                    on_follow=lambda *at: None if life.last else self.chaos.ambush(ambushes, *at),
                )
                manager = self._manager = self._make(life, log)
                running = tasks.create_task(self._run(life, manager), name="manager")
                counting = tasks.create_task(self._count(manager, log), name="count")
                await self._work(life, manager)
                if life.last or life.rng("drain").random() < 0.5:
                    await manager.drain()
                running.cancel()
                counting.cancel()
                await asyncio.wait([running, counting])
                await log.close()
                raise _Stopping
        except* _Stopping:
            pass

    def _make(self, life: Life, log: TappedLog) -> Manager:
        options = random.Random(f"{self.seed}/manager")
        return Manager(
            log=log,
            disk=life.disk,
            clock=life.clock,
            rng=life.rng("manager"),
            options=ManagerOptions(
                state_dir=STATE_DIRECTORY,
                fleet=FleetOptions(
                    on_demand_linger_seconds=options.choice([1.0, 60.0]),
                    delivery_timeout_seconds=30.0,
                ),
                snapshots=SnapshotOptions(
                    after_events=options.choice([1, 4, 20]),
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

    async def _count(self, manager: Manager, log: TappedLog) -> None:
        """Look now and then how many partitions the topic has, as the cluster view does."""
        while True:
            await asyncio.sleep(5.0)
            with contextlib.suppress(UnavailableError):
                view = await log.directory.refresh()
                if view is not None:
                    manager.fleet.seen(partition_count=view.partition_count)

    async def _work(self, life: Life, manager: Manager) -> None:
        rng = life.rng("broker")
        await asyncio.sleep(rng.expovariate(1.0))
        self._announce(life, manager, self.partitions)
        if life.last:
            await self._settle(life, manager)
            return
        async with asyncio.TaskGroup() as side:
            others = [
                side.create_task(self._strikes(life), name="chaos"),
                side.create_task(self._broker(life, manager, rng), name="broker"),
                side.create_task(self._operator(life, manager), name="operator"),
                side.create_task(self._reader(life, manager), name="reader"),
                *(
                    side.create_task(self._client(life, manager, number), name=f"client-{number}")
                    for number in range(self.swarm.clients)
                ),
            ]
            await asyncio.sleep(rng.choice(LOAD_SECONDS))
            for task in others:
                task.cancel()

    def _announce(
        self, life: Life, manager: Manager, partitions: Collection[TopicIdPartition]
    ) -> None:
        manager.hello_from_broker(life.number)
        manager.replace_assignment(sorted(partitions), [])

    # -- what happens --

    async def _strikes(self, life: Life) -> None:
        rng = life.rng("chaos")
        while True:
            await asyncio.sleep(rng.expovariate(1 / self.faults.pause_seconds))
            self.chaos.strike(rng)

    async def _broker(self, life: Life, manager: Manager, rng: random.Random) -> None:
        """Stop and announce partitions again."""
        while True:
            await asyncio.sleep(rng.expovariate(1 / 8))
            chosen = sorted(rng.sample(self.partitions, rng.randint(1, USER_PARTITIONS)))
            manager.on_stop_partitions(chosen)
            await asyncio.sleep(rng.expovariate(0.5))
            self._announce(life, manager, self.partitions)

    def _foreign_events(self, rng: random.Random) -> tuple[int, list[bytes | None]]:
        """Return what another broker writes: a segment of its own, whole or begun."""
        self.foreign += 1
        partition = rng.choice(self.partitions)
        first = self._segment(partition, FOREIGN + self.foreign.to_bytes(9, "big"), rng)
        segment = Segment(first=first)
        steps = rng.choice([1, 2, 2, 2, 4])
        count = len(self.cluster.image.partitions) or 1
        number = metadata_partition(partition.topic_id, partition.partition, count)
        return number, [segment.request(step, self.foreign + 1) for step in range(steps)]

    def _segment_id(self) -> bytes:
        return self.name.encode() + len(self.segments).to_bytes(16 - len(self.name), "big")

    def _segment(
        self, partition: TopicIdPartition, segment_id: bytes, rng: random.Random
    ) -> SegmentMetadata:
        # No overlaps, which are the manager scenario's: here what is finished may finish again.
        self.serial += 1
        start = self.serial * SEGMENT_OFFSETS
        return SegmentMetadata(
            partition=partition,
            segment_id=SegmentId(segment_id),
            start_offset=Offset(start),
            end_offset=Offset(start + SEGMENT_OFFSETS - 1),
            broker_id=BrokerId(1),
            max_timestamp_ms=1,
            event_timestamp_ms=rng.randint(1, 10**12),
            segment_leader_epochs={LeaderEpoch(rng.randrange(3)): Offset(start)},
            segment_size_bytes=1000,
        )

    async def _client(self, life: Life, manager: Manager, number: int) -> None:
        rng = life.rng(f"client-{number}")
        while True:
            segment = self._take_up(rng)
            segment.busy = True
            try:
                await self._step(life, manager, segment, rng)
            finally:
                segment.busy = False
            await asyncio.sleep(rng.expovariate(2))

    def _take_up(self, rng: random.Random) -> Segment:
        """Return a segment with steps left, or a new one."""
        open_ones = [s for s in self.segments if not s.busy and s.acknowledged < s.goal]
        if open_ones and rng.random() < 0.7:
            return rng.choice(open_ones)
        segment_id = self._segment_id()
        first = self._segment(rng.choice(self.partitions), segment_id, rng)
        segment = Segment(first=first, goal=rng.choice([2, 2, 2, 4]))
        self.segments.append(segment)
        return segment

    async def _step(
        self, life: Life, manager: Manager, segment: Segment, rng: random.Random
    ) -> None:
        """Ask for the next step until it is acknowledged, a few times."""
        step = segment.acknowledged
        for _ in range(ATTEMPTS_MAX):
            await self._ask(life, manager, segment, step, rng)
            if segment.acknowledged > step or segment.goal <= step:
                return
            await asyncio.sleep(rng.expovariate(2))

    async def _ask(
        self, life: Life, manager: Manager, segment: Segment, step: int, rng: random.Random
    ) -> None:
        request = segment.request(step, rng.randint(1, 10**12))
        patience = rng.choice([0.5, 5.0, 30.0])
        method = manager.events.add if step == 0 else manager.events.update
        try:
            async with asyncio.timeout(patience + LATE_SECONDS_MAX):
                await method(request, Caller.BROKER, patience)
        except TimeoutError:
            raise Violation(f"no answer to a write:\n{life.loop.waiting()}") from None
        except (UnavailableError, CorruptError) as error:
            life.loop.note(f"{STEPS[step].name}: {error!r}")
        except RefusedError as error:
            self._refused(segment, error)
        else:
            if life.alive:
                self.acknowledged += 1
                segment.acknowledged = step + 1
                self._must_be_in(segment, STEPS[step])

    def _refused(self, segment: Segment, error: RefusedError) -> None:
        """What a log lost may make the next step illegal; then the broker leaves it."""
        if type(error).__name__ in ("NotAssigned", "NotLeader"):
            return
        if self.faults.harmless:
            raise Violation(f"a legal step was refused: {error!r}")
        segment.goal = segment.acknowledged

    def _must_be_in(self, segment: Segment, wanted: SegmentState) -> None:
        """A success is this daemon's own apply: the record is, or just was, in the log."""
        now, found = self.cluster.now(), False
        for number in range(len(self.cluster.image.partitions) or self.swarm.partitions):
            for lineage in self.cluster.truth.of(number):
                if lineage.ended_at < now - SLACK_SECONDS:
                    continue
                offset = self._offset_of(lineage, segment, wanted)
                if offset is not None:
                    lineage.acknowledged[offset] = self.name
                    found = True
        # To end the deletion of what is not there is a repeat, and nothing is written.
        if not found and wanted is not S.DELETE_SEGMENT_FINISHED:
            raise Violation(f"{wanted.name} was acknowledged and is not in the log")

    def _offset_of(self, lineage: Lineage, segment: Segment, wanted: SegmentState) -> int | None:
        """Return where a history has a segment's step, the first time."""
        for offset, value in enumerate(lineage.values):
            if value is None or bytes(segment.first.segment_id) not in value:
                continue
            event = records.decode(value)
            assert isinstance(event, SegmentMetadata | SegmentUpdate), "nothing else is written"
            if event.segment_id == segment.first.segment_id and event.state is wanted:
                return offset
        return None

    # -- readers --

    async def _reader(self, life: Life, manager: Manager) -> None:
        rng = life.rng("reader")
        while True:
            await asyncio.sleep(rng.expovariate(3))
            self._judge_all(manager)

    def _judge_all(self, manager: Manager) -> None:
        for partition in self.partitions:
            with contextlib.suppress(UnavailableError, RefusedError, CorruptError):
                self._judge_answer(manager, partition)

    def _judge_answer(self, manager: Manager, partition: TopicIdPartition) -> None:
        """An answer in full holds every record that was acknowledged in that history of the log."""
        listed = manager.lookups.list_remote_log_segments(partition, None, Caller.BROKER)
        self.answers += 1
        follow_set = manager.fleet.follow_set
        assert follow_set is not None, "it answers"
        number = follow_set.of(partition)
        follower = manager.fleet.followers[number]
        lineage = self._history_of(follower)
        own = (at for at, who in lineage.acknowledged.items() if who == self.name)
        newest = max(own, default=-1)
        if newest >= follower.fold.position:
            raise Violation(
                f"metadata partition {number} answers at {follower.fold.position}; offset "
                f"{newest} was acknowledged"
            )
        model = self.given.models[number].partitions.get(partition)
        wanted = len(model.segments) if model else 0
        if len(listed) != wanted:
            raise Violation(f"{partition} lists {len(listed)} segments, the log has {wanted}")

    # -- the operator --

    async def _operator(self, life: Life, manager: Manager) -> None:
        """Follow the command that a failure names, after a while; seldom order something else."""
        rng = life.rng("operator")
        operator = Operator(manager)
        while True:
            await asyncio.sleep(rng.expovariate(0.3))
            command = self._named(manager)
            if command is not None and rng.random() < 0.5:
                await self._order(operator, command)
            elif rng.random() < 0.15 and manager.fleet.followers:
                number = rng.choice(sorted(manager.fleet.followers))
                await self._order(
                    operator,
                    rng.choice(
                        [
                            f"rlmm partition retry {number}",
                            f"rlmm partition rebuild {number}",
                            f"rlmm log repair {number}",
                        ]
                    ),
                )

    def _named(self, manager: Manager) -> str | None:
        """Return the command that a failure names, the whole log's first."""
        if manager.fleet.whole_failure is not None:
            return manager.fleet.whole_failure.command(MetadataPartition(0))
        for number, follower in sorted(manager.fleet.followers.items()):
            if follower.failure is not None:
                self.failures[follower.failure.reason.value] = (
                    self.failures.get(follower.failure.reason.value, 0) + 1
                )
                return follower.failure.command(number)
        return None

    async def _order(self, operator: Operator, command: str) -> None:
        """Run a command as the daemon would be told to by the command line."""
        if command == "rlmm doctor":  # which leaves it to the operator to give the log up
            command = "rlmm partition accept-loss --all"
        words = command.split()
        name = " ".join(words[1:3])
        self.orders[words[2]] = self.orders.get(words[2], 0) + 1
        if self._life is not None:
            self._life.loop.note(f"ordered: {command}")
        number = None if words[3:] in ([], ["--all"]) else int(words[3])
        try:
            match name:
                case "partition retry":
                    await operator.partition_retry(number)
                case "partition rebuild":
                    await operator.partition_rebuild(number)
                case "log repair":
                    self._forgive(number, lost=False)
                    await operator.log_repair(number)
                case "partition accept-loss" | "log recover":
                    # Without a bucket there is nothing to recover from: the loss is accepted.
                    self._forgive(number, lost=True)
                    await operator.partition_accept_loss(number, everything=number is None)
                    self._forgive(number, lost=True)
                case _:
                    raise Violation(f"nobody knows how to follow {command!r}")
        except (RlmmError, OSError) as error:
            if self._life is not None:
                self._life.loop.note(f"{command}: {error!r}")

    def _forgive(self, number: int | None, *, lost: bool) -> None:
        """An operator ends a failure: what was recorded is accounted for, what is gone accepted."""
        image = self.cluster.image
        # While the topic is gone, its partitions are those of which something is known.
        named = {*range(len(image.partitions)), *self.recorded, *self.known, *self.lost}
        chosen = sorted(named) if number is None else [number]
        for index in chosen:
            self.recorded.pop(index, None)
            if not lost:
                continue
            self.known.pop(index, None)
            self.lost.pop(index, None)
            for lineage in self.cluster.truth.of(index):
                gone = self.accepted.setdefault((lineage.topic_id, index), set())
                for node in self.cluster.nodes.values():
                    replica = node.replicas.get((lineage.topic_id, index))
                    if replica is not None:
                        here = replica.offsets
                        gone |= {
                            offset
                            for offset in range(min(replica.end, len(lineage.values)))
                            if offset not in here
                        }

    # -- the calm last life --

    async def _settle(self, life: Life, manager: Manager) -> None:
        """Everything is served again within a bounded time, an operator following each command."""
        try:
            async with asyncio.timeout(CALM_SECONDS_MAX):
                await self._settle_failures(manager)
                for partition in self.partitions:
                    await self._settle_partition(life, manager, partition)
        except TimeoutError:
            raise Violation(
                f"calm, yet not done: {self._standing(manager)}\n{life.loop.waiting()}"
            ) from None
        self._judge_refused()

    async def _settle_failures(self, manager: Manager) -> None:
        operator = Operator(manager)
        orders: dict[str, int] = {}
        while True:
            unsettled = await self._unready(manager)
            command = self._named(manager)
            if command is None and not unsettled:
                return
            if command is not None:
                orders[command] = orders.get(command, 0) + 1
                if orders[command] > ORDERS_MAX:
                    raise Violation(f"{command!r} does not end {self._standing(manager)}")
                await self._order(operator, command)
            await asyncio.sleep(0.5)

    async def _unready(self, manager: Manager) -> bool:
        for partition in self.partitions:
            await manager.lookups.until_readable(partition, Caller.BROKER, 5.0)
            if not manager.lookups.is_ready(partition, Caller.BROKER):
                return True
        return False

    def _standing(self, manager: Manager) -> str:
        rows = [
            f"{number}: {follower.state.value} at {follower.fold.position}"
            f" {follower.failure or ''} {follower.trouble or ''}"
            for number, follower in sorted(manager.fleet.followers.items())
        ]
        whole = manager.fleet.whole_failure
        return "; ".join([*rows, *([str(whole)] if whole else []), str(manager.fleet.trouble)])

    async def _settle_partition(
        self, life: Life, manager: Manager, partition: TopicIdPartition
    ) -> None:
        """A new segment can be copied, and everything that is in the log now is answered."""
        rng = life.rng(f"settle-{partition.partition}")
        segment_id = self._segment_id()
        segment = Segment(first=self._segment(partition, segment_id, rng))
        self.segments.append(segment)
        while segment.acknowledged < segment.goal:
            await self._step(life, manager, segment, rng)
        self._judge_answer(manager, partition)
        follow_set = manager.fleet.follow_set
        assert follow_set is not None, "it answers"
        number = follow_set.of(partition)
        lineage = self._history_of(manager.fleet.followers[number])
        if lineage is not self.cluster.truth.now(number):
            raise Violation(f"calm, yet {partition} is answered of a log that is no more")

    def _judge_refused(self) -> None:
        """What was refused for good is not in the log, nor is anything in it too often."""
        for (number, value), counted in self.taken.items():
            if FOREIGN in value:
                continue  # another broker wrote it, too
            found = self.cluster.truth.count(number, value)
            if found > counted.taken - counted.refused:
                event = records.decode(value)
                raise Violation(
                    f"metadata partition {number} has a record {found} times; taken "
                    f"{counted.taken} times, refused {counted.refused} times: {event}"
                )
