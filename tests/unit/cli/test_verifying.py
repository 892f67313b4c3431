import pytest

from rlmm_daemon.adapters.event_log.memory import MemoryEventLog, MemoryLogStore
from rlmm_daemon.cli.verifying import _Topic, roots
from rlmm_daemon.codec import records
from rlmm_daemon.core.disposal.inventory import History, SegmentName
from rlmm_daemon.core.fold import Fold
from rlmm_daemon.core.partitioner import metadata_partition
from rlmm_daemon.domain.ids import MetadataPartition, SegmentId, TopicId
from rlmm_daemon.domain.segment import SegmentState
from tests.unit.daemon.segments import PARTITION, metadata

COUNT = 5
NUMBER = MetadataPartition(metadata_partition(PARTITION.topic_id, PARTITION.partition, COUNT))


async def test_a_topic_is_read_to_its_end_and_later_from_there_on():
    store = MemoryLogStore(topic_id=TopicId(b"a" * 16), partition_count=COUNT)
    log = MemoryEventLog(store, heartbeat_seconds=0.01)
    await log.open(create=True)
    topic, history = _Topic(log), History(Fold(NUMBER, COUNT))
    assert await topic.read_on(history) == 0
    names = []
    for number in (1, 2):
        made = metadata(segment_id=SegmentId(bytes([number] * 16)))
        names.append(SegmentName(made.partition, made.segment_id))
        store.put(NUMBER, records.encode(made))
        store.put(NUMBER, b"garbage")
        assert await topic.read_on(history) == 0
        assert list(history.segments) == names
    recorded = history.recorded(names[0])
    assert recorded is not None
    assert recorded.state is SegmentState.COPY_SEGMENT_STARTED
    assert history.recorded(SegmentName(PARTITION, SegmentId(bytes(16)))) is None
    store.trim(NUMBER, 2)
    assert await topic.read_on(History(Fold(NUMBER, COUNT))) == 2
    await log.close()


@pytest.mark.parametrize(
    ("prefixes", "expected"),
    [([], []), (["a/", "a/b/", "c/"], ["a/", "c/"]), (["x/", ""], [""]), (["a/", "a/"], ["a/"])],
)
def test_nothing_is_listed_twice(prefixes, expected):
    assert roots(prefixes) == expected
