"""An S3 Inventory report in place of a listing: CSV, ORC or Parquet, as its manifest says.

It is a picture of the day before, so everything that it says is looked at again before it becomes a
finding. Source: Amazon S3's "Inventory manifest" and "Amazon S3 Inventory list" pages.
"""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import msgspec

from rlmm_daemon.reconcile.errors import Incomplete
from rlmm_daemon.reconcile.read.listing import CONTROL
from rlmm_daemon.reconcile.schema import literal

#: Why nothing is condemned by a report where the storage is no bucket.
REFUSED: Final = (
    "the listing is an S3 Inventory report and the storage is a directory: whose objects it lists"
    " nobody can tell"
)
#: What a report must have been configured with.
NEEDED: Final = ("key", "size", "last_modified_date", "e_tag")
#: The CSV form's names for the columns of the other two.
_CSV_NAMES: Final = {
    "Key": "key",
    "Size": "size",
    "LastModifiedDate": "last_modified_date",
    "ETag": "e_tag",
    "IsLatest": "is_latest",
    "IsDeleteMarker": "is_delete_marker",
}


class Report(msgspec.Struct, frozen=True):
    """A report's rows in the shape of a listing, and when it was made."""

    objects: Any
    created_ms: int


class InventoryReport(msgspec.Struct, frozen=True):
    """What a report consists of, all of it there."""

    paths: tuple[str, ...]
    form: str
    columns: str
    created_ms: int


def manifest_of(file: str, *, bucket: str | None, now_ms: int) -> InventoryReport:
    """Return a manifest whose data files lie below its own directory, each as it was written.

    `bucket` is the one that it has to be of; None: the storage is none.

    Raises:
        Incomplete: no such manifest, a data file is missing or another, or it is of the future or
            of another bucket.
    """
    try:
        told = json.loads(Path(file).read_text(encoding="utf-8"))
        parts = [(each["key"], int(each["size"]), each["MD5checksum"]) for each in told["files"]]
        form, columns = told["fileFormat"].upper(), told["fileSchema"]
        created_ms, source = int(told["creationTimestamp"]), told["sourceBucket"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Incomplete(f"{file} is no inventory manifest: {error}") from error
    if bucket not in (None, source):
        raise Incomplete(f"{file} is of the bucket {source!r}, and the storage is {bucket!r}")
    if created_ms > now_ms:
        raise Incomplete(f"{file} was made in the future: the age of every object would be wrong")
    paths = tuple(_whole(Path(file).parent, *part) for part in parts)
    return InventoryReport(paths, form, columns, created_ms)


def read(spark: Any, file: str, roots: Iterable[str], *, bucket: str | None, now_ms: int) -> Report:
    """Return the report of a manifest (`manifest_of`), what lies below the roots of it.

    A bucket may be others' as well: no share of what is theirs is ours to touch.

    Raises:
        Incomplete: a part of it is missing, or a column.
    """
    manifest = manifest_of(file, bucket=bucket, now_ms=now_ms)
    form = manifest.form
    rows = _rows(spark, form, manifest.columns, [f"file://{path}" for path in manifest.paths])
    missing = [name for name in NEEDED if name not in rows.columns]
    if missing:
        raise Incomplete(f"the inventory lacks {', '.join(missing)}: configure it with these")
    rows.createOrReplaceTempView("inventory")
    latest = "is_latest" if "is_latest" in rows.columns else "TRUE"
    deleted = "is_delete_marker" if "is_delete_marker" in rows.columns else "FALSE"
    key = "url_decode(key)" if form == "CSV" else "key"
    below = " OR ".join(f"startswith({key}, {literal(root)})" for root in roots)
    objects = spark.sql(f"""
        SELECT {key} AS key, coalesce(CAST(size AS BIGINT), 0L) AS size,
            unix_millis(CAST(last_modified_date AS TIMESTAMP)) AS modified_ms,
            coalesce(trim('"' FROM e_tag), '') AS etag, CAST(NULL AS STRING) AS upload_id,
            NOT coalesce(CAST({latest} AS BOOLEAN), TRUE) AS noncurrent
        FROM inventory
        WHERE NOT coalesce(CAST({deleted} AS BOOLEAN), FALSE)
            AND NOT startswith({key}, '{CONTROL}') AND ({below or "FALSE"})
    """)  # noqa: S608 - our own words, and literals
    return Report(objects, manifest.created_ms)


def _rows(spark: Any, form: str, columns: str, paths: list[str]) -> Any:
    if form == "PARQUET":
        return spark.read.parquet(*paths)
    if form == "ORC":
        return spark.read.orc(*paths)
    names = [name.strip() for name in columns.split(",")]
    schema = ", ".join(f"`{_CSV_NAMES.get(name, name)}` string" for name in names)
    # Quotes are doubled inside a value, as in RFC 4180.
    return spark.read.schema(schema).option("escape", '"').csv(paths)


def _whole(home: Path, name: str, size: int, md5: str) -> str:
    """Return where a data file lies, once it is the one that the manifest means."""
    path = _found(home, name)
    if path.stat().st_size != size:
        raise Incomplete(
            f"the inventory's data file {path} is not {size} bytes long: copy it again"
        )
    with path.open("rb") as file:
        found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if found != md5.lower():
        raise Incomplete(f"the inventory's data file {path} is damaged: copy it again")
    return str(path.resolve())


def _found(home: Path, name: str) -> Path:
    """Return where a data file lies: by its whole key, by its end, or beside the manifest."""
    parts = Path(name).parts
    for begin in range(len(parts)):
        path = home.joinpath(*parts[begin:])
        if path.is_file():
            return path
    raise Incomplete(f"the inventory's data file {name} is not below {home}")
