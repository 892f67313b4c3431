"""The first pass, in SQL: which segments need a closer look, by one grouped pass over hashes.

A segment is *clear* if its events are one plain life and its objects are exactly those recorded,
or are rightly absent. All others, and all that SQL can't be sure of, go on to `judging` with all
their rows. So a mistake here can cost time or, with a probability of 2^-64 per pair of segments
that share a hash, miss a finding; it can never condemn anything. One pass over 64-bit hashes takes
half the time of joins over the text keys.
"""

from typing import Any, Final

from rlmm_daemon.codec.custom_metadata import SIZED
from rlmm_daemon.codec.marker import LayoutRow
from rlmm_daemon.core.disposal.findings import LOG, Ages
from rlmm_daemon.domain.segment import SegmentState as S
from rlmm_daemon.reconcile.schema import Kind

#: What `core.layout.object_key` makes, prefix apart; the last character of an id has 4 low zeros.
_UUID: Final = "[A-Za-z0-9_-]{21}[AQgw]"
_BASE: Final = rf"^[0-9]{{20}}-{_UUID}\\.[a-z_]+$"
_DIRECTORY: Final = rf"^[a-zA-Z0-9._-]{{1,249}}-[0-9]{{1,10}}-{_UUID}$"
_BASE_HEAD: Final = 43
_ID_WIDTH: Final = 22

#: Columns that `judging` takes, of objects and events alike; what is not theirs is null.
ROW_COLUMNS: Final = (
    "h", "topic_id", "partition", "segment_id", "topic", "start_offset", "key", "size",
    "modified_ms", "etag", "upload_id", "offset", "state", "event_ms", "log_size", "layout",
    "sizes", "only_if_started",
)  # fmt: skip


def parse_objects(spark: Any, objects: Any) -> Any:
    """Return the objects with what their keys say; `h` is null where a key is none of ours."""
    objects.createOrReplaceTempView("listed")
    return spark.sql(f"""
        WITH base AS (
            SELECT *, substring_index(key, '/', -1) AS base FROM listed
        ), placed AS (
            SELECT *, left(key, greatest(length(key) - length(base) - 1, 0)) AS path FROM base
        ), split AS (
            SELECT *, substring_index(path, '/', -1) AS directory FROM placed
        ), named AS (
            SELECT *,
                base RLIKE '{_BASE}' AND directory RLIKE '{_DIRECTORY}' AS ours,
                left(path, greatest(length(path) - length(directory) - 1, 0)) AS prefix,
                left(directory, greatest(length(directory) - {_ID_WIDTH + 1}, 0)) AS at
            FROM split
        ), told AS (
            SELECT key, size, modified_ms, etag, upload_id, noncurrent, ours, prefix,
                IF(ours, right(directory, {_ID_WIDTH}), NULL) AS topic_id,
                IF(ours, substring_index(at, '-', -1), NULL) AS partition_text,
                IF(ours, left(at, length(at) - length(substring_index(at, '-', -1)) - 1), NULL)
                    AS topic,
                IF(ours, try_cast(left(base, 20) AS BIGINT), NULL) AS start_offset,
                IF(ours, substring(base, 22, {_ID_WIDTH}), NULL) AS segment_id,
                IF(ours, substring(base, {_BASE_HEAD + 1}), NULL) AS suffix
            FROM named
        )
        SELECT *, try_cast(partition_text AS INT) AS partition,
            IF(ours AND start_offset IS NOT NULL
                    AND CAST(try_cast(partition_text AS INT) AS STRING) = partition_text,
                xxhash64(topic_id, try_cast(partition_text AS INT), segment_id), NULL) AS h
        FROM told
    """)  # noqa: S608 - our own constants


def hash_events(spark: Any, events: Any) -> Any:
    """Return the segments' events with the hash that their objects have."""
    events.createOrReplaceTempView("recorded")
    return spark.sql(f"""
        SELECT *, xxhash64(topic_id, partition, segment_id) AS h
        FROM recorded WHERE kind = {int(Kind.SEGMENT)}
    """)  # noqa: S608 - our own constants


def suspicious(
    spark: Any, objects: Any, events: Any, layouts: tuple[LayoutRow, ...], ages: Ages
) -> Any:
    """Return the hashes of all segments that are not clear: one column, `h`."""
    objects.createOrReplaceTempView("objects_of_segments")
    events.createOrReplaceTempView("events_of_segments")
    started, finished = int(S.COPY_SEGMENT_STARTED), int(S.COPY_SEGMENT_FINISHED)
    deleting, deleted = int(S.DELETE_SEGMENT_STARTED), int(S.DELETE_SEGMENT_FINISHED)
    return spark.sql(f"""
        WITH marks AS (
            SELECT h, NULL AS state, NULL AS offset, NULL AS event_ms, FALSE AS odd,
                1 AS present, 0 AS expected,
                xxhash64({_layout_number(layouts)}, suffix,
                    IF(suffix = '{LOG}', 0, size)) AS found,
                NULL AS wanted,
                IF(suffix = '{LOG}', size, NULL) AS stored_log, NULL AS log_size,
                xxhash64(topic, start_offset) AS stored_at, NULL AS recorded_at
            FROM objects_of_segments WHERE h IS NOT NULL AND upload_id IS NULL AND NOT noncurrent
            UNION ALL
            SELECT h, state, offset, event_ms,
                coalesce(only_if_started, FALSE) OR (state = {finished} AND layout IS NULL)
                    OR (state = {started}) != (log_size IS NOT NULL) AS odd,
                0, IF(state = {finished}, 1 + size(filter(sizes, s -> s >= 0)), 0),
                NULL, IF(state = {finished}, {_wanted()}, NULL),
                NULL, log_size,
                NULL, IF(state = {started}, xxhash64(topic, start_offset), NULL)
            FROM events_of_segments
            UNION ALL
            SELECT h, NULL, NULL, NULL, TRUE, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL
            FROM objects_of_segments
            WHERE h IS NOT NULL AND upload_id IS NOT NULL
                AND modified_ms < {ages.listed_ms - ages.grace_ms}
        ), grouped AS (
            SELECT h,
                sum(present) AS present, sum(expected) AS expected,
                bit_xor(found) AS found, bit_xor(wanted) AS wanted,
                max(odd) AS odd,
                count_if(state = {started}) AS starts, count_if(state = {finished}) AS finishes,
                count_if(state = {deleting}) AS deletings, count_if(state = {deleted}) AS deletes,
                max(IF(state = {started}, offset, NULL)) AS o0,
                max(IF(state = {finished}, offset, NULL)) AS o1,
                max(IF(state = {deleting}, offset, NULL)) AS o2,
                max(IF(state = {deleted}, offset, NULL)) AS o3,
                max(event_ms) AS event_ms,
                max(stored_log) AS stored_log, max(log_size) AS log_size,
                min(stored_at) AS stored_at_min, max(stored_at) AS stored_at_max,
                max(recorded_at) AS recorded_at
            FROM marks GROUP BY h
        )
        SELECT h FROM grouped WHERE NOT coalesce(
            NOT odd AND starts = 1 AND finishes <= 1 AND deletings <= 1 AND deletes <= 1
            AND o0 < coalesce(o1, o2, o0 + 1) AND coalesce(o1, o0) < coalesce(o2, o1 + 1, o0 + 1)
            AND (deletes = 0 OR deletings = 1 AND o2 < o3)
            AND CASE
                WHEN deletes = 1 THEN present = 0
                WHEN deletings = 1 THEN event_ms >= {ages.listed_ms - ages.stuck_delete_ms}
                WHEN finishes = 1 THEN present = expected AND found = wanted
                    AND stored_log = log_size
                    AND stored_at_min = recorded_at AND stored_at_max = recorded_at
                ELSE event_ms >= {ages.listed_ms - ages.stuck_copy_ms}
            END, FALSE)
    """)  # noqa: S608 - our own constants


def rows_of(objects: Any, events: Any, hashes: Any) -> Any:
    """Return every row of the suspicious segments, each segment whole and in the log's order."""
    current = objects.where("h IS NOT NULL AND NOT noncurrent")
    chosen = [frame.join(hashes, "h", "left_semi") for frame in (current, events)]
    rows = chosen[0].unionByName(chosen[1], allowMissingColumns=True).select(*ROW_COLUMNS)
    return rows.repartition("h").sortWithinPartitions(
        "h", "topic_id", "partition", "segment_id", "offset"
    )


def _layout_number(layouts: tuple[LayoutRow, ...]) -> str:
    """Return SQL for the layout that a prefix is of; 0 where only `core.layout` can say."""
    plain = [row for row in layouts if "{" not in row.prefix]
    cases = " ".join(f"WHEN prefix = '{row.prefix}' THEN {row.number}" for row in plain)
    return f"CASE {cases} ELSE 0 END" if cases else "0"


def _wanted() -> str:
    """Return SQL for what `found` must be, over all objects that a segment was stored with."""
    names = ", ".join(f"'{suffix}'" for suffix in SIZED)
    small = (
        f"aggregate(zip_with(array({names}), sizes, (n, s) -> "
        "IF(s >= 0, xxhash64(layout, n, s), 0L)), 0L, (a, b) -> a ^ b)"
    )
    return f"({small} ^ xxhash64(layout, '{LOG}', 0L))"
