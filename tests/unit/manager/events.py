"""Events of two user partitions, and a way to wait for a condition."""

import asyncio
from collections.abc import Callable

from rlmm_daemon.codec import records
from rlmm_daemon.core.partitioner import metadata_partition
from rlmm_daemon.domain.ids import (
    BrokerId,
    LeaderEpoch,
    MetadataPartition,
    Offset,
    SegmentId,
    TopicId,
    TopicIdPartition,
)
from rlmm_daemon.domain.partition_delete import PartitionDelete, PartitionDeleteState
from rlmm_daemon.domain.segment import (
    CustomMetadata,
    SegmentMetadata,
    SegmentState,
    SegmentUpdate,
)

COUNT = 3
TP = TopicIdPartition(TopicId(bytes(range(1, 17))), "orders", 0)


def of(tp: TopicIdPartition) -> MetadataPartition:
    return metadata_partition(tp.topic_id, tp.partition, COUNT)


#: In the same metadata partition as TP.
NEIGHBOUR = next(
    tp
    for number in range(1, 100)
    if of(tp := TopicIdPartition(TP.topic_id, "orders", number)) == of(TP)
)


def segment_id(number: int) -> SegmentId:
    return SegmentId(number.to_bytes(16, "big"))


def started(number: int, start: int, end: int, tp: TopicIdPartition = TP) -> bytes:
    return records.encode(
        SegmentMetadata(
            partition=tp,
            segment_id=segment_id(number),
            start_offset=Offset(start),
            end_offset=Offset(end),
            broker_id=BrokerId(1),
            max_timestamp_ms=7,
            event_timestamp_ms=1000 + number,
            segment_leader_epochs={LeaderEpoch(0): Offset(start)},
            segment_size_bytes=100,
        )
    )


def updated(
    number: int,
    state: SegmentState = SegmentState.COPY_SEGMENT_FINISHED,
    tp: TopicIdPartition = TP,
    custom: CustomMetadata | None = None,
) -> bytes:
    return records.encode(
        SegmentUpdate(
            partition=tp,
            segment_id=segment_id(number),
            broker_id=BrokerId(1),
            event_timestamp_ms=2000 + number,
            custom_metadata=custom,
            state=state,
        )
    )


def marked(state: PartitionDeleteState, tp: TopicIdPartition = TP) -> bytes:
    return records.encode(
        PartitionDelete(partition=tp, broker_id=BrokerId(1), event_timestamp_ms=3000, state=state)
    )


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition, under pytest's own timeout."""
    while not condition():  # noqa: ASYNC110 - the condition belongs to the code under test
        await asyncio.sleep(0.005)
