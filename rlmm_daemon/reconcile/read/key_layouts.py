"""Layout of a key, and the length of the prefix that it then has, in SQL.

Prefixes are compared as text. Those with hash bits differ from segment to segment:
`core.storage.layout` says them, in Arrow batches, which costs a few microseconds a key and only
where there are such.
"""

import binascii
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyspark.sql.functions import arrow_udf

from rlmm_daemon.codec.marker import LayoutRow
from rlmm_daemon.core.storage.layout import Layout
from rlmm_daemon.domain.errors import RlmmError
from rlmm_daemon.domain.ids import SegmentId, uuid_bytes
from rlmm_daemon.reconcile.schema import literal


def placed(spark: Any, objects: Any, layouts: tuple[LayoutRow, ...]) -> Any:
    """Return keyed objects with `number`, 0 where only `core.storage.layout` can say, and `skip`.

    Of prefixes within each other the longest is taken. If that is wrong, so is what it leaves of
    the key; whoever uses `skip` compares that.
    """
    objects.createOrReplaceTempView("keyed_objects")
    hashed = [row for row in layouts if _is_hashed(row)]
    for row in hashed:
        spark.udf.register(_directory(row), arrow_udf(_directories(row), "string"))
    own = "".join(f", {_directory(row)}(id) AS {_directory(row)}" for row in hashed)
    ordered = sorted(layouts, key=lambda row: len(row.prefix), reverse=True)
    number = "".join(f" WHEN {_holds(row)} THEN {row.number}" for row in ordered)
    skip = "".join(f" WHEN {_holds(row)} THEN {_length(row)}" for row in ordered)
    return spark.sql(f"""
        WITH own AS (SELECT *{own} FROM keyed_objects)
        SELECT *, CASE{number} WHEN TRUE THEN 0 END AS number,
            CASE{skip} WHEN TRUE THEN 0 END AS skip
        FROM own
    """)  # noqa: S608 - our own words, and literals


def _is_hashed(row: LayoutRow) -> bool:
    return "{" in row.prefix


def _directory(row: LayoutRow) -> str:
    return f"rlmm_directory_{row.number}"


def _holds(row: LayoutRow) -> str:
    if _is_hashed(row):
        return f"startswith(key, {_directory(row)})"
    return f"startswith(key, {literal(row.prefix + '/')})" if row.prefix else "TRUE"


def _length(row: LayoutRow) -> str:
    if _is_hashed(row):
        return f"octet_length({_directory(row)})"
    return str(len(row.prefix.encode()) + 1) if row.prefix else "0"


def _directories(row: LayoutRow) -> Callable[[pa.Array], pa.Array]:
    layout = Layout(row.prefix, row.kind)

    def directory(name: bytes | None) -> str | None:
        try:
            return layout.directory(SegmentId(uuid_bytes((name or b"").decode("ascii"))))
        except (RlmmError, ValueError, binascii.Error):
            return None

    def directories(ids: pa.Array) -> pa.Array:
        return pa.array([directory(name) for name in ids.to_pylist()], type=pa.string())

    return directories
