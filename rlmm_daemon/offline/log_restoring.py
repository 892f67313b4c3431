"""Restoring a log from snapshots (`rlmm log restore`): what they know and it lacks is appended."""

import asyncio
import fcntl
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.codec import records
from rlmm_daemon.codec.snapshot import Header
from rlmm_daemon.codec.state_files import Position
from rlmm_daemon.config import Config, EmbeddedLog
from rlmm_daemon.core.fold.fold import Fold
from rlmm_daemon.core.partitioner import metadata_partition
from rlmm_daemon.core.snapshots import unsealing
from rlmm_daemon.daemon.base.segment_log import decode_segment
from rlmm_daemon.daemon.operator.recovering import MaybeFinished, beginning_of
from rlmm_daemon.domain.errors import ConfigError, InTheWay, InvalidArgument, RlmmError
from rlmm_daemon.domain.ids import MetadataPartition, TopicId
from rlmm_daemon.domain.segment import SegmentMetadata, SegmentState, SegmentUpdate
from rlmm_daemon.observability.logging import beside_answers
from rlmm_daemon.offline.log_adoption import (
    adopt,
    is_configured,
    refuse_beside_a_daemon,
)
from rlmm_daemon.offline.log_contents import (
    KAFKA,
    QUORUM,
    Contents,
    Key,
    append_all,
    contents,
    count_of,
    first_of,
    opened,
    read_on,
    require_one_cluster,
    require_there,
)
from rlmm_daemon.offline.log_ends import Log, ReadTo, require_recorded
from rlmm_daemon.offline.log_objects import Objects, looking
from rlmm_daemon.offline.ownership import given_to_owner
from rlmm_daemon.ports.event_log import (
    NO_EPOCH,
    EventLog,
    LogMissing,
    LogMoved,
    LogRange,
    ranges_less,
)

#: Segments that are appended before the log is read again: somebody else may restore it, too.
CHUNK: Final = 64
LOCK_NAME: Final = "log-restore.lock"
_NAME: Final = re.compile(r"(?P<number>\d+)-(?P<generation>\d{10})\.snapshot(?P<rejected>.*)")


class Known(msgspec.Struct, frozen=True):
    """What snapshots know."""

    segments: dict[Key, SegmentMetadata]
    #: Of the log that they are of.
    partition_count: int
    #: None where no snapshot says.
    cluster_id: str | None = None
    #: Newest snapshots that can't be read, in whose place older ones were taken.
    damaged: tuple[str, ...] = ()
    read_to: ReadTo = msgspec.field(default_factory=dict)
    #: The leader epoch in which it had.
    epochs: Mapping[Log, int] = msgspec.field(default_factory=dict)
    #: Of which log each segment is known.
    logs: Mapping[Key, TopicId] = msgspec.field(default_factory=dict)


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """What one metadata partition is missing."""

    metadata_partition: int
    known: int
    missing: int
    #: Those of which the log holds a delete.
    deleted: int
    #: Those whose objects are not whole in the storage.
    objects_gone: int
    appended: int


class _Wanted(msgspec.Struct, frozen=True):
    """What snapshots know of one metadata partition."""

    segments: dict[Key, SegmentMetadata]
    #: Up to where the log is still what the snapshot of this log had read; 0: there is none.
    common_end: int
    #: What that snapshot knows.
    of_this_log: set[Key]

    def lacking(self, there: Contents) -> list[SegmentMetadata]:
        """Return the segments that the log neither holds as finished nor says to be deleted."""
        ends = {True: self.common_end, False: 0}
        return [
            segment
            for key, segment in self.segments.items()
            if there.lacks(key, since=ends[key in self.of_this_log])
        ]


class _Newest(msgspec.Struct):
    """For each metadata partition and log the snapshot that knows most."""

    folds: dict[Log, tuple[Header, Fold]] = msgspec.field(default_factory=dict)
    damaged: list[str] = msgspec.field(default_factory=list)

    def take(self, header: Header, fold: Fold) -> None:
        of = header.metadata_partition, header.topic_id
        if of not in self.folds or self.folds[of][0].next_offset < header.next_offset:
            self.folds[of] = header, fold


def known_to(directories: Iterable[str], *, accept_damaged: bool = False) -> Known:
    """Return the live finished segments that the newest snapshots know.

    Of each metadata partition and log it is the one that read on furthest, whoever wrote it: any
    other still knows what was deleted since, and whose objects are gone.

    Raises:
        InvalidArgument: a directory holds no snapshot that can be read; a newest one can't be, and
            that was not accepted; or they are of several clusters, or of logs with different
            numbers of partitions.
    """
    newest = _Newest()
    for name in directories:
        require_there("--from-snapshots", name)
        if not _read_directory(Path(name), newest):
            raise InvalidArgument(f"{name} holds no snapshot that can be read", path=name)
    if newest.damaged and not accept_damaged:
        raise InvalidArgument(
            f"these can't be read: {', '.join(newest.damaged)}. Older snapshots may still know "
            "what was deleted since. Next: name other brokers' snapshots, and --accept-damaged"
        )
    headers = [header for header, _ in newest.folds.values()]
    require_one_cluster({f"snapshots of {h.cluster_id}": h.cluster_id for h in headers})
    counts = {header.partition_count for header in headers}
    if len(counts) != 1:
        raise InvalidArgument(f"the snapshots are of logs with {sorted(counts)} partitions")
    known, logs = dict[Key, SegmentMetadata](), dict[Key, TopicId]()
    for (_, topic_id), (_, fold) in newest.folds.items():
        for key, segment in _finished(fold):
            known[key], logs[key] = segment, topic_id
    cluster_id = next((h.cluster_id for h in headers if h.cluster_id is not None), None)
    read_to = {log: header.next_offset for log, (header, _) in newest.folds.items()}
    epochs = {log: header.leader_epoch for log, (header, _) in newest.folds.items()}
    damaged = tuple(newest.damaged)
    return Known(known, counts.pop(), cluster_id, damaged, read_to, epochs, logs)


def _read_directory(directory: Path, newest: _Newest) -> bool:
    """Take a directory's newest snapshots; name those that can't be read."""
    rows = [(match, file) for file in directory.iterdir() if (match := _NAME.fullmatch(file.name))]
    rows.sort(key=lambda row: (row[0]["number"], row[0]["generation"], row[1].name), reverse=True)
    read: set[str] = set()
    logs: set[Log] = set()
    for match, file in rows:
        if not match["rejected"]:
            with suppress(OSError, RlmmError):
                header, fold = unsealing.load(file.read_bytes())
                read.add(match["number"])
                of = header.metadata_partition, header.topic_id
                if of not in logs:
                    logs.add(of)
                    newest.take(header, fold)
                continue
        if match["number"] not in read:
            newest.damaged.append(str(file))
    return bool(read)


def _finished(fold: Fold) -> Iterator[tuple[Key, SegmentMetadata]]:
    for partition, segment_id in fold.live_finished():
        cache = fold.cache(partition)
        record = cache.get(segment_id) if cache else None
        assert record is not None, "it is live"
        yield (partition, segment_id), decode_segment(record)
    for record in fold.held_records():  # finished, and marked as if its copy were stuck
        segment = decode_segment(record)
        yield (segment.partition, segment.segment_id), segment


def run(
    config: Config, known: Known, target: str, *, execute: bool, accept_loss: bool = False
) -> list[Restored]:
    """Return what is missing, and was appended, partition by partition.

    Without `accept_loss` a log that lost events which no snapshot had read is refused: what they
    deleted would come back.

    Raises:
        RlmmError: refused, or cut short; asking again goes on.
    """
    beside_answers()
    if target == QUORUM:
        raise InvalidArgument(
            "a quorum's log is not restored from snapshots: what any of its replicas has is there. "
            "A daemon that knows more gives it back: rlmm log repair N"
        )
    if not execute:
        require_there("--to", target)
    try:
        made = [] if target == KAFKA else [target]
        with (
            given_to_owner(config.daemon.state_dir, *made),
            _alone(config, execute=execute),
        ):
            work = _run(config, known, target, execute=execute, accept_loss=accept_loss)
            return asyncio.run(work)
    except* (LogMissing, LogMoved) as errors:
        raise InvalidArgument(str(errors.exceptions[0])) from errors
    except* RlmmError as errors:
        raise first_of(errors) from None


@contextmanager
def _alone(config: Config, *, execute: bool) -> Iterator[None]:
    """Keep a second restore with this state directory out; one that only looks needs nothing.

    Raises:
        ConfigError: one is at work.
    """
    directory = Path(config.daemon.state_dir)
    if not execute or not directory.is_dir():
        yield
        return
    with (directory / LOCK_NAME).open("wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as busy:
            raise ConfigError(f"another rlmm log restore holds {lock.name}") from busy
        yield


async def _run(
    config: Config, known: Known, target: str, *, execute: bool, accept_loss: bool = False
) -> list[Restored]:
    named = {"the snapshots": known.cluster_id, "the configuration": config.daemon.cluster_id}
    require_one_cluster(named)
    if execute and isinstance(config.event_log, EmbeddedLog) and is_configured(config, target):
        # It would go on with this log, and take it for a foreign one at each start from then on.
        await refuse_beside_a_daemon(config)
    if execute and not accept_loss:
        await require_recorded(config, known.read_to, target)
    # A log that is gone is made anew, but not by a dry run.
    async with (
        looking(config) as objects,
        opened(config, target, known.partition_count if execute else None) as log,
    ):
        assert log.identity is not None, "open"
        require_one_cluster(
            {**named, "the log": log.identity.cluster_id, "the storage": objects.cluster_id}
        )
        numbers = map(MetadataPartition, range(count_of(log)))
        found = {number: await _of(known, number, log) for number in numbers}
        wanted = {number: mine for number, mine in found.items() if mine.segments}
        reads = {number: await contents(log, number) for number in wanted}
        if not accept_loss:  # before anything is appended
            _require_read(log.identity.topic_id, known, reads, objects)
            _require_ends(log.identity.topic_id, known, wanted, reads)
        rows = [
            await _restored(log, number, mine, reads[number], objects=objects, execute=execute)
            for number, mine in wanted.items()
        ]
        if execute:
            with suppress(InTheWay):  # a daemon that runs is told by accept-loss
                now_ms = SystemClock().now_ms()
                ends = {int(n): Position(read.position, read.epoch) for n, read in reads.items()}
                await adopt(config, target, log.identity, hold_before_ms=now_ms, ends=ends)
        return rows


def _require_read(
    topic_id: TopicId, known: Known, reads: Mapping[MetadataPartition, Contents], objects: Objects
) -> None:
    """Make sure that a snapshot had read whatever the log lost, or that its loss was accepted.

    Raises:
        InvalidArgument: a deletion of what would come back may have stood in what was lost.
    """
    for number, there in reads.items():
        read = LogRange(start=0, end=known.read_to.get((number, topic_id), 0))
        accepted = objects.accepted_gaps(topic_id, number)
        if unread := ranges_less(there.lost(), [read, *accepted]):
            raise InvalidArgument(
                f"metadata partition {number} lacks offsets {unread[0].start} to "
                f"{unread[0].end - 1}, which no snapshot here had read: a deletion of what would "
                "come back may have stood there. Next: name other brokers' snapshots; or the same "
                "with --accept-loss"
            )


def _require_ends(
    topic_id: TopicId,
    known: Known,
    wanted: Mapping[MetadataPartition, _Wanted],
    reads: Mapping[MetadataPartition, Contents],
) -> None:
    """Make sure that the log still says of each segment that it lacks whether that was deleted.

    Raises:
        InvalidArgument: a compaction may have dropped the deletion of what would come back.
    """
    for number, there in reads.items():
        read_to = known.read_to.get((number, topic_id), 0)
        if read_to < there.dropped_to and wanted[number].lacking(there):
            raise InvalidArgument(
                f"metadata partition {number} was compacted up to offset {there.dropped_to}, and "
                f"the snapshots here had read to {read_to}: the deletion of what would come back "
                "may have been dropped. Next: name newer snapshots; or the same with --accept-loss"
            )


async def _of(known: Known, number: MetadataPartition, log: EventLog) -> _Wanted:
    """Return what is known of one metadata partition, and what of it is of this very log.

    Raises:
        UnavailableError: the log does not say how far it is still what had been read of it.
    """
    assert log.identity is not None, "open"
    count, topic_id = count_of(log), log.identity.topic_id
    segments = {
        key: segment
        for key, segment in known.segments.items()
        if metadata_partition(key[0].topic_id, key[0].partition, count) == number
    }
    epoch, common_end = known.epochs.get((number, topic_id), NO_EPOCH), 0
    if epoch != NO_EPOCH:
        found = await log.epoch_end(number, epoch)
        common_end = max(0, min(found.end_offset, known.read_to[number, topic_id]))
    of_this_log = {key for key in segments if known.logs[key] == topic_id}
    return _Wanted(segments, common_end, of_this_log)


async def _restored(
    log: EventLog,
    number: MetadataPartition,
    mine: _Wanted,
    there: Contents,
    *,
    objects: Objects,
    execute: bool,
) -> Restored:
    live = mine.lacking(there)
    begun_again = {(each.partition, each.segment_id) for each in live} & there.finished.keys()
    lacking = sum(key not in there.finished for key in mine.segments) + len(begun_again)
    missing = await objects.whole(live)
    missing.sort(key=lambda each: (str(each.partition), each.start_offset))
    if execute:
        await _append(log, number, missing, there)
    return Restored(
        metadata_partition=number,
        known=len(mine.segments),
        missing=len(missing),
        deleted=lacking - len(live),
        objects_gone=len(live) - len(missing),
        appended=len(missing) if execute else 0,
    )


async def _append(
    log: EventLog, number: MetadataPartition, missing: Sequence[SegmentMetadata], there: Contents
) -> None:
    """Append segments, some at a time, and read each time what the log made of them.

    Raises:
        InvalidArgument: somebody else restores the same log, or it does not take one.
    """
    for begin in range(0, len(missing), CHUNK):
        chunk = missing[begin : begin + CHUNK]
        values = [value for segment in chunk for value in _events(segment, there.fold)]
        for each in chunk:  # what is there of it is an earlier copy's finish
            there.finished.pop((each.partition, each.segment_id), None)
        ours = await append_all(log, number, values)
        await read_on(log, number, there)
        offsets = [there.finished.get((each.partition, each.segment_id)) for each in chunk]
        if None in offsets:
            raise InvalidArgument(
                f"{offsets.count(None)} segments of metadata partition {number} were not taken"
            )
        if not ours.issuperset(offsets):
            raise InvalidArgument(
                f"somebody else restores metadata partition {number} just now: what is there twice "
                "does no harm. Next: ask again when that has ended"
            )


def _events(segment: SegmentMetadata, fold: Fold) -> list[bytes]:
    """Return what the log lacks of a finished segment: its end, or all of it."""
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
    cache = fold.cache(segment.partition)
    state = None if cache is None else cache.state(segment.segment_id)
    return [*beginning_of(MaybeFinished(segment=segment, state=state)), finished]
