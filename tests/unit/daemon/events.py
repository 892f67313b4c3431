"""Events of two user partitions, and a way to wait for a condition."""

import asyncio
from collections.abc import Callable

from msgspec.structs import replace

from rlmm_daemon.codec import records
from rlmm_daemon.core.partitioner import metadata_partition
from rlmm_daemon.daemon.base.caller import Caller
from rlmm_daemon.daemon.metadata.manager import Manager
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
    SegmentSnapshot,
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


def refused(number: int, tp: TopicIdPartition = TP) -> dict[str, bytes]:
    """Return records that decode and that the life cycles refuse, by what is wrong with them.

    Segment `number` is COPY_SEGMENT_FINISHED, `number + 1` unknown, the partition not marked. Each
    ends the consumer thread of Kafka's own manager, or is dropped by it.
    """
    S, P = SegmentState, PartitionDeleteState  # noqa: N806 - as short as a table wants
    unborn = records.decode(started(number + 1, 10, 19, tp))
    assert isinstance(unborn, SegmentMetadata)
    return {
        "a beginning that is finished": records.encode(
            replace(unborn, state=S.COPY_SEGMENT_FINISHED)
        ),
        "a beginning after the end": started(number, 0, 8, tp),
        "an update to a beginning": updated(number, S.COPY_SEGMENT_STARTED, tp),
        "an end of an unknown segment": updated(number + 1, S.COPY_SEGMENT_FINISHED, tp),
        "a delete of an unknown segment": updated(number + 1, S.DELETE_SEGMENT_STARTED, tp),
        "a delete that never began": updated(number, S.DELETE_SEGMENT_FINISHED, tp),
        "a partition's end without a mark": marked(P.DELETE_PARTITION_FINISHED, tp),
        "a partition's removal without a mark": marked(P.DELETE_PARTITION_STARTED, tp),
    }


def snapshot_record(number: int) -> bytes:
    """Return a record of api key 3, which nobody writes."""
    return records.encode(
        SegmentSnapshot(
            segment_id=segment_id(number),
            start_offset=Offset(0),
            end_offset=Offset(9),
            broker_id=BrokerId(1),
            max_timestamp_ms=1,
            event_timestamp_ms=1,
            segment_leader_epochs={LeaderEpoch(0): Offset(0)},
            segment_size_bytes=1,
            state=SegmentState.COPY_SEGMENT_STARTED,
        )
    )


async def ready(manager: Manager) -> None:
    """Announce orders-0, and return when look-ups of it are answered."""
    manager.replace_assignment([TP], [])
    await until(lambda: manager.lookups.is_ready(TP))


async def copied(
    manager: Manager, number: int, start: int, end: int, tp: TopicIdPartition = TP
) -> None:
    """Begin and finish a segment, as a broker does."""
    await manager.events.add(started(number, start, end, tp), Caller.BROKER)
    await manager.events.update(updated(number, tp=tp), Caller.BROKER)
