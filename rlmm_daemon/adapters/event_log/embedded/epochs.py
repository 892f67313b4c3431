"""Epoch history of an embedded partition: its answer to OffsetForLeaderEpoch.

The sealed files' entries are kept in Kafka's `leader-epoch-checkpoint` form (a version, a count,
one `epoch offset` per line); those of the newest file are read from its batches. A checkpoint is
written before a file follows the one it covers, so a crash loses none.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Final

from rlmm_daemon.codec.kraft import line_checkpoint
from rlmm_daemon.domain.errors import Malformed
from rlmm_daemon.ports.event_log import EpochEnd

#: Half of what an epoch's bits can say: where no state tells, one far beyond is damage, and those
#: that follow have room.
EPOCH_MAX: Final = 2**30 - 1
#: Steps of cuts are smaller, and no first step of an open is one bit alone.
_STEPS: Final = 1_024
#: So far beyond what a state names as newest a batch may be: the state may have been put back.
_BEHIND_MAX: Final = 1 << 24


def is_one_bit_off(epoch: int, known: int) -> bool:
    """Whether one flipped bit, of those above the steps of cuts, makes one epoch of the other."""
    apart = epoch ^ known
    return apart >= _STEPS and apart.bit_count() == 1


class EpochHistory:
    """Ascending (epoch, first offset) pairs. At most one per restart or cut that wrote at all."""

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self._entries: list[tuple[int, int]] = []
        for epoch, start in entries:
            self.note(epoch, start)

    @property
    def entries(self) -> tuple[tuple[int, int], ...]:
        """The pairs."""
        return tuple(self._entries)

    @property
    def latest(self) -> int:
        """The newest epoch, -1 before the first record."""
        return self._entries[-1][0] if self._entries else -1

    def note(self, epoch: int, offset: int) -> None:
        """Learn that the batch at `offset` was written in `epoch`; only the first one counts."""
        if epoch > self.latest:
            self._entries.append((epoch, offset))

    def learn(self, batches: Sequence[tuple[int, int]], *, newest_epoch: int) -> None:
        """Learn of batches in a row, each an epoch and its offset; `newest_epoch` was begun last.

        An epoch lies outside of its batch's CRC. One that is damaged is passed over: it belongs to
        the batches before it, since epochs never decrease along a log.
        """
        for index, (epoch, offset) in enumerate(batches):
            after = [later for later, _ in batches[index + 1 : index + 3]]
            if not (self._contradict(after, epoch) or self._flipped(after, epoch, newest_epoch)):
                self.note(epoch, offset)

    def _contradict(self, after: Sequence[int], epoch: int) -> bool:
        """Whether the next batches say that what is known goes on, or that an earlier one begins.

        Of two of which either may be damaged, the one that goes on with what is known is whole.
        """
        if epoch > self.latest >= 0 and self.latest in after:
            return True
        sole = len(after) == 1 and not 0 <= self.latest <= after[0]
        return bool(after) and not sole and all(epoch > later for later in after)

    def _flipped(self, after: Sequence[int], epoch: int, newest_epoch: int) -> bool:
        """Whether a batch alone bears an epoch that is one bit off, or was never begun at all.

        What more than one bears was begun, though `newest_epoch` be an older state's.
        """
        if epoch in after:
            return False
        odd = any(is_one_bit_off(epoch, known) for known in (self.latest, newest_epoch))
        return odd or epoch > newest_epoch + _BEHIND_MAX

    def epoch_of(self, offset: int) -> int:
        """Return the epoch that wrote an offset of the log, -1 if nobody knows."""
        found = bisect_right(self._entries, offset, key=itemgetter(1))
        return self._entries[found - 1][0] if found else -1

    def end_of(self, epoch: int, log_end: int) -> EpochEnd:
        """Return the largest known epoch up to `epoch`, and where it ends."""
        found = bisect_right(self._entries, epoch, key=itemgetter(0))
        if not found:
            return EpochEnd(epoch=-1, end_offset=-1)
        end = self._entries[found][1] if found < len(self._entries) else log_end
        return EpochEnd(epoch=self._entries[found - 1][0], end_offset=end)


def encode(entries: Iterable[tuple[int, int]]) -> bytes:
    """Return Kafka's checkpoint text."""
    return line_checkpoint.encode(entries)


def decode(data: bytes) -> list[tuple[int, int]] | None:
    """Return the pairs of a checkpoint, or None if it is not one: it can be made anew."""
    try:
        rows = line_checkpoint.decode(data, fields=2)
        return [(int(epoch), int(start)) for epoch, start in rows]
    except (Malformed, ValueError):
        return None
