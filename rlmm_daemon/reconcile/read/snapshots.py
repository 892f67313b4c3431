"""Snapshots in place of a head of the log that is gone, and how one proves that it may be.

A daemon's snapshot is the fold of its metadata partition up to an offset. It covers a head if every
byte of it is whole, if it is of this cluster, log and partition, if it ends within what the log
still has, and if the log confirms its epoch there: then nothing between the two is missing.

It does not have all that the head had: segments that were deleted before, and records that its
daemon could not decode or refused. So what nothing names and is from before it is left, and told.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
from msgspec.structs import replace

from rlmm_daemon.codec import records, snapshot
from rlmm_daemon.codec.custom_metadata import ONLY_IF_STARTED
from rlmm_daemon.codec.snapshot import Header
from rlmm_daemon.core.fold.cache import PartitionCache
from rlmm_daemon.core.snapshots import unsealing
from rlmm_daemon.domain.errors import RlmmError
from rlmm_daemon.domain.segment import SegmentMetadata, SegmentState
from rlmm_daemon.ports.event_log import EpochEnd, LogIdentity, LogRange
from rlmm_daemon.reconcile.errors import Incomplete
from rlmm_daemon.reconcile.read import lives
from rlmm_daemon.reconcile.read.event_rows import ROWS_PER_BATCH, EventRows

S = SegmentState
#: Far above any header; the rest of the file is a task's to read.
HEADER_BYTES_MAX: Final = 64 * 1024
EpochEnds = Callable[[Iterable[tuple[int, int]]], Mapping[tuple[int, int], EpochEnd]]


class SnapshotCover(msgspec.Struct, frozen=True, kw_only=True):
    """One snapshot that stands for offsets [0, next_offset) of its partition."""

    path: str
    header: Header


def covers(
    directories: Iterable[str],
    identity: LogIdentity,
    ranges: Mapping[int, LogRange],
    epoch_ends: EpochEnds,
) -> dict[int, SnapshotCover]:
    """Return a cover for each partition whose head is gone, where there is one.

    Tables are not read yet: `rows` checks them all.
    """
    trimmed = {number: known for number, known in ranges.items() if known.start > 0}
    found: dict[int, SnapshotCover] = {}
    if not trimmed:
        return found
    for directory in directories:
        for path in sorted(Path(directory).glob("*.snapshot")):
            header = _header(path)
            if header is None or not _fits(header, identity, trimmed):
                continue
            best = found.get(header.metadata_partition)
            if best is None or best.header.next_offset < header.next_offset:
                found[header.metadata_partition] = SnapshotCover(path=str(path), header=header)
    pairs = {(number, cover.header.leader_epoch) for number, cover in found.items()}
    ends = epoch_ends(pairs) if pairs else {}
    return {
        number: cover
        for number, cover in found.items()
        if _confirmed(cover.header, ends.get((number, cover.header.leader_epoch)))
    }


def rows(path: str, number: int, end: int, partition_count: int) -> Iterator[pa.RecordBatch]:
    """Yield a cover's live segments as the events that made them, its READ row last.

    Raises:
        Incomplete: it is damaged, or another file by now.
    """
    try:
        header, fold = unsealing.load(Path(path).read_bytes())
    except (OSError, RlmmError) as error:
        raise Incomplete(f"snapshot {path}: {error}") from error
    if (header.metadata_partition, header.next_offset) != (number, end):
        raise Incomplete(f"snapshot {path} was replaced while the run went on")
    made = EventRows(number, partition_count)
    for whose in [*fold.partitions]:
        cache = fold.cache(whose)
        assert cache is not None, "it is one of the fold's"
        for offset, value in _events(cache):
            made.add(offset, value)
            if len(made) >= ROWS_PER_BATCH:
                yield made.take()
    made.read_through(0, end)
    yield made.take()


def _header(path: Path) -> Header | None:
    try:
        with path.open("rb") as file:
            return snapshot.decode_header(file.read(HEADER_BYTES_MAX))[0]
    except (OSError, RlmmError):
        return None  # then it covers nothing


def _fits(header: Header, identity: LogIdentity, trimmed: Mapping[int, LogRange]) -> bool:
    known = trimmed.get(header.metadata_partition)
    return (
        known is not None
        and header.cluster_id == identity.cluster_id
        and header.topic_id == identity.topic_id
        and header.partition_count == identity.partition_count
        and known.start <= header.next_offset <= known.end
    )


def _confirmed(header: Header, end: EpochEnd | None) -> bool:
    return (
        end is not None
        and end.epoch == header.leader_epoch
        and end.end_offset >= header.next_offset
    )


def _events(cache: PartitionCache) -> Iterator[tuple[int, bytes]]:
    for record in cache.list_all():
        segment = _decoded(record)
        if segment.segment_id not in cache.held:
            custom = cache.last_custom_metadata(segment.segment_id)
            yield from lives.life(replace(segment, custom_metadata=custom), segment.state)
    for record in cache.held_records():
        segment = _decoded(record)
        yield from lives.life(segment, S.COPY_SEGMENT_FINISHED)
        state = cache.state(segment.segment_id) or S.DELETE_SEGMENT_FINISHED
        if state in {S.DELETE_SEGMENT_STARTED, S.DELETE_SEGMENT_FINISHED}:
            held = replace(segment, custom_metadata=ONLY_IF_STARTED)
            yield lives.DELETING, lives.update(held, S.DELETE_SEGMENT_STARTED)
        if state is S.DELETE_SEGMENT_FINISHED:
            yield lives.DELETED, lives.update(segment, S.DELETE_SEGMENT_FINISHED)


def _decoded(record: bytes) -> SegmentMetadata:
    segment = records.decode(record)
    assert isinstance(segment, SegmentMetadata), "the cache holds nothing else"
    return segment
