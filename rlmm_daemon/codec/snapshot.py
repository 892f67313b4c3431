"""The snapshot file of one metadata partition: a header, a table per user partition, a directory.

    header     magic, format, length, CRC | msgpack, padded to 8
    table*     per user partition (`codec.snapshot_table`), padded to 8; CRC-32C in the directory,
               so that one can be checked alone at first touch
    directory  msgpack, one entry per table: where it is, and what it counts
    trailer    directory offset, length, CRC | magic

Format 1 had fewer facts in its directory, so its files are read whole; format 2 is written.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Protocol, TypeVar

import msgspec
from crc32c import crc32c

from rlmm_daemon.codec.snapshot_table import (
    ALIGNMENT,
    PartitionTable,
    decode_table,
    encode_table,
    padded,
    size_of,
)
from rlmm_daemon.domain.errors import ChecksumMismatch, Malformed, UnsupportedProtocol
from rlmm_daemon.domain.ids import TopicId, TopicIdPartition

FORMAT: Final = 2
#: Whose directory does not count segments: such a file is not answered from in place.
FORMAT_UNCOUNTED: Final = 1
#: The snapshotter gives the loop a turn between two pieces.
PIECE_BYTES_MAX: Final = 256 * 1024

#: Tables up to this size are copied in memory, not passed on as a piece of another file.
_READ_BYTES_MAX: Final = 32 * 1024
_MAGIC: Final = b"RLMMSNAP"
_END_MAGIC: Final = b"RLMMSEND"
_HEADER: Final = struct.Struct("<8sIII4x")
_TRAILER: Final = struct.Struct("<QQI4x8s")
_STATES: Final = 3
_T = TypeVar("_T")

Counts = tuple[int, int, int]


class Mapped(Protocol):
    """A file's bytes that are read when they are looked at; a slice of them is `bytes`."""

    def bring_in(self, at: int, size: int) -> bool:
        """Read a part, before anybody looks at it; False: it cannot be read, and may not be."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> bytes: ...

    def __buffer__(self, flags: int, /) -> memoryview: ...


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


class TableEntry(
    msgspec.Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True
):
    """What the directory says of one table."""

    topic_id: bytes
    topic: str
    partition: int
    at: int
    size: int
    crc: int
    #: Segments and their bytes, by state: COPY_SEGMENT_STARTED, _FINISHED, DELETE_SEGMENT_STARTED.
    segments: Counts
    segment_bytes: Counts
    #: As in `PartitionTable`.
    delete_state: int | None
    #: How many held segments it names, and how many are finished in no listing (third sets).
    held: int
    third: int

    @property
    def user_partition(self) -> TopicIdPartition:
        """Whose table it is."""
        return TopicIdPartition(TopicId(self.topic_id), self.topic, self.partition)


class _EntryUncounted(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    topic_id: bytes
    topic: str
    partition: int
    at: int
    size: int
    crc: int
    rows: int
    finished: int


class TableImage(msgspec.Struct, frozen=True):
    """A table's bytes and its entry, whose place and checksum are filled in when it is written."""

    entry: TableEntry
    #: Drawn once; a part that was made is followed by a chance to pause.
    pieces: Iterable[bytes | memoryview]
    #: Known where the bytes are another file's.
    crc: int | None = None


def image_of(table: PartitionTable) -> TableImage:
    """Return a fresh table's image."""
    partition = table.partition
    segments = tuple(table.states.count(state) for state in range(_STATES))
    entry = TableEntry(
        partition.topic_id,
        partition.topic,
        partition.partition,
        0,
        size_of(table),
        0,
        (segments[0], segments[1], segments[2]),
        table.segment_bytes,
        table.delete_state,
        len(table.held),
        sum(len(epoch.third) for epoch in table.epochs),
    )
    return TableImage(entry, encode_table(table))


def image_of_entry(buffer: bytes | Mapped, entry: TableEntry) -> TableImage:
    """Return the image of a table that stays as it is in another file: nothing is read here."""
    view = memoryview(buffer)[entry.at : entry.at + entry.size]
    return TableImage(entry, [view], entry.crc)


def encode_file(
    header: Header, tables: Iterable[TableImage | None]
) -> Iterator[bytes | memoryview]:
    """Yield the file in pieces of at most `PIECE_BYTES_MAX`; `tables` is drawn one by one.

    For a None, which says that a table takes long to make, an empty piece is yielded.
    """
    head = _encode_header(header)
    pieces = _Pieces()
    yield from pieces.add(head)
    at = len(head)
    entries: list[TableEntry] = []
    for table in tables:
        if table is None:
            yield b""
            continue
        crc = table.crc or 0
        for section in table.pieces:
            if isinstance(section, memoryview):
                yield from pieces.add_view(section)
                continue
            crc = crc32c(section, crc)
            yield from pieces.add(section)
        entries.append(msgspec.structs.replace(table.entry, at=at, crc=crc))
        at += table.entry.size
    directory = msgspec.msgpack.encode(entries)
    yield from pieces.add(directory)
    yield from pieces.add(_TRAILER.pack(at, len(directory), crc32c(directory), _END_MAGIC))
    yield from pieces.flush()


class _Pieces:
    """Gathers small pieces, so that a file of many small tables takes few writes."""

    def __init__(self) -> None:
        self._small: list[bytes] = []
        self._size = 0

    def add(self, section: bytes) -> Iterator[bytes | memoryview]:
        """Take a section; yield what is full."""
        if self._size + len(section) > PIECE_BYTES_MAX:
            yield from self.flush()
        if len(section) < PIECE_BYTES_MAX // 2:
            self._small.append(section)
            self._size += len(section)
            return
        yield from self.flush()
        view = memoryview(section)
        for at in range(0, len(view), PIECE_BYTES_MAX):
            yield view[at : at + PIECE_BYTES_MAX]

    def add_view(self, view: memoryview) -> Iterator[bytes | memoryview]:
        """Take another file's bytes; long ones are passed on unread."""
        if len(view) <= _READ_BYTES_MAX:
            yield from self.add(view.tobytes())
            return
        yield from self.flush()
        for at in range(0, len(view), PIECE_BYTES_MAX):
            yield view[at : at + PIECE_BYTES_MAX]

    def flush(self) -> Iterator[bytes | memoryview]:
        """Yield what was gathered."""
        if self._small:
            joined = b"".join(self._small)
            self._small, self._size = [], 0
            yield joined


def decode_header(buffer: bytes | Mapped) -> tuple[Header, int]:
    """Return the header and the offset behind it.

    Raises:
        UnsupportedProtocol: the format is not known; the file may be fine, leave it alone.
        ChecksumMismatch: the header is damaged.
        Malformed: not a snapshot, or cut short.
    """
    _bring_in(buffer, 0, _HEADER.size)
    if len(buffer) < _HEADER.size or buffer[: len(_MAGIC)] != _MAGIC:
        raise Malformed("not a snapshot file")
    _, version, size, crc = _HEADER.unpack_from(buffer)
    if version not in (FORMAT_UNCOUNTED, FORMAT):
        raise UnsupportedProtocol(
            f"snapshot format {version} is unknown, this release reads up to {FORMAT}",
            format=version,
        )
    behind = _HEADER.size + size + -size % ALIGNMENT
    _bring_in(buffer, 0, behind)
    body = buffer[_HEADER.size : _HEADER.size + size]
    if crc != crc32c(body, crc32c(_HEADER.pack(_MAGIC, version, size, 0))):
        raise ChecksumMismatch("the snapshot's header is damaged")
    if any(buffer[_HEADER.size - 4 : _HEADER.size]) or any(buffer[_HEADER.size + size : behind]):
        raise Malformed("the snapshot's header is followed by garbage")
    return _unpack(body, Header), behind


def format_of(buffer: bytes | Mapped) -> int:
    """Return the format of a file whose header was decoded."""
    version: int = _HEADER.unpack_from(buffer)[1]
    return version


def decode_directory(buffer: bytes | Mapped) -> tuple[Header, list[TableEntry]]:
    """Return header and directory of a file of the present format; no table is read.

    Raises:
        UnsupportedProtocol, ChecksumMismatch, Malformed: as `decode_header`, for these parts.
    """
    header, at = decode_header(buffer)
    entries = _directory(buffer, TableEntry)
    for entry in entries:
        if entry.at != at or entry.size < 0:
            raise Malformed(f"a table begins at {entry.at}, not at {at}")
        at += entry.size
    if at != _trailer(buffer)[0]:
        raise Malformed("bytes between the last table and the directory")
    return header, entries


def check_table(buffer: bytes | Mapped, entry: TableEntry) -> None:
    """Read one table through.

    Raises:
        ChecksumMismatch: it is damaged.
        Malformed: the disk does not give it.
    """
    _bring_in(buffer, entry.at, entry.size)
    crc = 0
    for at in range(entry.at, entry.at + entry.size, PIECE_BYTES_MAX):
        crc = crc32c(buffer[at : min(at + PIECE_BYTES_MAX, entry.at + entry.size)], crc)
    judge_table(entry, crc)


def judge_table(entry: TableEntry, crc: int) -> None:
    """Hold a table's checksum against its entry's.

    Raises:
        ChecksumMismatch: it is another.
    """
    if crc != entry.crc:
        raise ChecksumMismatch(f"the table of {entry.topic}-{entry.partition} is damaged")


def _bring_in(buffer: bytes | Mapped, at: int, size: int) -> None:
    """Have a part of a mapped file read, before anybody looks at it.

    Raises:
        Malformed: the disk does not give all of it.
    """
    if isinstance(buffer, bytes) or at >= len(buffer):
        return
    if not buffer.bring_in(at, min(size, len(buffer) - at)):
        raise Malformed(f"the disk does not give the snapshot's byte {at}")


def decode_file(buffer: bytes | Mapped) -> tuple[Header, list[PartitionTable]]:
    """Return all that a file of any known format holds; every byte of it is checked.

    Raises:
        UnsupportedProtocol, ChecksumMismatch, Malformed: as `decode_header`, for every part.
    """
    _bring_in(buffer, 0, len(buffer))
    header, at = decode_header(buffer)
    tables = []
    entries: Sequence[TableEntry | _EntryUncounted] = (
        _directory(buffer, TableEntry)
        if format_of(buffer) == FORMAT
        else _directory(buffer, _EntryUncounted)
    )
    for entry in entries:
        if entry.at != at:
            raise Malformed(f"a table begins at {entry.at}, not at {at}")
        encoded = buffer[at : at + entry.size]
        if crc32c(encoded) != entry.crc:
            raise ChecksumMismatch(f"the table of {entry.topic}-{entry.partition} is damaged")
        partition = TopicIdPartition(TopicId(entry.topic_id), entry.topic, entry.partition)
        tables.append(decode_table(encoded, partition))
        at += entry.size
    if at != _trailer(buffer)[0]:
        raise Malformed("bytes between the last table and the directory")
    return header, tables


def _encode_header(header: Header) -> bytes:
    body = msgspec.msgpack.encode(header)
    crc = crc32c(body, crc32c(_HEADER.pack(_MAGIC, FORMAT, len(body), 0)))
    return _HEADER.pack(_MAGIC, FORMAT, len(body), crc) + padded(body)


def _trailer(buffer: bytes | Mapped) -> tuple[int, int, int]:
    if len(buffer) < _HEADER.size + _TRAILER.size:
        raise Malformed("the snapshot is cut short")
    _bring_in(buffer, len(buffer) - _TRAILER.size, _TRAILER.size)
    at, size, crc, _ = _TRAILER.unpack_from(buffer, len(buffer) - _TRAILER.size)
    # Packed anew, so that the padding counts too.
    exact = buffer[len(buffer) - _TRAILER.size :] == _TRAILER.pack(at, size, crc, _END_MAGIC)
    if not exact or at + size != len(buffer) - _TRAILER.size:
        raise Malformed("the snapshot has no proper end")
    return at, size, crc


def _directory(buffer: bytes | Mapped, kind: type[_T]) -> list[_T]:
    at, size, crc = _trailer(buffer)
    _bring_in(buffer, at, size)
    encoded = buffer[at : at + size]
    if crc32c(encoded) != crc:
        raise ChecksumMismatch("the snapshot's directory is damaged")
    return _unpack(encoded, list[kind])  # type: ignore[valid-type] # a type made here


def _unpack(encoded: bytes, kind: type[_T]) -> _T:
    try:
        return msgspec.msgpack.decode(encoded, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(f"the snapshot's {kind} does not decode: {error}") from error
