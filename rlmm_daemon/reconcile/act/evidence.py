"""Input facts for the safety guards: what the storage says of itself, what was read of the log."""

from collections.abc import Collection, Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from rlmm_daemon.codec.marker import MARKER_KEY, BucketMarker, LayoutRow, Presence
from rlmm_daemon.config import Config
from rlmm_daemon.domain.errors import Malformed
from rlmm_daemon.domain.ids import uuid_text
from rlmm_daemon.domain.segment import SegmentState as S
from rlmm_daemon.ports.event_log import LogRange, ranges_joined
from rlmm_daemon.reconcile import control
from rlmm_daemon.reconcile.act import quarantine
from rlmm_daemon.reconcile.act.quarantine import Manifest
from rlmm_daemon.reconcile.errors import Incomplete
from rlmm_daemon.reconcile.judge import guards
from rlmm_daemon.reconcile.read import log_reading
from rlmm_daemon.reconcile.read.log_reading import LogView
from rlmm_daemon.reconcile.schema import RowKind

#: Unaccepted rows of UNREADABLE that are worth naming; one is enough to refuse.
UNREADABLE_MAX: Final = 100
#: Layouts unknown to the marker that are worth naming.
LAYOUTS_MAX: Final = 10
#: Metadata partitions with lost records that are worth naming.
LOST_MAX: Final = 100


class Ours(msgspec.Struct, frozen=True, kw_only=True):
    """What the storage says of itself."""

    marker: BucketMarker | None
    presences: Mapping[str, Presence | None]
    accepted: frozenset[tuple[int, int, str]]
    manifests: Mapping[str, Manifest]
    #: Why control objects can't be read.
    damaged: tuple[str, ...] = ()
    #: When the storage took the marker; None: it does not say.
    marker_ms: int | None = None

    @property
    def layouts(self) -> tuple[LayoutRow, ...]:
        """Every layout that the storage ever had."""
        return self.marker.layouts if self.marker else ()


async def ours(daemon: Config) -> Ours:
    """Return the control objects as they are now."""
    async with control.opened(daemon, reads_only=True) as storage:
        marker, marker_ms = await control.read_marker(storage), await control.marker_ms(storage)
        presences = await control.read_presences(storage)
        manifests, damaged = await quarantine.Manifests(storage).look()
        reasons = [*damaged.values()]
        try:
            accepted = (await control.read_accepted(storage)).keys()
        except Malformed as error:
            accepted = frozenset()
            reasons.append(error.message)
        return Ours(
            marker=marker,
            marker_ms=marker_ms,
            presences=presences,
            accepted=accepted,
            manifests=manifests,
            damaged=tuple(reasons),
        )


async def refreshed(daemon: Config, known: Ours) -> Ours:
    """Return the same with the marker as it is now.

    Raises:
        Incomplete: it is gone by now, or has lost layouts.
    """
    async with control.opened(daemon, reads_only=True) as storage:
        marker, marker_ms = await control.read_marker(storage), await control.marker_ms(storage)
    if marker is None:
        raise Incomplete(f"{MARKER_KEY} has gone while the run went on: the storage is gone")
    if marker.layouts[: len(known.layouts)] != known.layouts:
        raise Incomplete(f"{MARKER_KEY} has been replaced while the run went on")
    return replace(known, marker=marker, marker_ms=marker_ms)


def gathered(
    spark: Any,
    daemon: Config,
    events: Any,
    *,
    told: Ours,
    view: LogView,
    cluster_id: str | None,
    covered: Mapping[int, int],
) -> guards.Evidence:
    """Return the evidence of a run whose events are written down.

    `covered` says to which offset of its metadata partition a snapshot stands for the log.
    """
    # One row per slice, and no more unreadable records than are worth naming.
    events.createOrReplaceTempView("recorded")
    tiles = spark.sql(f"""
        SELECT metadata_partition AS number, collect_list(struct(start_offset, offset)) AS tiles
        FROM recorded WHERE kind = {int(RowKind.READ)} GROUP BY metadata_partition
    """)  # noqa: S608 - our own constants
    read = {
        row["number"]: [(tile["start_offset"], tile["offset"]) for tile in row["tiles"]]
        for row in tiles.take(view.identity.partition_count)
    }
    pairs = epochs_of(told.presences, view)
    return guards.Evidence(
        marker=told.marker,
        marker_ms=told.marker_ms,
        cluster_id=cluster_id,
        log=view,
        read=read,
        unreadable=unaccepted(spark, events, told.accepted),
        lost=lost(spark, _accepted_gaps(told.marker, view)),
        layouts_unknown=_layouts_unknown(spark, told.layouts),
        live=live(spark, counts_of(told.presences, covered)),
        accepted=told.accepted,
        presences=told.presences,
        damaged=told.damaged,
        epoch_ends=log_reading.epoch_ends(daemon, pairs),
    )


def _layouts_unknown(spark: Any, layouts: Collection[LayoutRow]) -> tuple[int, ...]:
    rows = spark.sql("SELECT DISTINCT layout FROM recorded WHERE layout IS NOT NULL")
    known = [each.number for each in layouts]
    unknown = rows.where(~rows["layout"].isin(known)) if known else rows
    return tuple(sorted(row["layout"] for row in unknown.take(LAYOUTS_MAX)))


def _accepted_gaps(marker: BucketMarker | None, view: LogView) -> list[tuple[int, int, int]]:
    """Return (metadata partition, start, end) of what an operator accepted as lost of this log."""
    topic_id = uuid_text(view.identity.topic_id)
    gaps = [each for each in (marker.gaps if marker else ()) if each.topic_id == topic_id]
    return [
        (number, each.start, each.end)
        for number in {each.metadata_partition for each in gaps}
        for each in ranges_joined(
            LogRange(start=gap.start, end=gap.end)
            for gap in gaps
            if gap.metadata_partition == number
        )
    ]


def lost(spark: Any, accepted: Collection[tuple[int, int, int]]) -> list[guards.LostOffsets]:
    """Return what the recorded events lack and nobody accepted, by metadata partition."""
    known = spark.createDataFrame(sorted(accepted), "number int, begin bigint, behind bigint")
    known.createOrReplaceTempView("accepted_gaps")
    rows = spark.sql(f"""
        SELECT metadata_partition, min(struct(start_offset, offset)) AS first,
            count(*) AS ranges, sum(offset - start_offset) AS offsets
        FROM recorded LEFT ANTI JOIN accepted_gaps
            ON metadata_partition = number AND begin <= start_offset AND offset <= behind
        WHERE kind = {int(RowKind.LOST)}
        GROUP BY metadata_partition ORDER BY metadata_partition
    """)  # noqa: S608 - our own constants
    return [
        guards.LostOffsets(
            row["metadata_partition"],
            LogRange(start=row["first"]["start_offset"], end=row["first"]["offset"]),
            row["ranges"],
            row["offsets"],
        )
        for row in rows.take(LOST_MAX)
    ]


def counts_of(
    presences: Mapping[str, Presence | None], covered: Mapping[int, int]
) -> set[tuple[int, int]]:
    """Return the (metadata partition, offset) at which daemons counted live segments.

    A snapshot that reaches beyond such an offset has forgotten what lived there.
    """
    return {
        (number, seen.live_at)
        for presence in presences.values()
        if presence is not None
        for number, seen in presence.partitions.items()
        if seen.live_at is not None and seen.live_at >= covered.get(number, 0)
    }


def live(spark: Any, asked: Collection[tuple[int, int]]) -> dict[tuple[int, int], int]:
    """Return how many segments live at most at offsets of metadata partitions.

    A segment that began counts unless its deletion began and ended since: the life cycle may have
    refused either, so it is never fewer than a daemon has.
    """
    if not asked:
        return {}
    spark.createDataFrame(sorted(asked), "number int, at bigint").createOrReplaceTempView("asked")
    rows = spark.sql(f"""
        WITH segments AS (
            SELECT number, at, segment_id,
                max(IF(log_size IS NULL, NULL, offset)) AS begun,
                max(IF(state = {int(S.DELETE_SEGMENT_STARTED)}, offset, NULL)) AS deleting,
                max(IF(state = {int(S.DELETE_SEGMENT_FINISHED)}, offset, NULL)) AS deleted
            FROM recorded JOIN asked ON metadata_partition = number AND offset < at
            WHERE kind = {int(RowKind.SEGMENT)} GROUP BY number, at, segment_id
        )
        SELECT number, at, count(*) AS segments FROM segments
        WHERE begun IS NOT NULL
            AND (deleting IS NULL OR deleted IS NULL OR deleted < deleting OR begun > deleted)
        GROUP BY number, at
    """)  # noqa: S608 - our own constants
    found = {(row["number"], row["at"]): row["segments"] for row in rows.take(len(asked))}
    return {**dict.fromkeys(asked, 0), **found}


def epochs_of(presences: Mapping[str, Presence | None], view: LogView) -> set[tuple[int, int]]:
    """Return each (metadata partition, epoch) that a daemon says it has read in."""
    return {
        (number, seen.leader_epoch)
        for presence in presences.values()
        if presence is not None
        for number, seen in presence.partitions.items()
        if seen.leader_epoch >= 0 and number < view.identity.partition_count
    }


def unaccepted(
    spark: Any, events: Any, accepted: Collection[tuple[int, int, str]]
) -> list[guards.UnreadableRecord]:
    """Return records that are no event and that nobody accepted, as many as are worth naming.

    The accepted ones go first: among those that are taken they would hide the others.
    """
    known = spark.createDataFrame(
        sorted(accepted), "metadata_partition int, offset bigint, sha256 string"
    )
    odd = events.where(f"kind = {int(RowKind.UNREADABLE)}").selectExpr(
        "metadata_partition", "offset", "detail", "split(detail, ' ')[0] AS sha256"
    )
    left = odd.join(known, ["metadata_partition", "offset", "sha256"], "left_anti")
    return [_unreadable(row) for row in left.take(UNREADABLE_MAX)]


def _unreadable(row: Any) -> guards.UnreadableRecord:
    sha256, _, reason = row["detail"].partition(" ")
    return guards.UnreadableRecord(row["metadata_partition"], row["offset"], sha256, reason)
