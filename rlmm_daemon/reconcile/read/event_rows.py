"""Records of the log as rows of `schema.EVENTS`."""

import hashlib
from typing import Any, Final

import pyarrow as pa

from rlmm_daemon.codec import custom_metadata, records
from rlmm_daemon.codec.custom_metadata import SIZED, StoredFacts
from rlmm_daemon.core.partitioner import metadata_partition
from rlmm_daemon.domain.errors import Malformed
from rlmm_daemon.domain.ids import uuid_text
from rlmm_daemon.domain.partition_delete import PartitionDelete
from rlmm_daemon.domain.segment import SegmentMetadata, SegmentSnapshot, SegmentUpdate
from rlmm_daemon.reconcile.schema import EVENTS, RowKind, batch

ROWS_PER_BATCH: Final = 20_000


class EventRows:
    """Collects rows of one slice of one metadata partition."""

    def __init__(self, number: int, partition_count: int) -> None:
        self._number, self._count = number, partition_count
        self._columns: dict[str, list[Any]] = {name: [] for name in EVENTS.names}

    def __len__(self) -> int:
        return len(self._columns["offset"])

    def take(self) -> pa.RecordBatch:
        """Return what was collected, and begin anew."""
        taken, self._columns = self._columns, {name: [] for name in EVENTS.names}
        return batch(EVENTS, taken)

    def read_through(self, begin: int, next_offset: int) -> None:
        """Note that every offset of [begin, next_offset) was read or is no record."""
        self._add(next_offset, kind=RowKind.READ, start_offset=begin)

    def lost(self, begin: int, end: int) -> None:
        """Note that [begin, end) holds no record, and that the log doesn't vouch for it."""
        self._add(end, kind=RowKind.LOST, start_offset=begin)

    def add(self, offset: int, value: bytes | None) -> None:
        """Add one record; what is no event of this partition becomes an UNREADABLE row."""
        if value is None:
            self._unreadable(offset, b"", "tombstone")
            return
        try:
            record = records.decode(value)
            reason = self._try(offset, record)
        except Malformed as error:
            reason = error.message
        if reason:
            self._unreadable(offset, value, reason)

    def _try(self, offset: int, record: records.Record) -> str:
        if isinstance(record, SegmentSnapshot):
            return "a snapshot record names no partition"
        whose = record.partition
        if metadata_partition(whose.topic_id, whose.partition, self._count) != self._number:
            return "the event belongs to another metadata partition"
        if isinstance(record, PartitionDelete):
            self._partition_delete(offset, record)
        else:
            self._segment(offset, record)
        return ""

    def _partition_delete(self, offset: int, record: PartitionDelete) -> None:
        self._add(
            offset,
            kind=RowKind.PARTITION_DELETE,
            topic_id=uuid_text(record.partition.topic_id),
            topic=record.partition.topic,
            partition=record.partition.partition,
            state=int(record.state),
            event_ms=record.event_timestamp_ms,
            broker_id=record.broker_id,
        )

    def _segment(self, offset: int, record: SegmentMetadata | SegmentUpdate) -> None:
        stored = custom_metadata.decode(record.custom_metadata)
        row: dict[str, Any] = {
            "kind": RowKind.SEGMENT,
            "topic_id": uuid_text(record.partition.topic_id),
            "topic": record.partition.topic,
            "partition": record.partition.partition,
            "segment_id": uuid_text(record.segment_id),
            "state": int(record.state),
            "event_ms": record.event_timestamp_ms,
            "broker_id": record.broker_id,
            # It names no object, so it is not among the facts.
            "only_if_started": custom_metadata.is_only_if_started(record.custom_metadata),
        }
        if isinstance(record, SegmentMetadata):
            row |= {
                "start_offset": record.start_offset,
                "end_offset": record.end_offset,
                "log_size": record.segment_size_bytes,
                "epochs": [*record.segment_leader_epochs],
                "epoch_offsets": [*record.segment_leader_epochs.values()],
            }
        if stored is not None:
            row |= _stored(stored)
        self._add(offset, **row)

    def _unreadable(self, offset: int, value: bytes, reason: str) -> None:
        digest = hashlib.sha256(value).hexdigest()
        self._add(offset, kind=RowKind.UNREADABLE, detail=f"{digest} {reason}")

    def _add(self, offset: int, **row: Any) -> None:
        row["metadata_partition"], row["offset"] = self._number, offset
        for name, column in self._columns.items():
            column.append(row.get(name))


def _stored(facts: StoredFacts) -> dict[str, Any]:
    return {
        "layout": facts.layout_number,
        "sizes": [facts.sizes.get(suffix, -1) for suffix in SIZED],
    }
