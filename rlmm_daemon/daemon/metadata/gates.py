"""Gates before every question: may it be answered now and by whom, and when to ask once more.

The gates bind a broker; an operator's request follows what it asks about on demand. A refusal
says what is missing, so that "not ready" never looks like "empty".
"""

import asyncio

from rlmm_daemon.core.fold.user_partitions import Sleeping
from rlmm_daemon.core.readiness.states import (
    PartitionState,
    Permit,
    Question,
    not_ready,
    not_sure,
    permit,
)
from rlmm_daemon.daemon.base.broadcast import Broadcast
from rlmm_daemon.daemon.base.caller import Caller
from rlmm_daemon.daemon.following.confirmation import Confirmation
from rlmm_daemon.daemon.following.fleet import Fleet
from rlmm_daemon.daemon.following.follow_set import FollowSet
from rlmm_daemon.daemon.following.follower import Follower
from rlmm_daemon.daemon.following.snapshotter import Snapshotter
from rlmm_daemon.daemon.metadata.assignment import Assignment
from rlmm_daemon.domain.errors import NotAssigned, NotReady, TimedOut
from rlmm_daemon.domain.ids import MetadataPartition, TopicIdPartition


class Gates:
    """Of one manager: its announcement, its followers, and what they may say."""

    def __init__(self, fleet: Fleet, assignment: Assignment, snapshotter: Snapshotter) -> None:
        self._fleet = fleet
        self._assignment = assignment
        self._snapshotter = snapshotter
        #: Rung when the gate, the announcement or the set of followers changed.
        self.changed = Broadcast()
        #: No new writes of the broker's.
        self.draining = False

    # At once, or an error.

    def ask(
        self, partition: TopicIdPartition, question: Question, caller: Caller
    ) -> tuple[Follower, Permit]:
        """Return who may answer and how, or raise why nobody may."""
        if caller is Caller.BROKER:
            self.require_announced(partition)
        follower = self.follower(partition)
        confirmation = follower.confirmation
        if partition not in confirmation.confirmed and self._insert(confirmation, partition):
            self._fleet.target_wanted.ring()
        allowed = permit(
            question,
            follower.state,
            confirmed=partition in confirmation.confirmed,
            silent_seconds=follower.silent_seconds,
            freshness=self._fleet.options.freshness,
        )
        if allowed is Permit.NONE or (
            allowed is Permit.POSITIVE_ONLY and question is not Question.LOOKUP
        ):
            raise self.refusal(follower, partition)
        if self.is_being_read(follower, partition):
            raise NotReady(
                f"the snapshot's table of {partition} is being read through",
                state=PartitionState.REPLAYING.value,
                metadata_partition=follower.partition,
                lag=follower.lag,
            )
        return follower, allowed

    def _insert(self, confirmation: Confirmation, partition: TopicIdPartition) -> bool:
        if partition in self._assignment.announced:
            return confirmation.insert(partition)
        return confirmation.insert_on_demand(partition)

    def require_announced(self, partition: TopicIdPartition) -> None:
        """Refuse what the broker has not announced, or not since it started.

        Raises:
            NotReady, NotAssigned: as they say.
        """
        if not self._assignment.gate_open:
            raise NotReady(
                "the broker has not announced its partitions to this daemon yet",
                state="unannounced",
            )
        if partition not in self._assignment.announced:
            raise NotAssigned(f"{partition} was not announced by the broker")

    def follower(self, partition: TopicIdPartition) -> Follower:
        """Return the follower of a user partition's metadata partition, whatever its state.

        Raises:
            NotReady, PartitionFailed and kin: nobody follows it, or it failed.
        """
        metadata_partition = self.follow_set().of(partition)
        follower = self._fleet.followers.get(metadata_partition)
        failure = self._fleet.whole_failure or (follower.failure if follower else None)
        if failure is not None:
            raise failure.error(metadata_partition)
        if follower is None:
            raise not_ready(metadata_partition, PartitionState.UNASSIGNED, None)
        return follower

    def writable(self, partition: TopicIdPartition) -> Follower:
        """Return the follower whose fold may judge a write."""
        follower = self.follower(partition)
        if (
            permit(
                Question.WRITE,
                follower.state,
                confirmed=True,
                silent_seconds=follower.silent_seconds,
                freshness=self._fleet.options.freshness,
            )
            is not Permit.ANY
        ):
            raise self.refusal(follower)
        return follower

    def follow_set(self) -> FollowSet:
        """Return which metadata partitions are wanted, and which one a user partition is in.

        Raises:
            NotReady, PartitionFailed and kin: the log is not open, or will not open.
        """
        if self._fleet.follow_set is None:
            if self._fleet.whole_failure is not None:
                raise self._fleet.whole_failure.error(MetadataPartition(0))
            raise NotReady(f"the event log is not open: {self._fleet.trouble}", state="starting")
        return self._fleet.follow_set

    def is_being_read(self, follower: Follower, partition: TopicIdPartition) -> bool:
        """Whether a long table has to be read through first, which a thread begins to do."""
        held = follower.fold.partitions.peek(partition)
        if not isinstance(held, Sleeping) or not held.is_long_unread:
            return False
        self._snapshotter.check_soon(follower, held)
        return True

    @staticmethod
    def refusal(follower: Follower, partition: TopicIdPartition | None = None) -> NotReady:
        """Return why a follower that has not failed does not answer."""
        state, confirmation = follower.state, follower.confirmation
        if state is not PartitionState.READY or partition is None:
            return not_ready(follower.partition, state, follower.lag)
        return not_sure(
            follower.partition,
            position=follower.fold.position,
            end=confirmation.waiting.get(partition),
            confirmed=partition in confirmation.confirmed,
            silent_seconds=follower.silent_seconds,
        )

    # Waiting.

    async def until_open(self) -> None:
        """Return once the event log is open, or is known not to open without an operator."""
        while self._fleet.follow_set is None and self._fleet.whole_failure is None:
            await self._fleet.changed.wait()

    async def opened(self) -> FollowSet:
        """Wait until the log is open; raise at once what no waiting changes."""
        while self._fleet.follow_set is None:
            if self._fleet.whole_failure is not None:
                raise self._fleet.whole_failure.error(MetadataPartition(0))
            await self._fleet.changed.wait()
        return self._fleet.follow_set

    async def until_read(
        self, number: MetadataPartition, partition: TopicIdPartition, timeout_seconds: float
    ) -> None:
        """Return once a long table of this partition was read through, or could not be in time."""
        try:
            async with asyncio.timeout(timeout_seconds):
                while (follower := self._fleet.followers.get(number)) is not None:
                    if not self.is_being_read(follower, partition):
                        return
                    await follower.changed.wait()
        except TimeoutError:
            return

    async def until_writable(
        self, metadata_partition: MetadataPartition, timeout_seconds: float
    ) -> Follower:
        """Wait until a metadata partition that is kept followed is ready.

        Raises:
            TimedOut: it was not ready in time; nothing was begun.
        """
        try:
            async with asyncio.timeout(timeout_seconds):
                while True:
                    follower = self._fleet.followers.get(metadata_partition)
                    failure = self._fleet.whole_failure
                    if failure is None and follower is not None:
                        failure = follower.failure
                    if failure is not None:
                        raise failure.error(metadata_partition)
                    if follower is None:
                        await self._fleet.changed.wait()
                        continue
                    if follower.state is PartitionState.READY:
                        return follower
                    await follower.changed.wait()
        except TimeoutError as error:
            raise TimedOut(
                f"metadata partition {metadata_partition} was not ready in time"
            ) from error
