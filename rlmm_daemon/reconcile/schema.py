"""The columns that flow between the stages, once for Arrow and once for Spark.

objects   one row per listed object or incomplete upload; key as listed
events    one row per record of the log that concerns segments or partitions, plus one `READ` row
          per slice that says how far it came, an `UNREADABLE` row per record that is no event, and
          a `LOST` row per range of offsets whose records are gone
findings  one row per disagreement
"""

import enum
from typing import Final

import pyarrow as pa


class RowKind(enum.IntEnum):
    """What a row of `events` is."""

    SEGMENT = 0
    PARTITION_DELETE = 2
    UNREADABLE = -1
    #: Not an event: `offset` is the next one to read behind the slice that began at `start_offset`.
    READ = -2
    #: Not an event: offsets [`start_offset`, `offset`) hold no record any more.
    LOST = -3


OBJECTS: Final = pa.schema([
    pa.field("key", pa.string()),
    pa.field("size", pa.int64()),
    pa.field("modified_ms", pa.int64()),
    pa.field("etag", pa.string()),
    # Of an incomplete multipart upload; null for an object.
    pa.field("upload_id", pa.string()),
    # An old version in a versioned bucket.
    pa.field("noncurrent", pa.bool_()),
])  # fmt: skip

# Arrow's schemas are nullable throughout: so are the frames that Spark makes of them.
EVENTS: Final = pa.schema([
    pa.field("metadata_partition", pa.int32()),
    pa.field("offset", pa.int64()),
    pa.field("kind", pa.int8()),
    # Kafka's uuid text; null for READ and UNREADABLE rows.
    pa.field("topic_id", pa.string()),
    pa.field("topic", pa.string()),
    pa.field("partition", pa.int32()),
    pa.field("segment_id", pa.string()),
    # SegmentState, or PartitionDeleteState of a PARTITION_DELETE row.
    pa.field("state", pa.int8()),
    pa.field("event_ms", pa.int64()),
    pa.field("broker_id", pa.int32()),
    # Only of a COPY_SEGMENT_STARTED.
    pa.field("start_offset", pa.int64()),
    pa.field("end_offset", pa.int64()),
    pa.field("log_size", pa.int64()),
    pa.field("epochs", pa.list_(pa.int32())),
    pa.field("epoch_offsets", pa.list_(pa.int64())),
    # Only where the custom metadata is ours; a size is -1 where that object was not stored.
    pa.field("layout", pa.int32()),
    pa.field("sizes", pa.list_(pa.int64())),
    # Of every segment's event: a delete that was meant for an unfinished copy.
    pa.field("only_if_started", pa.bool_()),
    # UNREADABLE: why, and what `rlmm reconcile accept-record` takes.
    pa.field("detail", pa.string()),
])  # fmt: skip

FINDINGS: Final = pa.schema([
    pa.field("kind", pa.string()),
    pa.field("severity", pa.string()),
    pa.field("cluster", pa.string()),
    pa.field("topic", pa.string()),
    pa.field("topic_id", pa.string()),
    pa.field("partition", pa.int32()),
    pa.field("segment_id", pa.string()),
    pa.field("key", pa.string()),
    pa.field("bytes", pa.int64()),
    pa.field("age_ms", pa.int64()),
    pa.field("facts", pa.string()),
    pa.field("action", pa.string()),
    # For the steps behind: what confirms, and what names the object at its deletion.
    pa.field("etag", pa.string()),
    pa.field("modified_ms", pa.int64()),
    pa.field("upload_id", pa.string()),
    pa.field("confirm", pa.bool_()),
    pa.field("condemned", pa.bool_()),
    pa.field("recorded_bytes", pa.int64()),
])  # fmt: skip

_SPARK: Final = {
    pa.string(): "string",
    pa.int64(): "bigint",
    pa.int32(): "int",
    pa.int8(): "tinyint",
    pa.bool_(): "boolean",
    pa.list_(pa.int32()): "array<int>",
    pa.list_(pa.int64()): "array<bigint>",
}


def ddl(schema: pa.Schema) -> str:
    """Return the schema in Spark's words."""
    return ", ".join(f"`{field.name}` {_SPARK[field.type]}" for field in schema)


def batch(schema: pa.Schema, columns: dict[str, list[object]]) -> pa.RecordBatch:
    """Return rows given by column; a column that is not given is null."""
    rows = max(map(len, columns.values()), default=0)
    arrays = [pa.array(columns.get(field.name, [None] * rows), type=field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def literal(text: str) -> str:
    """Return the text as a literal of Spark's SQL, quotes and backslashes escaped."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
