"""Look-ups of KIP-405's SPI: plain calls that answer at once or raise, and when to ask once more.

Whether one may be answered now is for the `gates` to say.
"""

import asyncio

from rlmm_daemon.codec.api import FoundUntil
from rlmm_daemon.core.fold import walks
from rlmm_daemon.core.fold.cache import PartitionCache
from rlmm_daemon.core.fold.walks import Walk
from rlmm_daemon.core.readiness.states import Permit, Question
from rlmm_daemon.daemon.base.caller import Caller
from rlmm_daemon.daemon.following.fleet import Fleet
from rlmm_daemon.daemon.following.follower import Follower
from rlmm_daemon.daemon.metadata.assignment import Assignment
from rlmm_daemon.daemon.metadata.gates import Gates
from rlmm_daemon.domain.errors import RlmmError, SegmentNotFound
from rlmm_daemon.domain.ids import LeaderEpoch, Offset, TopicIdPartition
from rlmm_daemon.domain.partition_delete import PartitionDeleteState


class Lookups:
    """Answers from the folds of one manager's followers."""

    def __init__(self, fleet: Fleet, assignment: Assignment, gates: Gates) -> None:
        self._fleet, self._assignment, self._gates = fleet, assignment, gates
        #: Announced partitions whose follower passed every gate: a hit needs no further question.
        self._serving = dict[TopicIdPartition, Follower]()

    def forget(self) -> None:
        """Pass every gate anew: the announcement or the gate changed."""
        self._serving.clear()

    def remote_log_segment_metadata(
        self, partition: TopicIdPartition, epoch: int, offset: int, caller: Caller
    ) -> bytes | None:
        """Return the record of the segment that holds `offset` in `epoch`, or None.

        Raises:
            NotReady, NotAssigned, PartitionFailed, HistoryLost, LogCorrupt: no answer can be true.
        """
        known = self._serving.get(partition)
        if known is not None and known.answers_hits and self._fleet.whole_failure is None:
            cache = known.fold.partitions.awake(partition)
            if cache is not None:
                hit = cache.lookup(epoch, offset)
                if hit is not None:
                    return hit
        follower, allowed = self._gates.ask(partition, Question.LOOKUP, caller)
        if caller is Caller.BROKER:
            self._serving[partition] = follower
        cache = follower.fold.partitions.get(partition)
        found = None if cache is None else cache.lookup(epoch, offset)
        if found is None:
            if allowed is Permit.POSITIVE_ONLY:
                raise self._gates.refusal(follower, partition)
            _require_not_removed(partition, cache)
        return found

    def found_until(
        self, partition: TopicIdPartition, epoch: int, offset: int, caller: Caller
    ) -> FoundUntil | None:
        """Return what `remote_log_segment_metadata` does, and how far that is the answer.

        Raises:
            NotReady, NotAssigned, PartitionFailed, HistoryLost, LogCorrupt: as that does.
        """
        record = self.remote_log_segment_metadata(partition, epoch, offset, caller)
        if record is None:
            return None
        cache = self._gates.follower(partition).fold.partitions.get(partition)
        assert cache is not None, "it has just answered"
        return FoundUntil(record, cache.answers_until(epoch, offset))

    def highest_offset_for_epoch(
        self, partition: TopicIdPartition, epoch: int, caller: Caller
    ) -> int | None:
        """Return the highest offset finished in `epoch`; never more than the log says."""
        cache = self._cache(partition, Question.HIGHEST, caller)
        return None if cache is None else cache.highest_offset(LeaderEpoch(epoch))

    def list_remote_log_segments(
        self, partition: TopicIdPartition, epoch: int | None, caller: Caller
    ) -> list[bytes]:
        """Return all segments, or those of one epoch in Kafka's order."""
        cache = self._cache(partition, Question.WHOLE, caller)
        if cache is None:
            return []
        return cache.list_all() if epoch is None else cache.list_epoch(LeaderEpoch(epoch))

    def remote_log_size(self, partition: TopicIdPartition, epoch: int, caller: Caller) -> int:
        """Return the bytes of an epoch's listed segments, all states counted as Kafka does."""
        cache = self._cache(partition, Question.WHOLE, caller)
        return 0 if cache is None else cache.size(LeaderEpoch(epoch))

    def listing(
        self, partition: TopicIdPartition, epoch: int | None, caller: Caller
    ) -> Walk[list[bytes]]:
        """Return what `list_remote_log_segments` does, as of now, to be drawn in steps."""
        cache = self._cache(partition, Question.WHOLE, caller)
        return Walk([]) if cache is None else walks.listing(cache, epoch)

    def sizing(self, partition: TopicIdPartition, epoch: int, caller: Caller) -> Walk[int]:
        """Return what `remote_log_size` does, as of now, to be summed in steps."""
        cache = self._cache(partition, Question.WHOLE, caller)
        return Walk([]) if cache is None else walks.size(cache, epoch)

    def next_segment_with_txn_index(
        self, partition: TopicIdPartition, epoch: int, offset: int, caller: Caller
    ) -> bytes | None:
        """Return the first segment at or after `offset` that has a transaction index (KIP-1058)."""
        cache = self._cache(partition, Question.WHOLE, caller)
        _require_not_removed(partition, cache)
        return (
            None if cache is None else cache.next_with_txn_index(LeaderEpoch(epoch), Offset(offset))
        )

    def is_ready(self, partition: TopicIdPartition, caller: Caller = Caller.BROKER) -> bool:
        """Return whether every question about this partition would be answered; never raises."""
        try:
            self._gates.ask(partition, Question.HIGHEST, caller)
            self._gates.ask(partition, Question.WHOLE, caller)
        except RlmmError:
            return False
        return True

    def _cache(
        self, partition: TopicIdPartition, question: Question, caller: Caller
    ) -> PartitionCache | None:
        follower, _ = self._gates.ask(partition, question, caller)
        return follower.fold.partitions.get(partition)

    async def until_readable(
        self, partition: TopicIdPartition, caller: Caller, timeout_seconds: float
    ) -> None:
        """Return the moment a question that was not ready may be asked once more, or at the end.

        For an operator the metadata partition is followed on demand, for a while.
        """
        try:
            async with asyncio.timeout(timeout_seconds):
                while not self.is_ready(partition, caller):
                    await self._until_changed(partition, caller)
        except TimeoutError:
            return
        except RlmmError:
            return  # asked once more, the question raises it

    async def _until_changed(self, partition: TopicIdPartition, caller: Caller) -> None:
        """Wait for anything that may change the answer; raise what no waiting changes."""
        if caller is Caller.BROKER and self._assignment.gate_open:
            self._gates.require_announced(partition)
        follow_set, failure = self._fleet.follow_set, self._fleet.whole_failure
        if follow_set is not None and failure is not None:
            raise failure.error(follow_set.of(partition))
        if follow_set is None:
            await self._fleet.changed.wait()
            return
        metadata_partition = follow_set.of(partition)
        if caller is Caller.OPERATOR:
            follow_set.demand([metadata_partition])
        follower = self._fleet.followers.get(metadata_partition)
        if follower is None or (caller is Caller.BROKER and not self._assignment.gate_open):
            await self._gates.changed.wait(self._fleet.changed)
            return
        self._gates.follower(partition)
        await follower.changed.wait()


def _require_not_removed(partition: TopicIdPartition, cache: PartitionCache | None) -> None:
    """Refuse a look-up that would be empty because the partition was removed.

    Kafka forgets such a partition; "nothing found" would have a broker reset its consumers.

    Raises:
        SegmentNotFound: until a COPY_SEGMENT_STARTED begins the partition's next life.
    """
    if cache is not None and cache.delete_state is PartitionDeleteState.DELETE_PARTITION_FINISHED:
        raise SegmentNotFound(f"{partition} was removed (DELETE_PARTITION_FINISHED)")
