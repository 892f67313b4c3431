"""What is no event of a metadata partition is a row of its own, named by its content's hash."""

import hashlib
from typing import Any

import pytest

from rlmm_daemon.codec import records
from rlmm_daemon.core.partitioner import metadata_partition
from rlmm_daemon.domain.ids import (
    BrokerId,
    LeaderEpoch,
    Offset,
    SegmentId,
    TopicId,
    TopicIdPartition,
)
from rlmm_daemon.domain.partition_delete import PartitionDelete, PartitionDeleteState
from rlmm_daemon.domain.segment import (
    SegmentMetadata,
    SegmentSnapshot,
    SegmentState,
    SegmentUpdate,
)
from rlmm_daemon.reconcile.read.event_rows import EventRows
from rlmm_daemon.reconcile.schema import RowKind

COUNT = 5
WHOSE = TopicIdPartition(TopicId(b"t" * 16), "orders", 0)
NUMBER = metadata_partition(WHOSE.topic_id, WHOSE.partition, COUNT)
ID = SegmentId(b"s" * 16)
SPAN: dict[str, Any] = {
    "segment_leader_epochs": {LeaderEpoch(3): Offset(1)},
    "segment_id": ID,
    "start_offset": Offset(1),
    "end_offset": Offset(2),
    "broker_id": BrokerId(1),
    "max_timestamp_ms": 1,
    "event_timestamp_ms": 2,
    "segment_size_bytes": 3,
}
STARTED = records.encode(SegmentMetadata(partition=WHOSE, **SPAN))
FINISHED = records.encode(
    SegmentUpdate(
        partition=WHOSE,
        segment_id=ID,
        broker_id=BrokerId(1),
        event_timestamp_ms=2,
        custom_metadata=None,
        state=SegmentState.COPY_SEGMENT_FINISHED,
    )
)
MARKED = records.encode(
    PartitionDelete(
        partition=WHOSE,
        broker_id=BrokerId(1),
        event_timestamp_ms=2,
        state=PartitionDeleteState.DELETE_PARTITION_MARKED,
    )
)
SNAPSHOT = records.encode(SegmentSnapshot(state=SegmentState.COPY_SEGMENT_FINISHED, **SPAN))


def rows(value: bytes | None, number: int = NUMBER) -> list[dict[str, object]]:
    made = EventRows(number, COUNT)
    made.add(7, value)
    found: list[dict[str, object]] = made.take().to_pylist()
    return found


@pytest.mark.parametrize(
    ("value", "kind"),
    [(STARTED, RowKind.SEGMENT), (FINISHED, RowKind.SEGMENT), (MARKED, RowKind.PARTITION_DELETE)],
)
def test_an_event_is_a_row(value: bytes, kind: RowKind) -> None:
    (row,) = rows(value)
    assert (row["kind"], row["offset"], row["metadata_partition"]) == (kind, 7, NUMBER)


@pytest.mark.parametrize("value", [STARTED, FINISHED, MARKED])
def test_an_event_of_another_metadata_partition_is_none_of_ours(value: bytes) -> None:
    unreadable(value, "another metadata partition", number=(NUMBER + 1) % COUNT)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "tombstone"),
        (b"", ""),
        (b"garbage", ""),
        (STARTED[:-1], ""),
        (SNAPSHOT, "names no partition"),
    ],
)
def test_what_is_no_event_is_named_by_its_hash(value: bytes | None, reason: str) -> None:
    unreadable(value, reason)


def unreadable(value: bytes | None, reason: str, number: int = NUMBER) -> None:
    (row,) = rows(value, number)
    digest, _, told = str(row["detail"]).partition(" ")
    assert (row["kind"], row["offset"]) == (RowKind.UNREADABLE, 7)
    assert digest == hashlib.sha256(value or b"").hexdigest()
    assert reason in told
    assert told
