"""An S3 Inventory report in each of its forms says what a listing would have said."""

import csv
import gzip
import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet
import pytest

from rlmm_daemon.config import load
from rlmm_daemon.config.reconcile import InventoryListing, Output, ReconcileConfig, Spark
from rlmm_daemon.reconcile.errors import Incomplete
from rlmm_daemon.reconcile.night import Run
from rlmm_daemon.reconcile.read import inventory
from tests.reconcile.test_night import NOW, found_by
from tests.reconcile.world import DAY, World

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
COLUMNS = ("bucket", "key", "version_id", "is_latest", "is_delete_marker", "size",
           "last_modified_date", "e_tag")  # fmt: skip
CSV_NAMES = ("Bucket", "Key", "VersionId", "IsLatest", "IsDeleteMarker", "Size",
             "LastModifiedDate", "ETag")  # fmt: skip
AT = datetime(2026, 11, 20, 1, 2, 3, 450_000, tzinfo=UTC)
AT_MS = 1_795_136_523_450
#: (key, is latest, is delete marker, size)
ROWS = [
    ('orders-0/a "b", c+d ü.log', True, False, 7),
    ("old", False, False, 3),
    ("gone", True, True, None),
    ("_rlmm/marker.json", True, False, 9),
]


def report(home: Path, form: str, rows: list[tuple[Any, ...]], created_ms: int = NOW) -> str:
    """Write a report as S3 does, and return its manifest's path."""
    name = f"data/part.{form.lower()}"
    (home / "data").mkdir(parents=True)
    if form == "CSV":
        with gzip.open(home / f"{name}.gz", "wt", newline="", encoding="utf-8") as out:
            writer = csv.writer(out, quoting=csv.QUOTE_ALL)
            for _, key, _, latest, deleted, size, at, etag in rows:
                texts = (str(latest).lower(), str(deleted).lower(), "" if size is None else size)
                when = at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at.microsecond // 1000:03}Z"
                writer.writerow(("tier", quote(key), "v", *texts, when, etag))
        name += ".gz"
    else:
        table = pa.table({c: [row[at] for row in rows] for at, c in enumerate(COLUMNS)})
        write = pa.parquet.write_table if form == "PARQUET" else pa.orc.write_table
        write(table, home / name)
    data = (home / name).read_bytes()
    manifest = home / "manifest.json"
    manifest.write_text(
        json.dumps(
            {
                "sourceBucket": "tier",
                "creationTimestamp": str(created_ms),
                "fileFormat": form,
                "fileSchema": ", ".join(CSV_NAMES) if form == "CSV" else "message s3 {...}",
                "files": [
                    {
                        "key": f"reports/tier/daily/{name}",
                        "size": len(data),
                        "MD5checksum": hashlib.md5(data, usedforsecurity=False).hexdigest(),
                    }
                ],
            }
        )
    )
    return str(manifest)


def in_full(key: str, *, latest: bool, deleted: bool, size: int | None) -> tuple[Any, ...]:
    return ("tier", key, "v", latest, deleted, size, AT, "0123")


@pytest.mark.parametrize("form", ["CSV", "ORC", "PARQUET"])
def test_each_form_is_read_to_the_same_rows(spark, tmp_path: Path, form: str) -> None:
    rows = [in_full(k, latest=new, deleted=gone, size=size) for k, new, gone, size in ROWS]
    file = report(tmp_path, form, rows)
    read = inventory.read(spark, file, [""], bucket="tier", now_ms=NOW)
    found = {row["key"]: row.asDict() for row in read.objects.take(10)}
    assert found.keys() == {ROWS[0][0], "old"}, "no delete marker, nothing of ours"
    current = found[ROWS[0][0]]
    assert (current["size"], current["modified_ms"], current["etag"]) == (7, AT_MS, "0123")
    assert (current["noncurrent"], found["old"]["noncurrent"]) == (False, True)
    assert read.created_ms == NOW
    for roots, keys in (
        (['orders-0/a "b", c'], {ROWS[0][0]}),
        (["ol/", "it's", "old"], {"old"}),
        ([], set()),
    ):
        below = inventory.read(spark, file, roots, bucket="tier", now_ms=NOW).objects
        assert {row["key"] for row in below.take(10)} == keys, "what others have is theirs"


def test_a_report_without_a_column_is_an_error(spark, tmp_path: Path) -> None:
    manifest = report(tmp_path, "CSV", [in_full("k", latest=True, deleted=False, size=1)])
    Path(manifest).write_text(Path(manifest).read_text().replace(", ETag", ", StorageClass"))
    with pytest.raises(Incomplete, match="lacks e_tag"):
        inventory.read(spark, manifest, [""], bucket="tier", now_ms=NOW)


def test_a_night_over_a_report_finds_what_a_listing_would(spark, tmp_path: Path) -> None:
    world = World(tmp_path, NOW)
    # Since the report was made, one orphan went and one live segment's objects came.
    late, gone = world.store(world.live()), world.store(world._orphan(9 * DAY))
    world.everything()
    world.write_log()
    world.write_local()
    rows = [
        ("tier", key, "", True, False, size, datetime.fromtimestamp(at / 1000, tz=UTC), "e")
        for key, (size, at) in world.objects.items()
        if key not in late
    ]
    for key in gone:
        (tmp_path / "remote" / key).unlink()
    manifest = report(tmp_path / "report", "PARQUET", rows)
    config = ReconcileConfig(
        daemon_config=str(tmp_path / "rlmm.toml"),
        listing=InventoryListing(manifest=manifest),
        output=Output(directory=str(tmp_path / "out")),
        spark=Spark(shuffle_partitions=4),
    )
    run = Run(
        spark, config, load(config.daemon_config), execute=False, now_ms=NOW,
        progress=lambda _stage: None,
    )  # fmt: skip
    night = run.whole()
    assert night.refused == [inventory.REFUSED], "whose report it is nobody can tell here"
    assert night.condemned == 0
    assert found_by(run).keys() == world.expected.keys()
