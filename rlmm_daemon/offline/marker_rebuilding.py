"""Rebuilding of a bucket marker (`rlmm storage rebuild-marker`) from evidence."""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.codec import custom_metadata, marker
from rlmm_daemon.codec.marker import MARKER_KEY, BucketMarker, LayoutRow, NewerMarker
from rlmm_daemon.config import Config
from rlmm_daemon.core.disposal.holds import held_whole, joined, with_told
from rlmm_daemon.core.disposal.inventory import History
from rlmm_daemon.core.fold.fold import Fold
from rlmm_daemon.core.readiness.marker_rebuilding import (
    Evidence,
    Rebuilt,
    rebuilt,
    require_some_seen,
)
from rlmm_daemon.core.readiness.marker_verdict import (
    MarkerReason,
    Owner,
    owner_of,
    why_not_ours,
    why_remade,
)
from rlmm_daemon.core.storage.layout import LOCAL_TIERED_STORAGE
from rlmm_daemon.daemon.bucket.presence_files import present as presence_files
from rlmm_daemon.domain.errors import (
    InvalidArgument,
    Malformed,
    RlmmError,
    StorageNotConfigured,
)
from rlmm_daemon.domain.ids import MetadataPartition, SegmentId, TopicId, uuid_bytes, uuid_text
from rlmm_daemon.domain.segment import SegmentMetadata, SegmentState
from rlmm_daemon.observability.logging import beside_answers
from rlmm_daemon.offline.log_contents import first_of
from rlmm_daemon.offline.log_readers import LogReader, reading
from rlmm_daemon.offline.quorum.replica_log import Event, Standing
from rlmm_daemon.offline.verification import kept_marker, missed_segments, rows_of
from rlmm_daemon.ports.event_log import LogIdentity, LogMissing, LogMoved
from rlmm_daemon.ports.storage import Conflict, ControlObject, RemoteStorage
from rlmm_daemon.reconcile import storage_time
from rlmm_daemon.wiring import adapters

#: What `Outcome.present` says where there is no marker.
ABSENT: Final = "absent"


_NOTHING: Final = (
    "the event log is {}, and not one segment's object is in {}: is this the right bucket or "
    "directory (storage in the configuration), and is it mounted? If the objects are known to be "
    "gone: the same with --objects-are-gone"
)


class Outcome(msgspec.Struct, kw_only=True):
    """What stands in the storage, what should, and what was done about it."""

    #: absent, damaged, in order, or what contradicts the rows below.
    present: str
    rows: list[Rebuilt]
    #: Segments of copies that never ended, under prefixes that none of the rows has.
    unplaced: Counter[str] = msgspec.field(default_factory=Counter)
    #: Metadata partitions whose log no longer begins at its first event.
    trimmed: list[int] = msgspec.field(default_factory=list)
    #: Metadata partitions whose log is damaged, and where: what stood there is not known.
    damaged: dict[int, str] = msgspec.field(default_factory=dict)
    #: Whether the state directory's copy contradicts the rows.
    copy_differs: bool = False
    #: What is known of the quorum's replica that was read; None where the log was read whole.
    replica: Standing | None = None
    #: Why the state directory's copy can't be read; None if it can, or there is none.
    copy_unread: str | None = None
    #: Whether a hold on everything is put into it: the former one may have had holds.
    holds_all: bool = False
    #: Whether there is anything to write, and whether it was.
    needed: bool = False
    written: bool = False
    #: Where the former marker went; None if there was none.
    former: str | None = None


def run(
    config: Config, told: Mapping[int, str], *, execute: bool, objects_are_gone: bool = False
) -> Outcome:
    """Work the marker out, and write it if asked.

    `objects_are_gone` is the operator's word that this is the right storage, empty as it is.

    Raises:
        RlmmError: the evidence does not suffice or contradicts itself, or can't be read.
    """
    beside_answers()
    try:
        return asyncio.run(_run(config, told, execute=execute, objects_are_gone=objects_are_gone))
    except* (LogMissing, LogMoved) as errors:
        raise InvalidArgument(str(errors.exceptions[0])) from errors
    except* RlmmError as errors:
        raise first_of(errors) from None


async def _run(
    config: Config, told: Mapping[int, str], *, execute: bool, objects_are_gone: bool = False
) -> Outcome:
    made = adapters.storage_of(
        config,
        random.Random(),  # noqa: S311 - jitter
        owner=f"rebuild-{config.daemon.broker_id}",
        reads_only=not execute,
    )
    if made is None:
        raise StorageNotConfigured('storage.kind is "none": there is no marker to rebuild')
    storage = made.backend
    try:
        await storage.open()
        control = await storage.get_control(MARKER_KEY)
        async with _reading(config, control) as log:
            is_gone = isinstance(log, _Gone)
            cluster_id = _cluster_of(config, log.identity)
            ours = Owner(cluster_id=cluster_id, topic_id=uuid_text(log.identity.topic_id))
            present, damage = _present(control, ours)
            kept, copy_unread = await _kept(config, cluster_id)
            evidence = Evidence(kept=[r.prefix for r in kept.layouts] if kept else (), told=told)
            needs, trimmed = dict[SegmentId, int | None](), list[int]()
            damaged = dict[int, str]()
            missed = list[SegmentMetadata]()
            for number in range(log.identity.partition_count):
                history = History(Fold(MetadataPartition(number), log.identity.partition_count))
                # It is not mended first: where a daemon waits for the marker, no command can.
                if await log.read_on(history, damaged) > 0:
                    trimmed.append(number)
                _needs_of(history, needs, evidence.finished)
                for offset, value in log.unsettled(MetadataPartition(number)):
                    history.take(offset, value)
                _needs_of(history, needs, evidence.finished)  # either may turn out to be true
                missed += await missed_segments(config, MetadataPartition(number))
            evidence.finished.update(each.segment_id for each in missed)
            evidence.named.update(number for number in needs.values() if number is not None)
            # What the log lost needs a prefix only where anything is left to be read below it.
            await _list(storage, evidence, _with_lost(needs, missed))
            tells_nothing = is_gone or (damaged and not evidence.finished)
            if tells_nothing and not (evidence.newest_ms or objects_are_gone):
                what = "gone" if is_gone else "damaged"
                raise InvalidArgument(_NOTHING.format(what, made.bucket.name or "this storage"))
            if present is None and not objects_are_gone:
                require_some_seen(evidence, made.bucket.name)  # before a prefix is asked for
            outcome = _outcome(evidence, present, damage, kept, trimmed=trimmed, damaged=damaged)
            outcome.copy_unread = copy_unread
            outcome.replica = log.standing
            if outcome.needed and not objects_are_gone:
                require_some_seen(evidence, made.bucket.name)
            wanted = _marker(outcome.rows, [present, kept], cluster_id, log.identity)
            # What others wrote into it since, only a log that is this daemon's alone rules out, and
            # that the copy is an older one, as of a backup, only the presence files.
            outcome.holds_all = outcome.needed and (
                kept is None
                or is_gone
                or config.shares_log
                or bool((said := await presence_files(storage)).unread)
                or with_told(wanted, said.told) != wanted
            )
            if execute and outcome.needed:
                if outcome.holds_all:
                    now_ms = max(SystemClock().now_ms(), await _storages_ms(storage))
                    # Stored while the storage's clock was ahead, it is younger than now.
                    before_ms = max(now_ms, evidence.newest_ms)
                    wanted = held_whole(wanted, before_ms, config.daemon.broker_id)
                outcome.former = await _write(storage, wanted, control)
                outcome.written = True
            return outcome
    finally:
        await storage.close()


class _Gone:
    """An event log that is gone, by its name in the copy of the marker: nothing is left of it."""

    def __init__(self, kept: BucketMarker) -> None:
        self.identity = LogIdentity(
            cluster_id=kept.cluster_id,
            topic_id=TopicId(uuid_bytes(kept.metadata_topic_id)),
            partition_count=kept.partition_count,
        )

    async def read_on(self, history: History, damaged: dict[int, str] | None = None) -> int:
        """Read nothing; return an offset behind the first event."""
        del damaged
        return history.fold.position + 1

    standing = None

    def unsettled(self, number: MetadataPartition) -> Sequence[Event]:
        del number
        return ()


@contextlib.asynccontextmanager
async def _reading(config: Config, control: ControlObject | None) -> AsyncIterator[LogReader]:
    """Open the log; where it is gone as well as the marker, the copy of that one stands for it.

    `rlmm log restore` looks for objects by the marker, so that one comes first.
    """
    async with contextlib.AsyncExitStack() as whole:
        log: LogReader
        try:
            log = await whole.enter_async_context(reading(config))
        except* LogMissing:  # in a group, where a topic was looked for
            kept = await kept_marker(config) if _is_lost(control) else None
            if kept is None:
                raise
            log = _Gone(kept)
        yield log


def _is_lost(control: ControlObject | None) -> bool:
    try:
        return control is None or marker.decode_marker(control.data) is None
    except NewerMarker:
        return False
    except Malformed:
        return True


async def _kept(config: Config, cluster_id: str) -> tuple[BucketMarker | None, str | None]:
    """Return the daemon's copy of this cluster's marker, or why it can't be read."""
    try:
        kept = await kept_marker(config)
    except Malformed as damage:
        return None, damage.message
    return (kept if kept is not None and kept.cluster_id == cluster_id else None), None


def _cluster_of(config: Config, identity: LogIdentity) -> str:
    ours, theirs = config.daemon.cluster_id, identity.cluster_id
    if None not in (ours, theirs) and ours != theirs:
        raise InvalidArgument(
            f"the event log is of cluster {theirs}, daemon.cluster_id is {ours}: "
            "the marker is left alone; rlmm doctor says more"
        )
    cluster_id = theirs or ours
    if cluster_id is None:
        raise InvalidArgument(
            "neither the event log nor daemon.cluster_id says which cluster it is"
        )
    return cluster_id


def _present(control: ControlObject | None, ours: Owner) -> tuple[BucketMarker | None, str | None]:
    """Return the marker that is there, or what is wrong with it.

    Raises:
        InvalidArgument: it is another cluster's.
        NewerMarker: it is a newer program's; both are left alone.
    """
    if control is None:
        return None, ABSENT
    try:
        present = marker.decode_marker(control.data)
        marker.require_topic_ids(present)
    except NewerMarker:
        raise
    except Malformed as error:
        return None, f"damaged: {error.message}"
    wrong = why_not_ours(owner_of(present), ours)
    if wrong is None:
        return present, None
    reason, why = wrong
    if reason is MarkerReason.DAMAGED:
        return None, f"damaged: {why}"
    raise InvalidArgument(f"{why}: its marker is left alone")


def _needs_of(
    history: History, needs: dict[SegmentId, int | None], finished: set[SegmentId]
) -> None:
    """Add what each segment that is not gone says of its layout, and which are finished."""
    for name, known in history.segments.items():
        if known.state is SegmentState.DELETE_SEGMENT_FINISHED:
            continue
        if custom_metadata.is_foreign(known.custom):
            continue
        facts = custom_metadata.decode(known.custom)
        needs[name.segment_id] = None if facts is None else facts.layout_number
        if facts is not None and known.state is SegmentState.COPY_SEGMENT_FINISHED:
            finished.add(name.segment_id)


def _with_lost(
    needs: Mapping[SegmentId, int | None], missed: Iterable[SegmentMetadata]
) -> Mapping[SegmentId, int | None]:
    """Return what segments say of their layouts, those too whose COPY_SEGMENT_FINISHED is lost."""
    facts = {each.segment_id: custom_metadata.decode(each.custom_metadata) for each in missed}
    lost = {
        segment_id: known.layout_number
        for segment_id, known in facts.items()
        if known is not None and needs.get(segment_id) is None
    }
    return {**needs, **lost}


async def _list(
    storage: RemoteStorage, evidence: Evidence, needs: Mapping[SegmentId, int | None]
) -> None:
    async with contextlib.aclosing(storage.list("")) as pages:
        async for page in pages:
            for row in page:
                evidence.take(needs, row.key, row.modified_ms)


def _outcome(
    evidence: Evidence,
    present: BucketMarker | None,
    damage: str | None,
    kept: BucketMarker | None,
    *,
    trimmed: list[int],
    damaged: dict[int, str],
) -> Outcome:
    rows = rebuilt(evidence)
    wanted = [(LOCAL_TIERED_STORAGE, row.prefix) for row in rows]
    # Rows that other daemons appended since, and that no segment names yet, are in order.
    wrong = damage if present is None else why_remade(wanted, rows_of(present))
    prefixes = {row.prefix for row in rows}
    unplaced = Counter(
        {p: n for p, n in evidence.unnumbered.explained.items() if p not in prefixes}
    )
    return Outcome(
        present=wrong or "in order",
        rows=rows,
        unplaced=unplaced,
        trimmed=trimmed,
        damaged=damaged,
        copy_differs=kept is not None and why_remade(rows_of(kept), wanted) is not None,
        # Where nothing names a layout a daemon makes the marker, unless it can't be sure of that.
        needed=wrong is not None and bool(rows or trimmed or damaged or wrong != ABSENT),
    )


def _marker(
    rows: list[Rebuilt],
    known: Sequence[BucketMarker | None],
    cluster_id: str,
    identity: LogIdentity,
) -> BucketMarker:
    """Return the marker with these rows; what else the former one or its copy says stays."""
    fresh = BucketMarker(
        cluster_id=cluster_id,
        partition_count=identity.partition_count,
        metadata_topic_id=uuid_text(identity.topic_id),
    )
    layouts = tuple(
        LayoutRow(number=row.number, kind=LOCAL_TIERED_STORAGE, prefix=row.prefix) for row in rows
    )
    first, *others = [each for each in known if each is not None] or [fresh]
    for other in others:
        first = joined(first, other)
    return msgspec.structs.replace(first, layouts=layouts)


async def _storages_ms(storage: RemoteStorage) -> int:
    """Return the storage's time: by a clock that is behind it a hold would keep nothing new."""
    return (await storage_time.read(storage)).now_ms()


async def _write(
    storage: RemoteStorage, wanted: BucketMarker, former: ControlObject | None
) -> str | None:
    """Write the marker over exactly what was read; the former one's bytes are put beside it first.

    Raises:
        InvalidArgument: somebody else wrote it meanwhile.
    """
    beside = None
    try:
        if former is not None:
            beside = f"{MARKER_KEY}.replaced-{SystemClock().now_ms()}"
            await storage.put_control(beside, former.data, if_etag=None)
        etag = None if former is None else former.etag
        await storage.put_control(MARKER_KEY, marker.encode(wanted), if_etag=etag)
    except Conflict as error:
        raise InvalidArgument(
            f"{MARKER_KEY} was written by somebody else meanwhile; look again without --execute"
        ) from error
    return beside
