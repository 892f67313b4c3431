"""Verification of a storage (`rlmm storage verify`): a listing, the log, a second look at both."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, Final, Protocol

import msgspec

from rlmm_daemon.adapters.event_log.embedded import compacted_files
from rlmm_daemon.adapters.event_log.embedded import files as embedded
from rlmm_daemon.adapters.event_log.embedded.identity import read_identity
from rlmm_daemon.adapters.event_log.embedded.verify import pieces
from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.adapters.os.disk import LocalDisk
from rlmm_daemon.codec import batches, custom_metadata, marker
from rlmm_daemon.config import Config, EmbeddedLog
from rlmm_daemon.core.disposal.findings import RULES, Ages, Finding, lacks_nearly_all
from rlmm_daemon.core.disposal.inventory import History, Inventory, Row
from rlmm_daemon.core.fold.fold import Fold
from rlmm_daemon.core.readiness.marker_verdict import IF_NONE, REBUILD, Rows, why_remade
from rlmm_daemon.core.storage.layout import Layout
from rlmm_daemon.daemon.base.os_errors import in_words
from rlmm_daemon.daemon.base.segment_log import decode_segment
from rlmm_daemon.daemon.base.state_directory import StateDirectory
from rlmm_daemon.daemon.bucket.bucket import Bucket
from rlmm_daemon.domain.errors import (
    InvalidArgument,
    LogCorrupt,
    Malformed,
    NotReady,
    RlmmError,
    StorageNotConfigured,
    StorageUnavailable,
)
from rlmm_daemon.domain.ids import MetadataPartition, uuid_text
from rlmm_daemon.domain.segment import SegmentMetadata, SegmentState
from rlmm_daemon.offline.log_contents import KAFKA, first_of, opened
from rlmm_daemon.offline.log_ends import expected
from rlmm_daemon.ports.disk import Disk
from rlmm_daemon.ports.event_log import NO_EPOCH, EventLog, LogIdentity, LogMissing, LogMoved
from rlmm_daemon.ports.storage import RemoteStorage
from rlmm_daemon.wiring import adapters
from rlmm_daemon.wiring.log_alone import require_readable

#: A prefix of ours in the bucket that holds no segments.
CONTROL: Final = "_rlmm/"
_DAY_MS: Final = 24 * 3_600_000
_MISSING: Final = frozenset({Finding.MISSING_OBJECT, Finding.PARTIAL_SEGMENT})
#: Beyond the longest copy: a COPY_SEGMENT_FINISHED may still be on its way to the log.
_DELIVERY_MS: Final = 120_000


class Verified(msgspec.Struct, kw_only=True):
    """What was compared, and what came of it."""

    objects: int = 0
    segments: int = 0
    rows: list[Row] = msgspec.field(default_factory=list)
    #: Metadata partitions whose log no longer begins at its first event: an orphan there may be
    #: a segment whose events are gone.
    trimmed: list[int] = msgspec.field(default_factory=list)
    #: Metadata partitions whose log lacks what nobody accepted as lost, and what that is.
    lacking: dict[int, str] = msgspec.field(default_factory=dict)
    #: Why nothing is said of incomplete uploads; None where they were listed.
    uploads_unlisted: str | None = None
    #: The bucket or directory that was listed.
    storage: str = ""
    #: Finished segments of the log, and those of them whose .log is missing, of every topic.
    finished: int = 0
    missing: int = 0

    def advice(self) -> str | None:
        """Return what to do about segments of which something is missing; None if nothing is."""
        if not any(row.judged.kind in _MISSING for row in self.rows):
            return None
        if lacks_nearly_all(self.missing, self.finished):
            return (
                f"{self.storage} lacks {self.missing} of {self.finished} finished segments: is it "
                "the right bucket or directory (storage in the configuration)? Delete none of them "
                "before you know (docs/recovery.md)"
            )
        return "A segment that is nowhere any more is ended by: rlmm delete TOPIC-PARTITION SEGMENT"


class LogReader(Protocol):
    """A log that is only read."""

    @property
    def identity(self) -> LogIdentity:
        """Which log it is."""

    async def read_on(self, history: History, damaged: dict[int, str] | None = None) -> int:
        """Read from the history's position to the end of now; return where the log begins.

        Given `damaged`, invalid batches of files are passed over, and the first one is put there.
        """


def run(config: Config, topic: str | None) -> Verified:
    """Return every disagreement of bucket and log, of one topic or all.

    Raises:
        RlmmError: either can't be read whole, so nothing could be said.
    """
    try:
        return asyncio.run(_run(config, topic))
    except* (LogMissing, LogMoved) as errors:
        raise InvalidArgument(str(errors.exceptions[0])) from errors
    except* RlmmError as errors:
        raise first_of(errors) from None


def told(row: Row) -> dict[str, Any]:
    """Return a finding as `--json` has it."""
    rule, name = RULES[row.judged.kind], row.name
    return {
        "kind": row.judged.kind.value,
        "severity": rule.severity.value,
        "partition": None if name is None else str(name.partition),
        "segment_id": None if name is None else uuid_text(name.segment_id),
        "key": row.key,
        "facts": row.judged.facts,
        "meaning": rule.meaning,
        "action": rule.action,
    }


async def _run(config: Config, topic: str | None) -> Verified:
    made = adapters.storage_of(config, random.Random(), reads_only=True)  # noqa: S311 - jitter
    if made is None:
        raise StorageNotConfigured('storage.kind is "none": there is nothing to verify')
    storage = made.backend
    try:
        found = Verified(storage=made.bucket.name)
        inventory, ages = await _listed(storage, made.bucket, config, found)
        async with reading(config) as log:
            present = await made.bucket.peek()
            _require_same_cluster(present, log.identity)
            wanted = await expected(config, present, log.identity)
            for number in range(log.identity.partition_count):
                history = History(Fold(MetadataPartition(number), log.identity.partition_count))
                if (start := await log.read_on(history)) > 0:
                    found.trimmed.append(number)
                if (why := wanted.why_lacking(number, start, history.fold.position)) is not None:
                    found.lacking[number] = why
                found.segments += len(history.segments)
                states = (known.state for known in history.segments.values())
                found.finished += sum(s is SegmentState.COPY_SEGMENT_FINISHED for s in states)
                _require_layouts(history, inventory)
                rows = list(inventory.compared(history, ages))
                if any(row.judged.confirm for row in rows):
                    await log.read_on(history)
                found.rows += [row for row in rows if await _stands(storage, row, history)]
        found.missing = sum(row.judged.kind is Finding.MISSING_OBJECT for row in found.rows)
        found.rows += [*inventory.orphans(ages), *inventory.strangers()]
        if topic is not None:
            found.rows = [row for row in found.rows if _is_of(row, topic)]
        return found
    finally:
        await storage.close()


async def _listed(
    storage: RemoteStorage, bucket: Bucket, config: Config, found: Verified
) -> tuple[Inventory, Ages]:
    present = await bucket.peek()
    if present is None:
        raise InvalidArgument(
            f"{bucket.name} has no marker {marker.MARKER_KEY}: if no daemon has used it yet, "
            f"there is nothing to verify; else: {IF_NONE}"
        )
    await _require_known(config, present)
    layouts = {row.number: Layout(row.prefix, row.kind) for row in present.layouts}
    inventory = Inventory(layouts)
    listed_ms = SystemClock().now_ms()
    for prefix in roots(layout.listed_prefix for layout in layouts.values()):
        async with contextlib.aclosing(storage.list(prefix)) as pages:
            async for page in pages:
                for row in page:
                    if not row.key.startswith(CONTROL):
                        inventory.listed(row.key, row.size, row.modified_ms)
        unlisted = await list_uploads(storage, prefix, inventory)
        found.uploads_unlisted = found.uploads_unlisted or unlisted
    found.objects = inventory.objects
    copy_ms = await _longest_copy_ms(storage, config)
    ages = Ages(
        listed_ms=listed_ms,
        grace_ms=max(_DAY_MS, 2 * copy_ms),
        stuck_copy_ms=copy_ms + _DELIVERY_MS,
    )
    return inventory, ages


async def _require_known(config: Config, present: marker.BucketMarker) -> None:
    """Raise if the marker contradicts the copy that the daemon keeps: keys would be made up."""
    try:
        kept = await kept_marker(config)
    except Malformed as damage:
        raise InvalidArgument(f"{damage.message}, so nobody can say where segments lie") from damage
    if kept is None or kept.cluster_id != present.cluster_id:
        return
    if (why := why_remade(rows_of(kept), rows_of(present))) is not None:
        raise InvalidArgument(
            f"the marker {marker.MARKER_KEY} is another one than the daemon knew: {why}; nothing "
            f"can be said of where segments lie; restore the former one, or run: {REBUILD}"
        )


async def missed_segments(config: Config, number: MetadataPartition) -> list[SegmentMetadata]:
    """Return the segments that a daemon misses of its log, as far as its list can be read."""
    disk = LocalDisk()
    try:
        lost = await StateDirectory(disk, config.daemon.state_dir).lost(number)
    except (OSError, RlmmError):
        return []
    finally:
        disk.close()
    return [] if lost is None else [decode_segment(record) for record in lost.records]


async def kept_marker(config: Config) -> marker.BucketMarker | None:
    """Return the copy of the marker that a daemon keeps in its state directory.

    Raises:
        Malformed: there is one that can't be read.
    """
    disk = LocalDisk()
    try:
        data = await StateDirectory(disk, config.daemon.state_dir).marker()
        if data is None:
            return None
        kept = marker.decode_marker(data)
        marker.require_topic_ids(kept)
    except (OSError, Malformed) as error:
        why = in_words(error) if isinstance(error, OSError) else error.message
        way = "started anew the daemon holds all objects, and writes the copy again"
        if isinstance(error, PermissionError):
            way = "run this as the daemon's user"
        raise Malformed(f"the daemon's copy of the marker can't be read ({why}): {way}") from error
    else:
        return kept
    finally:
        disk.close()


def rows_of(present: marker.BucketMarker) -> Rows:
    """Return a marker's rows as verdicts take them."""
    return [(row.kind, row.prefix) for row in present.layouts]


async def list_uploads(storage: RemoteStorage, prefix: str, inventory: Inventory) -> str | None:
    """Take incomplete uploads into the inventory; return why not, where that is not possible.

    Not every server lists them, not every policy allows it, and no consumer's data depends on it.
    """
    try:
        async with contextlib.aclosing(storage.list_uploads(prefix)) as uploads:
            async for several in uploads:
                for upload in several:
                    inventory.listed_upload(upload.key, upload.initiated_ms)
    except StorageUnavailable as error:
        return error.message
    return None


def roots(prefixes: Iterable[str]) -> Sequence[str]:
    """Return the prefixes that are below no other, so that nothing is listed twice."""
    found: list[str] = []
    for prefix in sorted(set(prefixes)):
        if not any(prefix.startswith(shorter) for shorter in found):
            found.append(prefix)
    return found


async def _longest_copy_ms(storage: RemoteStorage, config: Config) -> int:
    """Return the longest copy that any daemon of this bucket may make."""
    longest = float(config.copy.deadline_seconds)
    async with contextlib.aclosing(storage.list(marker.PRESENCE_PREFIX)) as pages:
        keys = [row.key async for page in pages for row in page]
    for key in keys:
        control = await storage.get_control(key)
        with contextlib.suppress(Malformed):  # a newer daemon's; the others' words stand
            if control is not None:
                presence = marker.decode_presence(control.data)
                longest = max(longest, presence.copy_deadline_seconds)
    return int(longest * 1000)


def _require_layouts(history: History, inventory: Inventory) -> None:
    """Raise if a live segment names a layout that the marker lacks: its objects are not missing."""
    for known in history.segments.values():
        facts = custom_metadata.decode(known.custom)
        gone = known.state is SegmentState.DELETE_SEGMENT_FINISHED
        if facts is not None and not gone and facts.layout_number not in inventory.layouts:
            raise InvalidArgument(
                f"the marker {marker.MARKER_KEY} lacks layout {facts.layout_number}, which "
                f"segments of the log name: delete none of them; restore it, or run: {REBUILD}"
            )


def _is_of(row: Row, topic: str) -> bool:
    return row.name is not None and row.name.partition.topic == topic


async def _stands(storage: RemoteStorage, row: Row, history: History) -> bool:
    """Return whether a finding holds when log and object are looked at again, where it needs that.

    Raises:
        RlmmError: the storage can't say, so neither can we.
    """
    if not row.judged.confirm:
        return True
    assert row.name is not None, "only a segment's absence needs a second look"
    recorded = history.recorded(row.name)
    if recorded is None or recorded.state is not SegmentState.COPY_SEGMENT_FINISHED:
        return False
    if not row.key:
        return True  # recorded under a layout that the marker lacks
    return await storage.size(row.key) != recorded.sizes[row.judged.suffix]


def _require_same_cluster(present: marker.BucketMarker | None, identity: LogIdentity) -> None:
    if present is not None and identity.cluster_id not in (None, present.cluster_id):
        raise InvalidArgument(
            f"the storage belongs to cluster {present.cluster_id!r}, the log to "
            f"{identity.cluster_id!r}"
        )


@contextlib.asynccontextmanager
async def reading(config: Config) -> AsyncIterator[LogReader]:
    """Open the configured log for reading; beside a daemon that runs, or without one.

    Raises:
        LogMissing: there is none.
        ConfigError: it is a quorum's.
    """
    require_readable(config)
    if isinstance(config.event_log, EmbeddedLog):
        disk = LocalDisk()
        try:
            identity = await read_identity(disk, config.event_log_directory)
            if identity is None:
                raise LogMissing(f"{config.event_log_directory} holds no event log")
            yield _Files(disk, config.event_log_directory, identity)
        finally:
            disk.close()
        return
    async with opened(config, KAFKA, None) as log:
        yield _Topic(log)


class _Topic:
    """Kafka's metadata topic."""

    def __init__(self, log: EventLog) -> None:
        assert log.identity is not None, "open"
        self._log, self.identity = log, log.identity

    async def read_on(self, history: History, damaged: dict[int, str] | None = None) -> int:
        del damaged  # another replica may lead, whose batches are whole
        number = history.fold.partition
        ranges = await self._log.end_offsets([number])
        if number not in ranges:
            raise NotReady(f"the end of metadata partition {number} is not known now")
        start, end = ranges[number].start, ranges[number].end
        fold, began = history.fold, history.fold.position
        at = max(fold.position, start)
        epoch = fold.leader_epoch if at == fold.position else NO_EPOCH
        if at < end:
            async with contextlib.aclosing(self._log.follow(number, at, epoch=epoch)) as found:
                async for batch in found:
                    _require_one_form(history, began, batch.dropped_to)
                    for offset, value in batch.records:
                        history.take(offset, value)
                    history.fold.advance(batch.next_offset, batch.leader_epoch)
                    if batch.next_offset >= end:
                        break
        return start


class _Files:
    """An embedded log's files, of a daemon that perhaps runs: only whole batches are taken."""

    def __init__(self, disk: Disk, directory: str, identity: LogIdentity) -> None:
        self._disk, self._directory, self.identity = disk, directory, identity

    async def read_on(self, history: History, damaged: dict[int, str] | None = None) -> int:
        began = history.fold.position
        home = embedded.partition_directory(self._directory, history.fold.partition)
        files = await compacted_files.segment_files(self._disk, home)
        bases = [base for base, _ in files]
        end = bases[0] if bases else 0
        for base, path in files:
            if end < base:
                _damaged(
                    path, f"it begins at {base}, the file before ends at {end}", history, damaged
                )
            buffer, end = await compacted_files.read(self._disk, path), max(end, base)
            for piece in pieces(buffer, base):
                end = max(end, piece.next_offset)
                if piece.found:
                    dropped = [each.next_offset for each in piece.found if each.compacted]
                    _require_one_form(history, began, max(dropped, default=0))
                    _take(history, buffer[piece.position : piece.end])
                elif base != bases[-1] or piece.end < len(buffer):
                    where = f"{path} at byte {piece.position}"
                    _damaged(where, piece.reason, history, damaged)
        return bases[0] if bases else 0


def _damaged(where: str, why: str, history: History, damaged: dict[int, str] | None) -> None:
    """Note what is wrong with the log, where that is wanted.

    Raises:
        LogCorrupt: it is not.
    """
    number = history.fold.partition
    if damaged is None:
        raise LogCorrupt(
            f"{where}: {why}; a daemon that stands on a snapshot may not have read it yet, then "
            f"run: rlmm partition rebuild {number} (it says what mends the log); else: rlmm log "
            f"repair {number}"
        )
    damaged.setdefault(number, f"{where}: {why}")


def _require_one_form(history: History, began: int, dropped_to: int) -> None:
    """Make sure that nothing was dropped since an earlier reading: it may be the end of that.

    `began` is how far that had read; 0: there was none.

    Raises:
        NotReady: the log was compacted meanwhile.
    """
    if 0 < began < dropped_to:
        number = history.fold.partition
        raise NotReady(f"metadata partition {number} was compacted meanwhile: ask again")


def _take(history: History, buffer: bytes) -> None:
    for batch in batches.split(buffer):
        for offset, value in batches.records_of(batch):
            if offset >= history.fold.position:
                history.take(offset, value)
