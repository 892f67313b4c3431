"""What each follower was given by the log, from the offset on at which its fold began."""

from collections.abc import Callable, Sequence

from rlmm_daemon.core.fold.fold import Fold
from rlmm_daemon.core.partitioner import metadata_partition
from rlmm_daemon.domain.errors import NotReady
from rlmm_daemon.domain.ids import TopicIdPartition
from rlmm_daemon.ports.event_log import LogBatch
from tests.simulation.kafka.truth import Truth
from tests.simulation.model import Model
from tests.simulation.world import Violation

Values = Sequence[bytes | None]
#: Former ones of a partition that are kept: a snapshot may go back to any of them.
FORMER_MAX = 60


class Given:
    """Values by offset, of the present fold and of those before it; None is no event."""

    def __init__(self, truth: Truth, fold_of: Callable[[int], Fold | None]) -> None:
        self._truth = truth
        self._fold_of = fold_of
        self._now: dict[int, list[bytes | None]] = {}
        self._former: dict[int, list[list[bytes | None]]] = {}
        self.models: dict[int, Model] = {}
        #: Partition -> how often it began anew.
        self.turns: dict[int, int] = {}

    def now(self, partition: int) -> list[bytes | None]:
        """Return what the present fold of a partition was made of."""
        return self._now.get(partition, [])

    def passed_over(self, partition: int, position: int) -> None:
        """A fold went on to a position without having been given what lies before it."""
        values = self._now.setdefault(partition, [])
        values.extend([None] * (position - len(values)))

    def begin(self, partition: int, position: int) -> None:
        """A follower goes on at a position: its fold must be that of something that was given."""
        self.turns[partition] = self.turns.get(partition, 0) + 1
        before = self._now.get(partition, [])
        fold = self._fold_of(partition)
        for candidate in self._candidates(partition, position):
            model = Model(_owner(fold))
            model.advance(candidate, position)
            if fold is None or position == 0 or _fits(model, fold):
                break
        else:
            raise Violation(
                f"metadata partition {partition} goes on at {position} with a fold of nothing "
                "that the log ever gave out"
            )
        former = self._former.setdefault(partition, [])
        if before and before != candidate[: len(before)]:
            former.append(before)
            del former[:-FORMER_MAX]
        self._now[partition] = list(candidate[:position])
        self.models[partition] = model

    def _candidates(self, partition: int, position: int) -> list[Values]:
        """Return what a fold at the position can be made of, likeliest first."""
        lived = [lineage.values for lineage in reversed(self._truth.of(partition))]
        present = self.now(partition)
        padded = [*present, *[None] * (position - len(present))]
        known = [padded, *reversed(self._former.get(partition, [])), *lived]
        nothing: Values = [None] * position
        return [each[:position] for each in known if len(each) >= position] + [nothing]

    def take(self, partition: int, batch: LogBatch) -> None:
        """A batch was given out."""
        values = self._now[partition]
        for offset, value in batch.records:
            if offset < len(values):
                raise Violation(f"metadata partition {partition}: offset {offset} came again")
            values.extend([None] * (offset - len(values)))
            values.append(value)
        if batch.next_offset < len(values):
            raise Violation(
                f"metadata partition {partition}: next is {batch.next_offset}, "
                f"records came up to {len(values)}"
            )
        values.extend([None] * (batch.next_offset - len(values)))


def _owner(fold: Fold | None) -> Callable[[TopicIdPartition], bool]:
    """Return which user partitions a fold owns by Kafka's partitioner."""
    if fold is None:
        return lambda _: True
    mine, count = fold.partition, fold.partition_count
    return lambda each: metadata_partition(each.topic_id, each.partition, count) == mine


def _fits(model: Model, fold: Fold) -> bool:
    try:
        model.verify(fold)
    except (Violation, NotReady):
        return False
    return True
