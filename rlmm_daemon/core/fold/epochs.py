"""The epochs of one user partition, over those of its sealed table: looked at when asked for."""

import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

from rlmm_daemon.codec.record_suffix import Span
from rlmm_daemon.core.fold.epoch_index import EpochIndex

if TYPE_CHECKING:
    from rlmm_daemon.codec.sealed_table import SealedTable


#: Puts an event into an epoch, given with the first and the last offset of its part there.
Put = Callable[[int, int, int], object]


class Epochs:
    """Indexes and highest offsets by epoch."""

    __slots__ = ("_put", "_sealed", "due", "highests", "indexes")

    def __init__(self, sealed: "SealedTable | None" = None) -> None:
        self._sealed = sealed
        #: What was looked at or made; None: nothing is left of that epoch.
        self.indexes: dict[int, EpochIndex | None] = {}
        #: Those that were looked at or set, over the sealed ones.
        self.highests: dict[int, int | None] = {}
        #: First and last offset by epoch, of an event that is not in those epochs yet: it is put
        #: into each when that one is looked at, or some at a time. While there are any no other
        #: event of the user partition is applied.
        self.due: dict[int, tuple[int, int]] = {}
        self._put: Put | None = None

    def defer(self, parts: Iterable[Span], put: Put) -> None:
        """Let an event be put into so many epochs later on, each before it is looked at."""
        assert not self.due, "one event after the other"
        self.due = {epoch: (start, end) for epoch, start, end in parts}
        self._put = put

    def settle(self, epochs_max: int = sys.maxsize) -> None:
        """Put what is due into so many epochs."""
        for epoch in list(islice(self.due, epochs_max)):
            self._settle(epoch)

    def _settle(self, epoch: int) -> None:
        assert self._put is not None, "something is due"
        put, (start, end) = self._put, self.due.pop(epoch)
        if not self.due:
            self._put = None
        put(epoch, start, end)

    def get(self, epoch: int) -> EpochIndex | None:
        """Return an epoch's index while it holds anything."""
        if epoch in self.due:
            self._settle(epoch)
        index = self.indexes.get(epoch)
        if index is not None or self._sealed is None or epoch in self.indexes:
            return index
        sealed = self._sealed.epoch(epoch)
        index = None if sealed is None or sealed.is_empty else EpochIndex(sealed)
        if sealed is not None:  # else any epoch that is asked for would be remembered
            self.indexes[epoch] = index
        return index

    def __getitem__(self, epoch: int) -> EpochIndex:
        index = self.get(epoch)
        if index is None:
            raise KeyError(epoch)
        return index

    def made(self, epoch: int) -> EpochIndex:
        """Return an epoch's index, a new one if it held nothing."""
        index = self.get(epoch)
        if index is None:
            index = self.indexes[epoch] = EpochIndex()
        return index

    def put(self, epoch: int, index: EpochIndex) -> None:
        """Set an epoch's index."""
        self.indexes[epoch] = index

    def drop(self, epoch: int) -> None:
        """Forget an epoch that is empty, but for its highest offset."""
        if self._sealed is None:
            del self.indexes[epoch]
        else:
            self.indexes[epoch] = None

    def __iter__(self) -> Iterator[int]:
        """Yield the epochs that hold anything, ascending."""
        return (epoch for epoch in self.numbers() if self.get(epoch) is not None)

    def items(self) -> Iterator[tuple[int, EpochIndex]]:
        """Yield epochs and their indexes, ascending."""
        for epoch in self.numbers():
            if (index := self.get(epoch)) is not None:
                yield epoch, index

    def values(self) -> Iterator[EpochIndex]:
        """Yield the indexes of the epochs that hold anything, by epoch."""
        return (index for _, index in self.items())

    def numbers(self) -> list[int]:
        """Return all epochs that hold anything or have a highest offset, ascending."""
        known = {
            *self.due,
            *self.highests,
            *(epoch for epoch, index in self.indexes.items() if index),
        }
        if self._sealed is not None:
            known.update(self._sealed.epoch_numbers)
        return sorted(known)

    def highest(self, epoch: int) -> int | None:
        """Return the highest offset that ever finished in an epoch."""
        if epoch in self.due:
            self._settle(epoch)
        found = self.highests.get(epoch)
        if found is None and self._sealed is not None:
            sealed = self._sealed.epoch(epoch)
            found = self.highests[epoch] = None if sealed is None else sealed.highest
            if sealed is None:
                del self.highests[epoch]
        return found

    def newest_highest(self) -> int | None:
        """Return the highest offset of the newest epoch that has one; looks at no older ones."""
        found = map(self.highest, reversed(self.numbers()))
        return next((offset for offset in found if offset is not None), None)

    def set_highest(self, epoch: int, offset: int) -> None:
        """Note that `offset` is the highest now."""
        self.highests[epoch] = offset

    def highest_offsets(self) -> dict[int, int]:
        """Return all highest offsets, epochs ascending."""
        found = ((epoch, self.highest(epoch)) for epoch in self.numbers())
        return {epoch: offset for epoch, offset in found if offset is not None}
