"""Verification of a storage (`rlmm storage verify`): a listing, the log, a second look at both."""

import asyncio
import contextlib
import random
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.adapters.os.disk import LocalDisk
from rlmm_daemon.codec import custom_metadata, marker, records
from rlmm_daemon.config import Config
from rlmm_daemon.core.disposal.findings import RULES, Ages, Finding, lacks_nearly_all
from rlmm_daemon.core.disposal.inventory import FindingRow, History, Inventory
from rlmm_daemon.core.fold.fold import Fold
from rlmm_daemon.core.readiness.marker_verdict import IF_NONE, REBUILD, Rows, why_remade
from rlmm_daemon.core.storage.layout import Layout
from rlmm_daemon.daemon.base.os_errors import in_words
from rlmm_daemon.daemon.base.segment_log import decode_segment
from rlmm_daemon.daemon.base.state_directory import StateDirectory
from rlmm_daemon.daemon.bucket.bucket import Bucket
from rlmm_daemon.domain.errors import (
    InvalidArgument,
    Malformed,
    RlmmError,
    StorageNotConfigured,
    StorageUnavailable,
)
from rlmm_daemon.domain.ids import MetadataPartition, TopicIdPartition, uuid_text
from rlmm_daemon.domain.segment import SegmentMetadata, SegmentSnapshot, SegmentState
from rlmm_daemon.offline.log_contents import first_of
from rlmm_daemon.offline.log_ends import expected
from rlmm_daemon.offline.log_readers import reading
from rlmm_daemon.offline.quorum.replica_log import Event, Standing
from rlmm_daemon.ports.event_log import LogIdentity, LogMissing, LogMoved
from rlmm_daemon.ports.storage import RemoteStorage
from rlmm_daemon.wiring import adapters

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
    rows: list[FindingRow] = msgspec.field(default_factory=list)
    #: Metadata partitions whose log no longer begins at its first event: an orphan there may be
    #: a segment whose events are gone.
    trimmed: list[int] = msgspec.field(default_factory=list)
    #: Metadata partitions whose log lacks what nobody accepted as lost, and what that is.
    lacking: dict[int, str] = msgspec.field(default_factory=dict)
    #: Why nothing is said of incomplete uploads; None where they were listed.
    uploads_unlisted: str | None = None
    #: What is known of the quorum's replica that was read; None where the log was read whole.
    replica: Standing | None = None
    #: Findings that are not told, since events that are not settled, or not known, may end them.
    untold: int = 0
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


def told(row: FindingRow) -> dict[str, Any]:
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
        found, doubted = Verified(storage=made.bucket.name), set[TopicIdPartition]()
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
                rows = [row for row in rows if await _stands(storage, row, history)]
                doubted |= _partitions_of(log.unsettled(MetadataPartition(number)))
                found.rows += rows
            found.replica = log.standing
        found.missing = sum(row.judged.kind is Finding.MISSING_OBJECT for row in found.rows)
        orphans = list(inventory.orphans(ages))
        if found.replica is not None and not found.replica.whole:
            found.untold, orphans = len(orphans), []
        found.rows += orphans
        sure = [row for row in found.rows if row.name is None or row.name.partition not in doubted]
        found.untold += len(found.rows) - len(sure)
        found.rows = [*sure, *inventory.strangers()]
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


def _partitions_of(events: Iterable[Event]) -> set[TopicIdPartition]:
    """Return the partitions that some events name."""
    found = set[TopicIdPartition]()
    for _, value in events:
        with contextlib.suppress(Malformed):
            event = records.decode(value or b"")
            if not isinstance(event, SegmentSnapshot):
                found.add(event.partition)
    return found


def _is_of(row: FindingRow, topic: str) -> bool:
    return row.name is not None and row.name.partition.topic == topic


async def _stands(storage: RemoteStorage, row: FindingRow, history: History) -> bool:
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
