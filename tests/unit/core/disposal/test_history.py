"""`last_word` says of one segment what the cache says, over random histories."""

import random

import pytest

from rlmm_daemon.codec import custom_metadata, records
from rlmm_daemon.codec.custom_metadata import FLAG_ONLY_IF_STARTED, StoredFacts
from rlmm_daemon.core.disposal.history import Told, last_word
from rlmm_daemon.core.fold.fold import Fold
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
from rlmm_daemon.domain.segment import SegmentMetadata, SegmentUpdate
from rlmm_daemon.domain.segment import SegmentState as S

PARTITION = TopicIdPartition(TopicId(bytes(15) + b"\x07"), "orders", 0)
SEGMENT = SegmentId(bytes(15) + b"\x09")
COUNT = 5


def event(state: S, offset: int, *, flags: int) -> tuple[bytes, Told]:
    facts = StoredFacts(layout_number=1, log_crc32c=1, sizes={".index": 8}, flags=flags)
    custom = custom_metadata.encode(facts)
    if state is S.COPY_SEGMENT_STARTED:
        begun = SegmentMetadata(
            partition=PARTITION,
            segment_id=SEGMENT,
            start_offset=Offset(0),
            end_offset=Offset(9),
            broker_id=BrokerId(1),
            max_timestamp_ms=1,
            event_timestamp_ms=offset,
            segment_leader_epochs={LeaderEpoch(1): Offset(0)},
            segment_size_bytes=100,
        )
        told = Told(offset=offset, state=state, event_ms=offset, log_size=100, topic="orders")
        return records.encode(begun), told
    update = SegmentUpdate(
        partition=PARTITION,
        segment_id=SEGMENT,
        broker_id=BrokerId(1),
        event_timestamp_ms=offset,
        custom_metadata=custom,
        state=state,
    )
    only = state is S.DELETE_SEGMENT_STARTED and bool(flags)
    return records.encode(update), Told(
        offset=offset,
        state=state,
        event_ms=offset,
        layout=1,
        sizes={".index": 8},
        only_if_started=only,
    )


@pytest.mark.parametrize("seed", range(300))
def test_a_random_history_ends_as_in_the_cache(seed: int) -> None:
    luck = random.Random(seed)
    number = metadata_partition(PARTITION.topic_id, PARTITION.partition, COUNT)
    fold = Fold(MetadataPartition(number), COUNT)
    told, applied_gone = [], False
    for offset in range(luck.randrange(1, 10)):
        state = luck.choice([*S])
        flags = luck.choice([0, FLAG_ONLY_IF_STARTED]) if state is S.DELETE_SEGMENT_STARTED else 0
        value, one = event(state, offset, flags=flags)
        before = state_of(fold)
        fold.apply(offset, value)
        told.append(one)
        applied_gone = state_of(fold) is None and (applied_gone or before is not None)
        segment = last_word(told)
        expected = S.DELETE_SEGMENT_FINISHED if applied_gone else state_of(fold)
        assert segment.state is expected, told


def state_of(fold: Fold) -> S | None:
    cache = fold.partitions.get(PARTITION)
    return None if cache is None else cache.state(SEGMENT)
