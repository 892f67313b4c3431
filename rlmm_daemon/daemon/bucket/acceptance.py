"""Acceptances of an operator, put into the bucket marker: losses, holds, and another log."""

from collections.abc import Collection, Iterable

import msgspec

from rlmm_daemon.codec.marker import (
    MARKER_KEY,
    AcceptedGap,
    AcceptedLoss,
    BucketMarker,
    Hold,
)
from rlmm_daemon.core.disposal.holds import (
    UNKNOWN_MS,
    held_whole,
    recounted,
    with_hold,
    without_holds,
)
from rlmm_daemon.core.storage.layout import Layout
from rlmm_daemon.daemon.bucket.bucket import Bucket
from rlmm_daemon.daemon.bucket.earlier_objects import newest_ms
from rlmm_daemon.daemon.bucket.live_marker import MarkerChange
from rlmm_daemon.ports.event_log import LogRange, ranges_joined


async def accept_loss(
    bucket: Bucket,
    loss: AcceptedLoss,
    gaps: Collection[AcceptedGap] = (),
    *,
    cluster_id: str | None,
    partition_count: int | None = None,
    now_ms: int = 0,
) -> MarkerChange | None:
    """Keep an accepted loss in the marker, with a hold, and make its topic id the marker's.

    So is made the log's partition count, where it is given: who accepts the loss of all goes
    on with the log as it is.

    The hold keeps the objects whose events may be among what was lost, those of events of a
    clock like ours too, which says `now_ms`. The marker of another
    cluster than `cluster_id` is left alone. Where there is none of this cluster, nobody can say
    that there was none before either: the one that `open` makes or finds later takes it. It is
    returned then, for this process may end before; so is one that went into a marker that is not
    in order, as the storage may be the wrong one.

    Raises:
        StorageUnavailable: it was not written.
        Malformed: the marker is damaged or newer than this program.
    """
    hold = await _as_young(
        bucket,
        Hold(
            metadata_partition=loss.metadata_partition,
            before_ms=max(loss.accepted_at_ms, now_ms),
            broker_id=loss.broker_id,
        ),
    )
    accepted = accepting(loss, gaps, hold, partition_count)
    if not await bucket.rewrite(accepted, cluster_id):
        bucket.unwritten.append(accepted)
        return accepted
    await bucket.hold_longer(hold, cluster_id)
    return None if bucket.in_order else accepted


async def hold_all(bucket: Bucket, now_ms: int, broker_id: int) -> None:
    """Hold everything that is there now, whatever the log says of it.

    Raises:
        StorageUnavailable: it was not written.
        Malformed: the marker is damaged or newer than this program.
    """
    hold = await _as_young(
        bucket, Hold(metadata_partition=None, before_ms=now_ms, broker_id=broker_id)
    )
    await bucket.rewrite(lambda present: held_whole(present, hold.before_ms, hold.broker_id), None)
    await bucket.hold_longer(hold, None)


async def _as_young(bucket: Bucket, hold: Hold) -> Hold:
    """Return a hold that keeps the youngest object of any segment that is there now.

    It may be younger than now: the storage's clock was ahead when it was stored, as that of the
    event may have been that names it.

    Raises:
        StorageUnavailable: the storage does not answer.
        Malformed: the marker is damaged or newer than this program.
    """
    await bucket.storage.open()  # the start may not have reached it yet
    control = await bucket.storage.get_control(MARKER_KEY)
    rows = () if control is None else bucket.decoded(control).layouts
    layouts = [bucket.layout, *(Layout(row.prefix, row.kind) for row in rows)]
    youngest_ms = await newest_ms(bucket.storage, layouts)
    if youngest_ms is None:
        youngest_ms = hold.before_ms + UNKNOWN_MS
    return msgspec.structs.replace(hold, before_ms=max(hold.before_ms, youngest_ms))


async def end_holds(
    bucket: Bucket, metadata_partition: int | None, *, cluster_id: str | None
) -> None:
    """End the hold of one metadata partition, or (None) every one.

    Raises:
        StorageUnavailable: it was not written.
        Malformed: the marker is damaged or newer than this program.
    """
    await bucket.rewrite(lambda present: without_holds(present, metadata_partition), cluster_id)


async def name_log(
    bucket: Bucket, topic_id: str, *, cluster_id: str | None, hold: Hold | None = None
) -> bool:
    """Make a log the marker's, for everything that is known is in it; False if there is none.

    The marker of another cluster than `cluster_id` is left alone, and counts as none. `hold` is
    for a log that may lack what the one that the marker names held; it is not written for the same
    one.

    Raises:
        StorageUnavailable: it was not written.
        Malformed: the marker is damaged or newer than this program.
    """
    hold = None if hold is None else await _as_young(bucket, hold)
    holds = False

    def named(present: BucketMarker) -> BucketMarker:
        nonlocal holds
        holds = hold is not None and present.metadata_topic_id != topic_id
        return naming(topic_id, hold)(present)

    written = await bucket.rewrite(named, cluster_id)
    if written and hold is not None and holds:
        await bucket.hold_longer(hold, cluster_id)
    return written


def naming(topic_id: str, hold: Hold | None) -> MarkerChange:
    """Return what makes a log a marker's, with a hold unless it is that already."""

    def named(present: BucketMarker) -> BucketMarker:
        if present.metadata_topic_id == topic_id:
            return present
        renamed = msgspec.structs.replace(present, metadata_topic_id=topic_id)
        return renamed if hold is None else with_hold(renamed, hold)

    return named


def accepting(
    loss: AcceptedLoss, gaps: Collection[AcceptedGap], hold: Hold, partition_count: int | None
) -> MarkerChange:
    """Return what puts an accepted loss into a marker, once however often it is done."""

    def accepted(present: BucketMarker) -> BucketMarker:
        present = recounted(present, partition_count or present.partition_count)
        accepted = msgspec.structs.replace(
            present,
            metadata_topic_id=loss.topic_id,
            accepted_losses=tuple(dict.fromkeys((*present.accepted_losses, loss))),
            accepted_gaps=_joined([*present.gaps, *gaps]),
        )
        return with_hold(accepted, hold)

    return accepted


def _joined(gaps: Iterable[AcceptedGap]) -> tuple[AcceptedGap, ...]:
    """Return the same offsets in as few gaps as can be."""
    by_log: dict[tuple[str, int], list[LogRange]] = {}
    for gap in gaps:
        ranges = by_log.setdefault((gap.topic_id, gap.metadata_partition), [])
        ranges.append(LogRange(start=gap.start, end=gap.end))
    return tuple(
        AcceptedGap(topic_id=topic_id, metadata_partition=number, start=at.start, end=at.end)
        for (topic_id, number), ranges in sorted(by_log.items())
        for at in ranges_joined(ranges)
    )
