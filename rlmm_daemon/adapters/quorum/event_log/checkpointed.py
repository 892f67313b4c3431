"""A checkpoint of the event log as a replica goes on from it: its counters, and where events stand.

Every byte of it was checked when the replica was opened, or when it was fetched. So only counters
are read here, and of each batch of events the first record, which says where partitions stand.
"""

import struct
from array import array
from collections.abc import Mapping
from typing import Final

import msgspec

from rlmm_daemon.adapters.quorum.event_log.chunks import Chunk, ReadPiece, Source
from rlmm_daemon.codec import batches
from rlmm_daemon.codec.batches import HEADER_BYTES
from rlmm_daemon.codec.kraft import checkpoint_records, log_batches
from rlmm_daemon.codec.kraft.checkpoint_records import Starts
from rlmm_daemon.codec.primitives import read_varint
from rlmm_daemon.core.quorum_log.checkpoint import NOTHING, Dropped, Restored
from rlmm_daemon.core.quorum_log.fold import LogFold
from rlmm_daemon.core.raft.log_facts import LogPoint
from rlmm_daemon.domain.errors import LogCorrupt, Malformed

#: Of a batch's beginning: its header and the key of its first record are in so many.
_LOOK_BYTES: Final = 128
_OFFSET_BYTES: Final = 8
_ATTRIBUTES: Final = struct.Struct(">h")
_ATTRIBUTES_AT: Final = 21
_CONTROL: Final = 0x20


class Checkpointed(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to go on from."""

    source: Source
    #: Of its file.
    size: int
    #: Of all that lies before it.
    fold: LogFold
    #: By partition, where anything was.
    dropped: Mapping[int, Dropped]
    chunks: list[Chunk]


async def load(read_piece: ReadPiece, point: LogPoint) -> Checkpointed:
    """Return a checkpoint's counters, and where its events stand.

    Raises:
        LogCorrupt: it is none of an event log.
        UnsupportedProtocol: a newer version made it.
        SnapshotGone: it was removed.
        OSError: it can't be read now.
    """
    restored = Restored()
    found: list[tuple[int, int, tuple[int, ...]]] = []
    position, size = 0, 1
    look = _LOOK_BYTES
    while position < size:
        size, head = await read_piece(point, position, look)
        length = log_batches.size_at(head, 0)
        if len(head) < HEADER_BYTES or not length:
            raise LogCorrupt(f"the checkpoint {point} is cut short at byte {position}")
        if not _ATTRIBUTES.unpack_from(head, _ATTRIBUTES_AT)[0] & _CONTROL:
            first = _starts(head)
            if first is None:
                await _take_counters(restored, read_piece, point, position=position, length=length)
                look = _LOOK_BYTES + _OFFSET_BYTES * len(restored.fold.ends)
            else:
                found.append((position, length, first))
        position += length
    fold = restored.finish()
    dropped = restored.dropped
    source = Source(point, [dropped.get(p, NOTHING).to for p in range(len(fold.ends))])
    chunks = _chunks(found, source, fold)
    return Checkpointed(source=source, size=size, fold=fold, dropped=dropped, chunks=chunks)


async def _take_counters(
    restored: Restored, read_piece: ReadPiece, point: LogPoint, *, position: int, length: int
) -> None:
    _, data = await read_piece(point, position, length)
    for batch in batches.split(data):
        for _, key, value in batches.keyed_records_of(batch):
            restored.take(checkpoint_records.read(key, value))


def _starts(head: bytes) -> tuple[int, ...] | None:
    """Return where partitions stand before a batch of events; None of another batch.

    Raises:
        LogCorrupt: its first record is none of a checkpoint.
    """
    try:
        key, at = _field(head, _behind_deltas(head))
        if not checkpoint_records.are_starts(key):
            return None
        value, _ = _field(head, at)
    except Malformed as error:
        raise LogCorrupt(f"a checkpoint's batch begins with no record: {error.message}") from error
    starts = checkpoint_records.read(key, value)
    assert isinstance(starts, Starts), "by its key"
    return starts.offsets


def _behind_deltas(head: bytes) -> int:
    _, at = read_varint(head, HEADER_BYTES, what="length")
    _, at = read_varint(head, at + 1, what="timestamp delta")
    _, at = read_varint(head, at, what="offset delta")
    return at


def _field(head: bytes, at: int) -> tuple[bytes, int]:
    size, at = read_varint(head, at, what="size")
    if not 0 <= size <= len(head) - at:
        raise Malformed(f"a field of {size} bytes")
    return head[at : at + size], at + size


def _chunks(
    found: list[tuple[int, int, tuple[int, ...]]], source: Source, fold: LogFold
) -> list[Chunk]:
    """Return a chunk of each batch of events.

    Raises:
        LogCorrupt: they do not stand in the order of their offsets, or not all are there.
    """
    chunks: list[Chunk] = []
    behind = array("q", fold.ends)
    for position, length, first in reversed(found):
        starts = array("q", first)
        if len(starts) != len(behind) or any(a > b for a, b in zip(starts, behind, strict=True)):
            raise LogCorrupt(f"a checkpoint's events at byte {position} stand behind others'")
        chunks.append(
            Chunk(
                position,
                starts,
                position + length,
                source=source,
                behind=behind,
                bytes=length,
                rows=None,
            )
        )
        behind = starts
    dropped = source.dropped_to
    lacking = [p for p, start in enumerate(behind) if not 0 <= start <= dropped[p]]
    if lacking:
        raise LogCorrupt(f"the checkpoint {source.point} lacks first events of {lacking}")
    chunks.reverse()
    return chunks
