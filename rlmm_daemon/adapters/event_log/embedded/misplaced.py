"""Events of another metadata partition in an embedded log's directory: they were mixed up."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

from rlmm_daemon.adapters.event_log.embedded import files
from rlmm_daemon.adapters.event_log.embedded.journal import Journal
from rlmm_daemon.adapters.event_log.embedded.records import records_of
from rlmm_daemon.codec import records
from rlmm_daemon.codec.batches import HEADER_BYTES, LENGTH_END
from rlmm_daemon.codec.scan import FoundBatch, walk
from rlmm_daemon.core.partitioner import metadata_partition
from rlmm_daemon.domain.errors import LogCorrupt, Malformed, StorageUnavailable
from rlmm_daemon.domain.ids import MetadataPartition
from rlmm_daemon.domain.segment import SegmentSnapshot
from rlmm_daemon.ports.disk import Disk
from rlmm_daemon.ports.event_log import LogRange, ranges_within

#: What a person does about misplaced files.
MISPLACED: Final = (
    "directories were mixed up: stop the daemon, rename each to the number of the metadata "
    "partition that its events are of, and start it; no repair mends that"
)

#: Most batches are shorter.
_READ_BYTES: Final = 16 * 1024


def owner_of(buffer: bytes, found: FoundBatch, partition_count: int) -> MetadataPartition | None:
    """Return whose the first event of a batch is, for all of one are the same partition's."""
    with suppress(LogCorrupt):
        for _, value in records_of(buffer, found, position=0):
            with suppress(Malformed):
                event = None if value is None else records.decode(value)
                if event is not None and not isinstance(event, SegmentSnapshot):
                    name = event.partition
                    return metadata_partition(name.topic_id, name.partition, partition_count)
    return None


def require_own(
    path: str,
    buffer: bytes,
    batches: Sequence[FoundBatch],
    partition: MetadataPartition,
    *,
    partition_count: int,
) -> None:
    """Raise LogCorrupt, which no repair ends, if a file begins with another partition's events."""
    owner = next(_owners(buffer, batches, partition_count), partition)
    if owner != partition:
        reason = f"its events are of metadata partition {owner}"
        raise LogCorrupt(
            f"{path}: {reason}; {MISPLACED}", file=path, reason=reason, command="rlmm doctor"
        )


async def strangers_below(
    disk: Disk, journal: Journal, offset: int, partition_count: int
) -> tuple[LogRange, ...]:
    """Return offsets below `offset`, in the last file that begins there, of another partition.

    Whoever goes on there from a snapshot reads none of them, and would write behind them.

    Raises:
        StorageUnavailable: the disk failed.
    """
    if offset <= journal.range.start:
        return ()
    base = journal.base_of(offset - 1)
    path = files.segment_path(journal.directory, base)
    try:
        buffer = await _first_batch(disk, path)
    except OSError as error:
        message = f"the event log cannot be read: {path}: {error.strerror}"
        raise StorageUnavailable(message, file=path) from error
    found = walk(buffer, base).found[:1]
    owner = next(_owners(buffer, found, partition_count), journal.partition)
    if owner == journal.partition:
        return ()
    theirs = (LogRange(start=each.base_offset, end=each.next_offset) for each in found)
    return ranges_within(theirs, LogRange(start=0, end=offset))


async def _first_batch(disk: Disk, path: str) -> bytes:
    """Return the beginning of a file with all of its first batch, if that is whole."""
    file = await disk.open(path)
    try:
        buffer = await file.pread(0, _READ_BYTES)
        size = LENGTH_END + int.from_bytes(buffer[8:LENGTH_END], "big")
        if HEADER_BYTES <= len(buffer) < size <= await file.size():
            buffer = await file.pread(0, size)
    finally:
        await file.close()
    return buffer


def _owners(
    buffer: bytes, found: Sequence[FoundBatch], partition_count: int
) -> Iterator[MetadataPartition]:
    owners = (owner_of(buffer, batch, partition_count) for batch in found)
    return (owner for owner in owners if owner is not None)
