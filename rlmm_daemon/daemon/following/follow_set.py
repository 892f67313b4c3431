"""The metadata partitions that are followed, and their reasons: one is enough.

    announced   a user partition of the broker hashes to it
    warm        one did before the restart, and the broker has not announced all of its own yet
    kept        a copy, delete or write of this broker is in flight
    on demand   an operator asked, not long ago
    discovered  the cluster says that the broker replicates a tiered partition of it

The set is asked for whenever a reason came or went; nothing here starts or stops a task.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from rlmm_daemon.core.partitioner import metadata_partition
from rlmm_daemon.daemon.base.broadcast import Broadcast
from rlmm_daemon.domain.ids import MetadataPartition, TopicIdPartition
from rlmm_daemon.ports.clock import Clock


class FollowSet:
    """The reasons to follow, counted per metadata partition."""

    def __init__(
        self, partition_count: int, clock: Clock, *, on_demand_linger_seconds: float
    ) -> None:
        self.partition_count = partition_count
        self._clock = clock
        self._linger_seconds = on_demand_linger_seconds
        self._of: dict[TopicIdPartition, MetadataPartition] = {}
        self._announced: dict[MetadataPartition, set[TopicIdPartition]] = {}
        self._warm: set[MetadataPartition] = set()
        self._kept: Counter[MetadataPartition] = Counter()
        self._demanded: dict[MetadataPartition, float] = {}
        self._discovered: set[MetadataPartition] = set()
        #: Rung when a reason came or went.
        self.changed = Broadcast()

    def of(self, partition: TopicIdPartition) -> MetadataPartition:
        """Return the metadata partition of a user partition; announced ones are remembered."""
        known = self._of.get(partition)
        if known is not None:
            return known
        return metadata_partition(partition.topic_id, partition.partition, self.partition_count)

    def recount(self, partition_count: int) -> None:
        """Go by another number of metadata partitions: what is announced lies elsewhere now."""
        announced = list(self._of)
        self.partition_count = partition_count
        self._of, self._announced = {}, {}
        self._warm, self._demanded, self._discovered = set(), {}, set()
        self.announce(announced, dict.fromkeys(announced, False), whole=True)

    def warm(self, partitions: Iterable[TopicIdPartition]) -> None:
        """Follow for what had been announced before a restart."""
        self._warm = {self.of(partition) for partition in partitions}
        self.changed.ring()

    def announce(
        self,
        partitions: Iterable[TopicIdPartition],
        announced: Mapping[TopicIdPartition, bool],
        *,
        whole: bool,
    ) -> None:
        """Take up that these partitions are, or are not any more, among the announced.

        `whole`: with them the broker has announced all that it has.
        """
        known = self._of
        for partition in partitions:
            if partition not in announced:
                if (left := known.pop(partition, None)) is not None:
                    self._announced[left].discard(partition)
            elif partition not in known:
                mine = known[partition] = self.of(partition)
                if (members := self._announced.get(mine)) is None:
                    members = self._announced[mine] = set()
                members.add(partition)
        if whole:
            self._warm.clear()
        self.changed.ring()

    def announced_in(self, partition: MetadataPartition) -> frozenset[TopicIdPartition]:
        """Return the announced user partitions whose events are in a metadata partition."""
        return frozenset(self._announced.get(partition, ()))

    def announced_count(self, partition: MetadataPartition) -> int:
        """Return how many `announced_in` has."""
        return len(self._announced.get(partition, ()))

    @contextmanager
    def keep(self, partition: MetadataPartition) -> Iterator[None]:
        """Follow while a job is in flight."""
        self._kept[partition] += 1
        # Where it is announced too, nothing changes: a write then wakes nobody.
        if self._kept[partition] == 1 and not self._announced.get(partition):
            self.changed.ring()
        try:
            yield
        finally:
            self._kept[partition] -= 1
            if not self._kept[partition]:
                del self._kept[partition]
                if not self._announced.get(partition):
                    self.changed.ring()

    def demand(self, partitions: Iterable[MetadataPartition]) -> None:
        """Follow for an operator, for a while from now."""
        until = self._clock.monotonic() + self._linger_seconds
        for partition in partitions:
            self._demanded[partition] = until
        self.changed.ring()

    def discover(self, partitions: Iterable[TopicIdPartition]) -> None:
        """Follow for exactly these, which the cluster says the broker replicates."""
        found = {self.of(partition) for partition in partitions}
        if found != self._discovered:
            self._discovered = found
            self.changed.ring()

    def wanted(self) -> set[MetadataPartition]:
        """Return what should be followed now."""
        now = self._clock.monotonic()
        self._demanded = {p: until for p, until in self._demanded.items() if until > now}
        announced = {partition for partition, members in self._announced.items() if members}
        known = announced | self._warm | self._discovered
        return known | self._kept.keys() | self._demanded.keys()
