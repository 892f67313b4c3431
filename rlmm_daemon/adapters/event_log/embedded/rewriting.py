"""Batches over all offsets of a log's beginning, with the records of those events that stay.

Every offset keeps its place and its leader epoch. Where an event was dropped a batch has fewer
records than offsets and says so (`codec.batches.COMPACTED`); where the log had lost one it still
lacks it in a batch that does not. A batch begins at each epoch's first offset, records or not, so
that the epochs can be told from the batches.
"""

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from rlmm_daemon.codec import batches


class Piece(NamedTuple):
    """An encoded batch and its first offset."""

    base_offset: int
    content: bytes


class Rewriter:
    """Takes what stays in the order of offsets; `ready` has the batches that are complete."""

    def __init__(
        self, start: int, epochs: Iterable[tuple[int, int]], *, timestamp_ms: int, bytes_max: int
    ) -> None:
        self.ready: deque[Piece] = deque()
        self._begin = start
        self._epochs = deque(epochs)
        self._epoch = -1
        self._timestamp_ms = timestamp_ms
        self._bytes_max = bytes_max
        self._rows: list[tuple[int, bytes | None]] = []
        self._bytes = 0

    def put(self, offset: int, value: bytes | None) -> None:
        """Take an event that stays; those between it and the one before were dropped."""
        self._go_to(offset)
        size = len(value or b"")
        if self._rows and self._bytes + size > self._bytes_max:
            self._cut(offset, compacted=True)
        self._rows.append((offset, value))
        self._bytes += size

    def lost(self, begin: int, end: int) -> None:
        """Take offsets without a record that nobody vouches for."""
        self._go_to(begin)
        self._cut(begin, compacted=True)
        while self._epochs and self._epochs[0][1] < end:
            self._cut(self._epochs[0][1], compacted=False)
            self._epoch = self._epochs.popleft()[0]
        self._cut(end, compacted=False)

    def close(self, end: int) -> None:
        """Complete the last batch: whatever follows the last event that stays was dropped."""
        self._go_to(end - 1)
        self._cut(end, compacted=True)

    def _go_to(self, offset: int) -> None:
        while self._epochs and self._epochs[0][1] <= offset:
            self._cut(self._epochs[0][1], compacted=True)
            self._epoch = self._epochs.popleft()[0]

    def _cut(self, end: int, *, compacted: bool) -> None:
        """Complete the batch that ends before an offset, if there is any."""
        if end <= self._begin:
            return
        content = batches.build_spanning(
            self._rows,
            base_offset=self._begin,
            next_offset=end,
            leader_epoch=self._epoch,
            timestamp_ms=self._timestamp_ms,
            compacted=compacted,
        )
        self.ready.append(Piece(self._begin, content))
        self._begin, self._rows, self._bytes = end, [], 0
