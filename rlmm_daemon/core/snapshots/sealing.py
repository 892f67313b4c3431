"""Sealing of a fold into a snapshot's tables (`unsealing` is the way back).

What is loaded behaves as what was written. Everything that decides a later answer is stored, orders
included; counters of passed-over and rejected records are not, they count since the process began.
A table over which nothing changed is passed on as it is; where something changed, its columns are
copied in runs, and only what changed is made anew.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Generator, Iterable, Iterator
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Final

from rlmm_daemon.codec import record_suffix as tails
from rlmm_daemon.codec import snapshot
from rlmm_daemon.codec.snapshot import Header, TableImage
from rlmm_daemon.codec.snapshot_table import EpochTable, PartitionTable
from rlmm_daemon.core.fold import id_order
from rlmm_daemon.core.fold.cache import PartitionCache
from rlmm_daemon.core.fold.epoch_index import EpochIndex
from rlmm_daemon.core.fold.fold import Fold
from rlmm_daemon.core.fold.segment_table import LOOKS_AT_ONCE
from rlmm_daemon.core.fold.user_partitions import Sleeping
from rlmm_daemon.core.partitioner import PARTITIONER_ID
from rlmm_daemon.domain.ids import UUID_BYTES, SegmentId, TopicId

if TYPE_CHECKING:
    from rlmm_daemon.codec.sealed_table import SealedTable

#: Rows that are worked on in one go, between two chances for the caller to pause.
ROWS_AT_ONCE: Final = 512
#: Copied runs of numbers cost far less than rows that are made anew.
NUMBERS_AT_ONCE: Final = 2048
_GONE: Final = 0xFFFF_FFFF


def header_of(
    fold: Fold, *, cluster_id: str | None, topic_id: TopicId, created_at_ms: int
) -> Header:
    """Return the header for a snapshot of `fold` as it is now."""
    return Header(
        cluster_id=cluster_id,
        topic_id=topic_id,
        metadata_partition=fold.partition,
        partition_count=fold.partition_count,
        partitioner_id=PARTITIONER_ID,
        next_offset=fold.position,
        leader_epoch=fold.leader_epoch,
        created_at_ms=created_at_ms,
    )


def write_chunks(fold: Fold, header: Header) -> Iterator[bytes | memoryview]:
    """Yield the snapshot file in pieces of at most 256 KiB, one user partition's table at a time.

    Empty pieces come between steps of a long table. The caller may answer reads between two
    pieces, but must not let the fold advance from the first piece to the last: the header names
    one offset for all tables. That is asserted.
    """
    for piece in snapshot.encode_file(header, _images(fold)):
        assert fold.position == header.next_offset, "the fold moved under its snapshot"
        yield piece


def _images(fold: Fold) -> Iterator[TableImage | None]:
    for partition in list(fold.partitions):
        cache = fold.partitions.peek(partition)  # at its turn: somebody may have woken it by now
        assert cache is not None, "a user partition is never forgotten"
        if isinstance(cache, Sleeping):
            if not cache.aside_events:
                yield snapshot.image_of_entry(cache.image.buffer, cache.entry)
                continue
            cache = fold.partitions.wake(cache)
        table = yield from steps(cache)
        yield snapshot.image_of(table)


def steps(cache: PartitionCache) -> Generator[None, None, PartitionTable]:
    """Make one user partition's columns in short steps, and return them at the end."""
    rows = _Rows(cache)
    yield from rows.fill()
    kept = yield from _kept(cache, rows)
    epochs = list[EpochTable]()
    for number in cache.epochs.numbers():
        epoch = yield from _seal_epoch(cache, number, rows)
        if epoch is not None:
            epochs.append(epoch)
    return PartitionTable(
        partition=cache.partition,
        delete_state=cache.delete_state,
        writer=cache.writer,
        ids=rows.ids,
        offs=rows.offs,
        states=rows.states,
        id_order=rows.order,
        heap=rows.heap,
        kept=kept,
        held=sorted(cache.held.items()),
        strays=sorted((segment_id, sorted(of)) for segment_id, of in cache.strays.items()),
        epochs=epochs,
        segment_bytes=(cache.bytes_by_state[0], cache.bytes_by_state[1], cache.bytes_by_state[2]),
    )


def _kept(cache: PartitionCache, rows: "_Rows") -> Generator[None, None, list[tuple[int, bytes]]]:
    """Return the custom metadata that records have lost, by row."""
    sealed, changed = cache.segments.sealed, cache.kept
    found = list[tuple[int, bytes]]()
    for at, row in enumerate(() if sealed is None else sealed.kept_rows):
        assert sealed is not None, "only a sealed table has rows"
        if sealed.id(row) not in changed:
            found.append((rows.of_sealed(row), sealed.kept_at(at)))
        if at % LOOKS_AT_ONCE == 0:
            yield
    for at, (segment_id, custom) in enumerate(changed.items()):
        if custom is not None:
            found.append((rows.of(segment_id), custom))
        if at % LOOKS_AT_ONCE == 0:
            yield
    found.sort()
    return found


class _Rows:
    """The rows of the new table, and where those of the old one went."""

    def __init__(self, cache: PartitionCache) -> None:
        self._segments = cache.segments
        self._sealed = cache.segments.sealed
        self.ids = bytearray()
        self.offs = array("I", [0])
        self.states = bytearray()
        self.heap: list[bytes] = []
        #: The rows by id.
        self.order = array("I")
        #: Old row -> new row.
        self._moved = array("I")
        #: Segments that are not where the old table has them, and their rows; if there is one.
        self._fresh_ids = bytearray()
        self._fresh_rows = array("I")
        #: Behind the rows that were asked for last: what is asked for next often stands there.
        self._next = 0

    def of(self, segment_id: SegmentId) -> int:
        """Return a segment's row. One bisect."""
        row = self.order[bisect_left(self.order, segment_id, key=self.id)]
        assert self.id(row) == segment_id, "every segment has a row"
        return row

    def id(self, row: int) -> SegmentId:
        """Return a row's segment id."""
        return SegmentId(bytes(self.ids[UUID_BYTES * row : UUID_BYTES * (row + 1)]))

    def of_all(self, ids: Iterable[SegmentId]) -> "Generator[None, None, array[int]]":
        """Return the rows of segments; those that stand here one behind the other cost little."""
        found, left = array("I"), iter(ids)
        while run := list(islice(left, ROWS_AT_ONCE)):
            if (rows := self._in_a_row(run, self._next)) is not None:
                found.extend(rows)
                yield
                continue
            for at in range(0, len(run), LOOKS_AT_ONCE):
                part = run[at : at + LOOKS_AT_ONCE]
                rows = self._in_a_row(part, self.of(part[0]))
                found.extend(map(self.of, part) if rows is None else rows)
                self._next = found[-1] + 1
                yield
        return found

    def _in_a_row(self, ids: list[SegmentId], row: int) -> range | None:
        """Return the rows from `row` on if they are those of `ids`."""
        if not self.ids.startswith(b"".join(ids), UUID_BYTES * row):
            return None
        self._next = row + len(ids)
        return range(row, self._next)

    def of_sealed(self, row: int) -> int:
        """Return the new row of the segment that had this row."""
        found = self._moved[row]
        if found == _GONE:
            assert self._sealed is not None, "only a sealed table has rows"
            found = self.of(self._sealed.id(row))
        return found

    def fill(self) -> Iterator[None]:
        """Make ids, offsets, states and heap, and put the rows in the ids' order."""
        sealed, fresh = self._sealed, list[SegmentId]()
        if sealed is not None:
            self._moved = array("I", [_GONE]) * sealed.rows
            yield
        for run in self._segments.runs():
            if run is None:
                yield
            elif isinstance(run, tuple):
                self._take(fresh)
                fresh = []
                assert sealed is not None, "runs are of sealed rows"
                for low in range(run[0], run[1], NUMBERS_AT_ONCE):
                    self._copy(sealed, low, min(low + NUMBERS_AT_ONCE, run[1]))
                    yield
            else:
                fresh += run
                if len(fresh) >= ROWS_AT_ONCE:
                    self._take(fresh)
                    fresh = []
                    yield
        self._take(fresh)
        yield from self._put_in_order()

    def _take(self, fresh: list[SegmentId]) -> None:
        """Append segments that are not in the old table."""
        if not fresh:
            return
        kept = self._segments.changed_tails(fresh)
        assert len(kept) == len(fresh), "they are all there"
        ids, heap, size = b"".join(fresh), b"".join(kept), len(kept[0])
        if self._sealed is not None:
            self._fresh_ids += ids
            self._fresh_rows.extend(range(len(self.states), len(self.states) + len(fresh)))
        self.ids += ids
        if set(map(len, kept)) == {size}:
            behind = self.offs[-1] + size
            self.states += tails.states_of(kept, heap, size)
            self.offs.extend(range(behind, behind + len(heap), size))
        else:
            self.states += bytes(map(tails.state_of, kept))
            self.offs.extend(islice(accumulate(map(len, kept), initial=self.offs[-1]), 1, None))
        self.heap.append(heap)

    def _copy(self, sealed: "SealedTable", low: int, high: int) -> None:
        first = len(self.states)
        self._moved[low:high] = array("I", range(first, first + high - low))
        self.ids += sealed.ids(low, high)
        self.states += sealed.states(low, high)
        shift = self.offs[-1] - sealed.offs[low]
        offs = sealed.offs[low + 1 : high + 1]
        if shift:
            self.offs.extend([at + shift for at in offs])
        else:
            self.offs.frombytes(offs.tobytes())
        self.heap.append(sealed.heap(low, high))

    def _put_in_order(self) -> Iterator[None]:
        """Put the rows in the ids' order: the old one without what is gone, the rest sorted in."""
        sealed, row_of = self._sealed, self._fresh_rows.__getitem__
        if sealed is None:
            for part in id_order.ordered(self.ids):
                self.order.extend(part)
                yield
            return
        old, at = sealed.id_order, 0
        for part in id_order.ordered(self._fresh_ids):
            if at == len(old):
                self.order.extend(map(row_of, part))
                yield
                continue
            for looks, index in enumerate(part):
                if at < len(old):
                    if looks % LOOKS_AT_ONCE == LOOKS_AT_ONCE - 1:
                        yield
                    behind = bisect_left(old, self.id(row_of(index)), lo=at, key=sealed.id)
                    yield from self._extend(old, at, behind)
                    at = behind
                self.order.append(row_of(index))
            yield
        yield from self._extend(old, at, len(old))

    def _extend(self, old: memoryview, low: int, high: int) -> Iterator[None]:
        moved = self._moved
        for first in range(low, high, NUMBERS_AT_ONCE):
            part = old[first : min(first + NUMBERS_AT_ONCE, high)]
            self.order.extend([row for at in part if (row := moved[at]) != _GONE])
            if len(part) == NUMBERS_AT_ONCE:
                yield


def _seal_epoch(
    cache: PartitionCache, epoch: int, rows: _Rows
) -> Generator[None, None, EpochTable | None]:
    """Make an epoch's columns; None if nothing is left of it, not even a highest offset."""
    table = EpochTable(epoch=epoch, highest=cache.epochs.highest(epoch))
    index = cache.epochs.get(epoch)
    if index is None:
        return None if table.highest is None else table
    table.reach = index.cover.reach
    yield from _seal_cover(index, table, rows, cache)
    table.unreferenced = yield from rows.of_all(index.unreferenced)
    table.third = yield from rows.of_all(index.third)
    table.ranked = yield from rows.of_all(index.ranks)
    table.plain = yield from _is_uniform(index)
    if not table.plain:
        assert index.referenced is not None, "apart from the cover"
        referenced = index.referenced.refs()
        while part := list(islice(referenced, ROWS_AT_ONCE)):
            own = yield from rows.of_all(ref for _, ref in part if not isinstance(ref, int))
            found = iter(own)
            for key, ref in part:
                table.keys.append(key)
                table.key_rows.append(rows.of_sealed(ref) if isinstance(ref, int) else next(found))
            yield
    return table


def _seal_cover(
    index: EpochIndex, table: EpochTable, rows: _Rows, cache: PartitionCache
) -> Iterator[None]:
    """Copy the pieces of both layers; where one ends, say anew whether the walk breaks there."""
    cover = index.cover
    own = cover.own
    for is_sealed, low, high in cover.runs():
        first = len(table.starts)
        if is_sealed:
            sealed = cover.sealed
            assert sealed is not None, "a sealed run"
            _rejoin(table, sealed.starts[low], cache, rows)
            for begin in range(low, high, NUMBERS_AT_ONCE):
                end = min(begin + NUMBERS_AT_ONCE, high)
                table.starts.frombytes(sealed.starts[begin:end].tobytes())
                table.ends.frombytes(sealed.ends[begin:end].tobytes())
                table.rows.extend([rows.of_sealed(row) for row in sealed.rows[begin:end]])
                yield
            _shift(table.txn, sealed.txn, low, high, first=first)
            _shift(table.breaks, sealed.breaks, low, high - 1, first=first)
        else:
            _rejoin(table, own.starts[low], cache, rows)
            for begin in range(low, high, ROWS_AT_ONCE):
                end = min(begin + ROWS_AT_ONCE, high)
                table.starts += own.starts[begin:end]
                table.ends += own.ends[begin:end]
                table.rows.extend((yield from rows.of_all(own.ids[begin:end])))
                table.txn.extend(_places(own.txn, own.starts, begin, end, shift=first - low))
                last = min(end, high - 1)
                table.breaks.extend(_places(own.breaks, own.starts, begin, last, shift=first - low))
                yield
    _rejoin(table, None, cache, rows)


def _is_uniform(index: EpochIndex) -> Generator[None, None, bool]:
    """Return whether the cover is exactly Kafka's referenced set."""
    referenced, cover = index.referenced, index.cover
    if referenced is None:
        return True
    if index.ranks or index.third or len(referenced) != len(cover):
        return False
    for at, (mine, theirs) in enumerate(zip(referenced.items(), cover.items(), strict=True)):
        if mine != theirs:
            return False
        if at % ROWS_AT_ONCE == 0:
            yield
    return True


def _places(
    column: "array[int]", starts: "array[int]", low: int, high: int, *, shift: int
) -> list[int]:
    """Return where the pieces low..high-1 that a column of starts names stand in the new table."""
    if low >= high:
        return []
    begin = bisect_left(column, starts[low])
    end = bisect_right(column, starts[high - 1], lo=begin)
    return [bisect_left(starts, start, lo=low, hi=high) + shift for start in column[begin:end]]


def _shift(into: "array[int]", column: memoryview, low: int, high: int, *, first: int) -> None:
    begin = bisect_left(column, low)
    end = bisect_left(column, high, lo=begin)
    into.extend([at - low + first for at in column[begin:end]])


def _rejoin(table: EpochTable, following: int | None, cache: PartitionCache, rows: _Rows) -> None:
    """Say whether the walk breaks behind the last piece so far, which `following` comes after."""
    if not table.starts:
        return
    last = len(table.starts) - 1
    segment_end = cache.facts(rows.id(table.rows[last]))[0]
    if segment_end != table.ends[last] or (following is not None and following != segment_end + 1):
        table.breaks.append(last)
