"""The remote log metadata manager: its parts, its life, and what the broker announces to it.

KIP-405's look-ups are in `lookups`, its writes in `events`.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Final, TypeVar

import msgspec
import structlog

from rlmm_daemon.codec.state_files import announced_json, announced_rows
from rlmm_daemon.core.readiness.states import (
    LogTrouble,
    TroubleKind,
)
from rlmm_daemon.daemon.base.bugs import Bugs
from rlmm_daemon.daemon.base.crash_guard import blame
from rlmm_daemon.daemon.base.fair_scheduler import FairScheduler, keep_freeing
from rlmm_daemon.daemon.base.os_errors import in_words, is_for_a_person, is_shortage
from rlmm_daemon.daemon.base.state_directory import StateDirectory
from rlmm_daemon.daemon.base.state_log import keep_telling
from rlmm_daemon.daemon.following.bucket_record import BucketRecord
from rlmm_daemon.daemon.following.compactor import Compactor
from rlmm_daemon.daemon.following.fleet import Fleet, FleetOptions
from rlmm_daemon.daemon.following.follower import Follower
from rlmm_daemon.daemon.following.hooks import ManagerHooks
from rlmm_daemon.daemon.following.snapshots import GENERATIONS_KEPT, SnapshotStore
from rlmm_daemon.daemon.following.snapshotter import SnapshotOptions, Snapshotter
from rlmm_daemon.daemon.metadata.assignment import Assignment
from rlmm_daemon.daemon.metadata.events import Events
from rlmm_daemon.daemon.metadata.gates import Gates
from rlmm_daemon.daemon.metadata.lookups import Lookups
from rlmm_daemon.daemon.metadata.on_demand import OnDemand
from rlmm_daemon.daemon.metadata.pauses import Pauses
from rlmm_daemon.daemon.metadata.previous_state import keep_announced, remembered
from rlmm_daemon.daemon.metadata.publisher import Publisher
from rlmm_daemon.domain.errors import (
    ConfigError,
)
from rlmm_daemon.domain.ids import (
    TopicIdPartition,
)
from rlmm_daemon.observability.metrics import LogMetrics
from rlmm_daemon.ports.clock import Clock
from rlmm_daemon.ports.disk import Disk
from rlmm_daemon.ports.event_log import Compactable, EventLog

logger = structlog.get_logger(__name__)

#: Between two tries of a start that lacks something.
START_AGAIN_SECONDS: Final = 0.5

T = TypeVar("T")


class ManagerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Times and bounds; see the configuration for what each is for."""

    state_dir: str
    fleet: FleetOptions = msgspec.field(default_factory=FleetOptions)
    snapshots: SnapshotOptions = msgspec.field(default_factory=SnapshotOptions)
    snapshots_kept: int = GENERATIONS_KEPT


class Manager:
    """One daemon's metadata, from `run` until that is cancelled."""

    def __init__(
        self,
        *,
        log: EventLog,
        disk: Disk,
        clock: Clock,
        rng: random.Random,
        options: ManagerOptions,
        bucket: BucketRecord | None = None,
        quarantined: frozenset[int] = frozenset(),
        metrics: LogMetrics | None = None,
    ) -> None:
        self.log = log
        self.clock = clock
        self.hooks = ManagerHooks()
        #: For whatever takes long.
        self.turns = FairScheduler()
        self.bugs = Bugs(clock.monotonic)
        self.state = StateDirectory(disk, options.state_dir, self.turns)
        self.snapshots = SnapshotStore(
            disk, self.state.snapshots, clock, keep=options.snapshots_kept
        )
        self.snapshotter = Snapshotter(
            self.snapshots,
            clock,
            options.snapshots,
            self.hooks.tell_snapshot_written,
            announced=lambda partition: self.gates.follow_set().announced_in(partition),
            turns=self.turns,
        )
        #: None for a log whose brokers compact it, or nobody.
        self.compactor: Compactor | None = None
        if isinstance(log, Compactable):
            self.compactor = Compactor(log, self.snapshots, clock, self.turns)
        self.fleet = Fleet(
            log=log,
            state=self.state,
            snapshots=self.snapshots,
            snapshotter=self.snapshotter,
            clock=clock,
            rng=rng,
            options=options.fleet,
            bucket=bucket,
            quarantined=quarantined,
            hooks=self.hooks,
            metrics=metrics,
            bugs=self.bugs,
        )
        self.assignment = Assignment(self._announced_changed)
        self.gates = Gates(self.fleet, self.assignment, self.snapshotter)
        self.lookups = Lookups(self.fleet, self.assignment, self.gates)
        self.on_demand = OnDemand(self.fleet, self.gates)
        self.pauses = Pauses(self.state, clock.now_ms)
        self._publisher = Publisher(self.fleet, self.gates, clock)
        self.events = Events(
            log,
            self._publisher,
            fleet=self.fleet,
            assignment=self.assignment,
            gates=self.gates,
            clock=clock,
            hooks=self.hooks,
            pauses=self.pauses,
        )

    # The tasks.

    async def run(self) -> None:
        """Serve until cancelled; the socket may ask from the first moment and hears "not ready"."""
        await self._insist(self.state.open)
        try:
            await self._insist(self.pauses.load)
            known, positions, warm = await self._insist(partial(remembered, self.state))
            await self._insist(self.snapshots.sweep)
            async with asyncio.TaskGroup() as group:
                self._publisher.group = group
                await self.fleet.open(known, positions)
                self._warm(warm)
                group.create_task(self.fleet.run(group), name="fleet")
                group.create_task(self.fleet.keep_stopped(), name="fleet.stopped")
                group.create_task(self.fleet.check_marker(), name="fleet.marker")
                group.create_task(self.fleet.others.keep_learning_gaps(), name="fleet.gaps")
                group.create_task(self.fleet.keep_targets(), name="fleet.targets")
                group.create_task(keep_telling(self.followed), name="fleet.states")
                group.create_task(self.fleet.keep_positions(), name="fleet.positions")
                group.create_task(
                    keep_announced(self.state, self.assignment), name="assignment.persist"
                )
                group.create_task(keep_freeing(self.turns), name="memory.freed")
                group.create_task(self.snapshotter.keep_checked(), name="snapshotter.asked")
                group.create_task(
                    self.snapshotter.run(lambda: list(self.fleet.followers.values())),
                    name="snapshotter",
                )
                if self.compactor is not None:
                    group.create_task(
                        self.compactor.run(lambda: list(self.fleet.followers.values())),
                        name="compactor",
                    )
        finally:
            self._publisher.end()
            self.fleet.end_writes()
            await self.state.close()

    async def _insist(self, step: Callable[[], Awaitable[T]]) -> T:
        """Do a step of the start again and again while the disk does not let us.

        Raises:
            ConfigError: a file is not this user's to use, which does not pass.
        """
        while True:
            try:
                return await step()
            except OSError as error:
                found = in_words(error)
                if is_for_a_person(error):
                    raise ConfigError(
                        f"{found}; let the daemon's user read and write its state directory, "
                        f"{self.state.path}; nothing of it was changed"
                    ) from error
                message = f"the state directory can't be used yet: {found}"
                if not is_shortage(error):
                    message += (
                        "; mend its disk, or put that file back from a copy: it is tried again and "
                        "again"
                    )
                if self.fleet.trouble is None or self.fleet.trouble.message != message:  # once
                    logger.warning("state directory not usable yet", error=found)
                self.fleet.known.trouble = LogTrouble(TroubleKind.STATE_AWAY, message)
            await asyncio.sleep(START_AGAIN_SECONDS)

    def _warm(self, warm: list[TopicIdPartition]) -> None:
        """The log is open: take up what was announced meanwhile, or else what had been."""
        follow_set = self.gates.follow_set()
        if self.assignment.version:
            announced = self.assignment.announced
            follow_set.announce(list(announced), announced, whole=self.assignment.gate_open)
        else:
            follow_set.warm(warm)
        self.gates.changed.ring()

    async def drain(self) -> None:
        """Take no new writes and write a last snapshot of whatever advanced."""
        self.gates.draining = True
        for follower in list(self.fleet.followers.values()):
            if follower.applied_since_snapshot:
                with blame(follower.partition):
                    await self.snapshotter.try_write(follower)
        if self.fleet.identity is not None:
            try:
                await self.fleet.noted.write_last()
                if self.assignment.version:
                    await self.state.write_announced(
                        announced_json(map(announced_rows, self.assignment.rows()))
                    )
            except OSError as error:  # they warm and guard the next start; the log has everything
                logger.warning("last state not written", error=str(error))

    # Assignment.

    def hello_from_broker(self, incarnation_ms: int) -> None:
        """The broker's metadata manager connected; another incarnation has to announce anew."""
        self.assignment.hello(incarnation_ms)
        self.lookups.forget()

    def on_partition_leadership_changes(
        self, leaders: Collection[TopicIdPartition], followers: Collection[TopicIdPartition]
    ) -> None:
        """Announce partitions; idempotent, in memory, never waits for the log."""
        self.assignment.add(leaders, followers)

    def on_stop_partitions(self, partitions: Collection[TopicIdPartition]) -> None:
        """Stop partitions; idempotent, in memory, never waits for the log."""
        self.assignment.remove(partitions)

    def replace_assignment(
        self, leaders: Sequence[TopicIdPartition], followers: Sequence[TopicIdPartition]
    ) -> None:
        """Make the announced partitions exactly these, and open the gate for reads."""
        self.assignment.replace(leaders, followers)

    @property
    def incarnation_ms(self) -> int | None:
        """When the broker began whose metadata manager said hello last."""
        return self.assignment.incarnation_ms

    def replacing_assignment(
        self,
        leaders: Sequence[TopicIdPartition],
        followers: Sequence[TopicIdPartition],
        incarnation_ms: int | None,
    ) -> Iterator[None]:
        """Do the same in steps, for a broker's incarnation."""
        return self.assignment.replacing(leaders, followers, incarnation_ms)

    def _announced_changed(self, partitions: Collection[TopicIdPartition]) -> None:
        self.lookups.forget()
        follow_set = self.fleet.follow_set
        if follow_set is not None:
            announced = self.assignment.announced
            follow_set.announce(partitions, announced, whole=self.assignment.gate_open)
            for partition in partitions:
                follower = self.fleet.followers.get(follow_set.of(partition))
                if follower is None:
                    continue  # it takes up what is announced when it starts
                if partition in announced:
                    follower.confirmation.insert(partition)
                else:
                    follower.confirmation.remove(partition)
            self.fleet.target_wanted.ring()
        self.gates.changed.ring()

    def followed(self) -> Sequence[Follower]:
        """Return the followers by metadata partition."""
        return [follower for _, follower in sorted(self.fleet.followers.items())]
