"""Events of segments and partitions on their way into the log, and what became of a segment.

A write waits for its own apply. Copies, deletes and fetches ask here too, since what they may do
follows from the state that an apply led to.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

from rlmm_daemon.core.fold.cache import PartitionCache
from rlmm_daemon.core.fold.fold import Fold
from rlmm_daemon.core.fold.outcome import Outcome
from rlmm_daemon.core.fold.validation import read_offered
from rlmm_daemon.daemon.base.appends import Append, Tell
from rlmm_daemon.daemon.base.caller import Caller
from rlmm_daemon.daemon.following.fleet import Fleet
from rlmm_daemon.daemon.following.follower import Follower
from rlmm_daemon.daemon.following.hooks import ManagerHooks
from rlmm_daemon.daemon.metadata.assignment import Assignment
from rlmm_daemon.daemon.metadata.gates import Gates
from rlmm_daemon.daemon.metadata.pauses import Pauses
from rlmm_daemon.daemon.metadata.publisher import Publisher
from rlmm_daemon.domain.errors import (
    IllegalTransition,
    InvalidArgument,
    NotLeader,
    NotReady,
    TimedOut,
)
from rlmm_daemon.domain.ids import (
    MetadataPartition,
    SegmentId,
    TopicIdPartition,
    require_topic_name,
)
from rlmm_daemon.domain.partition_delete import PartitionDelete, PartitionDeleteState
from rlmm_daemon.domain.segment import SegmentMetadata, SegmentState, SegmentUpdate
from rlmm_daemon.ports.clock import Clock
from rlmm_daemon.ports.event_log import EventLog

WRITE_SECONDS_DEFAULT: Final = 30.0


class Events:
    """The broker's writes, the daemon's own, and the states that jobs go by."""

    def __init__(
        self,
        log: EventLog,
        publisher: Publisher,
        *,
        fleet: Fleet,
        assignment: Assignment,
        gates: Gates,
        clock: Clock,
        hooks: ManagerHooks,
        pauses: Pauses,
    ) -> None:
        self._log, self._publisher = log, publisher
        self._fleet, self._assignment, self._gates = fleet, assignment, gates
        self._clock, self._pauses = clock, pauses
        self.on_delete_started = hooks.delete_started
        self.on_delete_put_aside = hooks.delete_put_aside
        #: A cleaner runs here: it alone says that a partition's removal began or ended.
        self.has_cleaner = False

    async def add(
        self, record: bytes, caller: Caller, timeout_seconds: float = WRITE_SECONDS_DEFAULT
    ) -> None:
        """Publish a COPY_SEGMENT_STARTED and return after this daemon's own apply of it.

        Raises:
            InvalidArgument, Malformed: not such a record.
            NotAssigned, NotLeader: the broker may not copy this partition.
            CopiesPaused: nobody may; nothing was appended.
            IllegalTransition: the segment exists and differs; nothing was appended.
            OutcomeUnknown: it may be in the log, now or later.
        """
        event, normal = self._addition(record, caller)
        await self._publisher.write(event, normal, caller, timeout_seconds, on_demand=False)

    def begin_add(self, record: bytes, timeout_seconds: float, tell: Tell) -> Append | None:
        """Begin a broker's `add` without a task; `tell` hears once, and later, what it came to.

        Returns None for a repeat: it succeeded, and `tell` hears nothing.

        Raises:
            MustWait: `add` has to do it; nothing was done.
            RefusedError, UnavailableError: as `add`; nothing was appended.
        """
        event, normal = self._addition(record, Caller.BROKER)
        return self._publisher.begin(event, normal, timeout_seconds, tell)

    def _addition(self, record: bytes, caller: Caller) -> tuple[SegmentMetadata, bytes]:
        event, normal = read_offered(record)
        if not isinstance(event, SegmentMetadata):
            raise InvalidArgument("add_remote_log_segment_metadata takes a segment's record")
        if event.state is not SegmentState.COPY_SEGMENT_STARTED:
            raise InvalidArgument(
                f"a segment is added as COPY_SEGMENT_STARTED, not as {event.state.name}"
            )
        require_topic_name(event.partition.topic)
        if caller is Caller.BROKER:
            self._gates.require_announced(event.partition)
            if not self._assignment.announced[event.partition]:
                raise NotLeader(f"the broker's last word made it a follower of {event.partition}")
        self._pauses.require_running(event.partition)
        return event, normal

    async def update(
        self, record: bytes, caller: Caller, timeout_seconds: float = WRITE_SECONDS_DEFAULT
    ) -> None:
        """Publish a later state of a segment, whatever is announced, if its partition is followed.

        Raises:
            InvalidArgument, Malformed: not such a record.
            SegmentNotFound, IllegalTransition: refused; nothing was appended.
            OutcomeUnknown: it may be in the log, now or later.
        """
        event, normal = self._change(record, caller)
        await self._publisher.write(event, normal, caller, timeout_seconds, on_demand=False)

    def begin_update(self, record: bytes, timeout_seconds: float, tell: Tell) -> Append | None:
        """Begin a broker's `update` without a task; see `begin_add`."""
        event, normal = self._change(record, Caller.BROKER)
        return self._publisher.begin(event, normal, timeout_seconds, tell)

    def _change(self, record: bytes, caller: Caller) -> tuple[SegmentUpdate, bytes]:
        event, normal = read_offered(record)
        if not isinstance(event, SegmentUpdate):
            raise InvalidArgument("update_remote_log_segment_metadata takes an update record")
        if event.state is SegmentState.COPY_SEGMENT_STARTED:
            raise InvalidArgument("an update cannot lead back to COPY_SEGMENT_STARTED")
        if caller is Caller.BROKER:
            follow_set = self._gates.follow_set()
            if follow_set.of(event.partition) not in self._fleet.followers:
                self._gates.require_announced(event.partition)
        return event, normal

    async def put_partition_delete(
        self,
        record: bytes,
        caller: Caller,
        timeout_seconds: float = WRITE_SECONDS_DEFAULT,
        *,
        by_cleaner: bool = False,
    ) -> None:
        """Publish a mark on a user partition's way to removal.

        Raises:
            InvalidArgument, Malformed: not such a record.
            IllegalTransition: the marks go MARKED, STARTED, FINISHED; where a cleaner runs, only it
                says that a removal began or ended, since it alone knows that the topic is gone and
                that nothing is left.
            OutcomeUnknown: it may be in the log, now or later.
        """
        event, normal = read_offered(record)
        if not isinstance(event, PartitionDelete):
            raise InvalidArgument("put_remote_partition_delete_metadata takes a delete record")
        if not self._is_known(event.partition):
            require_topic_name(event.partition.topic)  # what a log holds already may be ended
        marks = event.state is PartitionDeleteState.DELETE_PARTITION_MARKED
        allowed = marks or by_cleaner or not self.has_cleaner
        judge = None if allowed else partial(self._judge_repeat, event)
        await self._publisher.write(
            event, normal, caller, timeout_seconds, on_demand=True, judge=judge
        )

    def _is_known(self, partition: TopicIdPartition) -> bool:
        return any(partition in each.fold.partitions for each in self._fleet.followers.values())

    def _judge_repeat(self, mark: PartitionDelete) -> Fold:
        fold = self._gates.writable(mark.partition).fold
        cache = fold.partitions.get(mark.partition)
        if cache is None or cache.delete_state is not mark.state:
            raise IllegalTransition(
                f"{mark.state.name} is the cleaner's to write; what may be said is "
                "DELETE_PARTITION_MARKED",
                after=mark.state.name,
            )
        return fold

    async def update_if(
        self,
        record: bytes,
        holds: Callable[[PartitionCache], bool],
        timeout_seconds: float = WRITE_SECONDS_DEFAULT,
        *,
        inside: bool = False,
    ) -> Outcome | None:
        """Publish an update if something holds of the fold just before the append.

        Returns what its own apply came to; None if it was a repeat. `inside` is for whoever holds
        the segment's `fence`.

        Raises:
            IllegalTransition: it does not hold, or the life cycle refuses it; nothing was appended.
            OutcomeUnknown: it may be in the log, now or later.
        """
        event, normal = read_offered(record)
        if not isinstance(event, SegmentUpdate):
            raise InvalidArgument("an update record is wanted")

        def judge() -> Fold:
            fold = self._gates.writable(event.partition).fold
            cache = fold.partitions.get(event.partition)
            if cache is None or not holds(cache):
                raise IllegalTransition("what the update was meant for does not hold any more")
            return fold

        return await self._publisher.write(
            event,
            normal,
            Caller.OPERATOR,
            timeout_seconds,
            on_demand=True,
            judge=judge,
            inside=inside,
        )

    @asynccontextmanager
    async def fence(
        self, partition: TopicIdPartition, segment_id: SegmentId, timeout_seconds: float
    ) -> AsyncGenerator[None, None]:
        """Refuse updates of a segment, but those `inside`, from a fold that holds all there is.

        Before the block runs, writes in flight have ended and an end offset that was asked for
        after them is folded.

        Raises:
            OutcomeUnknown, TimedOut, NotReady: that could not be reached in time.
        """
        follow_set, group = await self._gates.opened(), self._publisher.tasks()
        number = follow_set.of(partition)
        with follow_set.keep(number):
            writer = self._fleet.writer(number, group)
            async with writer.fence((partition, segment_id), timeout_seconds):
                await self._fold_to_end(number, timeout_seconds)
                yield

    async def until_folded(self, partition: TopicIdPartition, timeout_seconds: float) -> None:
        """Return once everything is folded that the log held of a user partition when called.

        Raises:
            TimedOut, NotReady: that could not be reached in time.
        """
        follow_set = await self._gates.opened()
        number = follow_set.of(partition)
        with follow_set.keep(number):
            await self._fold_to_end(number, timeout_seconds)

    async def _fold_to_end(self, number: MetadataPartition, timeout_seconds: float) -> None:
        """Return once everything is folded that was in the log when this was called."""
        follower = await self._gates.until_writable(number, timeout_seconds)
        try:
            async with asyncio.timeout(timeout_seconds):
                known = (await self._log.end_offsets([number])).get(number)
                if known is None:
                    raise NotReady(f"the end of metadata partition {number} is not known")
                fold = follower.fold
                while follower.fold is fold and fold.position < known.end:
                    await follower.changed.wait()
        except TimeoutError as error:
            raise TimedOut(f"metadata partition {number} was not folded to its end") from error
        if follower.fold is not fold:
            raise NotReady(f"metadata partition {number} is being folded anew")

    # For copies, deletes and fetches.

    @asynccontextmanager
    async def keep_followed(self, partition: TopicIdPartition) -> AsyncGenerator[None, None]:
        """Keep a user partition's metadata partition followed while a job is in flight.

        Waits, under the caller's deadline, until the log is open.
        """
        follow_set = await self._gates.opened()
        with follow_set.keep(follow_set.of(partition)):
            yield

    async def segment(
        self, partition: TopicIdPartition, segment_id: SegmentId, timeout_seconds: float = 30.0
    ) -> tuple[SegmentState, bytes] | None:
        """Return a segment's state and record from a ready fold; None if it is not there.

        Raises:
            TimedOut: the fold was not ready in time.
            PartitionFailed and kin: it will not be.
        """
        async with self.keep_followed(partition):
            follower = await self._gates.until_writable(
                self._gates.follow_set().of(partition), timeout_seconds
            )
            return _segment(follower, partition, segment_id)

    async def until_state(
        self,
        partition: TopicIdPartition,
        segment_id: SegmentId,
        states: frozenset[SegmentState],
        timeout_seconds: float = 30.0,
    ) -> tuple[SegmentState, bytes] | None:
        """Wait for this daemon's apply of one of `states`; return what the segment is then.

        Returns at once when the segment is in a later state, None when it is gone or, at the end
        of the time, was never seen.
        """
        earliest = min(states)
        deadline = self._clock.monotonic() + timeout_seconds
        async with self.keep_followed(partition):
            metadata_partition = self._gates.follow_set().of(partition)
            while True:
                left = max(0.0, deadline - self._clock.monotonic())
                follower = await self._gates.until_writable(metadata_partition, left)
                found = _segment(follower, partition, segment_id)
                if found is not None and found[0] >= earliest:
                    return found
                try:
                    async with asyncio.timeout(max(0.0, deadline - self._clock.monotonic())):
                        await follower.changed.wait()
                except TimeoutError:
                    return found

    def kept_custom_metadata(
        self, partition: TopicIdPartition, segment_id: SegmentId
    ) -> bytes | None:
        """Return the last custom metadata that was not null, which a delete needs for its keys."""
        follower = self._gates.follower(partition)
        cache = follower.fold.partitions.get(partition)
        return None if cache is None else cache.last_custom_metadata(segment_id)

    def is_held(self, partition: TopicIdPartition, segment_id: SegmentId) -> bool:
        """Whether a segment's objects may not be deleted, whatever its state says."""
        follower = self._fleet.followers.get(self._gates.follow_set().of(partition))
        cache = None if follower is None else follower.fold.partitions.get(partition)
        return cache is not None and segment_id in cache.held


def _segment(
    follower: Follower, partition: TopicIdPartition, segment_id: SegmentId
) -> tuple[SegmentState, bytes] | None:
    cache = follower.fold.partitions.get(partition)
    if cache is None:
        return None
    record, state = cache.get(segment_id), cache.state(segment_id)
    return None if record is None or state is None else (state, record)
