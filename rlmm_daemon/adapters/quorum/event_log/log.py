"""A quorum's log as an `EventLog`: a replica of this daemon's own, and the leader, whoever it is.

Reads of events are this replica's and need nobody. What has to be true of the whole quorum, where
the log ends, is asked of the leader each time: this replica's own word would be a stale one. A
replica that hears no leader sends followers no heartbeats.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
import structlog

from rlmm_daemon.adapters.quorum.event_log.checkpointer import Checkpointer
from rlmm_daemon.adapters.quorum.event_log.folding import Folding
from rlmm_daemon.adapters.quorum.event_log.options import QuorumLogOptions, Spawn
from rlmm_daemon.adapters.quorum.event_log.own_replica import OwnReplica
from rlmm_daemon.adapters.quorum.event_log.shared_question import SharedQuestion
from rlmm_daemon.adapters.quorum.event_log.submitter import Submitter
from rlmm_daemon.adapters.quorum.event_log.up_to_date import UpToDate
from rlmm_daemon.adapters.quorum.handshake import Acceptor, Dialer, Plain
from rlmm_daemon.adapters.quorum.node import Node
from rlmm_daemon.adapters.quorum.replica import ReplicaOptions
from rlmm_daemon.adapters.quorum.to_leader import ToLeader
from rlmm_daemon.codec.kraft.record_key import FOUNDING, RecordKey, pack_count, pack_key
from rlmm_daemon.core.raft.roles import Replica
from rlmm_daemon.domain.errors import (
    Draining,
    InvalidArgument,
    StorageUnavailable,
    UnavailableError,
)
from rlmm_daemon.domain.ids import MetadataPartition, TopicId
from rlmm_daemon.ports.clock import Clock
from rlmm_daemon.ports.disk import Disk
from rlmm_daemon.ports.event_log import (
    NO_EPOCH,
    Compacted,
    EpochEnd,
    LogBatch,
    LogForeign,
    LogIdentity,
    LogNotBegun,
    LogRange,
    LogTruncated,
    Steady,
    Told,
    Turn,
    appended,
    diverged,
)

_log = structlog.get_logger(__name__)
_PLAIN = Plain()
#: Of a compaction: it is not known.
NO_FORM = -1
T = TypeVar("T")


class QuorumLog:
    """An `EventLog` that a quorum keeps; its directory was formatted by an operator.

    `spawn` starts tasks in the daemon's group, which must not end before `close` has returned. No
    two logs may be given generators of one seed: `luck` draws what tells incarnations apart.
    """

    def __init__(
        self,
        *,
        disk: Disk,
        clock: Clock,
        spawn: Spawn,
        luck: random.Random,
        replica: ReplicaOptions,
        partition_count: int,
        cluster_id: str | None = None,
        options: QuorumLogOptions | None = None,
        acceptor: Acceptor = _PLAIN,
        dialer: Dialer = _PLAIN,
    ) -> None:
        """`partition_count` only counts where the log is begun by this one."""
        self._spawn = spawn
        self._options = options or QuorumLogOptions()
        self._partition_count = partition_count
        self._cluster_id = cluster_id
        self._replica = OwnReplica(
            disk,
            clock,
            replica,
            acceptor=acceptor,
            dialer=dialer,
            probe_seconds=self._options.probe_seconds,
        )
        self._replica.on_node = self._attach
        self._own_id = -1
        self.submitter = Submitter(clock, luck, self._options, lambda: self._own_id)
        self.folding = Folding(self._options, self.submitter.hear, self.submitter.passed_over)
        self._replica.on_failure = self.folding.fail
        self.checkpointer = Checkpointer(self.folding, self._options)
        self._leader: ToLeader | None = None
        #: Called when another one leads, or nobody.
        self.on_leader: list[Callable[[], None]] = []
        self._end = SharedQuestion(self._ask_for_the_end)
        self._tasks: list[asyncio.Task[None]] = []
        #: Of the replica that runs.
        self._sending: list[asyncio.Task[None]] = []
        self._identity: LogIdentity | None = None
        self._closing = False

    async def open(self, *, create: bool) -> LogIdentity:
        """Run this replica, and return once it has all that was acknowledged before.

        `create` lets it begin the log of a quorum that was formatted, and nothing else.

        Raises:
            LogMissing: the directory was not formatted.
            LogNotBegun: no daemon began the quorum's log yet.
            LogForeign: the quorum is another cluster's.
            HistoryLost, LogCorrupt: the replica's files are damaged, or its quorum left it behind.
            UnsupportedProtocol: a newer version wrote to the log.
            StorageUnavailable: no leader is heard yet, or this replica has not all yet.
        """
        if self._identity is not None:
            return self._identity
        if self._closing:
            raise Draining("the event log is closing")
        if not self._tasks:
            await self._replica.require_formatted()
            self._start()
        await self._replica.up(timeout_seconds=self._options.open_seconds)
        cluster_id = self._node.replica.cluster_id
        if self._cluster_id not in (None, cluster_id):
            raise LogForeign(
                f"the quorum is of cluster {cluster_id}, and this daemon's is {self._cluster_id}",
                cluster_id=cluster_id,
            )
        count = await _in_time(self._founded(create=create), self._replica, self._options)
        self._identity = LogIdentity(
            cluster_id=cluster_id,
            topic_id=TopicId(self._node.links.group.topic_id),
            partition_count=count,
        )
        return self._identity

    @property
    def identity(self) -> LogIdentity | None:
        """The identity while the log is open."""
        return self._identity

    @property
    def refusal(self) -> str:
        """Why records are not taken just now; empty if they are."""
        if self._replica.node is None:
            return f"this replica is not open: {self._replica.told()}"
        if self._replica.is_led:
            return ""
        return f"no leader of the quorum is known: {self._replica.told()}"

    @property
    def leader(self) -> int | None:
        """Who leads, while this replica hears it; None: nobody is known to, now."""
        node = self._replica.node
        return node.replica.leader if node is not None and self._replica.hears else None

    def facts(self) -> Mapping[str, Any]:
        """Return how this replica stands in its quorum, for status and metrics."""
        return self._replica.facts()

    def begin_append(self, partition: MetadataPartition, value: bytes, told: Told) -> None:
        """Take a record; `told` hears its offset once this replica has it, committed.

        Raises:
            InvalidArgument: no such partition, or a record that is too large.
            StorageUnavailable, Overloaded, Draining: certainly not in the log.
            LogCorrupt, HistoryLost: this replica's files are damaged.
        """
        self._require(partition)
        if refusal := self.refusal:
            raise StorageUnavailable(refusal)
        self.submitter.begin(partition, value, told)

    async def append(self, partition: MetadataPartition, value: bytes) -> int:
        """Return the offset once this replica has the record, committed.

        Raises:
            OutcomeUnknown: no leader said what became of it within the delivery timeout.
            RlmmError: as `begin_append`.
        """
        return await appended(self, partition, value)

    async def end_offsets(
        self, partitions: Collection[MetadataPartition]
    ) -> Mapping[MetadataPartition, LogRange]:
        """Return the ranges as the leader has them; none while no leader answers."""
        with suppress(UnavailableError):
            self._require_open()
            await self._caught_up()
            count = self._require_open().partition_count
            return {each: self.folding.range(each) for each in partitions if 0 <= each < count}
        return {}

    async def epoch_end(self, partition: MetadataPartition, epoch: int) -> EpochEnd:
        """Return where an epoch of the quorum's leaders ends in this partition."""
        self._require(partition)
        await self._caught_up()
        return self.folding.epoch_end(partition, epoch)

    async def follow(
        self, partition: MetadataPartition, from_offset: int, *, epoch: int
    ) -> AsyncGenerator[LogBatch, None]:
        """Yield committed events of this replica; what is committed is never cut while it runs."""
        self._require(partition)
        epoch = epoch if from_offset > 0 else NO_EPOCH
        await self._compare(partition, from_offset, epoch)
        position, due = from_offset, True
        up_to_date = UpToDate(self._replica, self.folding)
        #: What had been dropped when this follower began, if it began at the start.
        form = NO_FORM if from_offset > 0 else None
        while True:
            self._require(partition)
            if position < self.folding.range(partition).end:
                batch = await self.folding.batch(partition, position)
                form = batch.dropped_to if form is None else form
                if batch.dropped_to not in (0, form):
                    batch = msgspec.structs.replace(batch, lacking=True)
                if not up_to_date.holds() or batch.next_offset < batch.range.end:
                    batch = msgspec.structs.replace(batch, late=True)
                position, epoch, due = batch.next_offset, batch.leader_epoch, False
                yield batch
            elif due and await up_to_date.comes(timeout_seconds=self._options.heartbeat_seconds):
                if position < self.folding.range(partition).end:
                    continue
                due = False
                yield LogBatch(
                    next_offset=position,
                    leader_epoch=epoch,
                    records=(),
                    range=self.folding.range(partition),
                )
            else:
                beat = self._options.heartbeat_seconds
                due = not await self.folding.growth(partition, timeout_seconds=beat)

    async def settle(self) -> None:
        """Take a new incarnation, which fences what an earlier process sent as this replica.

        Raises:
            StorageUnavailable: no leader granted it.
        """
        self._require_open()
        await _in_time(self.submitter.renew(), self._replica, self._options)

    def outgrow(self, epoch: int) -> None:
        """Have this replica, if it is the only voter, write nothing more of this epoch."""
        self._node.outgrow(epoch)

    async def compact(
        self, partition: MetadataPartition, upto: int, *, turn: Turn, steady: Steady
    ) -> Compacted | None:
        """Let the next checkpoint that is due drop what is not needed of the events before `upto`.

        Nothing has to be steady: whoever reads the partition anew also finds the last event of
        each segment that is gone, and misses none.
        """
        del steady
        self._require(partition)
        self.checkpointer.allowed.turn = turn
        self.checkpointer.allowed.allow(partition, upto)
        return None

    async def close(self) -> None:
        """Finish what was taken, for a few seconds; have another lead; give the files back."""
        if self._closing:
            return
        self._closing = True
        try:
            self.folding.wake()
            if self._tasks and self._sending:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._options.close_seconds):
                        await self.submitter.finish()
        finally:
            self._identity = None
            self.folding.wake()
            await self._replica.stop()
            tasks = [*self._tasks, *self._sending]
            for task in tasks:
                task.cancel()
            for task in tasks:
                with suppress(asyncio.CancelledError):
                    await task
            self._tasks, self._sending = [], []
            self.submitter.end()

    # Its parts.

    def _start(self) -> None:
        self._tasks = [
            self._spawn(self._replica.run(), "quorum replica"),
            self._spawn(self.folding.run(), "quorum fold"),
            self._spawn(self.submitter.expire(), "quorum delivery timeouts"),
        ]

    def _attach(self, node: Node | None) -> None:
        """Go on with a replica that was opened; None: it is closed."""
        for task in self._sending:
            task.cancel()
        self._sending, self._leader = [], None
        if node is not None:
            self._own_id = node.replica.me.id
        self.folding.attach(node)
        self._changed()
        if node is not None:
            leader = ToLeader(node, timeout_seconds=self._options.request_timeout_seconds)
            self._leader = leader
            node.on_change.append(self._changed)
            self._sending = [
                self._spawn(self.submitter.run(leader, self.folding), "quorum submits"),
                self._spawn(self.checkpointer.run(node), "quorum checkpoints"),
            ]

    def _changed(self, _: Replica | None = None) -> None:
        for changed in self.on_leader:
            changed()

    @property
    def _node(self) -> Node:
        return self._replica.require_up()

    def _require(self, partition: MetadataPartition) -> None:
        if not 0 <= partition < self._require_open().partition_count:
            raise InvalidArgument(f"the event log has no partition {partition}")

    def _require_open(self) -> LogIdentity:
        if self._identity is None or self._closing:
            raise Draining("the event log is not open")
        self.folding.require_whole()
        self._replica.require_up()
        return self._identity

    async def _caught_up(self) -> None:
        """Have folded all that was acknowledged before this call.

        Raises:
            StorageUnavailable: no leader says where that ends, or this replica does not have it.
        """
        end = await self._end.answer()
        await self.folding.reached(end, timeout_seconds=self._options.reach_seconds)

    async def _ask_for_the_end(self) -> int:
        self.folding.require_whole()
        if self._leader is None:
            raise StorageUnavailable(f"this replica is not open: {self._replica.told()}")
        return await self._leader.read_index()

    async def _compare(self, partition: MetadataPartition, position: int, epoch: int) -> None:
        """Raise LogTruncated if what was read before a position is not what the log has there.

        What this replica does not have may be only late: then the leader is asked.
        """
        if _differs(self.folding, partition, position, epoch) is None:
            return
        await self._caught_up()
        if (how := _differs(self.folding, partition, position, epoch)) is not None:
            raise LogTruncated(how)

    async def _founded(self, *, create: bool) -> int:
        """Return how many partitions the log has; begin it if nobody did."""
        while True:
            try:
                await self._caught_up()
                count = self.folding.fold.partition_count
                if count is not None:
                    return count
                if not create:
                    raise LogNotBegun("the quorum is formatted, and no daemon began its log yet")
                assert self._leader is not None, "it answered"
                key = pack_key(RecordKey(FOUNDING, self._node.replica.me.id, 0, 0))
                await self._leader.submit([(key, pack_count(self._partition_count))])
                _log.info("quorum_log_begun", partition_count=self._partition_count)
            except UnavailableError:
                self.folding.require_whole()
                await asyncio.sleep(self._options.retry_seconds)


def _differs(
    folding: Folding, partition: MetadataPartition, position: int, epoch: int
) -> str | None:
    """Return how what was read before a position is not what this replica has there."""
    end = folding.range(partition).end
    if position > end:
        return f"the log ends at {end}, before {position}"
    if epoch < 0:
        return None
    return diverged(folding.epoch_end(partition, epoch), position, epoch)


async def _in_time(work: Awaitable[T], replica: OwnReplica, options: QuorumLogOptions) -> T:
    try:
        async with asyncio.timeout(options.open_seconds):
            return await work
    except TimeoutError as error:
        raise StorageUnavailable(f"the quorum does not answer: {replica.told()}") from error
