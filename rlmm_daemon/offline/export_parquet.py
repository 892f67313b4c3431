"""Live segments as a Parquet file, for Spark, DuckDB and their like.

Columns are named as the nightly job's events where they mean the same. The file appears under its
name only when it is whole.
"""

from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from rlmm_daemon.domain.ids import uuid_text
from rlmm_daemon.domain.segment import SegmentMetadata

ROWS_PER_GROUP: Final = 50_000
SCHEMA: Final = pa.schema([
    pa.field("topic_id", pa.string()),
    pa.field("topic", pa.string()),
    pa.field("partition", pa.int32()),
    pa.field("segment_id", pa.string()),
    # SegmentState's number: 0, 1 or 2.
    pa.field("state", pa.int8()),
    pa.field("start_offset", pa.int64()),
    # Inclusive.
    pa.field("end_offset", pa.int64()),
    pa.field("log_size", pa.int64()),
    pa.field("epochs", pa.list_(pa.int32())),
    pa.field("epoch_offsets", pa.list_(pa.int64())),
    pa.field("broker_id", pa.int32()),
    pa.field("event_ms", pa.int64()),
    # -1 where the segment has no record with a timestamp.
    pa.field("max_timestamp_ms", pa.int64()),
    pa.field("txn_index_empty", pa.bool_()),
    pa.field("custom_metadata", pa.binary()),
])  # fmt: skip


def write(segments: Iterable[SegmentMetadata], path: Path) -> int:
    """Write the segments as they come and return how many there were."""
    rest, count = iter(segments), 0
    part = path.with_name(f".{path.name}.part")
    try:
        with pq.ParquetWriter(part, SCHEMA, compression="zstd") as writer:
            while group := [*islice(rest, ROWS_PER_GROUP)]:
                writer.write_batch(pa.RecordBatch.from_pylist([*map(_row, group)], schema=SCHEMA))
                count += len(group)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return count


def _row(segment: SegmentMetadata) -> dict[str, object]:
    return {
        "topic_id": uuid_text(segment.partition.topic_id),
        "topic": segment.partition.topic,
        "partition": segment.partition.partition,
        "segment_id": uuid_text(segment.segment_id),
        "state": int(segment.state),
        "start_offset": segment.start_offset,
        "end_offset": segment.end_offset,
        "log_size": segment.segment_size_bytes,
        "epochs": [*segment.segment_leader_epochs],
        "epoch_offsets": [*segment.segment_leader_epochs.values()],
        "broker_id": segment.broker_id,
        "event_ms": segment.event_timestamp_ms,
        "max_timestamp_ms": segment.max_timestamp_ms,
        "txn_index_empty": segment.txn_index_empty,
        "custom_metadata": segment.custom_metadata,
    }
