"""Listings and sizes of user partitions with many segments, drawn in short steps.

A walk says what was true when it was made, whatever is applied while it is drawn, as Kafka's
listing is a copy: references, changes and what hides a row are copied at once, which is little
beside the records; the sealed table never changes. `PartitionCache` says the same in one go, and a
test holds both equal.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from itertools import islice, pairwise
from typing import Final, Generic, TypeVar

from rlmm_daemon.codec import record_suffix as tails
from rlmm_daemon.core.fold.cache import PartitionCache
from rlmm_daemon.core.fold.epoch_index import EpochIndex
from rlmm_daemon.core.fold.segment_table import SegmentTable
from rlmm_daemon.domain.ids import SegmentId

#: Segments of one step, which takes about 0.2 ms.
SEGMENTS_AT_ONCE: Final = 128
T = TypeVar("T")
_Ref = SegmentId | int


class Walk(Generic[T]):
    """An answer in pieces, to be joined or summed; some may be empty."""

    __slots__ = ("is_long", "pieces")

    def __init__(self, pieces: Iterable[T], *, is_long: bool = False) -> None:
        self.pieces: Iterator[T] = iter(pieces)
        #: Whether others should have a turn between two pieces.
        self.is_long = is_long


def listing(cache: PartitionCache, epoch: int | None) -> Walk[list[bytes]]:
    """Return what `list_epoch` does, or `list_all` where no epoch is named."""
    stored = cache.segments
    if epoch is None:
        if len(stored) <= SEGMENTS_AT_ONCE:
            return Walk([cache.list_all()])
        table = stored.frozen()
        return Walk(_records(table, _all(table)), is_long=True)
    index = cache.epochs.get(epoch)
    if index is None:
        return Walk([])
    if index.listed <= SEGMENTS_AT_ONCE:
        table = stored
        found = [table.record(ref) for refs in _in_order(table, index) for ref in refs]
        return Walk([found])
    table, index = stored.frozen(), index.frozen()
    return Walk(_records(table, _in_order(table, index)), is_long=True)


def size(cache: PartitionCache, epoch: int) -> Walk[int]:
    """Return what `PartitionCache.size` does, to be summed."""
    index = cache.epochs.get(epoch)
    if index is None:
        return Walk([])
    if index.listed <= SEGMENTS_AT_ONCE:
        return Walk([sum(_sizes(cache.segments, index))])
    if not index.third and all(each is index for each in cache.epochs.values()):
        return Walk([sum(cache.bytes_by_state)])  # each segment is listed, and here
    return Walk(_sizes(cache.segments.frozen(), index.frozen()), is_long=True)


def _records(table: SegmentTable, found: Iterable[Sequence[_Ref]]) -> Iterator[list[bytes]]:
    piece = list[bytes]()
    for refs in found:
        piece += map(table.record, refs)
        if not refs or len(piece) >= SEGMENTS_AT_ONCE:
            yield piece
            piece = []
    yield piece


def _sizes(table: SegmentTable, index: EpochIndex) -> Iterator[int]:
    for refs in _listed(index):
        yield sum(tails.size_of(table.tail(ref)) for ref in refs)


def _all(table: SegmentTable) -> Iterator[Sequence[_Ref]]:
    """Yield all segments by start offset, then id; nothing now and then, for a turn."""
    for run in table.runs():
        if run is None:
            yield ()
        elif isinstance(run, tuple):
            for low in range(*run, SEGMENTS_AT_ONCE):
                yield range(low, min(low + SEGMENTS_AT_ONCE, run[1]))
        else:
            for low in range(0, len(run), SEGMENTS_AT_ONCE):
                yield run[low : low + SEGMENTS_AT_ONCE]


def _in_order(table: SegmentTable, index: EpochIndex) -> Iterator[Sequence[_Ref]]:
    """Yield an epoch's listing in Kafka's order; nothing now and then, for a turn."""
    if not index.unreferenced:
        yield from _listed(index)
        return
    # Kafka sorts by the segment's own start, and only if there is something to merge in. What is
    # listed consists of few runs that ascend: the referenced ones, and the others as they came.
    found, starts, cuts = list[_Ref](), array("q"), [0]
    for refs in _listed(index):
        for ref in refs:
            start = tails.start_of(table.tail(ref))
            if starts and start < starts[-1]:
                cuts.append(len(starts))
            starts.append(start)
        found += refs
        yield ()
    cuts.append(len(starts))
    runs = (zip(starts[low:high], range(low, high), strict=True) for low, high in pairwise(cuts))
    ordered = (found[at] for _, at in merge(*runs))
    while refs := list(islice(ordered, SEGMENTS_AT_ONCE)):
        yield refs


def _listed(index: EpochIndex) -> Iterator[Sequence[_Ref]]:
    """Yield what an epoch's listing holds: the referenced ones ascending, then the others."""
    if index.referenced is None:
        for refs in index.cover.owners():
            for at in range(0, len(refs), SEGMENTS_AT_ONCE):
                yield refs[at : at + SEGMENTS_AT_ONCE]
    else:
        referenced = (ref for _, ref in index.referenced.refs())
        while refs := list(islice(referenced, SEGMENTS_AT_ONCE)):
            yield refs
    others = iter(index.unreferenced)
    while refs := list(islice(others, SEGMENTS_AT_ONCE)):
        yield refs
