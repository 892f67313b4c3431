"""First pass, in SQL: suspect segments, by one grouped pass over hashes.

A segment is *clear* if its events are one plain life and its objects are exactly those recorded,
or are rightly absent. All others, and all that SQL can't be sure of, go on to `judging` with all
their rows. So a mistake here can cost time or, with a probability of 2^-64 per pair of segments
that share a hash, miss a finding; it can never condemn anything.

What each row carries through the one shuffle is five numbers, since that is where the time goes:

    h       of the segment id, which stands at a fixed place of its objects' names
    tally   how many rows of which kind, a field of bits for each
    at      offset and state of an event: the first and the last one tell the order
    sig     of what is stored and of what was recorded: together they cancel out (xor)
    stem    of the whole name but prefix and suffix: one and the same, or it lies elsewhere

Keys are looked at as text only where the hashes disagree.
"""

from typing import Any, Final

from rlmm_daemon.codec.custom_metadata import SIZED
from rlmm_daemon.codec.marker import LayoutRow
from rlmm_daemon.core.disposal.findings import LOG, Ages
from rlmm_daemon.domain.segment import SegmentState as S
from rlmm_daemon.reconcile.read import key_layouts
from rlmm_daemon.reconcile.schema import RowKind

#: What `layout.object_key` makes, prefix apart; the last character of an id has 4 low zeros.
_UUID: Final = "[A-Za-z0-9_-]{21}[AQgw]"
_BASE: Final = rf"^[0-9]{{20}}-{_UUID}\\.[a-z_]+$"
_DIRECTORY: Final = rf"^[a-zA-Z0-9._-]{{1,249}}-[0-9]{{1,10}}-{_UUID}$"
_ID_AT: Final = 22
_ID_WIDTH: Final = 22
#: How far before the dot a topic id begins: `<topic id>/<20 digits>-<segment id>.`
_TOPIC_ID_BACK: Final = _ID_WIDTH + 1 + 20 + 1 + _ID_WIDTH

#: Columns that `judging` takes, of objects and events alike; what is not theirs is null.
ROW_COLUMNS: Final = (
    "h", "topic_id", "partition", "segment_id", "topic", "start_offset", "key", "size",
    "modified_ms", "etag", "upload_id", "offset", "state", "event_ms", "log_size", "layout",
    "sizes", "only_if_started",
)  # fmt: skip

#: Fields of `tally`, low bits first. A life has few events: what runs over its field makes the next
#: one wrong, so it is not clear. The objects are on top: there may be millions of strangers under
#: one hash, and a sum that runs over is null, which is not clear either.
_FIELD_BITS: Final = 6
_STARTS, _FINISHES, _DELETINGS, _DELETES, _COPYING, _DELETING, _EXPECTED, _PRESENT = range(8)
#: Of a row that no plain life has: before every offset, and no COPY_SEGMENT_STARTED.
_ODD_AT: Final = f"{-(2**63) + 3}L"


def _one(field: int) -> str:
    return f"{1 << (_FIELD_BITS * field)}L"


def _tallied(field: int) -> str:
    if field == _PRESENT:
        return f"shiftright(tally, {_FIELD_BITS * field})"
    return f"(shiftright(tally, {_FIELD_BITS * field}) & {(1 << _FIELD_BITS) - 1})"


def keyed(spark: Any, objects: Any) -> Any:
    """Return the objects with their keys as bytes, where the last dot stands, and their hash.

    A segment's key is taken apart from its end, where all is of a fixed width: by bytes, since
    Spark counts the characters of a text one by one.
    """
    objects.createOrReplaceTempView("listed")
    return spark.sql(f"""
        WITH ends AS (
            SELECT *, CAST(key AS BINARY) AS raw, substring_index(key, '.', -1) AS ending
            FROM listed
        ), dotted AS (
            SELECT *, octet_length(key) - octet_length(ending) AS dot FROM ends
        ), named AS (
            SELECT *, substring(raw, dot - {_ID_WIDTH}, {_ID_WIDTH}) AS id FROM dotted
        )
        SELECT *, xxhash64(id) AS h FROM named
    """)  # noqa: S608 - our own constants


def parsed(spark: Any, objects: Any) -> Any:
    """Return keyed objects with all that their keys say; null where a key is none of ours."""
    objects.createOrReplaceTempView("chosen")
    return spark.sql(f"""
        WITH ends AS (
            SELECT *, substring_index(key, '/', -2) AS tail, substring_index(key, '/', -1) AS base
            FROM chosen
        ), split AS (
            SELECT *, IF(tail = base, '', substring_index(tail, '/', 1)) AS directory FROM ends
        ), named AS (
            SELECT *,
                base RLIKE '{_BASE}' AND directory RLIKE '{_DIRECTORY}' AS shaped,
                left(directory, greatest(length(directory) - {_ID_WIDTH + 1}, 0)) AS at
            FROM split
        ), placed AS (
            SELECT *, shaped AND try_cast(left(base, 20) AS BIGINT) IS NOT NULL
                AND CAST(try_cast(substring_index(at, '-', -1) AS INT) AS STRING)
                    = substring_index(at, '-', -1) AS ours
            FROM named
        ), told AS (
            SELECT h, key, size, modified_ms, etag, upload_id, noncurrent,
                IF(ours, right(directory, {_ID_WIDTH}), NULL) AS topic_id,
                IF(ours, try_cast(substring_index(at, '-', -1) AS INT), NULL) AS partition,
                IF(ours, left(at, length(at) - length(substring_index(at, '-', -1)) - 1), NULL)
                    AS topic,
                IF(ours, try_cast(left(base, 20) AS BIGINT), NULL) AS start_offset,
                IF(ours, substring(base, {_ID_AT}, {_ID_WIDTH}), NULL) AS segment_id
            FROM placed
        )
        SELECT * FROM told
    """)  # noqa: S608 - our own constants


def topics(objects: Any) -> Any:
    """Return keyed objects with the topic id that stands in their directory's name, if one does."""
    place = f"CAST(substring(raw, dot - {_TOPIC_ID_BACK}, {_ID_WIDTH}) AS STRING)"
    return objects.selectExpr("*", f"{place} AS topic_id").where(f"topic_id RLIKE '^{_UUID}$'")


def hash_events(spark: Any, events: Any) -> Any:
    """Return the segments' events with the hash that their objects have."""
    events.createOrReplaceTempView("recorded")
    return spark.sql(f"""
        SELECT *, xxhash64(segment_id) AS h
        FROM recorded WHERE kind = {int(RowKind.SEGMENT)}
    """)  # noqa: S608 - our own constants


def suspicious(
    spark: Any, objects: Any, events: Any, layouts: tuple[LayoutRow, ...], *, ages: Ages
) -> Any:
    """Return the hashes of all segments that are not clear: one column, `h`."""
    key_layouts.placed(spark, objects, layouts).createOrReplaceTempView("objects_of_segments")
    events.createOrReplaceTempView("events_of_segments")
    started, finished = int(S.COPY_SEGMENT_STARTED), int(S.COPY_SEGMENT_FINISHED)
    deleting, deleted = int(S.DELETE_SEGMENT_STARTED), int(S.DELETE_SEGMENT_FINISHED)
    old_upload_ms = ages.listed_ms - ages.grace_ms
    return spark.sql(f"""
        WITH marks AS (
            SELECT h, IF(upload_id IS NULL, {_one(_PRESENT)}, 0L) AS tally,
                IF(upload_id IS NULL, NULL, {_ODD_AT}) AS at,
                IF(ending = '{LOG[1:]}', xxhash64(number, ending) ^ xxhash64(size),
                    xxhash64(number, ending, size)) AS sig,
                xxhash64(substring(raw, skip + 1, dot - 1 - skip)) AS stem
            FROM objects_of_segments
            WHERE NOT noncurrent AND (upload_id IS NULL OR modified_ms < {old_upload_ms})
            UNION ALL
            SELECT h,
                CASE state
                    WHEN {started} THEN {_one(_STARTS)} + IF(
                        event_ms >= {ages.listed_ms - ages.stuck_copy_ms}, {_one(_COPYING)}, 0L)
                    WHEN {finished} THEN {_one(_FINISHES)}
                        + {_one(_EXPECTED)} * ({_stored_count()})
                    WHEN {deleting} THEN {_one(_DELETINGS)} + IF(
                        event_ms >= {ages.listed_ms - ages.stuck_delete_ms}, {_one(_DELETING)}, 0L)
                    ELSE {_one(_DELETES)}
                END,
                IF(only_if_started IS TRUE OR (state = {started}) != (log_size IS NOT NULL),
                    {_ODD_AT}, offset * 4 + state),
                CASE state
                    WHEN {started} THEN xxhash64(log_size) WHEN {finished} THEN {_wanted()} END,
                IF(state = {started}, xxhash64(concat(topic, '-', partition, '-', topic_id, '/',
                    lpad(CAST(start_offset AS STRING), 20, '0'), '-', segment_id)), NULL)
            FROM events_of_segments
        ), grouped AS (
            SELECT h, try_sum(tally) AS tally, min(at) AS first_at, max(at) AS last_at,
                bit_xor(sig) AS sig, min(stem) AS stem_min, max(stem) AS stem_max
            FROM marks GROUP BY h
        ), counted AS (
            SELECT *, {_tallied(_STARTS)} AS starts, {_tallied(_FINISHES)} AS finishes,
                {_tallied(_DELETINGS)} AS deletings, {_tallied(_DELETES)} AS deletes,
                {_tallied(_COPYING)} AS copying, {_tallied(_DELETING)} AS being_deleted,
                {_tallied(_EXPECTED)} AS expected, {_tallied(_PRESENT)} AS present
            FROM grouped
        )
        SELECT h FROM counted WHERE NOT coalesce(
            starts = 1 AND finishes <= 1 AND deletings <= 1 AND deletes <= 1
            AND first_at & 3 = {started}
            AND CASE last_at & 3
                WHEN {deleted} THEN deletings = 1 AND present = 0
                WHEN {deleting} THEN deletes = 0 AND being_deleted = 1
                WHEN {finished} THEN finishes = 1 AND deletings = 0 AND deletes = 0
                    AND present = expected AND sig = 0 AND stem_min = stem_max
                ELSE finishes = 0 AND deletings = 0 AND deletes = 0 AND copying = 1
            END, FALSE)
    """)  # noqa: S608 - our own constants


def rows_of(spark: Any, objects: Any, events: Any, hashes: Any) -> Any:
    """Return every row of the suspicious segments, each segment whole and in the log's order.

    Objects whose keys are none of ours are among them, without a segment.
    """
    chosen = parsed(spark, objects.where("NOT noncurrent").join(hashes, "h", "left_semi"))
    told = events.join(hashes, "h", "left_semi")
    rows = chosen.unionByName(told, allowMissingColumns=True).select(*ROW_COLUMNS)
    return rows.repartition("h").sortWithinPartitions(
        "h", "topic_id", "partition", "segment_id", "offset"
    )


def _stored_count() -> str:
    """Return SQL for how many objects a segment was stored with; null where nothing says it."""
    return "IF(sizes IS NULL, NULL, 1)" + "".join(
        f" + IF(get(sizes, {at}) >= 0, 1, 0)" for at in range(len(SIZED))
    )


def _wanted() -> str:
    """Return SQL for what the objects' `sig` must be, the size of the `.log` apart."""
    small = " ^ ".join(
        f"IF(get(sizes, {at}) >= 0, xxhash64(layout, '{suffix[1:]}', get(sizes, {at})), 0L)"
        for at, suffix in enumerate(SIZED)
    )
    return f"(coalesce({small}, 0L) ^ xxhash64(layout, '{LOG[1:]}'))"
