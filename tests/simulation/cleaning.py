"""Several daemons that clean one log and one bucket, in virtual time: for tests and the simulation.

Manager, follower, writer and cleaner run unmodified. What is played: the cluster's facts (who owns
what, which topic ids are gone, who is registered), the brokers' copies, and the storage's moods.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from rlmm_daemon.codec import custom_metadata, records
from rlmm_daemon.codec.custom_metadata import StoredFacts
from rlmm_daemon.codec.marker import Presence
from rlmm_daemon.core.disposal.steps import Proof
from rlmm_daemon.core.fold.fold import Fold
from rlmm_daemon.core.fold.outcome import Outcome
from rlmm_daemon.core.partitioner import metadata_partition
from rlmm_daemon.core.storage.layout import Layout, object_key
from rlmm_daemon.daemon.bucket.bucket import Bucket
from rlmm_daemon.daemon.bucket.live_marker import BucketIdentity
from rlmm_daemon.daemon.cleaner.cleaner import Cleaner
from rlmm_daemon.daemon.cleaner.observer import WATCHED_BY_OWNER_OF, Observer, ObserverOptions
from rlmm_daemon.daemon.cleaner.options import CleanerOptions
from rlmm_daemon.daemon.cleaner.peers import Peers
from rlmm_daemon.daemon.cleaner.report import Report
from rlmm_daemon.daemon.following.snapshotter import SnapshotOptions
from rlmm_daemon.daemon.metadata.manager import Manager, ManagerOptions
from rlmm_daemon.domain.errors import StorageUnavailable
from rlmm_daemon.domain.event import Event
from rlmm_daemon.domain.ids import (
    BrokerId,
    LeaderEpoch,
    MetadataPartition,
    Offset,
    SegmentId,
    TopicId,
    TopicIdPartition,
)
from rlmm_daemon.domain.partition_delete import PartitionDelete, PartitionDeleteState
from rlmm_daemon.domain.segment import (
    CustomMetadata,
    SegmentMetadata,
    SegmentState,
    SegmentUpdate,
)
from rlmm_daemon.ports.cluster import ClusterLook
from tests.simulation.clock import SimClock
from tests.simulation.disk import DiskFaults, SimDisk
from tests.simulation.loop import SimLoop
from tests.simulation.platter import Platter
from tests.support.memory_log import MemoryEventLog, MemoryLogStore
from tests.support.memory_storage import MemoryBucket, MemoryStorage

if TYPE_CHECKING:
    from rlmm_daemon.daemon.cleaner.proof import TopicProof
    from rlmm_daemon.ports.cluster import Cluster

COUNT = 2
CLUSTER = "c1"
DEADLINE_SECONDS = 60.0
S = SegmentState
SUFFIXES = (".index", ".timeindex", ".log")
OPTIONS = CleanerOptions(
    interval_seconds=5.0,
    copy_deadline_seconds=DEADLINE_SECONDS,
    delivery_timeout_seconds=20.0,
    backoff_seconds_max=30.0,
)


#: What a finished copy records.
CUSTOM = custom_metadata.encode(
    StoredFacts(layout_number=1, log_crc32c=0, sizes={".index": 1, ".timeindex": 1})
)


def topic(number: int) -> TopicId:
    return TopicId(bytes([number]) * 16)


def partition_of(number: int, at: int = 0) -> TopicIdPartition:
    return TopicIdPartition(topic(number), f"t{number}", at)


def number_of(partition: TopicIdPartition) -> MetadataPartition:
    return metadata_partition(partition.topic_id, partition.partition, COUNT)


def segment(number: int) -> SegmentId:
    return SegmentId(number.to_bytes(16, "big"))


@dataclass(slots=True)
class ClusterFacts:
    """What the brokers would answer."""

    gone: set[TopicId] = field(default_factory=set)
    #: Nobody can be asked.
    silent: bool = False
    owners: dict[int, int] = field(default_factory=dict)
    cluster_id: str = CLUSTER
    controller: tuple[int, int] = (1, 1)
    #: None: every registered broker is live.
    live: int | None = None
    registered: set[BrokerId] = field(default_factory=set)
    presences: dict[BrokerId, Presence] = field(default_factory=dict)


class SimCluster:
    """What the cleaner asks of `ports.cluster.Cluster`, from the facts."""

    def __init__(self, facts: ClusterFacts) -> None:
        self._facts = facts

    async def look(self, topic_ids: frozenset[TopicId]) -> ClusterLook:
        await asyncio.sleep(0.01)
        if self._facts.silent:
            raise StorageUnavailable("a broker does not answer")
        registered = len(self._facts.registered)
        return ClusterLook(
            cluster_id=self._facts.cluster_id,
            controller=self._facts.controller,
            live=registered if self._facts.live is None else self._facts.live,
            registered=registered,
            unknown=topic_ids & self._facts.gone,
        )

    async def topic_ids_unknown(self, topic_ids: frozenset[TopicId]) -> frozenset[TopicId]:
        return (await self.look(topic_ids)).unknown


class SimProof:
    """`cleaner.proof.TopicProof` from the facts."""

    def __init__(self, facts: ClusterFacts) -> None:
        self._facts = facts

    async def prove(self, topic_ids: Collection[TopicId]) -> Mapping[TopicId, Proof]:
        await asyncio.sleep(0.01)
        if self._facts.silent:
            return dict.fromkeys(topic_ids, Proof.UNKNOWN)
        gone = self._facts.gone
        return {each: Proof.GONE if each in gone else Proof.ALIVE for each in topic_ids}


class SimPeers:
    """`cleaner.peers.PeerSource` from the facts."""

    def __init__(self, facts: ClusterFacts) -> None:
        self._facts = facts

    async def look(self) -> Peers:
        await asyncio.sleep(0.01)
        if self._facts.silent:
            return Peers()
        return Peers(
            registered=frozenset(self._facts.registered),
            presences=dict(self._facts.presences),
            complete=True,
        )


class SimCopies:
    """`cleaner.tools.Copies`: tasks that put objects, cancelled when their segment is deleted."""

    def __init__(self, manager: Manager) -> None:
        self.tasks: dict[SegmentId, tuple[TopicIdPartition, asyncio.Task[None]]] = {}
        manager.events.on_delete_started.append(self._delete_started)
        manager.events.on_delete_put_aside.append(self._delete_started)

    def begin(self, partition: TopicIdPartition, of: SegmentId, task: asyncio.Task[None]) -> None:
        self.tasks[of] = partition, task
        task.add_done_callback(lambda _: self.tasks.pop(of, None))

    def is_running(self, segment_id: SegmentId) -> bool:
        return segment_id in self.tasks

    def running_in(self, partition: TopicIdPartition) -> list[SegmentId]:
        return [each for each, (at, _) in self.tasks.items() if at == partition]

    async def end_copy(self, segment_id: SegmentId) -> None:
        found = self.tasks.get(segment_id)
        if found is not None:
            found[1].cancel()
            await asyncio.wait({found[1]})

    def _delete_started(self, _partition: TopicIdPartition, segment_id: SegmentId) -> None:
        found = self.tasks.get(segment_id)
        if found is not None:
            found[1].cancel()


class SimDaemon:
    """One daemon beside one broker."""

    def __init__(
        self,
        world: "CleanWorld",
        broker_id: int,
        options: CleanerOptions,
        state_dir: str | None = None,
    ) -> None:
        self.world, self.broker_id = world, BrokerId(broker_id)
        world.lives += 1  # a lock that was asked for in the last moment may come after the death
        self.manager = Manager(
            log=world.log_of(self.broker_id),
            disk=world.disk_of(self.broker_id),
            clock=world.clock,
            rng=random.Random(f"manager/{broker_id}"),
            options=ManagerOptions(
                state_dir=state_dir or f"/state{broker_id}/{world.lives}",
                snapshots=world.snapshots,
            ),
        )
        self.copies = SimCopies(self.manager)
        self.bucket = Bucket(
            world.storage_of(self.broker_id), layout=world.layout, rng=random.Random(3)
        )
        self.cleaner = Cleaner(
            manager=self.manager,
            bucket=self.bucket,
            copier=self.copies,
            proof=world.proof_of(self.manager),
            peers=SimPeers(world.facts),
            owned=lambda: world.owned_by(self.broker_id),
            options=options,
            broker_id=self.broker_id,
            clock=world.clock,
            rng=random.Random(f"cleaner/{broker_id}"),
        )
        self.report = Report(self.cleaner, leader_of=world.leader_of)
        self.task: asyncio.Task[None] | None = None
        self.observer_task: asyncio.Task[None] | None = None

    def start(self, group: asyncio.TaskGroup) -> None:
        self.task = group.create_task(self._run(), name=f"daemon-{self.broker_id}")

    def observe(self, options: ObserverOptions, log_dirs: Sequence[str] = ()) -> Observer:
        """Let it watch for topics that are gone."""
        made = Observer(
            manager=self.manager,
            cluster=cast("Cluster", SimCluster(self.world.facts)),
            log_dirs=log_dirs,
            broker_id=self.broker_id,
            watches=lambda: self.cleaner.owns(WATCHED_BY_OWNER_OF),
            options=options,
        )
        self.report = Report(self.cleaner, leader_of=self.world.leader_of, observer=made)
        self.observer_task = self.world.group.create_task(made.run(), name="observer")
        return made

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.manager.run(), name="manager")
            group.create_task(self.cleaner.run(), name="cleaner")
            await self.manager.gates.until_open()
            await self.bucket.open(
                BucketIdentity(cluster_id=CLUSTER, partition_count=COUNT, metadata_topic_id="m")
            )

    async def stop(self) -> None:
        if self.task is not None:
            for _, copy in list(self.copies.tasks.values()):
                copy.cancel()
            self.task.cancel()
            await asyncio.wait({self.task})
            self.task = None
        if self.observer_task is not None:
            self.observer_task.cancel()
            await asyncio.wait({self.observer_task})
            self.observer_task = None


class CleanWorld:
    """The log, the bucket, the facts, and short words to change them."""

    layout = Layout()

    def __init__(self, loop: SimLoop, group: asyncio.TaskGroup) -> None:
        self.loop, self.group = loop, group
        self.clock = SimClock(loop, random.Random(1))
        self.disk = SimDisk(Platter(), loop, random.Random(2), DiskFaults())
        self.store = MemoryLogStore(topic_id=TopicId(b"m" * 16), partition_count=COUNT)
        self.objects = MemoryBucket()
        self.facts = ClusterFacts(owners=dict.fromkeys(range(COUNT), 1))
        self.daemons: dict[int, SimDaemon] = {}
        self._folds: dict[int, Fold] = {}
        self.lives = 0
        #: None, unless a simulation wants them.
        self.snapshots = SnapshotOptions(after_events=10**9, after_seconds=10**9)
        #: What the next daemon asks whether a topic is gone.
        self.proof_of: Callable[[Manager], TopicProof] = lambda _: SimProof(self.facts)

    # What a simulation may replace.

    def log_of(self, _broker_id: BrokerId) -> Any:
        return MemoryEventLog(self.store)

    def storage_of(self, _broker_id: BrokerId) -> Any:
        return MemoryStorage(self.objects, clock=self.clock)

    def disk_of(self, _broker_id: BrokerId) -> SimDisk:
        return self.disk

    def leader_of(self, number: MetadataPartition) -> BrokerId | None:
        owner = self.facts.owners.get(number)
        return None if owner is None else BrokerId(owner)

    def owned_by(self, broker_id: BrokerId) -> frozenset[MetadataPartition] | None:
        owners = self.facts.owners.items()
        return frozenset(MetadataPartition(n) for n, owner in owners if owner == broker_id)

    # The daemons.

    def daemon(
        self,
        broker_id: int = 1,
        options: CleanerOptions = OPTIONS,
        state_dir: str | None = None,
    ) -> SimDaemon:
        made = self.daemons[broker_id] = SimDaemon(self, broker_id, options, state_dir)
        self.facts.registered.add(BrokerId(broker_id))
        self.present(broker_id)
        made.start(self.group)
        return made

    def present(self, broker_id: int, *, lease_seconds: float = 1e6, **changes: Any) -> None:
        now = self.clock.now_ms()
        known: dict[str, Any] = {
            "cluster_id": CLUSTER,
            "broker_id": broker_id,
            "incarnation": now,
            "started_at_ms": now,
            "written_at_ms": now,
            "copy_deadline_seconds": DEADLINE_SECONDS,
            "lease_end_ms": now + round(1000 * lease_seconds),
            "metadata_manager": "rlmm",
            "partitions": {},
        }
        self.facts.presences[BrokerId(broker_id)] = Presence(**(known | changes))

    # Events, as a foreign writer puts them.

    def put(self, *events: Event) -> None:
        for event in events:
            self.store.put(number_of(event.partition), records.encode(event))

    def started(
        self, number: int, partition: TopicIdPartition, start: int = 0, *, broker_id: int = 1
    ) -> SegmentMetadata:
        return SegmentMetadata(
            partition=partition,
            segment_id=segment(number),
            start_offset=Offset(start),
            end_offset=Offset(start + 99),
            broker_id=BrokerId(broker_id),
            max_timestamp_ms=7,
            event_timestamp_ms=self.clock.now_ms(),
            segment_leader_epochs={LeaderEpoch(0): Offset(start)},
            segment_size_bytes=1024,
        )

    def updated(
        self,
        number: int,
        partition: TopicIdPartition,
        state: SegmentState,
        custom: CustomMetadata | None = None,
        *,
        broker_id: int = 1,
    ) -> SegmentUpdate:
        return SegmentUpdate(
            partition=partition,
            segment_id=segment(number),
            broker_id=BrokerId(broker_id),
            event_timestamp_ms=self.clock.now_ms(),
            custom_metadata=custom,
            state=state,
        )

    def mark(self, partition: TopicIdPartition, state: int = 0, *, broker_id: int = 1) -> None:
        self.put(
            PartitionDelete(
                partition=partition,
                broker_id=BrokerId(broker_id),
                event_timestamp_ms=self.clock.now_ms(),
                state=PartitionDeleteState(state),
            )
        )

    def finished(self, number: int, partition: TopicIdPartition, start: int = 0) -> None:
        """A whole copy: events and objects."""
        self.put(self.started(number, partition, start))
        self.place(number, partition, start)
        self.put(self.updated(number, partition, S.COPY_SEGMENT_FINISHED, CUSTOM))

    # Objects and answers.

    def keys(self, number: int, partition: TopicIdPartition, start: int = 0) -> list[str]:
        return [
            object_key(self.layout, partition, Offset(start), segment(number), suffix=suffix)
            for suffix in SUFFIXES
        ]

    def place(self, number: int, partition: TopicIdPartition, start: int = 0) -> None:
        storage = MemoryStorage(self.objects, clock=self.clock)
        for key in self.keys(number, partition, start):
            storage._store(key, b"x")

    def stored(self, partition: TopicIdPartition) -> list[str]:
        directory = object_key(Layout(), partition, Offset(0), segment(0), suffix=".log").split(
            "/"
        )[0]
        return [key for key in self.objects.objects if key.split("/")[-2] == directory]

    def fold(self, number: int) -> Fold:
        """The log as it is now, folded by the product's own fold."""
        fold = self._folds.setdefault(number, Fold(MetadataPartition(number), COUNT))
        known = self.store.partition(MetadataPartition(number))
        for offset, value in zip(
            known.offsets[fold.position :], known.values[fold.position :], strict=True
        ):
            self.folded(number, fold.apply(offset, value))
        return fold

    def folded(self, number: int, outcome: Outcome) -> None:
        """Hear what each record of the log came to; for a simulation's own books."""

    def state(self, number: int, partition: TopicIdPartition) -> SegmentState | None:
        cache = self.fold(number_of(partition)).partitions.get(partition)
        return None if cache is None else cache.state(segment(number))

    def removal(self, partition: TopicIdPartition) -> PartitionDeleteState | None:
        cache = self.fold(number_of(partition)).partitions.get(partition)
        return None if cache is None else cache.delete_state

    async def until(self, holds: Callable[[], bool], seconds: float = 600.0) -> None:
        """Wait for a condition, in virtual time."""
        async with asyncio.timeout(seconds):
            while not holds():  # noqa: ASYNC110 - the condition belongs to the code under test
                await asyncio.sleep(0.2)


def run(
    work: Callable[[CleanWorld], Awaitable[None]],
    world: type[CleanWorld] = CleanWorld,
    *,
    steps_max: int = 20_000_000,
) -> None:
    """Do `work` in a fresh world with virtual time, and end its daemons."""
    loop = SimLoop(rng=random.Random(0), steps_max=steps_max)

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            made = world(loop, group)
            await work(made)
            for daemon in made.daemons.values():
                await daemon.stop()

    try:
        loop.run_until_complete(main())
    finally:
        if not loop.is_closed():
            loop.abandon()
