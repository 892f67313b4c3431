"""Fold of a quorum's log as the counters of a checkpoint, and back.

What a replica folds from a checkpoint and what follows it is what another folds from the whole log:
a submitter's serial counts in its incarnation only, so that both are kept, and so are the digests
of its newest records, by which a repeat is told from another one's record.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from rlmm_daemon.codec.kraft.checkpoint_records import (
    EPOCHS_MAX,
    CheckpointRecord,
    Counter,
    EpochsOf,
    Event,
    Founded,
    PartitionAt,
    Starts,
    SubmitterAt,
)
from rlmm_daemon.core.quorum_log.epochs import Epochs
from rlmm_daemon.core.quorum_log.fold import REMEMBERED, LogFold, Submitter
from rlmm_daemon.domain.errors import LogCorrupt


class Dropped(NamedTuple):
    """Events of a partition that compactions dropped: so many, of the offsets before `to`."""

    to: int = 0
    events: int = 0


NOTHING: Final = Dropped()


def counters(fold: LogFold, dropped: Mapping[int, Dropped]) -> Iterator[Counter]:
    """Yield what a checkpoint says of a fold; `dropped` by partition, where anything was.

    A log that was not founded yet has none.
    """
    assert fold.partition_count is not None, "a log that was not founded holds no event"
    yield Founded(fold.partition_count)
    for partition, end in enumerate(fold.ends):
        yield PartitionAt(partition, end, *dropped.get(partition, NOTHING))
        entries = fold.epochs[partition].entries
        for at in range(0, len(entries), EPOCHS_MAX):
            yield EpochsOf(partition, tuple(entries[at : at + EPOCHS_MAX]))
    for number, each in sorted(fold.submitters.items()):
        newest = tuple(each.digests[serial] for serial in sorted(each.digests))
        yield SubmitterAt(number, each.incarnation, each.nonce, each.serial, newest)


class Restored:
    """A fold that is put together of a checkpoint's counters."""

    def __init__(self) -> None:
        self.fold = LogFold()
        #: By partition, where anything was.
        self.dropped: dict[int, Dropped] = {}

    def take(self, record: CheckpointRecord) -> None:
        """Take the next counter.

        Raises:
            LogCorrupt: no fold has such counters in this order.
        """
        match record:
            case Founded(partition_count=count):
                _require(self.fold.partition_count is None, "it was founded twice")
                self.fold.partition_count = count
            case PartitionAt():
                self._partition(record)
            case EpochsOf():
                self._epochs(record)
            case SubmitterAt():
                self._submitter(record)
            case Starts() | Event():
                raise LogCorrupt("a checkpoint's counters come before its events")

    def finish(self) -> LogFold:
        """Return the fold.

        Raises:
            LogCorrupt: some counters are missing.
        """
        count = self.fold.partition_count
        _require(count is not None and len(self.fold.ends) == count, "some partitions are missing")
        return self.fold

    def _partition(self, at: PartitionAt) -> None:
        fold = self.fold
        _require(at.partition == len(fold.ends) < (fold.partition_count or 0), "another partition")
        _require(0 <= at.dropped <= at.dropped_to <= at.end, "more was dropped than there was")
        fold.ends.append(at.end)
        fold.epochs.append(Epochs())
        if at.dropped:
            self.dropped[at.partition] = Dropped(at.dropped_to, at.dropped)

    def _epochs(self, of: EpochsOf) -> None:
        fold = self.fold
        _require(of.partition == len(fold.ends) - 1 and not fold.submitters, "other epochs")
        known = fold.epochs[of.partition].entries
        for entry in of.entries:
            before = known[-1] if known else (-1, -1)
            _require(entry[0] > before[0] and entry[1] > before[1], "epochs that do not ascend")
            known.append(entry)
        _require(not known or known[-1][1] < fold.ends[of.partition], "an epoch beyond the end")

    def _submitter(self, at: SubmitterAt) -> None:
        self.finish()
        _require(at.submitter not in self.fold.submitters, "a submitter twice")
        _require(len(at.digests) == min(at.serial, REMEMBERED), "more digests, or fewer")
        first = at.serial - len(at.digests) + 1
        digests = dict(enumerate(at.digests, first))
        self.fold.submitters[at.submitter] = Submitter(at.incarnation, at.nonce, at.serial, digests)


def restored(records: Iterable[CheckpointRecord]) -> Restored:
    """Return what a checkpoint's counters say.

    Raises:
        LogCorrupt: no fold has such ones.
    """
    whole = Restored()
    for record in records:
        whole.take(record)
    whole.finish()
    return whole


def _require(holds: bool, otherwise: str) -> None:  # noqa: FBT001 - it is what is required
    if not holds:
        raise LogCorrupt(f"counters of a checkpoint that no log has: {otherwise}")
