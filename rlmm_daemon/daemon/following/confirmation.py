"""User partitions of a metadata partition that may be answered in full, and from when on."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

import msgspec

from rlmm_daemon.domain.ids import TopicIdPartition

#: User partitions that are asked about without an announcement; the oldest are forgotten first.
ON_DEMAND_MAX: Final = 4_096


class Confirmation(msgspec.Struct):
    """Which inserted user partitions may be answered in full.

    A user partition is confirmed once the position reaches an end offset that was asked for after
    its insertion. Targets never decrease within one lineage. Each insertion and each lineage draws
    a ticket, so that an answer still on its way from before either is dropped.

    A log may lose what stood between the position and the target, which no reading notices. So it
    is asked again where a reader at its end has not reached the target. A later answer never comes
    of an older leader: one below the target then says that the log was cut, and a lineage ended.
    """

    target: int | None = None
    #: A reader was at the log's end, before the target.
    short: bool = False
    lineage: int = 0
    #: Inserted, and no end offset was asked for since: the ticket of that insertion.
    asking: dict[TopicIdPartition, int] = msgspec.field(default_factory=dict)
    waiting: dict[TopicIdPartition, int] = msgspec.field(default_factory=dict)
    confirmed: set[TopicIdPartition] = msgspec.field(default_factory=set)
    #: Those of them that nobody announced, oldest first.
    on_demand: OrderedDict[TopicIdPartition, None] = msgspec.field(default_factory=OrderedDict)
    _tickets: int = 0

    def insert(self, partition: TopicIdPartition) -> bool:
        """Note a user partition for as long as it is announced; True if that is new."""
        self.on_demand.pop(partition, None)
        return self._insert(partition)

    def insert_on_demand(self, partition: TopicIdPartition) -> bool:
        """Note a user partition that nobody announced, until others took its place."""
        if not self._insert(partition):
            return False
        self.on_demand[partition] = None
        if len(self.on_demand) > ON_DEMAND_MAX:
            self.remove(next(iter(self.on_demand)))
        return True

    def _insert(self, partition: TopicIdPartition) -> bool:
        if partition in self.confirmed or partition in self.waiting or partition in self.asking:
            return False
        self._tickets += 1
        self.asking[partition] = self._tickets
        return True

    def __contains__(self, partition: TopicIdPartition) -> bool:
        return partition in self.confirmed or partition in self.waiting or partition in self.asking

    def remove(self, partition: TopicIdPartition) -> None:
        """Forget a user partition, so that its next insertion asks anew."""
        self.on_demand.pop(partition, None)
        self.confirmed.discard(partition)
        self.waiting.pop(partition, None)
        self.asking.pop(partition, None)

    def question(self) -> "EndRequest":
        """Return what an end offset that is asked for now will answer."""
        return EndRequest(self.lineage, dict(self.asking))

    def answered(self, end: int, asked: "EndRequest") -> None:
        """An end offset is known; `asked` was drawn before it was asked for."""
        if asked.lineage != self.lineage:
            return
        if self.short and self.target is not None and end < self.target:
            self.restart()
            return
        self.short = False
        self.target = end if self.target is None else max(self.target, end)
        for partition, ticket in asked.tickets.items():
            if self.asking.get(partition) == ticket:
                del self.asking[partition]
                self.waiting[partition] = self.target

    def read_to(self, position: int, end: int) -> bool:
        """Note that a reader at `position` sees the log end at `end`; True: ask where it does."""
        self.short = self.target is not None and end <= position < self.target
        return self.short

    def reached(self, position: int) -> None:
        """Confirm what waited for a target at or before `position`."""
        if self.waiting:
            for partition, target in list(self.waiting.items()):
                if position >= target:
                    del self.waiting[partition]
                    self.confirmed.add(partition)

    def restart(self) -> None:
        """The lineage ended: every target is asked for anew."""
        inserted = [*self.asking, *self.waiting, *sorted(self.confirmed)]
        self.asking, self.waiting, self.confirmed, self.target = {}, {}, set(), None
        self.short = False
        self.lineage += 1
        for partition in inserted:
            self._insert(partition)


class EndRequest(msgspec.Struct, frozen=True):
    """What a request for an end offset was sent for."""

    lineage: int
    tickets: Mapping[TopicIdPartition, int]
