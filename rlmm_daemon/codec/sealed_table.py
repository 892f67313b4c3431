"""A user partition's table in a mapped snapshot file, answered from in place.

What the columns say is trusted: the table's checksum was held against the directory's before, and
only this program writes such files. Nothing here is kept per segment. Layout: `snapshot_table`.
"""

import sys
from bisect import bisect_left
from itertools import islice
from typing import Final, Literal

from rlmm_daemon.codec.snapshot import Mapped, TableEntry
from rlmm_daemon.codec.snapshot_table import (
    ALIGNMENT,
    EPOCH,
    HAS_HIGHEST,
    HAS_RARE,
    HAS_WRITER,
    PLAIN,
    SIZE,
    TABLE,
    Rare,
    decode_rare,
)
from rlmm_daemon.domain.errors import Malformed
from rlmm_daemon.domain.ids import UUID_BYTES, SegmentId

#: The columns are little-endian, and nothing is converted here.
SUPPORTED: Final = sys.byteorder == "little"
#: A column of numbers, in the file.
Column = memoryview


class SealedTable:
    """The segments of one user partition as of its snapshot, by row: (start offset, id)."""

    __slots__ = (
        "_buffer",
        "_epoch_places",
        "_heap_at",
        "_ids_at",
        "_kept_at",
        "_kept_offs",
        "_kept_rows",
        "_states_at",
        "_table_at",
        "_view",
        "entry",
        "epoch_numbers",
        "id_order",
        "offs",
        "rare",
        "rows",
        "writer",
    )

    def __init__(self, buffer: bytes | Mapped, entry: TableEntry) -> None:
        """Take up where the columns are.

        Raises:
            Malformed: they do not fit the table's bytes.
        """
        self._buffer = buffer
        self.entry = entry
        self._table_at = entry.at
        self._view = memoryview(buffer)[: entry.at + entry.size]
        sections = _Sections(self._view, entry.at)
        if entry.size < TABLE.size:
            raise Malformed("a table is cut short")
        rows, epochs, kept, heap, writer, flags, _ = TABLE.unpack_from(
            buffer, sections.skip(TABLE.size)
        )
        self.rows: int = rows
        self.writer: int | None = writer if flags & HAS_WRITER else None
        self.epoch_numbers = sections.column("i", epochs)
        self._epoch_places = sections.column("Q", epochs)
        self._ids_at = sections.skip(UUID_BYTES * rows)
        self.offs = sections.column("I", rows + 1)
        self._states_at = sections.skip(rows)
        self.id_order = sections.column("I", rows)
        self._kept_rows = sections.column("I", kept)
        self._kept_offs = sections.column("I", kept + 1)
        self._kept_at = sections.skip(self._kept_offs[kept])
        self._heap_at = sections.skip(heap)
        #: None almost always.
        self.rare: Rare | None = None
        if flags & HAS_RARE:
            (size,) = SIZE.unpack_from(buffer, sections.skip(SIZE.size))
            at = sections.skip(size)
            self.rare = decode_rare(buffer[at : at + size])

    def id(self, row: int) -> SegmentId:
        """Return a row's segment id."""
        at = self._ids_at + UUID_BYTES * row
        return SegmentId(self._buffer[at : at + UUID_BYTES])

    def tail(self, row: int) -> bytes:
        """Return a row's record behind the segment id (`codec.record_suffix`)."""
        offs, at = self.offs, self._heap_at
        return self._buffer[at + offs[row] : at + offs[row + 1]]

    def row_of(self, segment_id: SegmentId) -> int:
        """Return a segment's row, or -1. One bisect."""
        order = self.id_order
        at = bisect_left(order, segment_id, key=self.id)
        if at == len(order) or self.id(order[at]) != segment_id:
            return -1
        return order[at]

    def ids(self, low: int, high: int) -> bytes:
        """Return the ids of rows low..high-1, joined."""
        return self._buffer[self._ids_at + UUID_BYTES * low : self._ids_at + UUID_BYTES * high]

    def states(self, low: int, high: int) -> bytes:
        """Return the states of rows low..high-1."""
        return self._buffer[self._states_at + low : self._states_at + high]

    def heap(self, low: int, high: int) -> bytes:
        """Return the tails of rows low..high-1, joined."""
        at = self._heap_at
        return self._buffer[at + self.offs[low] : at + self.offs[high]]

    def kept(self, row: int) -> bytes | None:
        """Return the custom metadata that a row's record has lost."""
        at = bisect_left(self._kept_rows, row)
        there = at < len(self._kept_rows) and self._kept_rows[at] == row
        return self.kept_at(at) if there else None

    def kept_at(self, index: int) -> bytes:
        """Return the custom metadata that the record of `kept_rows[index]` has lost."""
        begin, end = self._kept_offs[index], self._kept_offs[index + 1]
        return self._buffer[self._kept_at + begin : self._kept_at + end]

    @property
    def kept_rows(self) -> Column:
        """The rows that `kept` answers for, ascending."""
        return self._kept_rows

    def epoch(self, number: int) -> "SealedEpoch | None":
        """Return one epoch's columns."""
        at = bisect_left(self.epoch_numbers, number)
        if at == len(self.epoch_numbers) or self.epoch_numbers[at] != number:
            return None
        return SealedEpoch(self, self._view, self._table_at + self._epoch_places[at])

    def newest_highest(self) -> int | None:
        """Return the highest offset of the newest epoch that has one."""
        for number in reversed(self.epoch_numbers):
            epoch = self.epoch(number)
            if epoch is not None and epoch.highest is not None:
                return epoch.highest
        return None


class SealedEpoch:
    """One epoch's columns; what each holds: `snapshot_table.EpochTable`."""

    __slots__ = (
        "breaks",
        "ends",
        "highest",
        "key_rows",
        "keys",
        "plain",
        "ranked",
        "reach",
        "rows",
        "starts",
        "table",
        "third",
        "txn",
        "unreferenced",
    )

    def __init__(self, table: SealedTable, view: memoryview, at: int) -> None:
        self.table = table
        sections = _Sections(view, at)
        _, flags, highest, reach, *counts = EPOCH.unpack_from(view, sections.skip(EPOCH.size))
        self.highest: int | None = highest if flags & HAS_HIGHEST else None
        self.plain = bool(flags & PLAIN)
        self.reach: int = reach
        count = iter(counts)
        pieces = next(count)
        self.starts = sections.column("q", pieces)
        self.ends = sections.column("q", pieces)
        self.rows = sections.column("I", pieces)
        self.keys = sections.column("q", next(count))
        self.key_rows, self.unreferenced, self.third, self.ranked, self.txn, self.breaks = (
            sections.column("I", number) for number in islice(count, 6)
        )

    @property
    def is_empty(self) -> bool:
        """Whether nothing but a highest offset is left."""
        sets = (self.starts, self.keys, self.unreferenced, self.third)
        return not any(map(len, sets))


class _Sections:
    """Walks padded sections of a view."""

    __slots__ = ("_at", "_view")

    def __init__(self, view: memoryview, at: int) -> None:
        self._view, self._at = view, at

    def skip(self, size: int) -> int:
        """Return where a section of this size begins, and go behind it."""
        begin = self._at
        self._at = begin + size + -size % ALIGNMENT
        if self._at > len(self._view):
            raise Malformed("a table is cut short")
        return begin

    def column(self, code: Literal["i", "I", "q", "Q"], count: int) -> Column:
        size = count * (8 if code in "qQ" else 4)
        begin = self.skip(size)
        return self._view[begin : begin + size].cast(code)
