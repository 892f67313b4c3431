import pytest

from rlmm_daemon.adapters.os.disk import LocalDisk
from rlmm_daemon.codec import batches, records
from rlmm_daemon.core.disposal.inventory import History, Inventory, SegmentName
from rlmm_daemon.core.fold.fold import Fold
from rlmm_daemon.core.partitioner import metadata_partition
from rlmm_daemon.core.storage.layout import Layout
from rlmm_daemon.domain.errors import LogCorrupt
from rlmm_daemon.domain.ids import MetadataPartition, SegmentId, TopicId
from rlmm_daemon.domain.segment import SegmentState
from rlmm_daemon.offline.log_readers import _Files, _Topic
from rlmm_daemon.offline.verification import list_uploads, roots
from rlmm_daemon.ports.event_log import LogIdentity
from tests.support.memory_log import MemoryEventLog, MemoryLogStore
from tests.unit.adapters.storage.s3.scripted_s3 import ScriptedS3, refuses, storage_on
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


@pytest.mark.parametrize("refused", [(403, "AccessDenied"), (501, "NotImplemented")])
async def test_a_storage_that_lists_no_uploads_is_compared_without_them(refused):
    storage = storage_on(ScriptedS3(list_multipart_uploads=refuses(*refused)))
    inventory = Inventory({1: Layout()})
    told = await list_uploads(storage, "", inventory)
    assert told is not None
    assert told.endswith(f"({refused[0]} {refused[1]})")
    await storage.close()


async def test_a_damaged_batch_is_told_with_what_makes_the_daemon_see_it(tmp_path):
    home = tmp_path / "3"
    home.mkdir()
    first, second = (
        batches.build([b"event"], base_offset=at, leader_epoch=1, timestamp_ms=1) for at in (0, 1)
    )
    (home / f"{0:020}.log").write_bytes(first[:-1] + b"x" + second)
    disk = LocalDisk()
    identity = LogIdentity(cluster_id="c", topic_id=TopicId(b"a" * 16), partition_count=COUNT)
    files = _Files(disk, str(tmp_path), identity)
    with pytest.raises(LogCorrupt, match="run: rlmm partition rebuild 3"):
        await files.read_on(History(Fold(MetadataPartition(3), COUNT)))
    disk.close()
