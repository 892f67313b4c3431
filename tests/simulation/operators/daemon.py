"""One life of the daemon, wired as `rlmm_daemon.wiring.daemon` wires it: only the socket lacks."""

import asyncio
import random
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast
from unittest import mock

import msgspec

from rlmm_daemon.adapters.event_log.embedded import EmbeddedLog, compacting
from rlmm_daemon.adapters.event_log.embedded.repair import repair
from rlmm_daemon.adapters.passes.in_threads import InThreads
from rlmm_daemon.codec.api import SegmentFiles
from rlmm_daemon.core.explain import notices
from rlmm_daemon.daemon.base.state_directory import StateDirectory
from rlmm_daemon.daemon.bucket.bucket import Bucket
from rlmm_daemon.daemon.bucket.presence import Author
from rlmm_daemon.daemon.bucket.recorded_log import RecordedLog
from rlmm_daemon.daemon.bucket.storage_keeper import StorageKeeper
from rlmm_daemon.daemon.cleaner.cleaner import Cleaner
from rlmm_daemon.daemon.cleaner.options import CleanerOptions
from rlmm_daemon.daemon.cleaner.peers import NoPeers
from rlmm_daemon.daemon.cleaner.proof import AnnouncedProof
from rlmm_daemon.daemon.cleaner.report import Report
from rlmm_daemon.daemon.copying import copy_job
from rlmm_daemon.daemon.copying.copier import Copier
from rlmm_daemon.daemon.copying.copy_job import CopyOptions
from rlmm_daemon.daemon.copying.sources import SegmentSources
from rlmm_daemon.daemon.following import compactor, snapshotter
from rlmm_daemon.daemon.following.fleet import FleetOptions
from rlmm_daemon.daemon.following.snapshotter import SnapshotOptions
from rlmm_daemon.daemon.metadata.manager import Manager, ManagerOptions
from rlmm_daemon.daemon.operator.facts import StorageView
from rlmm_daemon.daemon.operator.methods import Operator
from rlmm_daemon.daemon.operator.recovering import Recovery, RecoveryOptions
from rlmm_daemon.daemon.operator.standing import Standing
from rlmm_daemon.domain.errors import RlmmError
from rlmm_daemon.domain.ids import MetadataPartition, uuid_text
from rlmm_daemon.domain.segment import SegmentMetadata
from rlmm_daemon.ports.disk_threads import DiskThreads
from rlmm_daemon.ports.event_log import LogBatch
from rlmm_daemon.ports.sources import BufferSource
from tests.simulation import embedded_log
from tests.simulation.operators.bucket import JudgedStorage, World
from tests.simulation.operators.truth import BROKER, KINDS, LAYOUT
from tests.simulation.world import Life

if TYPE_CHECKING:
    from rlmm_daemon.daemon.process.runtime import Runtime

T = TypeVar("T")

CLUSTER: Final = "simulated"
STATE_DIRECTORY: Final = "/var/lib/rlmm/state"
LOG_DIRECTORY: Final = embedded_log.DIRECTORY
BROKER_DIRECTORY: Final = "/var/lib/kafka"
PLACE: Final = "the lock of the simulated state directory"
#: How often the broker was started anew, too, when its daemon was.
REBORN_SHARE: Final = 0.7
#: A slow machine's time until it has read anything of its log: several nights long.
READING_SECONDS: Final = (5.0, 25.0)
CLEANER: Final = CleanerOptions(
    interval_seconds=2.0,
    round_seconds=15.0,
    stuck_delete_seconds=6.0,
    copy_deadline_seconds=6.0,
    delivery_timeout_seconds=3.0,
    settle_seconds=1.0,
    write_seconds=6.0,
    storage_seconds=6.0,
    backoff_seconds_max=3.0,
)
COPY: Final = CopyOptions(
    deadline_seconds=CLEANER.copy_deadline_seconds, apply_wait_seconds=3.0, rollback_seconds=4.0
)


class SimRuntime:
    """What the keeper and the operators need of `daemon.process.runtime.Runtime`."""

    def __init__(self, group: asyncio.TaskGroup) -> None:
        self._group = group
        self.drains: list[Callable[[], Awaitable[None]]] = []
        #: Set by an order to drain.
        self.stopped = asyncio.Event()

    def on_drain(self, _name: str, hook: Callable[[], Awaitable[None]]) -> None:
        self.drains.append(hook)

    def spawn(self, name: str, work: Coroutine[Any, Any, None], *, may_end: bool = False) -> None:
        del may_end
        self._group.create_task(work, name=name)

    def stop(self, _reason: str) -> None:
        self.stopped.set()

    def tasks(self) -> list[Any]:
        return []


class Daemon:
    """All rooms of one life."""

    def __init__(
        self,
        life: Life,
        world: World,
        group: asyncio.TaskGroup,
        *,
        place: str = PLACE,
        cleaner: CleanerOptions = CLEANER,
    ) -> None:
        """`place` tells its state directory from a clone's."""
        self.life, self.world = life, world
        self.runtime = SimRuntime(group)
        self.log = embedded_log.build(life, lambda work, name: group.create_task(work, name=name))
        judge_appends(self.log, world)
        # A first marker is judged where the log is the one that counts.
        self.storage = JudgedStorage(
            world, life, faults=not life.last, name="storage" if place == PLACE else "clone storage"
        )
        self.bucket = Bucket(
            self.storage, layout=LAYOUT, rng=life.rng("bucket"), name="the simulated bucket"
        )
        self.manager = self._manager()
        self.copier = Copier(
            self.bucket,
            self.manager.events,
            group,
            options=COPY,
            log_dirs=[BROKER_DIRECTORY],
            broker_id=BROKER,
            now_ms=life.clock.now_ms,
            passes=InThreads(),
        )
        self.cleaner = self._cleaner(cleaner)
        self.keeper = StorageKeeper(
            self.storage,
            self.bucket,
            self.manager,
            cast("Runtime", self.runtime),
            broker_id=BROKER,
            cluster_id=CLUSTER,
            copy_deadline_seconds=COPY.deadline_seconds,
            trouble_by_cluster=lambda: None,
            author=lambda: Author(place=place),
            private_log=True,
        )
        removals = Report(self.cleaner)
        self.standing = Standing(
            self.manager,
            copier=self.copier,
            removals=removals,
            runtime=cast("Runtime", self.runtime),
            storage=lambda: StorageView(kind="local", error=self.keeper.trouble()),
        )
        self.standing._copies = msgspec.structs.replace(
            self.standing._copies, deadline_seconds=COPY.deadline_seconds
        )
        self.operator = Operator(
            self.manager,
            runtime=cast("Runtime", self.runtime),
            repair=self._repair,
            recovery=Recovery(
                self.manager,
                self.bucket,
                RecoveryOptions(
                    broker_id=BROKER,
                    started_at_ms=life.clock.now_ms(),
                    patience_ms=cleaner.own_patience_ms,
                ),
                is_running=self.copier.is_running,
            ),
            removals=removals,
        )
        self._group = group

    def _manager(self) -> Manager:
        life, drawn = self.life, random.Random(f"{self.life.seed}/manager")
        return Manager(
            log=self.log,
            disk=life.disk,
            clock=life.clock,
            rng=life.rng("manager"),
            options=ManagerOptions(
                state_dir=STATE_DIRECTORY,
                fleet=FleetOptions(
                    on_demand_linger_seconds=1.0,
                    delivery_timeout_seconds=CLEANER.delivery_timeout_seconds,
                ),
                snapshots=SnapshotOptions(
                    after_events=drawn.choice([2, 2, 8, 1000]),
                    after_seconds=drawn.choice([2.0, 300.0, 300.0]),
                ),
            ),
            bucket=RecordedLog(
                self.storage,
                self.bucket,
                broker_id=BROKER,
                cluster_id=CLUSTER,
                now_ms=life.clock.now_ms,
                state=StateDirectory(life.disk, STATE_DIRECTORY),
            ),
        )

    def _cleaner(self, options: CleanerOptions) -> Cleaner:
        def owned() -> frozenset[MetadataPartition]:
            identity = self.manager.fleet.identity
            count = identity.partition_count if identity else 0
            return frozenset(map(MetadataPartition, range(count)))

        return Cleaner(
            manager=self.manager,
            bucket=self.bucket,
            copier=self.copier,
            proof=AnnouncedProof(self.manager.assignment, self.life.disk, [BROKER_DIRECTORY]),
            peers=NoPeers(BROKER),
            owned=owned,
            options=options,
            broker_id=BROKER,
            clock=self.life.clock,
            rng=self.life.rng("cleaner"),
        )

    async def _repair(
        self, number: MetadataPartition, records: Collection[bytes]
    ) -> Mapping[str, Any]:
        repaired: Mapping[str, Any] = msgspec.to_builtins(await repair(self.log, number, records))
        return repaired

    def start(self) -> None:
        """Start every task that the product starts."""
        work = {
            "manager": self.manager.run(),
            "storage": self.keeper.run(),
            "cleaner": self.cleaner.run(),
        }
        if self.copier.late is not None:
            work["copies.late"] = self.copier.late.run()
        for name, each in work.items():
            self.runtime.spawn(name, each)

    def announce(self) -> None:
        """Let the broker say what it has, as it does when it starts, or finds a daemon again."""
        world, reborn = self.world, self.life.rng("incarnation").random() < REBORN_SHARE
        if reborn or not world.incarnation_ms:
            world.incarnation_ms = self.life.clock.now_ms()
        self.manager.hello_from_broker(world.incarnation_ms)
        self.manager.replace_assignment(sorted(self.world.books.living), [])

    async def drain(self) -> None:
        """Stop as SIGTERM makes it stop: what fails of it is logged."""
        for hook in (lambda: self.copier.drain(4.0), self.manager.drain, *self.runtime.drains):
            with suppress(RlmmError):
                await hook()


def judge_appends(log: EmbeddedLog, world: World) -> None:
    """Look at what is appended by orders: clients' writes go another way."""
    append = log.append

    async def judged(partition: MetadataPartition, value: bytes) -> int:
        world.books.appended(value)
        return await append(partition, value)

    log.append = judged  # type: ignore[method-assign]  # the simulation's eye


def read_slowly(log: EmbeddedLog, rng: random.Random) -> None:
    """Let each reading of the log take its time: nights come while it is compared."""
    follow = log.follow

    async def slowly(
        partition: MetadataPartition, from_offset: int, *, epoch: int
    ) -> AsyncGenerator[LogBatch, None]:
        await asyncio.sleep(rng.uniform(*READING_SECONDS))
        async with aclosing(follow(partition, from_offset, epoch=epoch)) as batches:
            async for batch in batches:
                yield batch

    log.follow = slowly  # type: ignore[method-assign]  # the simulation's disk


def install_broker(life: Life, world: World) -> None:
    """Put the broker's own directories where the daemon looks for proof that a topic is gone."""
    names, directories = life.disk.platter.names, life.disk.platter.directories
    directories.update({"/var", "/var/lib", BROKER_DIRECTORY})
    wanted = {f"{BROKER_DIRECTORY}/meta.properties": b"version=1\n"}
    for partition in world.books.living:
        home = f"{BROKER_DIRECTORY}/{partition.topic}-{partition.partition}"
        text = f"version: 0\ntopic_id: {uuid_text(partition.topic_id)}\n"
        wanted[f"{home}/partition.metadata"] = text.encode()
        directories.add(home)
    for path in [each for each in names if each.startswith(BROKER_DIRECTORY)]:
        if path not in wanted:
            life.disk.platter.lose(path)
            directories.discard(path.rpartition("/")[0])
    for path, content in wanted.items():
        if path not in names:
            life.disk.platter.place(path, content)


@contextmanager
def small(world: World, life: Life) -> Iterator[None]:
    """Give segments their bytes without files, and every slice its end."""

    def sources(metadata: SegmentMetadata, _: SegmentFiles, __: Sequence[str]) -> SegmentSources:
        segment = world.books.by_id[metadata.segment_id]
        return SegmentSources([(kind, BufferSource(segment.content(kind))) for kind in KINDS])

    def in_one_piece(
        _: DiskThreads, call: Callable[[], T], *, unwanted: Callable[[T], None] | None = None
    ) -> asyncio.Future[T]:
        del unwanted
        return life.loop.run_in_executor(None, call)

    life.loop.threads = True
    with (
        mock.patch.object(DiskThreads, "run", in_one_piece),
        mock.patch.object(copy_job, "open_sources", sources),
        mock.patch.object(snapshotter, "SLICE_SECONDS", 0.0),
        mock.patch.object(compacting, "SLICE_SECONDS", 0.0),
        mock.patch.object(notices, "DELETE_SECONDS_MAX", CLEANER.stuck_delete_seconds),
        mock.patch.object(compactor, "POLL_SECONDS", 0.5),
        mock.patch.object(compactor, "AGAIN_SECONDS", 2.0),
    ):
        yield
