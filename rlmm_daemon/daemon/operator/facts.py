"""Facts for `core.explain`, gathered from a running manager, or from any fold."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from rlmm_daemon.codec import records
from rlmm_daemon.core.disposal.holds import Holds, held
from rlmm_daemon.core.explain.facts import (
    AnnouncedRole,
    BadRecord,
    CopyFailure,
    CopyInFlight,
    CopyPhase,
    Facts,
    LastError,
    OffsetFacts,
    RemovalFacts,
    SegmentCount,
    SegmentFact,
    Unread,
    UnsettledCopy,
)
from rlmm_daemon.core.fold.cache import PartitionCache
from rlmm_daemon.core.fold.fold import Fold
from rlmm_daemon.core.fold.fold import Trouble as FoldTrouble
from rlmm_daemon.core.readiness.states import PartitionState, TroubleKind
from rlmm_daemon.daemon.copying.progress import ENDED, RunningCopy
from rlmm_daemon.daemon.following.follower import Follower
from rlmm_daemon.daemon.metadata.manager import Manager
from rlmm_daemon.domain.ids import (
    LeaderEpoch,
    Offset,
    SegmentId,
    TopicIdPartition,
    uuid_text,
)
from rlmm_daemon.domain.segment import SegmentMetadata, SegmentState

#: Segments that are looked at before others get a turn.
_TURN_SEGMENTS: Final = 512


class StorageView(msgspec.Struct, frozen=True, kw_only=True):
    """The remote storage as far as people are told of it."""

    kind: str = "none"
    error: LastError | None = None
    #: Another daemon that lives under this broker id.
    other_daemon: LastError | None = None
    #: What the bucket marker keeps; None: it was not read yet.
    holds: Holds | None = ()
    #: Median of its last answers; 0: not known.
    answer_seconds: float = 0.0


class CopyView(msgspec.Struct, frozen=True, kw_only=True):
    """What the copier can be asked."""

    jobs: Callable[[], Sequence[RunningCopy]] = list
    #: User partition in Kafka's form -> its last copy, if that failed.
    failures: Callable[[], Mapping[str, CopyFailure]] = dict
    #: Copies that failed of segments that somebody else finished, the last one last.
    unsettled: Callable[[], Sequence[UnsettledCopy]] = list
    deadline_seconds: float = 600.0


_NO_STORAGE: Final = StorageView()
_NO_COPIES: Final = CopyView()


class _Scan(msgspec.Struct):
    """What one walk over a partition's segments finds."""

    oldest: dict[SegmentState, tuple[int, SegmentId]] = msgspec.field(default_factory=dict)
    last_event_at_ms: int | None = None
    parts: list[SegmentFact] = msgspec.field(default_factory=list)
    epochs: set[int] = msgspec.field(default_factory=set)


async def collect(
    manager: Manager,
    selector: str,
    partition: TopicIdPartition | None,
    *,
    epoch: int | None = None,
    offset: int | None = None,
    storage: StorageView = _NO_STORAGE,
    copies: CopyView = _NO_COPIES,
    removal: Callable[[TopicIdPartition], RemovalFacts] = lambda _: RemovalFacts(),
) -> Facts:
    """Return the facts about a user partition as of now; never raises for a bad state."""
    facts = _of_daemon(manager, selector, partition, storage, copies=copies)
    follow_set = manager.fleet.follow_set
    if partition is None or follow_set is None:
        return facts
    number = follow_set.of(partition)
    on_hold = None if storage.holds is None else held(storage.holds, number, None) is not None
    facts = replace(facts, metadata_partition=number, removal=removal(partition), on_hold=on_hold)
    follower = manager.fleet.followers.get(number)
    if follower is None:
        return facts
    facts = _of_follower(facts, follower, partition)
    return await of_fold(facts, follower.fold, partition, epoch=epoch, offset=offset)


def _of_daemon(
    manager: Manager,
    selector: str,
    partition: TopicIdPartition | None,
    storage: StorageView,
    *,
    copies: CopyView,
) -> Facts:
    fleet, trouble = manager.fleet, manager.fleet.trouble
    message = None if trouble is None else trouble.message
    about_marker = trouble is not None and trouble.kind is TroubleKind.MARKER_UNREAD
    leads = None if partition is None else manager.assignment.announced.get(partition)
    roles = {True: AnnouncedRole.LEADER, False: AnnouncedRole.FOLLOWER, None: AnnouncedRole.NONE}
    name = str(partition)
    return Facts(
        selector=selector,
        partition=partition,
        now_ms=manager.clock.now_ms(),
        draining=manager.gates.draining,
        log_open=fleet.follow_set is not None,
        log_trouble=None if about_marker else message,
        marker_trouble=message if about_marker else None,
        whole_failure=fleet.whole_failure,
        storage_kind=storage.kind,
        storage_error=storage.error,
        storage_answer_seconds=storage.answer_seconds,
        other_daemon=storage.other_daemon,
        copy_deadline_seconds=copies.deadline_seconds,
        freshness=fleet.options.freshness,
        gate_open=manager.assignment.gate_open,
        role=roles[leads],
        unread=_unread(manager) if partition is None else (),
        copies=tuple(
            _copy(job) for job in copies.jobs() if job.partition == name and job.phase != ENDED
        ),
        copy_failure=copies.failures().get(name),
        paused_since_ms=None if partition is None else manager.pauses.since_ms(partition.topic),
        pause_trouble=manager.pauses.trouble,
        unsettled=tuple(row for row in reversed(copies.unsettled()) if row.partition == name),
    )


def _unread(manager: Manager) -> tuple[Unread, ...]:
    read = (PartitionState.READY, PartitionState.STALE)
    return tuple(
        Unread(number=follower.partition, state=follower.state, failure=follower.failure)
        for follower in manager.followed()
        if follower.state not in read
    )


def _copy(job: RunningCopy) -> CopyInFlight:
    return CopyInFlight(
        segment_id=job.segment_id,
        phase=CopyPhase(job.phase),
        bytes_done=job.bytes_done,
        bytes_total=job.bytes_total,
        parts_done=job.parts_done,
        call=job.call,
        age_seconds=job.age_seconds,
    )


def _of_follower(facts: Facts, follower: Follower, partition: TopicIdPartition) -> Facts:
    trouble, history = follower.trouble, follower.history
    return replace(
        facts,
        state=follower.state,
        failure=follower.failure,
        lacks_offsets=follower.lacks_offsets,
        alarmed=follower.alarmed,
        trouble=None
        if trouble is None
        else LastError(
            message=trouble.message,
            at_ms=trouble.at_ms,
            consecutive=trouble.consecutive,
            file=trouble.file,
        ),
        target=follower.confirmation.target,
        lag=follower.lag,
        log_start=follower.range.start if follower.range else None,
        log_end=follower.range.end if follower.range else None,
        silent_seconds=follower.silent_seconds,
        confirmed=partition in follower.confirmation.confirmed,
        snapshot_at_ms=follower.snapshot_at_ms,
        missing=history.missing_count,
        missing_reasons=tuple(history.reasons),
    )


async def of_fold(
    facts: Facts,
    fold: Fold,
    partition: TopicIdPartition,
    *,
    epoch: int | None = None,
    offset: int | None = None,
) -> Facts:
    """Return the facts with what a fold knows; looks at each segment once, in turns."""
    facts = replace(
        facts,
        position=fold.position,
        unreadable=dict(fold.unreadable),
        rejected=dict(fold.rejected),
        last_unreadable=_last(fold.unreadable_recent),
        last_rejected=_last(fold.rejected_recent),
    )
    cache = fold.partitions.get(partition)
    if cache is None:
        question = None if offset is None else OffsetFacts(offset=offset, epoch=epoch)
        return replace(facts, question=question)
    scan = await _scan(cache, offset)
    question = None if offset is None else _question(cache, scan, epoch, offset)
    return replace(
        facts,
        known=True,
        segments={state: _count(cache, scan, state) for state in SegmentState},
        third_set=len({i for each in cache.epochs for i in cache.third_set(LeaderEpoch(each))}),
        delete_state=cache.delete_state,
        held=len(cache.held),
        last_event_at_ms=scan.last_event_at_ms,
        late_writers=dict(cache.late_writers),
        question=question,
    )


def _last(recent: Sequence[FoldTrouble]) -> BadRecord | None:
    if not recent:
        return None
    last = recent[-1]
    return BadRecord(offset=last.offset, reason=last.reason, head_hex=last.head_hex)


def _count(cache: PartitionCache, scan: _Scan, state: SegmentState) -> SegmentCount:
    at_ms, segment_id = scan.oldest.get(state, (0, SegmentId(b"")))
    return SegmentCount(
        count=cache.segments_by_state[state],
        size_bytes=cache.bytes_by_state[state],
        oldest_id=uuid_text(segment_id) if segment_id else "",
        oldest_at_ms=at_ms,
    )


async def _scan(cache: PartitionCache, offset: int | None) -> _Scan:
    scan = _Scan()
    for index, segment_id in enumerate(list(cache.segments)):
        if index % _TURN_SEGMENTS == _TURN_SEGMENTS - 1:
            await asyncio.sleep(0)
        record = cache.get(segment_id)
        segment = None if record is None else records.decode(record)
        if isinstance(segment, SegmentMetadata):
            _look_at(scan, segment, offset)
    return scan


def _look_at(scan: _Scan, segment: SegmentMetadata, offset: int | None) -> None:
    at_ms = segment.event_timestamp_ms
    scan.last_event_at_ms = max(at_ms, scan.last_event_at_ms or at_ms)
    oldest = scan.oldest.get(segment.state)
    if oldest is None or (at_ms, segment.segment_id) < oldest:
        scan.oldest[segment.state] = (at_ms, segment.segment_id)
    if offset is not None:
        parts = parts_of(segment)
        scan.epochs |= {part.epoch for part in parts}
        scan.parts += parts


def parts_of(segment: SegmentMetadata) -> list[SegmentFact]:
    """Return a segment's part in each of its epochs, without those that hold nothing."""
    ascending = sorted(segment.segment_leader_epochs.items())
    ends = [start - 1 for _, start in ascending[1:]] + [int(segment.end_offset)]
    return [
        SegmentFact(
            segment_id=uuid_text(segment.segment_id),
            state=segment.state,
            epoch=epoch,
            start_offset=start,
            end_offset=end,
            broker_id=segment.broker_id,
            event_at_ms=segment.event_timestamp_ms,
        )
        for (epoch, start), end in zip(ascending, ends, strict=True)
        if start <= end
    ]


def _question(cache: PartitionCache, scan: _Scan, epoch: int | None, offset: int) -> OffsetFacts:
    asked = [part for part in scan.parts if epoch is None or part.epoch == epoch]
    holding = [part for part in asked if part.start_offset <= offset <= part.end_offset]
    finished = [p for p in asked if p.state is SegmentState.COPY_SEGMENT_FINISHED]
    before = [part for part in finished if part.end_offset < offset]
    after = [part for part in finished if part.start_offset > offset]
    return OffsetFacts(
        offset=offset,
        epoch=epoch,
        found=_found(cache, holding, offset),
        unreadable=tuple(
            part for part in holding if part.state is not SegmentState.COPY_SEGMENT_FINISHED
        ),
        elsewhere=tuple(
            part
            for part in scan.parts
            if part not in asked
            and part.state is SegmentState.COPY_SEGMENT_FINISHED
            and part.start_offset <= offset <= part.end_offset
        ),
        before=max(before, key=lambda part: part.end_offset, default=None),
        after=min(after, key=lambda part: part.start_offset, default=None),
        epochs=tuple(sorted(scan.epochs)),
    )


def _found(cache: PartitionCache, holding: list[SegmentFact], offset: int) -> SegmentFact | None:
    """Return the part that a look-up answers; of several epochs, the newest."""
    for part in sorted(holding, key=lambda part: -part.epoch):
        record = cache.lookup(LeaderEpoch(part.epoch), Offset(offset))
        segment = None if record is None else records.decode(record)
        if isinstance(segment, SegmentMetadata):
            mine = [each for each in parts_of(segment) if each.epoch == part.epoch]
            return mine[0] if mine else None
    return None
