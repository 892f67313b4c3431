"""`make bench-reconcile`: the nightly job's joins, beside plain anti-joins and DuckDB.

Objects and events are generated: per segment two objects (`.log`, `.index`) and two events, one in
a thousand an orphan, one in a thousand without its objects. Every contender reads the same Parquet
files and counts what it found, in turns; medians over the runs, the first of which warms the JVM.

    ours     sifting (one grouped pass over hashes) and judging (rows of what is not clear, one by
             one): states, sizes, ages, uploads, every object of each segment
    plain    two anti-joins on the text keys, Spark as it comes: only what has no partner at all
    tuned    the same under the job's settings of Spark
    duckdb   the same in a single process
    lineage  overlaps and gaps, which the job looks for besides
    inventory  the same objects read from an S3 Inventory report, data files held against their MD5

Spark and DuckDB have two threads each. Each size says whether it meets its budget: how much faster
than the plain joins, and, behind the last one, how much longer 10 million take than 2, and how much
more the driver holds than with 1.
`driver_added_mib` is what the driver's Python came to hold at most while `ours` ran, which must not
grow with the rows; with `local[2]` its JVM holds the tasks as well: that is within `peak_mib` only,
which is of all processes that are there when a size is done, each at its own peak.
"""

import argparse
import contextlib
import hashlib
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import click
import duckdb

from rlmm_daemon.codec.marker import LayoutRow
from rlmm_daemon.config.reconcile import Spark
from rlmm_daemon.core.disposal.findings import Ages
from rlmm_daemon.core.storage.layout import LOCAL_TIERED_STORAGE
from rlmm_daemon.reconcile.judge import lineage, suspects
from rlmm_daemon.reconcile.judge.verdicts import Judge
from rlmm_daemon.reconcile.read import inventory
from rlmm_daemon.reconcile.schema import FINDINGS, ddl
from rlmm_daemon.reconcile.session import SETTINGS, session

NOW = 1_795_310_917_307
OLD = NOW - 3 * 86_400_000
LAYOUTS = (LayoutRow(number=1, kind=LOCAL_TIERED_STORAGE, prefix=""),)
AGES = Ages(listed_ms=NOW, grace_ms=86_400_000, stuck_copy_ms=3_600_000)
#: Millions of objects -> how much faster than the plain joins the job has to be.
FASTER_MIN: Final = {2.0: 2.0, 5.0: 2.0, 10.0: 1.5}
#: How much longer 10 million may take than 2.
LONGER_MAX: Final = 8.0
#: How much more the driver may hold at 10 million than at 1.
MORE_MIB_MAX: Final = 64
#: What was found, and seconds by stage.
Counted = tuple[int, dict[str, float]]
#: 22 characters of base64 whose last has four low zeros.
_ID = "concat(translate(substr(base64(unhex(md5(cast({0} as string)))), 1, 21), '+/', '-_'), 'A')"


def generate(spark: Any, home: Path, objects: int) -> None:
    """Write `objects` rows of both kinds below `home`."""
    segments = objects // 2
    spark.range(segments).createOrReplaceTempView("n")
    spark.sql(f"""
        CREATE OR REPLACE TEMP VIEW segments AS SELECT id, {_ID.format("id")} AS segment_id,
            {_ID.format("id % 1000 + 7000000000")} AS topic_id, id % 1000 AS topic_number,
            cast(id % 1000 % 16 AS INT) AS partition, (id div 1000) * 1000 AS start_offset
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


def report(spark: Any, home: Path) -> None:
    """Write the objects once more as S3 Inventory does."""
    spark.read.parquet(str(home / "objects")).selectExpr(
        "'tier' AS bucket", "key", "'' AS version_id", "TRUE AS is_latest",
        "FALSE AS is_delete_marker", "size", "timestamp_millis(modified_ms) AS last_modified_date",
        "etag AS e_tag",
    ).write.parquet(str(home / "report" / "data"))  # fmt: skip
    files = []
    for path in sorted((home / "report" / "data").glob("*.parquet")):
        with path.open("rb") as file:
            md5 = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
        told = {"key": f"tier/daily/data/{path.name}", "size": path.stat().st_size}
        files.append({**told, "MD5checksum": md5})
    manifest = {"sourceBucket": "tier", "creationTimestamp": str(NOW), "fileFormat": "Parquet",
                "fileSchema": "message s3 {...}", "files": files}  # fmt: skip
    (home / "report" / "manifest.json").write_text(json.dumps(manifest))


def inventoried(spark: Any, home: Path) -> Counted:
    """Read the report in the shape of a listing, as the nightly job does."""
    manifest = str(home / "report" / "manifest.json")
    found = inventory.read(spark, manifest, [""], bucket="tier", now_ms=NOW).objects
    found.write.format("noop").mode("overwrite").save()
    return 0, {}


def ours(spark: Any, home: Path) -> Counted:
    """Sift, judge and count, as the nightly job does."""
    began = time.perf_counter()
    objects = suspects.keyed(spark, spark.read.parquet(str(home / "objects")))
    events = suspects.hash_events(spark, spark.read.parquet(str(home / "events")))
    kept = str(home / "suspicious")
    suspects.suspicious(spark, objects, events, LAYOUTS, ages=AGES).write.mode("overwrite").parquet(
        kept
    )
    sifted = time.perf_counter()
    hashes = spark.read.schema("h bigint").parquet(kept)
    judge = Judge(cluster="bench", layouts=LAYOUTS, ages=AGES)
    rows = suspects.rows_of(spark, objects, events, hashes)
    found = int(rows.mapInArrow(judge, ddl(FINDINGS)).count())
    return found, {"sifting": sifted - began, "judging": time.perf_counter() - sifted}


def plain(spark: Any, home: Path) -> Counted:
    """Join both ways over the text keys, as one would write it down first: Spark as it comes."""
    for name in SETTINGS:
        spark.conf.unset(name)
    try:
        return joined(spark, home), {}
    finally:
        for name, value in SETTINGS.items():
            spark.conf.set(name, value)


def tuned(spark: Any, home: Path) -> Counted:
    """Join the same way under the job's settings of Spark."""
    return joined(spark, home), {}


def lined_up(spark: Any, home: Path) -> Counted:
    """Look for overlaps and gaps, which the job does besides."""
    events = suspects.hash_events(spark, spark.read.parquet(str(home / "events")))
    began = time.perf_counter()
    found = int(lineage.findings(spark, events, "bench").count())
    return found, {"lineage": time.perf_counter() - began}


def joined(spark: Any, home: Path) -> int:
    """Return how many rows of either side have no partner on the other."""
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


def duck(spark: Any, home: Path) -> Counted:
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
    return int(found[0]), {}


def measured(spark: Any, home: Path, runs: int) -> dict[str, Any]:
    """Return medians of wall and processor seconds, and what each contender found."""
    seconds: dict[str, list[float]] = {}
    processor: dict[str, list[float]] = {}
    found: dict[str, int] = {}
    added: dict[str, list[int]] = {}
    for _ in range(runs):  # one after the other, so that a disturbance hits all alike
        for name, work in CONTENDERS.items():
            began, used = time.perf_counter(), processor_seconds()
            with peak_added(added.setdefault(name, [])):
                found[name], stages = work(spark, home)
            stages[name] = time.perf_counter() - began
            processor.setdefault(name, []).append(processor_seconds() - used)
            for each, took in stages.items():
                seconds.setdefault(each, []).append(took)
    return {
        "seconds": medians(seconds), "processor_seconds": medians(processor), "found": found,
        "driver_added_mib": max(added["ours"]),
    }  # fmt: skip


def medians(taken: Mapping[str, list[float]]) -> dict[str, float]:
    return {name: round(statistics.median(each), 2) for name, each in taken.items()}


CONTENDERS: Final[Mapping[str, Callable[[Any, Path], Counted]]] = {
    "ours": ours, "plain": plain, "tuned": tuned, "duckdb": duck, "lineage": lined_up,
    "inventory": inventoried,
}  # fmt: skip


def below() -> Iterator[tuple[int, list[str]]]:
    """Yield the id and the fields of `stat` of this process and all below it."""
    found: dict[int, list[str]] = {}
    for each in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            found[int(each.name)] = (each / "stat").read_text().rpartition(")")[2].split()
    for pid, fields in found.items():
        above = pid
        while above in found and above != os.getpid():
            above = int(found[above][1])
        if above == os.getpid():
            yield pid, fields


def forget_peaks() -> None:
    """Let the peak of this process and all below it be what they hold now."""
    for pid, _ in below():
        with contextlib.suppress(OSError):
            Path(f"/proc/{pid}/clear_refs").write_text("5")


def peak_mib() -> int:
    """Return the peaks of this process and all below it, the JVM included, together."""
    total = 0
    for pid, _ in below():
        with contextlib.suppress(OSError):
            total += status_mib("VmHWM", pid)
    return total


def status_mib(name: str, pid: int | str = "self") -> int:
    """Return a line of what the system says of one process: VmRSS, or VmHWM, its peak."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    told = (line for line in status if line.startswith(f"{name}:"))
    return int(next(told, f"{name}: 0").split()[1]) >> 10  # what has ended holds nothing


@contextlib.contextmanager
def peak_added(to: list[int]) -> Iterator[None]:
    """Note how much more this process held at its peak than at the beginning."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak is what it has now
    before = status_mib("VmRSS")
    yield
    to.append(max(status_mib("VmHWM") - before, 0))


def processor_seconds() -> float:
    """Return what this process and all below it have used so far, those that ended included."""
    ticks = sum(sum(map(int, fields[11:15])) for _, fields in below())
    return ticks / os.sysconf("SC_CLK_TCK")


def of_size(spark: Any, at: Path, millions: float, runs: int) -> dict[str, Any]:
    """Return what all contenders take of so many rows."""
    rows = int(millions * 1_000_000)
    if not at.exists():
        generate(spark, at, rows)
    if not (at / "report").exists():
        report(spark, at)
    forget_peaks()
    row = {"millions": millions, **measured(spark, at, runs)}
    seconds = row["seconds"]
    faster, least = round(seconds["plain"] / seconds["ours"], 2), FASTER_MIN.get(millions)
    row["plain/ours"] = faster
    if least is not None:
        row["budget"] = {"at_least": least, "met": faster >= least}
    row["rows_per_second"] = {
        "sifting": round(2 * rows / seconds["sifting"]),
        "judging": round(2 * rows / seconds["judging"]),
        "lineage": round(rows / seconds["lineage"]),
        "inventory": round(rows / seconds["inventory"]),
    }
    row["peak_mib"] = peak_mib()
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--millions", type=float, nargs="+", default=[1, 2, 5, 10])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--rows", type=Path, help="a directory that keeps the rows for a next time")
    options = parser.parse_args()
    home = options.rows or Path(tempfile.mkdtemp(prefix="rlmm-bench-reconcile-"))
    taken: dict[float, float] = {}
    added: dict[float, int] = {}
    # Spark's own Pythons, with compiled modules, as installed ones have them.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    try:
        with session(Spark(master="local[2]", driver_memory="5g", shuffle_partitions=8)) as spark:
            for millions in options.millions:
                at = home / str(millions)
                row = of_size(spark, at, millions, options.runs)
                taken[millions] = row["seconds"]["ours"]
                added[millions] = row["driver_added_mib"]
                click.echo(json.dumps(row))
                if options.rows is None:
                    shutil.rmtree(at)
        if {2.0, 10.0} <= taken.keys():
            longer = round(taken[10.0] / taken[2.0], 2)
            told = {"10M/2M": longer, "at_most": LONGER_MAX, "met": longer <= LONGER_MAX}
            click.echo(json.dumps(told))
        if {1.0, 10.0} <= added.keys():
            more = added[10.0] - added[1.0]
            told = {"driver_mib_10M-1M": more, "at_most": MORE_MIB_MAX, "met": more <= MORE_MIB_MAX}
            click.echo(json.dumps(told))
    finally:
        if options.rows is None:
            shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
