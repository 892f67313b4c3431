"""`rlmm export --format parquet` files in place of the log: for a look from where no log is.

An export is a fold without offsets: nothing proves that it is whole, nor what came after it. So a
run over one reports, and condemns nothing; objects of segments that were deleted before it, and of
those that were copied after it, are nobody's there.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from rlmm_daemon.core.partitioner import metadata_partition
from rlmm_daemon.domain.ids import (
    BrokerId,
    LeaderEpoch,
    Offset,
    SegmentId,
    TopicId,
    TopicIdPartition,
    uuid_bytes,
)
from rlmm_daemon.domain.segment import CustomMetadata, SegmentMetadata, SegmentState
from rlmm_daemon.reconcile.errors import Incomplete
from rlmm_daemon.reconcile.read import lives
from rlmm_daemon.reconcile.read.event_rows import ROWS_PER_BATCH, EventRows
from rlmm_daemon.reconcile.schema import EVENTS, ddl

REFUSED: Final = "the metadata comes from an export: no offsets say that it is whole"


def events(spark: Any, files: Iterable[str], partition_count: int) -> Any:
    """Return the exported segments as the events that they had, in the shape of `schema.EVENTS`.

    Raises:
        Incomplete: a file is not there, or no export.
    """
    paths = [*files]
    for path in paths:
        _check(Path(path))
    # With their scheme: on YARN, for one, a bare path is HDFS's.
    found = spark.read.parquet(*(f"file://{Path(path).resolve()}" for path in paths))
    return found.mapInArrow(ExportReader(partition_count), ddl(EVENTS))


class ExportReader(msgspec.Struct, frozen=True):
    """Turns exported rows into events, in a task."""

    partition_count: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield events, as `mapInArrow` wants it."""
        for each in batches:
            made: dict[int, EventRows] = {}
            for row in each.to_pylist():
                number, segment = self._segment(row)
                rows = made.setdefault(number, EventRows(number, self.partition_count))
                for offset, value in lives.life(segment, segment.state):
                    rows.add(offset, value)
                if len(rows) >= ROWS_PER_BATCH:
                    yield rows.take()
            for rows in made.values():
                yield rows.take()

    def _segment(self, row: dict[str, Any]) -> tuple[int, SegmentMetadata]:
        topic_id = TopicId(uuid_bytes(row["topic_id"]))
        custom = row["custom_metadata"]
        segment = SegmentMetadata(
            partition=TopicIdPartition(topic_id, row["topic"], row["partition"]),
            segment_id=SegmentId(uuid_bytes(row["segment_id"])),
            start_offset=Offset(row["start_offset"]),
            end_offset=Offset(row["end_offset"]),
            broker_id=BrokerId(row["broker_id"]),
            max_timestamp_ms=row["max_timestamp_ms"],
            event_timestamp_ms=row["event_ms"],
            segment_leader_epochs={
                LeaderEpoch(epoch): Offset(first)
                for epoch, first in zip(row["epochs"], row["epoch_offsets"], strict=True)
            },
            segment_size_bytes=row["log_size"],
            custom_metadata=None if custom is None else CustomMetadata(custom),
            state=SegmentState(row["state"]),
            txn_index_empty=row["txn_index_empty"],
        )
        return metadata_partition(topic_id, row["partition"], self.partition_count), segment


def _check(path: Path) -> None:
    """Read no more than the schema."""
    try:
        names = pq.read_schema(path).names
    except (OSError, pa.ArrowInvalid) as error:
        raise Incomplete(f"{path} is no export: {error}") from error
    if missing := sorted({"segment_id", "custom_metadata", "epoch_offsets"} - set(names)):
        raise Incomplete(f"{path} is no export: it lacks {', '.join(missing)}")
