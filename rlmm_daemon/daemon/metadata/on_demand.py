"""Metadata partitions that people ask about, followed on demand for a while."""

import asyncio
from typing import Final

from rlmm_daemon.core.readiness.states import PartitionState, not_ready
from rlmm_daemon.daemon.following.fleet import Fleet
from rlmm_daemon.daemon.following.follow_set import FollowSet
from rlmm_daemon.daemon.following.follower import Follower
from rlmm_daemon.daemon.metadata.gates import Gates
from rlmm_daemon.domain.errors import InvalidArgument, NotReady
from rlmm_daemon.domain.ids import MetadataPartition

#: How long a question waits for metadata partitions that nobody followed yet.
ON_DEMAND_SECONDS: Final = 10.0


class OnDemand:
    """Followers by what a person names."""

    def __init__(self, fleet: Fleet, gates: Gates) -> None:
        self._fleet, self._gates = fleet, gates

    def follow_set(self) -> FollowSet:
        """Return the metadata partitions that are wanted.

        Raises:
            NotReady, PartitionFailed and kin: the log is not open, or the whole of it failed.
        """
        if self._fleet.whole_failure is not None:
            raise self._fleet.whole_failure.error(MetadataPartition(0))
        return self._gates.follow_set()

    async def whole(self) -> list[Follower]:
        """Return the followers of every metadata partition, all of them ready.

        Raises:
            NotReady, PartitionFailed and kin: not one is missing from an answer that is whole.
        """
        followers, count = await self.chosen(None), self.follow_set().partition_count
        for follower in followers:
            require_ready(follower)
        if len(followers) < count:
            raise NotReady(
                f"{count - len(followers)} of {count} metadata partitions are not followed yet"
            )
        return followers

    async def chosen(
        self, metadata_partition: int | None, *, all_of_them: bool = True
    ) -> list[Follower]:
        """Return followers by metadata partition, followed on demand.

        None means every metadata partition, or those followed anyway unless `all_of_them`.
        """
        fleet, follow_set = self._fleet, self.follow_set()
        if metadata_partition is None:
            if all_of_them:
                await self.follow_all(ON_DEMAND_SECONDS)
            return [follower for _, follower in sorted(fleet.followers.items())]
        if not 0 <= metadata_partition < follow_set.partition_count:
            raise InvalidArgument(
                f"there are {follow_set.partition_count} metadata partitions, from 0 on"
            )
        number = MetadataPartition(metadata_partition)
        follow_set.demand([number])
        try:
            async with asyncio.timeout(ON_DEMAND_SECONDS):
                while number not in fleet.followers:
                    await fleet.changed.wait()
        except TimeoutError as error:
            raise NotReady(f"metadata partition {number} is not followed yet") from error
        return [fleet.followers[number]]

    async def follow_all(self, timeout_seconds: float) -> None:
        """Follow every metadata partition for a while and wait until each is ready or failed."""
        follow_set = self._gates.follow_set()
        everything = [MetadataPartition(n) for n in range(follow_set.partition_count)]
        follow_set.demand(everything)
        try:
            async with asyncio.timeout(timeout_seconds):
                for partition in everything:
                    await self._until_settled(partition)
        except TimeoutError:
            return

    async def _until_settled(self, partition: MetadataPartition) -> None:
        unsettled = (PartitionState.STARTING, PartitionState.REPLAYING)
        while True:
            follower = self._fleet.followers.get(partition)
            if follower is None:
                await self._fleet.changed.wait()
            elif follower.state in unsettled:
                await follower.changed.wait()
            else:
                return

    async def until_folded(self, follower: Follower) -> None:
        """Return once a fold is read to its end: a copy may have been finished further on.

        Raises:
            NotReady: it is not, and why.
            PartitionFailed and kin: something else has to end before it is read on.
        """
        try:
            async with asyncio.timeout(ON_DEMAND_SECONDS):
                while not follower.read_to_end:
                    if follower.failure is not None and follower.waits_for_order:
                        raise follower.failure.error(follower.partition)
                    await follower.changed.wait()
        except TimeoutError as error:
            raise not_ready(follower.partition, follower.state, follower.lag) from error


def require_ready(follower: Follower) -> None:
    """Raise why a follower cannot say what is not there."""
    if follower.failure is not None:
        raise follower.failure.error(follower.partition)
    if follower.state is not PartitionState.READY:
        raise not_ready(follower.partition, follower.state, follower.lag)
