"""Repair and sealing of an embedded log that is open and otherwise idle.

A corrupt file is kept beside the log as `.corrupt`. In its place stands one with the intact
batches, at their own offsets, and where batches are lost an empty batch over their offsets, such
as Kafka's log cleaner leaves: the rest of the log keeps its offsets, and every reader passes on.
What the newest snapshot holds is appended at the end; the fold takes what it knows as repeats.
"""

import struct
from collections.abc import Iterable
from functools import partial
from typing import Final

import msgspec
import structlog
from crc32c import crc32c

from rlmm_daemon.adapters.event_log.embedded import compacted_files, files
from rlmm_daemon.adapters.event_log.embedded.log import EmbeddedLog
from rlmm_daemon.adapters.event_log.embedded.verify import pieces
from rlmm_daemon.codec.batches import MAGIC
from rlmm_daemon.domain.errors import LogCorrupt
from rlmm_daemon.domain.ids import MetadataPartition
from rlmm_daemon.ports.disk import Disk
from rlmm_daemon.ports.event_log import LogRange

_log = structlog.get_logger(__name__)

_HEAD: Final = struct.Struct(">qiibI")
_BODY: Final = struct.Struct(">hiqqqhii")
#: The batch length counts the epoch, the magic and the CRC, too.
_HEAD_COUNTED: Final = 9


class RepairReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a repair did to one partition."""

    #: Copies of the files as they were found.
    set_aside: list[str]
    #: Offsets whose records are lost, except for what the given records bring back.
    lost: list[LogRange]
    #: Given records that were appended at the end.
    appended: int


async def seal(log: EmbeddedLog) -> None:
    """Begin a new file in every partition, so that Kafka's tools can read all that is there."""
    assert log.identity is not None
    for number in range(log.identity.partition_count):
        await log.seal(MetadataPartition(number))


async def repair(
    log: EmbeddedLog, partition: MetadataPartition, records: Iterable[bytes]
) -> RepairReport:
    """Make a corrupt partition serve again; nothing is done to one that is intact.

    May be repeated after a crash at any point. The log must be open and the partition unused.

    Raises:
        OSError, UnavailableError: not now.
    """
    await log.let_go(partition)
    try:
        set_aside, lost = await _mended(log, partition)
    except BaseException:  # cancelled too
        log.take_up(partition)
        raise
    log.forget(partition)
    appended = 0
    if set_aside:
        for record in records:
            await log.append(partition, record)
            appended += 1
    return RepairReport(set_aside=set_aside, lost=lost, appended=appended)


async def _mended(
    log: EmbeddedLog, partition: MetadataPartition
) -> tuple[list[str], list[LogRange]]:
    """Mend the files of a partition that was let go; return what was set aside, and is lost."""
    disk, home = log.context.disk, log.directory
    directory = files.partition_directory(home, partition)
    if known_end := log.known_end(partition):
        await disk.make_directory(directory)
    try:
        await compacted_files.finish(disk, directory)
    except LogCorrupt:
        await compacted_files.give_up(disk, directory)
    bases = await files.segments(disk, directory)
    set_aside: list[str] = []
    lost: list[LogRange] = []
    if not bases and known_end:  # all of them are gone
        bases = [0]
    ends = [*bases[1:], known_end]
    for number, (base, end) in enumerate(zip(bases, ends, strict=False), start=1):
        path = files.segment_path(directory, base)
        found = await files.read_segment(disk, path) if await disk.exists(path) else b""
        mended, gaps = await disk.compute(partial(_mend, found, base, end))
        if not gaps and (number == len(bases) or mended == found):
            continue
        await log.begin_changing()
        set_aside.append(await _set_aside(disk, path, found))
        await disk.write_atomically(path, mended)
        lost += gaps
        _log.warning("log_file_repaired", partition=partition, file=path, gaps=len(gaps))
    return set_aside, lost


def _mend(buffer: bytes, base: int, file_end: int | None) -> tuple[bytes, list[LogRange]]:
    """Return the file's intact batches with the gaps filled, and the gaps.

    `file_end` is the offset behind the file's last; None where nothing says that it lost its tail.
    """
    parts: list[bytes] = []
    gaps: list[LogRange] = []
    offset, epoch = base, 0

    def fill(end: int) -> None:
        if end > offset:
            gaps.append(LogRange(start=offset, end=end))
            parts.append(_empty_batch(offset, end, epoch))

    for piece in pieces(buffer, base, end=file_end):
        if piece.found:
            parts.append(buffer[piece.position : piece.end])
            epoch = piece.found[-1].leader_epoch
        else:
            fill(piece.next_offset)
        offset = piece.next_offset
    if file_end is not None:
        fill(file_end)
    return b"".join(parts), gaps


def _empty_batch(offset: int, end: int, epoch: int) -> bytes:
    body = _BODY.pack(0, end - offset - 1, -1, -1, -1, -1, -1, 0)
    crc = crc32c(body)
    return _HEAD.pack(offset, len(body) + _HEAD_COUNTED, epoch, MAGIC, crc) + body


async def _set_aside(disk: Disk, path: str, found: bytes) -> str:
    """Keep a copy under the first free name: a second repair must not replace the first copy."""
    number, target = 1, path + files.CORRUPT_SUFFIX
    while await disk.exists(target):
        number += 1
        target = f"{path}{files.CORRUPT_SUFFIX}.{number}"
    await disk.write_atomically(target, found)
    return target
