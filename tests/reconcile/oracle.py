"""The same question put to DuckDB: another engine, plain joins over the text keys, no hashes.

It knows only what the world holds: the events as they were said and the objects as they were put.
"""

from collections.abc import Iterable, Mapping, Sequence

import duckdb
import pyarrow as pa

from rlmm_daemon.codec import custom_metadata, records
from rlmm_daemon.domain.ids import uuid_text
from rlmm_daemon.domain.segment import SegmentMetadata, SegmentUpdate
from tests.reconcile.world import World

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


def findings(world: World, *, now_ms: int) -> dict[tuple[str, str], tuple[int, bool]]:
    """Return (kind, segment id) -> (number of objects, whether any is condemned)."""
    database = duckdb.connect()
    events, sizes = _events(value for _, value in world.events)
    database.register(
        "events", _table(("n", "segment", "state", "at_ms", "log_size", "held"), events)
    )
    database.register("sizes", _table(("n", "suffix", "size"), sizes))
    database.register(
        "objects", _table(("segment", "suffix", "size", "at_ms"), _objects(world.objects))
    )
    rows = database.execute(
        _FINDINGS,
        {"now": now_ms, "day": DAY, "copy": 1_200_000 + 120_000, "delete": 3_600_000},
    ).fetchall()
    return {(kind, segment): (number, condemned) for kind, segment, number, condemned in rows}


def _events(values: Iterable[bytes]) -> tuple[list[tuple[object, ...]], list[tuple[object, ...]]]:
    events: list[tuple[object, ...]] = []
    sizes: list[tuple[object, ...]] = []
    for n, value in enumerate(values):
        record = records.decode(value)
        assert isinstance(record, SegmentMetadata | SegmentUpdate)
        size = record.segment_size_bytes if isinstance(record, SegmentMetadata) else None
        facts = custom_metadata.decode(record.custom_metadata)
        held = record.custom_metadata == custom_metadata.ONLY_IF_STARTED
        segment = uuid_text(record.segment_id)
        events.append((n, segment, int(record.state), record.event_timestamp_ms, size, held))
        if facts is not None:
            sizes.extend((n, suffix, number) for suffix, number in facts.sizes.items())
    return events, sizes


def _objects(objects: Mapping[str, tuple[int, int]]) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for key, (size, modified_ms) in objects.items():
        name = key.rpartition("/")[2]
        rows.append((name[21:43], name[43:], size, modified_ms))
    return rows


def _table(names: Sequence[str], rows: Sequence[Sequence[object]]) -> pa.Table:
    return pa.table({name: [row[at] for row in rows] for at, name in enumerate(names)})
