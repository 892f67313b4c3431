"""`make bench-reconcile`: the nightly job's joins, beside plain anti-joins and DuckDB.

Objects and events are generated: per segment two objects (`.log`, `.index`) and two events, one in
a thousand an orphan, one in a thousand without its objects. Every contender reads the same Parquet
files and counts what it found; medians over the runs. Spark and DuckDB have two threads each.
"""

import argparse
import functools
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import duckdb

from rlmm_daemon.codec.marker import LayoutRow
from rlmm_daemon.config.reconcile import Spark
from rlmm_daemon.core.disposal.findings import Ages
from rlmm_daemon.core.layout import LOCAL_TIERED_STORAGE
from rlmm_daemon.reconcile import sifting
from rlmm_daemon.reconcile.judging import Judge
from rlmm_daemon.reconcile.schema import FINDINGS, ddl
from rlmm_daemon.reconcile.session import session

NOW = 1_795_310_917_307
OLD = NOW - 3 * 86_400_000
LAYOUTS = (LayoutRow(number=1, kind=LOCAL_TIERED_STORAGE, prefix=""),)
AGES = Ages(listed_ms=NOW, grace_ms=86_400_000, stuck_copy_ms=3_600_000)
#: 22 characters of base64 whose last has four low zeros.
_ID = "concat(translate(substr(base64(unhex(md5(cast({0} as string)))), 1, 21), '+/', '-_'), 'A')"


def generate(spark: Any, home: Path, objects: int) -> None:
    """Write `objects` rows of both kinds below `home`."""
    segments = objects // 2
    spark.range(segments).createOrReplaceTempView("n")
    spark.sql(f"""
        CREATE OR REPLACE TEMP VIEW segments AS SELECT id, {_ID.format("id")} AS segment_id,
            {_ID.format("id % 1000 + 7000000000")} AS topic_id, id % 1000 AS topic_number,
            cast(id % 16 AS INT) AS partition, (id div 1000) * 1000 AS start_offset
        FROM n
    """)
    spark.sql(f"""
        SELECT concat('topic', topic_number, '-', partition, '-', topic_id, '/',
            lpad(cast(start_offset AS STRING), 20, '0'), '-', segment_id, suffix) AS key,
            IF(suffix = '.log', 1000000L, 24L) AS size, {OLD}L AS modified_ms,
            md5(segment_id) AS etag, CAST(NULL AS STRING) AS upload_id, FALSE AS noncurrent
        FROM segments LATERAL VIEW explode(array('.log', '.index')) AS suffix
        WHERE id % 1000 != 1
    """).write.parquet(str(home / "objects"))
    spark.sql(f"""
        SELECT cast(id % 50 AS INT) AS metadata_partition, id * 2 + state AS offset,
            CAST(0 AS TINYINT) AS kind, topic_id, concat('topic', topic_number) AS topic, partition,
            segment_id, CAST(state AS TINYINT) AS state, {OLD}L AS event_ms, 1 AS broker_id,
            IF(state = 0, start_offset, NULL) AS start_offset,
            IF(state = 0, start_offset + 999, NULL) AS end_offset,
            IF(state = 0, 1000000L, NULL) AS log_size,
            IF(state = 0, array(3), NULL) AS epochs,
            IF(state = 0, array(start_offset), NULL) AS epoch_offsets,
            IF(state = 1, 1, NULL) AS layout,
            IF(state = 1, array(24L, -1L, -1L, -1L, -1L), NULL) AS sizes,
            IF(state = 1, FALSE, NULL) AS only_if_started, CAST(NULL AS STRING) AS detail
        FROM segments LATERAL VIEW explode(array(0, 1)) AS state
        WHERE id % 1000 != 2
    """).write.parquet(str(home / "events"))


def ours(spark: Any, home: Path) -> int:
    """Sift, judge and count, as the nightly job does."""
    objects = sifting.keyed(spark, spark.read.parquet(str(home / "objects")))
    events = sifting.hash_events(spark, spark.read.parquet(str(home / "events")))
    kept = str(home / "suspicious")
    sifting.suspicious(spark, objects, events, LAYOUTS, AGES).write.mode("overwrite").parquet(kept)
    hashes = spark.read.schema("h bigint").parquet(kept)
    judge = Judge(cluster="bench", layouts=LAYOUTS, ages=AGES)
    rows = sifting.rows_of(spark, objects, events, hashes)
    return int(rows.mapInArrow(judge, ddl(FINDINGS)).count())


def plain(spark: Any, home: Path) -> int:
    """Join both ways over the text keys, as a reader of the issue would write it down first."""
    spark.read.parquet(str(home / "objects")).createOrReplaceTempView("listed")
    spark.sql("""
        CREATE OR REPLACE TEMP VIEW o AS
        SELECT right(names[0], 22) AS topic_id, substring(names[1], 22, 22) AS segment_id,
            CAST(substring_index(left(names[0], length(names[0]) - 23), '-', -1) AS INT)
                AS partition
        FROM (SELECT split(key, '/') AS names FROM listed)
    """)
    spark.read.parquet(str(home / "events")).createOrReplaceTempView("e")
    return int(
        spark.sql("""
        SELECT (SELECT count(*) FROM o LEFT ANTI JOIN e USING (topic_id, partition, segment_id)) + (
            SELECT count(*) FROM (SELECT * FROM e WHERE state = 1) f
            LEFT ANTI JOIN o USING (topic_id, partition, segment_id))
    """).take(1)[0][0]
    )


def duck(spark: Any, home: Path) -> int:
    """Ask DuckDB the same two anti-joins in one process."""
    del spark
    database = duckdb.connect()
    database.execute("SET threads = 2")
    found = database.execute(f"""
        WITH o AS (
            SELECT right(split_part(key, '/', 1), 22) AS topic_id,
                split_part(key, '/', 2)[22:43] AS segment_id,
                key FROM '{home}/objects/*.parquet'
        ), e AS (SELECT * FROM '{home}/events/*.parquet')
        SELECT (SELECT count(*) FROM o ANTI JOIN e USING (topic_id, segment_id)) + (
            SELECT count(*) FROM (SELECT * FROM e WHERE state = 1) f
            ANTI JOIN o USING (topic_id, segment_id))
    """).fetchone()
    assert found is not None
    return int(found[0])


def measured(work: Callable[[], int], runs: int) -> tuple[float, int]:
    """Return the median of wall seconds, and what was counted."""
    seconds, counted = [], 0
    for _ in range(runs):
        began = time.perf_counter()
        counted = work()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds), counted


def resident_bytes() -> int:
    """Return the resident memory of this process and all below it, the JVM included."""
    parents, sizes = {}, {}
    for each in Path("/proc").glob("[0-9]*"):
        try:
            fields = (each / "stat").read_text().rpartition(")")[2].split()
            sizes[int(each.name)] = int((each / "statm").read_text().split()[1])
        except OSError:
            continue
        parents[int(each.name)] = int(fields[1])

    def below(pid: int) -> bool:
        while pid > 1 and pid != os.getpid():
            pid = parents.get(pid, 0)
        return pid == os.getpid()

    return sum(size for pid, size in sizes.items() if below(pid)) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--millions", type=float, nargs="+", default=[1, 2, 5, 10])
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="rlmm-bench-reconcile-"))
    rows = []
    try:
        with session(Spark(master="local[2]", driver_memory="5g", shuffle_partitions=8)) as spark:
            for millions in options.millions:
                at = home / str(millions)
                generate(spark, at, int(millions * 1_000_000))
                row: dict[str, Any] = {"millions": millions}
                for name, contender in (("ours", ours), ("plain", plain), ("duckdb", duck)):
                    seconds, counted = measured(
                        functools.partial(contender, spark, at), options.runs
                    )
                    row |= {name: round(seconds, 2), f"{name}_found": counted}
                row["plain/ours"] = round(row["plain"] / row["ours"], 2)
                row["rows_per_second"] = round(2 * millions * 1_000_000 / row["ours"])
                row["rss_mib"] = resident_bytes() >> 20
                rows.append(row)
                click.echo(json.dumps(row))
                shutil.rmtree(at)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    click.echo(json.dumps({"reconcile": rows}))


if __name__ == "__main__":
    main()
