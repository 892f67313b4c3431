"""The replica's own log as far as consensus asks: its ends, its epochs, its snapshots."""

from bisect import bisect_right
from typing import Final

import msgspec

from rlmm_daemon.core.raft.voters import VoterSet


class LogPoint(msgspec.Struct, frozen=True, order=True):
    """An epoch and the end that it reaches: two logs compare by the epoch, then by the end."""

    epoch: int
    end: int


BEGINNING: Final = LogPoint(0, 0)


class Batch(msgspec.Struct, frozen=True):
    """A record batch: where it begins, how many offsets it takes, in which epoch it was written."""

    base: int
    count: int
    epoch: int
    #: The voters and the kraft.version that a control record in it sets.
    voters: VoterSet | None = None
    kraft_version: int | None = None
    #: The bytes, for the shell.
    payload: object = None

    @property
    def end(self) -> int:
        """The offset behind its last record."""
        return self.base + self.count


class LogFacts(msgspec.Struct, frozen=True):
    """What a log holds: everything before `synced` is on the disk, and up to `end` is written."""

    start: int = 0
    end: int = 0
    synced: int = 0
    #: Ascending (epoch, first offset).
    epochs: tuple[tuple[int, int], ...] = ()
    #: Complete snapshots, ascending; what they end at is the epoch and end of a log point.
    snapshots: tuple[LogPoint, ...] = ()

    @property
    def last(self) -> LogPoint:
        """Where it ends: what a vote compares."""
        return LogPoint(self.last_epoch, self.end)

    @property
    def last_epoch(self) -> int:
        """The epoch of its last record, or of the snapshot that it begins behind."""
        if self.epochs:
            return self.epochs[-1][0]
        return self.snapshots[-1].epoch if self.snapshots else 0

    def epoch_end(self, epoch: int) -> LogPoint:
        """Return the largest known epoch up to `epoch`, and where it ends.

        An epoch before all that are known ends where the first of them begins. A log without any
        answers its own end.

        Source: `KafkaRaftLog.endOffsetForEpoch`, `LeaderEpochFileCache.endOffsetFor`.
        """
        known = self._known(epoch)
        if known is not None:
            return known
        return LogPoint(epoch, self.start) if self.epochs else self.last

    def _known(self, epoch: int) -> LogPoint | None:
        found = bisect_right(self.epochs, (epoch, 1 << 62)) - 1
        if found >= 0:
            last = found == len(self.epochs) - 1
            return LogPoint(self.epochs[found][0], self.end if last else self.epochs[found + 1][1])
        if self.snapshots and self.snapshots[0].epoch <= epoch:
            return LogPoint(self.snapshots[0].epoch, self.start)
        return None

    def leads_to(self, point: LogPoint) -> bool:
        """Whether the log holds this history: that epoch, up to that offset at least."""
        if point.end == self.start == 0:
            return True
        reached = self.epoch_end(point.epoch)
        return reached.epoch == point.epoch and point.end <= reached.end

    def common_end(self, diverging: LogPoint) -> int:
        """Return where to cut, after a leader named its largest epoch up to ours, and its end.

        Where this log has no epoch up to that one, nothing of it is common.

        Source: `KafkaRaftLog.truncateToEndOffset`, which would cut nothing there.
        """
        own = self._known(diverging.epoch)
        if own is None:
            return self.start
        return min(diverging.end, own.end) if own.epoch == diverging.epoch else own.end

    def needed_snapshot(self, point: LogPoint) -> LogPoint | None:
        """Return the snapshot that a replica at this point has to fetch before it may go on."""
        newest = self.snapshots[-1] if self.snapshots else None
        if newest is None or newest == BEGINNING:
            return None
        oldest = self.snapshots[0]
        if point.end == 0 or point.end < self.start or point.epoch < oldest.epoch:
            return newest
        if point.end == self.start and point.epoch != oldest.epoch:
            return newest
        return None

    def append(self, batch: Batch) -> "LogFacts":
        """Return it with a batch written at its end."""
        assert batch.base == self.end, "a log has no gaps"
        assert batch.epoch >= self.last_epoch, "epochs never decrease along a log"
        epochs = self.epochs
        if not epochs or batch.epoch > epochs[-1][0]:
            epochs = (*epochs, (batch.epoch, batch.base))
        return LogFacts(self.start, batch.end, self.synced, epochs, self.snapshots)

    def truncate(self, end: int) -> "LogFacts":
        """Return it without what stood at `end` or behind."""
        epochs = tuple(entry for entry in self.epochs if entry[1] < end)
        kept = tuple(point for point in self.snapshots if point.end <= end)
        return LogFacts(self.start, end, min(self.synced, end), epochs, kept)

    def sync(self, end: int) -> "LogFacts":
        """Return it with everything before `end` on the disk."""
        return LogFacts(self.start, self.end, end, self.epochs, self.snapshots)

    def with_snapshot(self, point: LogPoint) -> "LogFacts":
        """Return it with one snapshot more."""
        kept = tuple(sorted({*self.snapshots, point}))
        return LogFacts(self.start, self.end, self.synced, self.epochs, kept)

    def begin_at(self, oldest: LogPoint) -> "LogFacts":
        """Return it from a snapshot's end on: what lies before it was removed."""
        assert oldest in self.snapshots, "a log begins at 0, or where a snapshot ends"
        kept = tuple(point for point in self.snapshots if point >= oldest)
        after = tuple(entry for entry in self.epochs if entry[1] >= oldest.end)
        current = self.epoch_at(oldest.end)
        if current is not None and not (after and after[0][1] == oldest.end):
            after = ((current, oldest.end), *after)
        return LogFacts(oldest.end, self.end, self.synced, after, kept)

    def epoch_at(self, offset: int) -> int | None:
        """Return the epoch of the record at an offset."""
        if not self.start <= offset < self.end:
            return None
        found = [epoch for epoch, first in self.epochs if first <= offset]
        return found[-1] if found else None


def emptied_to(snapshot: LogPoint) -> LogFacts:
    """Return a log of which nothing is left but this snapshot, which was just fetched."""
    return LogFacts(snapshot.end, snapshot.end, snapshot.end, (), (snapshot,))
