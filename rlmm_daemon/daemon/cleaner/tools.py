"""The services that all parts of the cleaner work with."""

import random
from collections.abc import Callable
from typing import Protocol

import msgspec

from rlmm_daemon.core.fold.cache import PartitionCache
from rlmm_daemon.core.readiness.states import PartitionState
from rlmm_daemon.daemon.base.segment_log import decode_segment
from rlmm_daemon.daemon.bucket.bucket import Bucket
from rlmm_daemon.daemon.cleaner.leftovers import LeftoverSearch
from rlmm_daemon.daemon.cleaner.notes import Notes
from rlmm_daemon.daemon.cleaner.options import CleanerOptions
from rlmm_daemon.daemon.cleaner.pace import Pace
from rlmm_daemon.daemon.cleaner.peers import PeerSource
from rlmm_daemon.daemon.cleaner.proof import TopicProof
from rlmm_daemon.daemon.cleaner.superseded import Superseded
from rlmm_daemon.daemon.following.follower import Follower
from rlmm_daemon.daemon.metadata.manager import Manager
from rlmm_daemon.domain.errors import NotReady
from rlmm_daemon.domain.ids import BrokerId, SegmentId, TopicIdPartition
from rlmm_daemon.domain.segment import SegmentMetadata
from rlmm_daemon.ports.clock import Clock


class Copies(Protocol):
    """The copies that run in this daemon (`daemon.copying.copier`)."""

    def is_running(self, segment_id: SegmentId) -> bool:
        """Return whether a copy of this segment runs or waits."""

    def running_in(self, partition: TopicIdPartition) -> list[SegmentId]:
        """Return the segments of a user partition whose copies run or wait."""

    async def end_copy(self, segment_id: SegmentId) -> None:
        """Cancel a copy, and return when it has ended."""


class Tools(msgspec.Struct, frozen=True, kw_only=True):
    """The neighbours, this broker's id, and the notes that people read."""

    manager: Manager
    bucket: Bucket
    copier: Copies
    proof: TopicProof
    peers: PeerSource
    #: The same for what only waits: one answer is shared for a while.
    recent_proof: TopicProof
    recent_peers: PeerSource
    options: CleanerOptions
    pace: Pace
    leftovers: LeftoverSearch
    broker_id: BrokerId
    clock: Clock
    rng: random.Random
    notes: Notes
    superseded: Superseded
    #: When this process began: a copy that began later ran here.
    started_at_ms: int

    def follower(self, partition: TopicIdPartition) -> Follower:
        """Return who follows a user partition's metadata partition, if its fold may be judged by.

        Raises:
            NotReady: it may not.
        """
        follow_set = self.manager.fleet.follow_set
        found = None
        if follow_set is not None:
            found = self.manager.fleet.followers.get(follow_set.of(partition))
        if found is None or found.state is not PartitionState.READY:
            raise NotReady("the metadata partition is not ready")
        return found

    def cache(self, partition: TopicIdPartition) -> PartitionCache | None:
        """Return a user partition's fold.

        Raises:
            NotReady: it may not be judged by.
        """
        return self.follower(partition).fold.partitions.get(partition)

    def segment(self, partition: TopicIdPartition, segment_id: SegmentId) -> SegmentMetadata | None:
        """Return a segment as the fold has it; None where somebody else has ended it.

        Raises:
            NotReady: the fold may not be judged by.
        """
        cache = self.cache(partition)
        record = None if cache is None else cache.get(segment_id)
        return None if record is None else decode_segment(record)


#: Asked before each further step: False stops the work.
StillOurs = Callable[[], bool]
