"""Overlaps and gaps within each leader epoch's lineage, in SQL windows over the live segments.

A segment's part in an epoch ends where its next epoch begins, or with the segment (KIP-405). Parts
are laid out by start offset; what begins before the furthest end so far overlaps, what begins
behind it leaves a gap. Gaps at the front are retention's, not ours to report. What the log tells
twice, as after a repair, is laid out twice, one beside the other, and counts once.
"""

from typing import Any, Final

from rlmm_daemon.core.disposal.findings import RULES, Finding
from rlmm_daemon.domain.segment import SegmentState as S
from rlmm_daemon.reconcile.schema import literal

#: A repeated COPY_SEGMENT_STARTED ends no life, nor does a deletion that only meant an unfinished
#: copy: such a segment is held, and its offsets are covered.
_LIVES: Final = f"""
    bool_or(state = {int(S.COPY_SEGMENT_FINISHED)}) AND max_by(
        IF(only_if_started IS TRUE, {int(S.COPY_SEGMENT_FINISHED)}, state), offset)
        FILTER (WHERE state != {int(S.COPY_SEGMENT_STARTED)}) = {int(S.COPY_SEGMENT_FINISHED)}
"""


def findings(spark: Any, events: Any, cluster: str) -> Any:
    """Return `overlap` and `offset_gap` findings; events as `sifting.hash_events` made them."""
    events.createOrReplaceTempView("events_of_segments")
    overlap, gap = RULES[Finding.OVERLAP], RULES[Finding.OFFSET_GAP]
    return spark.sql(f"""
        WITH live AS (
            SELECT h FROM events_of_segments GROUP BY h
            HAVING {_LIVES}
        ), begun AS (
            SELECT e.topic, e.topic_id, e.partition, e.segment_id, e.end_offset, e.log_size,
                e.event_ms, arrays_zip(e.epochs, e.epoch_offsets) AS parts
            FROM events_of_segments e LEFT SEMI JOIN live USING (h)
            WHERE e.state = {int(S.COPY_SEGMENT_STARTED)} AND e.epochs IS NOT NULL
        ), pieces AS (
            SELECT b.*, at, p.epochs AS epoch, p.epoch_offsets AS begin_at,
                coalesce(get(parts, at + 1).epoch_offsets - 1, end_offset) AS end_at
            FROM begun b LATERAL VIEW posexplode(parts) AS at, p
        ), laid AS (
            SELECT *,
                max(end_at) OVER (
                    PARTITION BY topic_id, partition, epoch ORDER BY begin_at, end_at, segment_id
                    ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before_end,
                lag(segment_id) OVER (
                    PARTITION BY topic_id, partition, epoch ORDER BY begin_at, end_at, segment_id)
                    AS before_id
            FROM pieces WHERE end_at >= begin_at
        ), odd AS (
            SELECT *, begin_at > before_end + 1 AS gap FROM laid
            WHERE begin_at != before_end + 1 AND segment_id != before_id
        )
        SELECT IF(gap, '{Finding.OFFSET_GAP}', '{Finding.OVERLAP}') AS kind,
            IF(gap, '{gap.severity}', '{overlap.severity}') AS severity,
            {literal(cluster)} AS cluster, topic, topic_id, partition, segment_id,
            CAST(NULL AS STRING) AS key, IF(gap, 0L, log_size) AS bytes,
            CAST(NULL AS BIGINT) AS age_ms,
            IF(gap,
                concat('epoch=', epoch, ' from=', before_end + 1, ' to=', begin_at - 1),
                concat('epoch=', epoch, ' from=', begin_at, ' to=', least(end_at, before_end)))
                AS facts,
            IF(gap, {literal(gap.action)}, {literal(overlap.action)}) AS action,
            CAST(NULL AS STRING) AS etag, CAST(NULL AS BIGINT) AS modified_ms,
            CAST(NULL AS STRING) AS upload_id, FALSE AS confirm, FALSE AS condemned,
            CAST(NULL AS BIGINT) AS recorded_bytes
        FROM odd
    """)  # noqa: S608 - our own constants, and an id that the cluster made
