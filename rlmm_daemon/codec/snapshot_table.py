"""A user partition's table in a snapshot file: columns and record bytes.

All numbers are little-endian, all columns 8-byte aligned, so that a mapped table answers by bisect
straight from the file (`codec.sealed_table`). Rows by (start offset, id):

    head       row count, epoch count, kept count, heap bytes, writer, flags, delete state
    epochs     i32[m] ascending          epoch_at   u64[m] from the table's start
    ids        16 bytes each             offs       u32[n+1] into heap      states  u8[n]
    id_order   u32[n]: rows by id        kept_rows  u32[k]                  kept_offs u32[k+1]
    kept       custom metadata that the records have lost
    heap       tails (`record_suffix`): a record is 01 00 00 + the partition's prefix + id + tail
    rare       if flagged: u32 size, then msgpack `Rare`
    per epoch  head: epoch, flags, highest, reach, counts; then
               starts i64[p], ends i64[p], rows u32[p]    who answers a look-up (`core.fold.cover`)
               keys i64[r], key_rows u32[r]               Kafka's referenced set, if it differs
               unreferenced, third, ranked u32[]          in their order
               txn, breaks u32[]                          indexes into starts, ascending

A common segment (one epoch, no custom metadata) costs 16 + 4 + 1 + 4 + 58 + 20 = 103 bytes, 4 more
with a transaction index.
"""

import struct
import sys
from array import array
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

import msgspec

from rlmm_daemon.domain.errors import Malformed
from rlmm_daemon.domain.ids import UUID_BYTES, TopicIdPartition

ALIGNMENT: Final = 8
#: What is copied in one go; a caller may pause between two parts.
PART_BYTES_MAX: Final = 128 * 1024
TABLE: Final = struct.Struct("<IIIIiBb2x")
EPOCH: Final = struct.Struct("<iB3xqQ8I")
HAS_WRITER: Final = 1
HAS_RARE: Final = 2
HAS_HIGHEST: Final = 1
PLAIN: Final = 2
NO_DELETE: Final = -1
SIZE: Final = struct.Struct("<I")


def _longs() -> "array[int]":
    return array("q")


def _ints() -> "array[int]":
    return array("I")


class EpochTable(msgspec.Struct, kw_only=True):
    """One epoch's columns; all empty when only a highest offset is left."""

    epoch: int
    highest: int | None
    #: Kafka's referenced set is the cover itself, and not stored again.
    plain: bool = True
    #: No part that was ever painted in the cover is longer.
    reach: int = 0
    starts: "array[int]" = msgspec.field(default_factory=_longs)
    ends: "array[int]" = msgspec.field(default_factory=_longs)
    rows: "array[int]" = msgspec.field(default_factory=_ints)
    keys: "array[int]" = msgspec.field(default_factory=_longs)
    key_rows: "array[int]" = msgspec.field(default_factory=_ints)
    unreferenced: "array[int]" = msgspec.field(default_factory=_ints)
    third: "array[int]" = msgspec.field(default_factory=_ints)
    ranked: "array[int]" = msgspec.field(default_factory=_ints)
    txn: "array[int]" = msgspec.field(default_factory=_ints)
    breaks: "array[int]" = msgspec.field(default_factory=_ints)


class Rare(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What hardly any table has."""

    held: list[tuple[bytes, bytes]]
    strays: list[tuple[bytes, list[int]]]


class PartitionTable(msgspec.Struct, kw_only=True):
    """One user partition's columns."""

    partition: TopicIdPartition
    #: `PartitionDeleteState`'s number; None if nobody asked for the partition's deletion.
    delete_state: int | None
    #: Who began the latest copy.
    writer: int | None
    ids: bytes | bytearray
    offs: "array[int]"
    states: bytes | bytearray
    id_order: "array[int]"
    #: Joined they are the heap; no piece of it needs to be a whole tail.
    heap: Sequence[bytes]
    #: (row, custom metadata), rows ascending.
    kept: list[tuple[int, bytes]]
    #: (id, tail as COPY_SEGMENT_FINISHED) of held segments, ids ascending; they need have no row.
    held: list[tuple[bytes, bytes]] = msgspec.field(default_factory=list)
    #: Ids ascending, with the epochs (ascending) in which each is listed though it has no part.
    strays: list[tuple[bytes, list[int]]] = msgspec.field(default_factory=list)
    #: Ascending.
    epochs: list[EpochTable]
    #: Of segments that are COPY_SEGMENT_STARTED, _FINISHED, DELETE_SEGMENT_STARTED; the directory
    #: has it, not the table.
    segment_bytes: tuple[int, int, int] = (0, 0, 0)


def encode_table(table: PartitionTable) -> Iterator[bytes]:
    """Yield one table's bytes in parts of at most `PART_BYTES_MAX`, which no work but a copy takes.

    Nothing of the table may change meanwhile. The caller's columns are trusted.
    """
    kept_rows, kept_offs = _kept_columns(table)
    rare = _encode_rare(table)
    heap_size = sum(map(len, table.heap))
    numbers = array("i", [epoch.epoch for epoch in table.epochs])
    places = _running([_epoch_size(epoch) for epoch in table.epochs], _epochs_at(table))
    yield padded(
        TABLE.pack(
            len(table.states),
            len(table.epochs),
            len(table.kept),
            heap_size,
            table.writer or 0,
            (0 if table.writer is None else HAS_WRITER) | (HAS_RARE if rare else 0),
            NO_DELETE if table.delete_state is None else table.delete_state,
        )
    )
    yield padded(_le(numbers)) + _le(array("Q", places[:-1]))
    for column in (table.ids, table.offs, table.states, table.id_order, kept_rows, kept_offs):
        yield from _parts(column)
    yield from _parts(b"".join(custom for _, custom in table.kept))
    for piece in table.heap:
        for at in range(0, len(piece), PART_BYTES_MAX):
            yield piece[at : at + PART_BYTES_MAX]
    yield bytes(-heap_size % ALIGNMENT)
    for section in rare:
        yield from _parts(section)
    for epoch in table.epochs:
        yield padded(_epoch_head(epoch))
        for column in _epoch_columns(epoch):
            yield from _parts(column)


def size_of(table: PartitionTable) -> int:
    """Return how many bytes `encode_table` makes."""
    return _epochs_at(table) + sum(map(_epoch_size, table.epochs))


def _epochs_at(table: PartitionTable) -> int:
    """Return where the first epoch begins."""
    rows, epochs, kept = len(table.states), len(table.epochs), len(table.kept)
    sizes = [
        TABLE.size,
        4 * epochs,
        8 * epochs,
        len(table.ids),
        4 * (rows + 1),
        rows,
        4 * rows,
        4 * kept,
        4 * (kept + 1),
        sum(len(custom) for _, custom in table.kept),
        sum(map(len, table.heap)),
        *map(len, _encode_rare(table)),
    ]
    return sum(map(_padded_size, sizes))


def _epoch_size(epoch: EpochTable) -> int:
    columns = _epoch_columns(epoch)
    return _padded_size(EPOCH.size) + sum(
        _padded_size(column.itemsize * len(column)) for column in columns
    )


def _padded_size(size: int) -> int:
    return size + -size % ALIGNMENT


def _parts(column: "bytes | bytearray | array[int]") -> Iterator[bytes]:
    """Yield a column, little-endian and padded."""
    if isinstance(column, array) and sys.byteorder == "big":
        column = _le(column)
    if not column:
        return  # which no memoryview casts
    with memoryview(column).cast("B") as view:
        for at in range(0, len(view), PART_BYTES_MAX):
            yield bytes(view[at : at + PART_BYTES_MAX])
        yield bytes(-len(view) % ALIGNMENT)


def _kept_columns(table: PartitionTable) -> "tuple[array[int], array[int]]":
    rows = array("I", [row for row, _ in table.kept])
    return rows, array("I", _running([len(custom) for _, custom in table.kept]))


def _encode_rare(table: PartitionTable) -> list[bytes]:
    if not (table.held or table.strays):
        return []
    encoded = msgspec.msgpack.encode(Rare(table.held, table.strays))
    return [SIZE.pack(len(encoded)), encoded]


def decode_rare(encoded: bytes) -> Rare:
    """Return the rare section.

    Raises:
        Malformed: it is none.
    """
    try:
        return msgspec.msgpack.decode(encoded, type=Rare)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(f"a table's rare section does not decode: {error}") from error


def _epoch_head(table: EpochTable) -> bytes:
    flags = (0 if table.highest is None else HAS_HIGHEST) | (PLAIN if table.plain else 0)
    assert len(table.starts) == len(table.ends) == len(table.rows)
    assert len(table.keys) == len(table.key_rows)
    counts = [len(column) for column in _epoch_columns(table)[2:]]
    return EPOCH.pack(table.epoch, flags, table.highest or 0, table.reach, *counts)


def _epoch_columns(table: EpochTable) -> list["array[int]"]:
    """Return the columns in the file's order; the third and all behind it are counted."""
    return [
        table.starts,
        table.ends,
        table.rows,
        table.keys,
        table.key_rows,
        table.unreferenced,
        table.third,
        table.ranked,
        table.txn,
        table.breaks,
    ]


def decode_table(encoded: bytes, partition: TopicIdPartition) -> PartitionTable:
    """Return one table; its columns fit each other and the bytes, what they say is not judged.

    Raises:
        Malformed: a count or an index that does not fit.
    """
    reader = _Reader(encoded)
    rows, epoch_count, kept_count, heap_size, writer, flags, delete_state = TABLE.unpack(
        reader.take(TABLE.size)
    )
    numbers = reader.column("i", epoch_count)
    places = reader.column("Q", epoch_count)
    ids = reader.take(UUID_BYTES * rows)
    offs = reader.column("I", rows + 1)
    states = reader.take(rows)
    id_order = reader.rows(rows, rows)
    kept_rows = reader.rows(kept_count, rows)
    kept_offs = reader.column("I", kept_count + 1)
    kept = reader.take(kept_offs[-1])
    heap = reader.take(heap_size)
    rare = Rare([], [])
    if flags & HAS_RARE:
        (size,) = SIZE.unpack(reader.take(SIZE.size))
        rare = decode_rare(reader.take(size))
    if not _bounds(offs, heap_size) or not _bounds(kept_offs, len(kept)):
        raise Malformed("a column of offsets does not ascend to its heap's end")
    epochs = []
    for epoch, place in zip(numbers, places, strict=True):
        if reader.position != place:
            raise Malformed("an epoch is not where the table says")
        epochs.append(_decode_epoch(reader, epoch, rows))
    if reader.position != len(encoded):
        raise Malformed("bytes behind the table's last epoch")
    return PartitionTable(
        partition=partition,
        delete_state=None if delete_state == NO_DELETE else delete_state,
        writer=writer if flags & HAS_WRITER else None,
        ids=ids,
        offs=offs,
        states=states,
        id_order=id_order,
        heap=[heap],
        kept=[(row, kept[kept_offs[at] : kept_offs[at + 1]]) for at, row in enumerate(kept_rows)],
        held=rare.held,
        strays=rare.strays,
        epochs=epochs,
    )


def _decode_epoch(reader: "_Reader", epoch: int, rows: int) -> EpochTable:
    number, flags, highest, reach, *counts = EPOCH.unpack(reader.take(EPOCH.size))
    pieces, keys, key_rows, unreferenced, third, ranked, txn, breaks = counts
    if number != epoch or keys != key_rows:
        raise Malformed("an epoch's head does not fit")
    return EpochTable(
        epoch=epoch,
        highest=highest if flags & HAS_HIGHEST else None,
        plain=bool(flags & PLAIN),
        reach=reach,
        starts=reader.column("q", pieces),
        ends=reader.column("q", pieces),
        rows=reader.rows(pieces, rows),
        keys=reader.column("q", keys),
        key_rows=reader.rows(keys, rows),
        unreferenced=reader.rows(unreferenced, rows),
        third=reader.rows(third, rows),
        ranked=reader.rows(ranked, rows),
        txn=reader.rows(txn, pieces),
        breaks=reader.rows(breaks, pieces),
    )


class _Reader:
    """Takes padded sections off the front of a table."""

    __slots__ = ("_buffer", "position")

    def __init__(self, buffer: bytes) -> None:
        self._buffer = buffer
        self.position = 0

    def take(self, size: int) -> bytes:
        end = self.position + size
        if end + -end % ALIGNMENT > len(self._buffer):
            raise Malformed("a table is cut short")
        section = self._buffer[self.position : end]
        self.position = end + -end % ALIGNMENT
        return section

    def column(self, code: str, count: int) -> "array[int]":
        column: array[int] = array(code)
        column.frombytes(self.take(column.itemsize * count))
        if sys.byteorder == "big":
            column.byteswap()
        return column

    def rows(self, count: int, limit: int) -> "array[int]":
        """Return a column of row numbers, all below `limit`."""
        column = self.column("I", count)
        if column and max(column) >= limit:
            raise Malformed(f"a row number is {max(column)}, but there are {limit} rows")
        return column


def _bounds(offsets: "array[int]", size: int) -> bool:
    return (
        offsets[0] == 0
        and offsets[-1] == size
        and all(low <= high for low, high in pairwise(offsets))
    )


def _running(sizes: list[int], first: int = 0) -> list[int]:
    totals = [first]
    for size in sizes:
        totals.append(totals[-1] + size)
    return totals


def _le(column: "array[int]") -> bytes:
    if sys.byteorder == "big":
        column = column[:]
        column.byteswap()
    return column.tobytes()


def padded(section: bytes) -> bytes:
    """Return a section with zeros up to the next multiple of eight."""
    return section + bytes(-len(section) % ALIGNMENT)


assert array("I").itemsize == array("i").itemsize == 4  # noqa: PLR2004  # the format's u32
assert array("q").itemsize == array("Q").itemsize == ALIGNMENT
