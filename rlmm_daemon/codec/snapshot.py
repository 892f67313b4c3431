"""The snapshot file of one metadata partition: a header, a table per user partition, a directory.

    header     magic, format, length, CRC | msgpack, padded to 8
    table*     per user partition, padded to 8; CRC-32C in the directory, so that one can be checked
               alone at first touch
    directory  msgpack, one entry per table
    trailer    directory offset, length, CRC | magic

All numbers are little-endian, all columns 8-byte aligned, so that a mapped table answers by bisect
straight from the file. A table, rows by (start offset, id):

    head       row count, epoch count, kept count, heap bytes, writer, flags, delete state
    epochs     i32[m] ascending          epoch_at   u64[m] from the table's start
    ids        16 bytes each             offs       u32[n+1] into heap      states  u8[n]
    id_order   u32[n]: rows by id        kept_rows  u32[k]                  kept_offs u32[k+1]
    kept       custom metadata that the records have lost
    heap       tails (`codec.tail`): a record is 01 00 00 + the partition's prefix + id + tail
    held       if flagged: u32 size, then msgpack [[id, tail], ...] of held segments, by id
    per epoch  head: epoch, flags, highest, reach, counts; then
               starts i64[p], ends i64[p], rows u32[p]    who answers a look-up (`core.cover`)
               keys i64[r], key_rows u32[r]               Kafka's referenced set, if it differs
               unreferenced, third, ranked u32[]          in their order
               txn, breaks u32[]                          indexes into starts, ascending

A common segment (one epoch, no custom metadata) costs 16 + 4 + 1 + 4 + 58 + 20 = 103 bytes, 4 more
with a transaction index.
"""

import struct
import sys
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, TypeVar

import msgspec

from rlmm_daemon.codec.primitives import crc32c
from rlmm_daemon.domain.errors import ChecksumMismatch, Malformed, UnsupportedProtocol
from rlmm_daemon.domain.ids import UUID_BYTES, TopicId, TopicIdPartition

FORMAT: Final = 1
#: The snapshotter gives the loop a turn between two pieces.
PIECE_BYTES_MAX: Final = 256 * 1024

_MAGIC: Final = b"RLMMSNAP"
_END_MAGIC: Final = b"RLMMSEND"
_ALIGNMENT: Final = 8
_HEADER: Final = struct.Struct("<8sIII4x")
_TRAILER: Final = struct.Struct("<QQI4x8s")
_TABLE: Final = struct.Struct("<IIIIiBb2x")
_EPOCH: Final = struct.Struct("<iB3xqq8I")
_HAS_WRITER: Final = 1
_HAS_HELD: Final = 2
_SIZE: Final = struct.Struct("<I")
_HAS_HIGHEST: Final = 1
_PLAIN: Final = 2
_NO_DELETE: Final = -1
_T = TypeVar("_T")


class Header(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which log, how far, and when."""

    #: None if no cluster was known when it was written.
    cluster_id: str | None
    #: Of the metadata topic.
    topic_id: TopicId
    metadata_partition: int
    partition_count: int
    partitioner_id: int
    next_offset: int
    #: Of the last fetched batch; -1 if there was none.
    leader_epoch: int
    created_at_ms: int


def _longs() -> "array[int]":
    return array("q")


def _ints() -> "array[int]":
    return array("I")


@dataclass(slots=True, kw_only=True)
class EpochTable:
    """One epoch's columns; all empty when only a highest offset is left."""

    epoch: int
    highest: int | None
    #: Kafka's referenced set is the cover itself, and not stored again.
    plain: bool = True
    #: No part that was ever painted in the cover is longer.
    reach: int = 0
    starts: "array[int]" = field(default_factory=_longs)
    ends: "array[int]" = field(default_factory=_longs)
    rows: "array[int]" = field(default_factory=_ints)
    keys: "array[int]" = field(default_factory=_longs)
    key_rows: "array[int]" = field(default_factory=_ints)
    unreferenced: "array[int]" = field(default_factory=_ints)
    third: "array[int]" = field(default_factory=_ints)
    ranked: "array[int]" = field(default_factory=_ints)
    txn: "array[int]" = field(default_factory=_ints)
    breaks: "array[int]" = field(default_factory=_ints)


@dataclass(slots=True, kw_only=True)
class PartitionTable:
    """One user partition's columns."""

    partition: TopicIdPartition
    #: `PartitionDeleteState`'s number; None if nobody asked for the partition's deletion.
    delete_state: int | None
    #: Who began the latest copy.
    writer: int | None
    ids: bytes
    offs: "array[int]"
    states: bytes
    id_order: "array[int]"
    heap: bytes
    #: (row, custom metadata), rows ascending.
    kept: list[tuple[int, bytes]]
    #: (id, tail as COPY_SEGMENT_FINISHED) of held segments, ids ascending; they need have no row.
    held: list[tuple[bytes, bytes]] = field(default_factory=list)
    #: Ascending.
    epochs: list[EpochTable]


class _Entry(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    topic_id: bytes
    topic: str
    partition: int
    at: int
    size: int
    crc: int
    rows: int
    finished: int


def encode_file(header: Header, tables: Iterable[PartitionTable]) -> Iterator[bytes]:
    """Yield the file in pieces of at most `PIECE_BYTES_MAX`; `tables` is drawn one by one."""
    head = _encode_header(header)
    yield from _pieces(head)
    at = len(head)
    entries: list[_Entry] = []
    for table in tables:
        encoded = encode_table(table)
        entries.append(
            _Entry(
                table.partition.topic_id,
                table.partition.topic,
                table.partition.partition,
                at,
                len(encoded),
                crc32c(0, encoded),
                len(table.states),
                table.states.count(1),
            )
        )
        yield from _pieces(encoded)
        at += len(encoded)
    directory = msgspec.msgpack.encode(entries)
    yield from _pieces(directory)
    yield _TRAILER.pack(at, len(directory), crc32c(0, directory), _END_MAGIC)


def decode_header(buffer: bytes) -> tuple[Header, int]:
    """Return the header and the offset behind it.

    Raises:
        UnsupportedProtocol: the format is not this one; the file may be fine, leave it alone.
        ChecksumMismatch: the header is damaged.
        Malformed: not a snapshot, or cut short.
    """
    if len(buffer) < _HEADER.size or not buffer.startswith(_MAGIC):
        raise Malformed("not a snapshot file")
    _, version, size, crc = _HEADER.unpack_from(buffer)
    if version != FORMAT:
        raise UnsupportedProtocol(
            f"snapshot format {version} is unknown, this release reads {FORMAT}", format=version
        )
    behind = _HEADER.size + size + -size % _ALIGNMENT
    body = buffer[_HEADER.size : _HEADER.size + size]
    if crc != crc32c(crc32c(0, _HEADER.pack(_MAGIC, version, size, 0)), body):
        raise ChecksumMismatch("the snapshot's header is damaged")
    if any(buffer[_HEADER.size - 4 : _HEADER.size]) or any(buffer[_HEADER.size + size : behind]):
        raise Malformed("the snapshot's header is followed by garbage")
    return _unpack(body, Header), behind


def decode_file(buffer: bytes) -> tuple[Header, list[PartitionTable]]:
    """Return all that a file holds; every byte of it is checked.

    Raises:
        UnsupportedProtocol, ChecksumMismatch, Malformed: as `decode_header`, for every part.
    """
    header, at = decode_header(buffer)
    tables = []
    for entry in _directory(buffer):
        if entry.at != at:
            raise Malformed(f"a table begins at {entry.at}, not at {at}")
        encoded = buffer[at : at + entry.size]
        if crc32c(0, encoded) != entry.crc:
            raise ChecksumMismatch(f"the table of {entry.topic}-{entry.partition} is damaged")
        partition = TopicIdPartition(TopicId(entry.topic_id), entry.topic, entry.partition)
        tables.append(decode_table(encoded, partition))
        at += entry.size
    if at != _trailer(buffer)[0]:
        raise Malformed("bytes between the last table and the directory")
    return header, tables


def _encode_header(header: Header) -> bytes:
    body = msgspec.msgpack.encode(header)
    crc = crc32c(crc32c(0, _HEADER.pack(_MAGIC, FORMAT, len(body), 0)), body)
    return _HEADER.pack(_MAGIC, FORMAT, len(body), crc) + _padded(body)


def _trailer(buffer: bytes) -> tuple[int, int, int]:
    if len(buffer) < _HEADER.size + _TRAILER.size:
        raise Malformed("the snapshot is cut short")
    at, size, crc, _ = _TRAILER.unpack_from(buffer, len(buffer) - _TRAILER.size)
    # Packed anew, so that the padding counts too.
    exact = buffer.endswith(_TRAILER.pack(at, size, crc, _END_MAGIC))
    if not exact or at + size != len(buffer) - _TRAILER.size:
        raise Malformed("the snapshot has no proper end")
    return at, size, crc


def _directory(buffer: bytes) -> list[_Entry]:
    at, size, crc = _trailer(buffer)
    encoded = buffer[at : at + size]
    if crc32c(0, encoded) != crc:
        raise ChecksumMismatch("the snapshot's directory is damaged")
    return _unpack(encoded, list[_Entry])


def _unpack(encoded: bytes, kind: type[_T]) -> _T:
    try:
        return msgspec.msgpack.decode(encoded, type=kind)
    except msgspec.MsgspecError as error:
        raise Malformed(f"the snapshot's {kind} does not decode: {error}") from error


def encode_table(table: PartitionTable) -> bytes:
    """Return one table's bytes. The caller's columns are trusted."""
    epochs = [_encode_epoch(epoch) for epoch in table.epochs]
    kept_rows = array("I", [row for row, _ in table.kept])
    kept_offs = array("I", _running([len(custom) for _, custom in table.kept]))
    sections = [
        _le(table.offs),
        table.states,
        _le(table.id_order),
        _le(kept_rows),
        _le(kept_offs),
        b"".join(custom for _, custom in table.kept),
        table.heap,
        *_encode_held(table.held),
    ]
    fixed = b"".join(map(_padded, (table.ids, *sections)))
    index_size = len(_padded(bytes(4 * len(epochs)))) + 8 * len(epochs)
    first = len(_padded(bytes(_TABLE.size))) + index_size + len(fixed)
    places = _running([len(epoch) for epoch in epochs], first)[:-1]
    head = _TABLE.pack(
        len(table.states),
        len(epochs),
        len(table.kept),
        len(table.heap),
        table.writer or 0,
        (0 if table.writer is None else _HAS_WRITER) | (_HAS_HELD if table.held else 0),
        _NO_DELETE if table.delete_state is None else table.delete_state,
    )
    numbers = array("i", [epoch.epoch for epoch in table.epochs])
    index = _padded(_le(numbers)) + _le(array("Q", places))
    return b"".join((_padded(head), index, fixed, *epochs))


def _encode_held(held: list[tuple[bytes, bytes]]) -> list[bytes]:
    if not held:
        return []
    encoded = msgspec.msgpack.encode(held)
    return [_SIZE.pack(len(encoded)), encoded]


def _encode_epoch(table: EpochTable) -> bytes:
    flags = (0 if table.highest is None else _HAS_HIGHEST) | (_PLAIN if table.plain else 0)
    columns = _epoch_columns(table)
    assert len(table.starts) == len(table.ends) == len(table.rows)
    assert len(table.keys) == len(table.key_rows)
    counts = [len(column) for column in columns[2:]]
    head = _EPOCH.pack(table.epoch, flags, table.highest or 0, table.reach, *counts)
    return b"".join((_padded(head), *(_padded(_le(column)) for column in columns)))


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
    rows, epoch_count, kept_count, heap_size, writer, flags, delete_state = _TABLE.unpack(
        reader.take(_TABLE.size)
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
    held = []
    if flags & _HAS_HELD:
        (size,) = _SIZE.unpack(reader.take(_SIZE.size))
        held = _unpack(reader.take(size), list[tuple[bytes, bytes]])
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
        delete_state=None if delete_state == _NO_DELETE else delete_state,
        writer=writer if flags & _HAS_WRITER else None,
        ids=ids,
        offs=offs,
        states=states,
        id_order=id_order,
        heap=heap,
        kept=[(row, kept[kept_offs[at] : kept_offs[at + 1]]) for at, row in enumerate(kept_rows)],
        held=held,
        epochs=epochs,
    )


def _decode_epoch(reader: "_Reader", epoch: int, rows: int) -> EpochTable:
    number, flags, highest, reach, *counts = _EPOCH.unpack(reader.take(_EPOCH.size))
    pieces, keys, key_rows, unreferenced, third, ranked, txn, breaks = counts
    if number != epoch or keys != key_rows:
        raise Malformed("an epoch's head does not fit")
    return EpochTable(
        epoch=epoch,
        highest=highest if flags & _HAS_HIGHEST else None,
        plain=bool(flags & _PLAIN),
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
        if end + -end % _ALIGNMENT > len(self._buffer):
            raise Malformed("a table is cut short")
        section = self._buffer[self.position : end]
        self.position = end + -end % _ALIGNMENT
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


def _padded(section: bytes) -> bytes:
    return section + bytes(-len(section) % _ALIGNMENT)


def _pieces(encoded: bytes) -> Iterator[bytes]:
    for at in range(0, len(encoded), PIECE_BYTES_MAX):
        yield encoded[at : at + PIECE_BYTES_MAX]


assert array("I").itemsize == array("i").itemsize == 4  # noqa: PLR2004  # the format's u32
assert array("q").itemsize == array("Q").itemsize == _ALIGNMENT
