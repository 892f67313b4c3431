"""Leader epochs that wrote to one metadata partition, and where each began."""

from bisect import bisect_right
from operator import itemgetter


class Epochs:
    """Ascending (epoch, first offset) pairs; an epoch that wrote nothing here has none."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, int]] = []

    def note(self, epoch: int, offset: int) -> None:
        """Learn that the record at `offset`, behind all others, was written in `epoch`."""
        if not self.entries or epoch > self.entries[-1][0]:
            self.entries.append((epoch, offset))

    def epoch_of(self, offset: int) -> int:
        """Return the epoch that wrote an offset; -1 before the first one."""
        found = bisect_right(self.entries, offset, key=itemgetter(1))
        return self.entries[found - 1][0] if found else -1

    def end_of(self, epoch: int, log_end: int) -> tuple[int, int]:
        """Return the largest known epoch up to `epoch`, and where it ends; (-1, -1) for none."""
        found = bisect_right(self.entries, epoch, key=itemgetter(0))
        if not found:
            return -1, -1
        end = self.entries[found][1] if found < len(self.entries) else log_end
        return self.entries[found - 1][0], end
