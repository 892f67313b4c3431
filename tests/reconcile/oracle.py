"""The same question put to DuckDB: another engine, plain joins over the text keys, no hashes.

It reads the very rows that the run has written down of the listing and of the log.
"""

from pathlib import Path

import duckdb

from rlmm_daemon.codec.custom_metadata import SIZED

DAY = 86_400_000

_FINDINGS = """
WITH last AS (
    SELECT segment, arg_max(state, n) AS state, arg_max(at_ms, n) AS at_ms,
        max(log_size) AS log_size, max(held) AS held
    FROM events GROUP BY segment
), wanted AS (
    SELECT e.segment, w.suffix, w.size
    FROM events e JOIN sizes w USING (n) JOIN last l USING (segment)
    WHERE e.state = 1 AND l.state = 1
    UNION ALL SELECT segment, '.log', log_size FROM last WHERE state = 1
), unwanted AS (
    SELECT o.segment, l.state, o.at_ms, coalesce(l.at_ms, 0) AS said_ms,
        coalesce(l.held, false) AS held
    FROM objects o LEFT JOIN last l USING (segment)
    WHERE l.state IS NULL OR l.state = 3
)
SELECT CASE WHEN state IS NULL THEN 'orphan_object' ELSE 'deleted_but_present' END AS kind, segment,
    count(*) AS n, bool_or(greatest(at_ms, said_ms) < $now - $day AND NOT held) AS condemned
FROM unwanted GROUP BY ALL
UNION ALL
SELECT CASE WHEN w.suffix = '.log' THEN 'missing_object' ELSE 'partial_segment' END, w.segment,
    count(*), false
FROM wanted w ANTI JOIN objects o ON o.segment = w.segment AND o.suffix = w.suffix GROUP BY ALL
UNION ALL
SELECT 'size_mismatch', w.segment, count(*), false
FROM wanted w JOIN objects o ON o.segment = w.segment AND o.suffix = w.suffix
WHERE w.size <> o.size GROUP BY ALL
UNION ALL
SELECT CASE state WHEN 0 THEN 'stuck_copy' ELSE 'stuck_delete' END, segment, 1, false FROM last
WHERE state = 0 AND at_ms < $now - $copy OR state = 2 AND at_ms < $now - $delete
"""


#: What the listing and the log's reading wrote down, as `_FINDINGS` wants it.
_INPUTS = """
CREATE VIEW read AS SELECT * FROM read_parquet('{home}/events/*.parquet') WHERE kind = 0;
CREATE VIEW events AS SELECT "offset" AS n, segment_id AS segment, state, event_ms AS at_ms,
    log_size, only_if_started AS held FROM read;
CREATE VIEW sizes AS SELECT * FROM (
    SELECT "offset" AS n, unnest({suffixes}) AS suffix, unnest(sizes) AS size FROM read
    WHERE sizes IS NOT NULL
) WHERE size >= 0;
CREATE VIEW listed AS SELECT *, split_part(key, '/', -1) AS base
    FROM read_parquet('{home}/objects/*.parquet') WHERE upload_id IS NULL AND NOT noncurrent;
CREATE VIEW objects AS SELECT base[22:43] AS segment, base[44:] AS suffix, size,
    modified_ms AS at_ms FROM listed;
"""


def findings(
    home: Path, *, now_ms: int
) -> tuple[dict[tuple[str, str], tuple[int, bool]], int, int]:
    """Return (kind, segment id) -> (number of objects, whether any is condemned); events; objects.

    `home` holds the events and the objects that a run has read: they are the same to both.
    """
    database = duckdb.connect()
    database.execute(_INPUTS.format(home=home, suffixes=list(SIZED)))
    rows = database.execute(
        _FINDINGS,
        {"now": now_ms, "day": DAY, "copy": 1_200_000 + 120_000, "delete": 3_600_000},
    ).fetchall()
    found = {(kind, segment): (number, condemned) for kind, segment, number, condemned in rows}
    (told,) = database.execute("SELECT count(*) FROM events").fetchall()
    (listed,) = database.execute("SELECT count(*) FROM objects").fetchall()
    return found, told[0], listed[0]
