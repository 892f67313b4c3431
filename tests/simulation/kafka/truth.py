"""What was ever committed to each metadata partition, and every loss: what answers are judged by.

A *lineage* is one history of a partition's log: offset by offset what was committed in it. It ends
when an unclean election cuts committed records off, or the topic is deleted; what follows is
another lineage, with the same beginning or with none. Trimming and compaction end no lineage: what
was committed was committed, and whoever did not read it in time lacks it.
"""

from dataclasses import dataclass, field
from typing import Final

from tests.simulation.world import Violation

#: A lineage that lives on.
FOREVER: Final = float("inf")


@dataclass(slots=True, eq=False)
class Lineage:
    """One history of one partition."""

    topic_id: bytes
    partition: int
    #: Offset -> value; None is no event: a control record.
    values: list[bytes | None] = field(default_factory=list)
    #: Offset -> leader epoch.
    epochs: list[int] = field(default_factory=list)
    ended_at: float = FOREVER
    #: Up to where the next lineage is the same.
    shared: int = 0
    #: Offsets of records that a daemon's clients were told as applied, and whose.
    acknowledged: dict[int, str] = field(default_factory=dict)

    def confirms(self, position: int, epoch: int) -> bool:
        """Return whether whoever read up to `position`, last in `epoch`, read this lineage."""
        if position <= 0 or epoch < 0:
            return position <= 0
        return position <= len(self.values) and self.epochs[position - 1] == epoch


class Truth:
    """All lineages of all partitions of all topics that bore the name."""

    def __init__(self) -> None:
        self._lineages: dict[int, list[Lineage]] = {}
        #: Partitions that something was ever taken from: only these may fail.
        self.harmed: set[int] = set()
        #: The topic was deleted once.
        self.deleted = False
        #: Losses so far.
        self.cuts = 0

    def of(self, partition: int) -> list[Lineage]:
        """Return the lineages of a partition, oldest first."""
        return self._lineages.get(partition, [])

    def now(self, partition: int) -> Lineage | None:
        """Return the lineage that lives, if the topic is there."""
        found = self.of(partition)
        return found[-1] if found and found[-1].ended_at == FOREVER else None

    def begin(self, topic_id: bytes, partition: int) -> None:
        """A partition was created."""
        self._lineages.setdefault(partition, []).append(Lineage(topic_id, partition))

    def may_fail(self, partition: int) -> bool:
        """Return whether anything was ever taken from a partition."""
        return self.deleted or partition in self.harmed

    def commit(self, partition: int, offset: int, value: bytes | None, epoch: int) -> None:
        """A record reached all replicas in sync: consumers see it from now on."""
        lineage = self._lineages[partition][-1]
        assert offset == len(lineage.values), "commits come in order"
        lineage.values.append(value)
        lineage.epochs.append(epoch)

    def cut(self, partition: int, end: int, now: float) -> None:
        """An election lost whatever was committed at `end` and beyond."""
        before = self._lineages[partition][-1]
        if end >= len(before.values):
            return
        self.cuts += 1
        self.harmed.add(partition)
        before.ended_at, before.shared = now, end
        self._lineages[partition].append(
            Lineage(
                before.topic_id,
                partition,
                values=before.values[:end],
                epochs=before.epochs[:end],
                acknowledged={at: who for at, who in before.acknowledged.items() if at < end},
            )
        )

    def delete(self, now: float) -> None:
        """The topic is gone, and every lineage of it."""
        self.cuts += 1
        self.deleted = True
        for found in self._lineages.values():
            if found and found[-1].ended_at == FOREVER:
                found[-1].ended_at, found[-1].shared = now, 0

    def told(self, partition: int, offset: int, value: bytes, now: float, slack: float) -> None:
        """The daemon was told that its record is at `offset`: it is, or was just now."""
        for lineage in reversed(self.of(partition)):
            if lineage.ended_at < now - slack:
                break
            if offset < len(lineage.values) and lineage.values[offset] == value:
                return
        raise Violation(f"partition {partition}: told offset {offset}, where no such record is")

    def count(self, partition: int, value: bytes) -> int:
        """Return how often a value stands in the lineage that has it most often."""
        return max((lineage.values.count(value) for lineage in self.of(partition)), default=0)
