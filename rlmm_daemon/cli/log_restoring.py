"""The work of `rlmm log restore`: what snapshots know, held against a log, and appended to it."""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from rlmm_daemon.cli.log_adoption import adopt
from rlmm_daemon.cli.log_contents import append_all, contents, count_of, first_of, opened
from rlmm_daemon.codec import records
from rlmm_daemon.config import Config
from rlmm_daemon.core import unsealing
from rlmm_daemon.core.fold import Fold
from rlmm_daemon.core.partitioner import metadata_partition
from rlmm_daemon.domain.errors import ConfigError, InvalidArgument, RlmmError
from rlmm_daemon.domain.ids import MetadataPartition, SegmentId, TopicId, TopicIdPartition
from rlmm_daemon.domain.segment import SegmentMetadata, SegmentState, SegmentUpdate
from rlmm_daemon.ports.event_log import LogMissing, LogMoved


@dataclass(frozen=True, slots=True)
class Known:
    """What snapshots know."""

    segments: dict[tuple[TopicIdPartition, SegmentId], SegmentMetadata]
    #: Of the log that they are of.
    partition_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What one metadata partition is missing."""

    metadata_partition: int
    known: int
    missing: int
    appended: int


def known_to(directories: Iterable[str]) -> Known:
    """Return the live finished segments that the newest readable snapshots know.

    Of each directory, metadata partition and log it is the newest alone: an older one still knows
    what was deleted since, and whose objects are gone.

    Raises:
        InvalidArgument: a directory holds no snapshot that can be read, or they are of logs with
            different numbers of partitions.
    """
    known: dict[tuple[TopicIdPartition, SegmentId], SegmentMetadata] = {}
    counts: set[int] = set()
    for name in directories:
        newest: set[tuple[int, TopicId]] = set()
        for file in sorted(Path(name).glob("*.snapshot"), reverse=True):  # 3-0000000012.snapshot
            try:
                header, fold = unsealing.load(file.read_bytes())
            except (OSError, RlmmError):
                continue
            of = header.metadata_partition, header.topic_id
            if of in newest:
                continue
            newest.add(of)
            counts.add(header.partition_count)
            for partition, segment_id in fold.live_finished():
                cache = fold.cache(partition)
                record = cache.get(segment_id) if cache else None
                assert record is not None, "it is live"
                segment = records.decode(record)
                assert isinstance(segment, SegmentMetadata), "the cache holds nothing else"
                known[partition, segment_id] = segment
        if not newest:
            raise InvalidArgument(f"{name} holds no snapshot that can be read", path=name)
    if len(counts) != 1:
        raise InvalidArgument(f"the snapshots are of logs with {sorted(counts)} partitions")
    return Known(known, counts.pop())


def run(config: Config, known: Known, target: str, *, execute: bool) -> list[Restored]:
    """Return what is missing, and was appended, partition by partition.

    Raises:
        RlmmError: cut short; asking again goes on.
    """
    try:
        return asyncio.run(_run(config, known, target, execute=execute))
    except* (LogMissing, LogMoved) as errors:
        raise InvalidArgument(str(errors.exceptions[0])) from errors
    except* RlmmError as errors:
        raise first_of(errors) from None


async def _run(config: Config, known: Known, target: str, *, execute: bool) -> list[Restored]:
    # A log that is gone is made anew, but not by a dry run.
    async with opened(config, target, known.partition_count if execute else None) as log:
        count = count_of(log)
        rows = []
        for number in map(MetadataPartition, range(count)):
            mine = {
                key: segment
                for key, segment in known.segments.items()
                if metadata_partition(key[0].topic_id, key[0].partition, count) == number
            }
            if not mine:
                continue
            there = await contents(log, number)
            missing = [segment for key, segment in mine.items() if key not in there.finished]
            missing.sort(key=lambda each: (str(each.partition), each.start_offset))
            if execute and missing:
                started = {segment.segment_id for segment in missing if _begun(there.fold, segment)}
                values = [
                    value for segment in missing for value in _events(segment, started=started)
                ]
                await append_all(log, number, values)
                after = await contents(log, number)
                lost = [key for key in mine if key not in after.finished]
                if lost:
                    raise InvalidArgument(
                        f"{len(lost)} segments of metadata partition {number} were not taken"
                    )
            row = Restored(
                metadata_partition=number,
                known=len(mine),
                missing=len(missing),
                appended=len(missing) if execute else 0,
            )
            rows.append(row)
        if execute and log.identity is not None:
            with suppress(ConfigError):  # a daemon that runs is told by accept-loss
                await adopt(config, target, log.identity)
        return rows


def _begun(fold: Fold, segment: SegmentMetadata) -> bool:
    """Return whether the log has its COPY_SEGMENT_STARTED, so that only its end was lost."""
    cache = fold.cache(segment.partition)
    return cache is not None and cache.get(segment.segment_id) is not None


def _events(segment: SegmentMetadata, *, started: set[SegmentId]) -> list[bytes]:
    finished = records.encode(
        SegmentUpdate(
            partition=segment.partition,
            segment_id=segment.segment_id,
            broker_id=segment.broker_id,
            event_timestamp_ms=segment.event_timestamp_ms,
            custom_metadata=segment.custom_metadata,
            state=SegmentState.COPY_SEGMENT_FINISHED,
        )
    )
    if segment.segment_id in started:
        return [finished]
    begun = replace(segment, state=SegmentState.COPY_SEGMENT_STARTED, custom_metadata=None)
    return [records.encode(begun), finished]
