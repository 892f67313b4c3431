"""Files of cached chunks: what their names say, and whether their bytes are right.

    ID-TAG-START-LENGTH-CRC-SEQUENCE.SIZE.chunk  bytes START to START+LENGTH of one segment's `.log`

The name says all that is known of a chunk. SIZE is the most that a chunk could hold when it was
written: those of another size are of no use any more.
"""

import os
import re
from typing import Final

from crc32c import crc32c

from rlmm_daemon.daemon.base.page_cache import comes_from_disk
from rlmm_daemon.daemon.reading.chunk_index import Chunk, ObjectId, Stamp
from rlmm_daemon.domain.ids import SegmentId

READ_BYTES: Final = 256 * 1024

_NAME: Final = re.compile(
    r"(?P<id>[0-9a-f]{32})-(?P<tag>[0-9a-f]{1,32})-(?P<start>\d+)-(?P<length>\d+)"
    r"-(?P<crc>[0-9a-f]{8})-(?P<sequence>\d+)\.(?P<size>\d+)\.chunk"
)
TEMPORARY: Final = ".partial"


def parsed(name: str, chunk_bytes: int) -> tuple[int, str, Chunk] | None:
    """Return a file's sequence number, name and chunk; None for another chunk size."""
    match = _NAME.fullmatch(name)
    if match is None or int(match["size"]) != chunk_bytes:
        return None
    start, length = int(match["start"]), int(match["length"])
    if not 0 < length <= chunk_bytes:
        return None
    object_id = ObjectId(SegmentId(bytes.fromhex(match["id"])), match["tag"])
    chunk = Chunk(object_id, start, length, int(match["crc"], 16), name)
    return int(match["sequence"]), name, chunk


def named(
    object_id: ObjectId, start: int, pieces_crc32c: int, *, length: int, sequence: int, size: int
) -> Chunk:
    """Return a new chunk, which its name describes."""
    name = (
        f"{object_id.segment_id.hex()}-{object_id.tag}-{start}-{length}-{pieces_crc32c:08x}"
        f"-{sequence}.{size}.chunk"
    )
    return Chunk(object_id, start, length, pieces_crc32c, name)


def is_ours(name: str) -> bool:
    """Whether a file is a chunk, whole or not."""
    return _NAME.fullmatch(name.removesuffix(TEMPORARY)) is not None


def stamp_of(descriptor: int) -> Stamp:
    """Return what changes when a file is touched."""
    status = os.fstat(descriptor)
    return status.st_ino, status.st_size, status.st_mtime_ns


def open_sound(path: str, verified: Stamp | None, part: tuple[int, int] | None) -> int | None:
    """Return a descriptor if the file is as it was when its bytes were found right; blocking.

    `part` would be read next: a file that has it on the disk alone is looked through again.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        if verified == stamp_of(descriptor) and not (part and comes_from_disk(descriptor, *part)):
            return descriptor
    except OSError:
        pass  # its disk fails
    os.close(descriptor)
    return None


def close_unwanted(descriptor: int | None) -> None:
    """Close what `open_sound` returned to somebody who has left."""
    if descriptor is not None:
        os.close(descriptor)


def verify(path: str, length: int, expected: int) -> Stamp | None:
    """Return the file's stamp if its bytes are right; blocking."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        stamp = stamp_of(descriptor)
        found, at = 0, 0
        while block := os.pread(descriptor, READ_BYTES, at):
            found = crc32c(block, found)
            at += len(block)
        return (
            stamp if (at, found) == (length, expected) and stamp == stamp_of(descriptor) else None
        )
    except OSError:
        return None
    finally:
        os.close(descriptor)
