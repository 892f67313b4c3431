"""Who wants to hear of what the folds of a manager apply, and how much of it."""

from collections.abc import Callable
from dataclasses import dataclass, field

from rlmm_daemon.core.outcome import Outcome
from rlmm_daemon.daemon.snapshots import WrittenSnapshot
from rlmm_daemon.domain.ids import MetadataPartition

Applied = Callable[[MetadataPartition, Outcome], None]


@dataclass(slots=True)
class ManagerHooks:
    """Each is called in the loop and returns at once.

    Most of a log are copies that began or were finished. They are folded in run by run, and their
    outcomes are not even made while nobody is in `every`.
    """

    #: What became of each record but for copies that came in a run.
    applied: list[Applied] = field(default_factory=list)
    #: How many copies came in a run.
    copies: list[Callable[[MetadataPartition, int], None]] = field(default_factory=list)
    #: What became of each record whatsoever.
    every: list[Applied] = field(default_factory=list)
    snapshot_written: list[Callable[[WrittenSnapshot], None]] = field(default_factory=list)

    def tell(self, partition: MetadataPartition, outcome: Outcome) -> None:
        """A record was applied."""
        for applied in self.applied:
            applied(partition, outcome)
        for applied in self.every:
            applied(partition, outcome)

    def tell_copies(self, partition: MetadataPartition, count: int) -> None:
        """A run of copies was applied."""
        for copies in self.copies:
            copies(partition, count)
