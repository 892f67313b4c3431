"""What a log says of segments that were stored before, when the storage has no marker."""

import errno
from collections.abc import AsyncGenerator
from typing import Any, cast

import msgspec
import pytest

from rlmm_daemon.codec import custom_metadata, marker, records
from rlmm_daemon.codec.custom_metadata import ONLY_IF_STARTED, StoredFacts
from rlmm_daemon.codec.marker import BucketMarker, LayoutRow
from rlmm_daemon.core.readiness.marker_verdict import LogHistory
from rlmm_daemon.daemon.bucket.storage_past import RecordedPast, named_by
from rlmm_daemon.domain.errors import LogCorrupt, Malformed, StorageUnavailable, UnavailableError
from rlmm_daemon.domain.ids import TopicId
from rlmm_daemon.domain.partition_delete import PartitionDeleteState
from rlmm_daemon.domain.segment import CustomMetadata
from rlmm_daemon.ports.event_log import EpochEnd, LogBatch, LogIdentity, LogMoved, LogRange
from tests.unit.daemon.events import marked, started, updated

MARKER = BucketMarker(
    cluster_id="c",
    partition_count=3,
    metadata_topic_id="t",
    layouts=(LayoutRow(number=1, kind="kafka", prefix="a"),),
)


def named(layout: int) -> bytes:
    facts = StoredFacts(layout_number=layout, log_crc32c=1, sizes={})
    return updated(1, custom=custom_metadata.encode(facts))


class Log:
    """Three partitions, each of batches of records, or of an error."""

    def __init__(self, *partitions: Any) -> None:
        self.partitions = partitions
        self.identity = LogIdentity(
            cluster_id="c", topic_id=TopicId(bytes(16)), partition_count=len(partitions)
        )
        self.start, self.read, self.silent = 0, list[int](), set[int]()
        #: Partitions that nobody can open, and why.
        self.corrupt: dict[int, LogCorrupt] = {}

    async def end_offsets(self, numbers: list[int]) -> dict[int, LogRange]:
        def end(found: Any) -> int:
            return 1 if isinstance(found, Exception) else len(found)

        return {
            number: LogRange(start=self.start, end=max(end(self.partitions[number]), self.start))
            for number in numbers
            if number not in self.silent | self.corrupt.keys()
        }

    async def epoch_end(self, number: int, _: int) -> EpochEnd:
        if number in self.corrupt:
            raise self.corrupt[number]
        return EpochEnd(epoch=-1, end_offset=-1)

    async def follow(
        self, number: int, start: int, *, epoch: int
    ) -> AsyncGenerator[LogBatch, None]:
        assert (start, epoch) == (0, -1)
        self.read.append(number)
        found = self.partitions[number]
        if isinstance(found, Exception):
            raise found
        for offset, value in enumerate(found):
            yield LogBatch(
                next_offset=offset + 1,
                leader_epoch=1,
                records=((offset, value),),
                range=LogRange(start=0, end=len(found)),
            )
        raise AssertionError("nobody reads beyond the end that was asked for")


class State:
    def __init__(self, kept: bytes | Exception | None = None) -> None:
        self.data = kept

    async def marker(self) -> bytes | None:
        if isinstance(self.data, Exception):
            raise self.data
        return self.data

    async def write_marker(self, data: bytes) -> None:
        if isinstance(self.data, Exception):
            raise self.data
        self.data = data

    async def write_owed_marker(self, data: bytes | None) -> None:
        await self.write_marker(data or b"")


class FairScheduler:
    taken = 0

    async def wait(self) -> None:
        self.taken += 1


def past(log: Log | None = None, kept: Any = None) -> RecordedPast:
    return RecordedPast(cast("Any", log), cast("Any", State(kept)), cast("Any", FairScheduler()))


async def test_a_log_that_names_a_layout_is_read_no_further_and_not_again():
    log = Log([started(1, 0, 9)], [started(1, 0, 9), named(7), named(8)], [named(9)])
    known = past(log)
    for _ in range(2):
        assert await known.history() == LogHistory(named=frozenset({7}))
    assert log.read == [0, 1]


async def test_a_log_that_names_none_is_read_each_time_for_it_may_by_then():
    log = Log([started(1, 0, 9)], [], [marked(PartitionDeleteState(0)), b"garbage", None])
    known = past(log)
    assert await known.history() == LogHistory()
    assert cast("Any", known)._turns.taken > 0, "others answer meanwhile"
    assert log.read == [0, 2], "an empty partition is not even followed"
    log.partitions = ([named(2)], [], [])
    assert (await known.history()).named == {2}


@pytest.mark.parametrize("start", [1, 5])
async def test_a_partition_whose_head_is_gone_may_have_named_a_layout(start):
    log = Log([started(1, 0, 9)], [], [])
    log.start = start
    found = await past(log).history()
    assert found.named == frozenset()
    assert found.unread == dict.fromkeys(range(3), f"its log begins at offset {start}")
    assert log.read == []


@pytest.mark.parametrize("error", [LogCorrupt("damaged"), LogMoved("elsewhere")])
async def test_a_partition_that_cannot_be_read_hides_no_other_one(error):
    found = await past(Log(error, [started(1, 0, 9)], [named(3)])).history()
    assert found == LogHistory(named=frozenset({3}))
    log = Log(error, [started(1, 0, 9)], [])
    known = past(log)
    for _ in range(2):
        assert list((await known.history()).unread) == [0]
    assert log.read == [0, 1, 0], "the others are not read again"
    log.partitions = ([], [named(1)], [])
    assert await known.history() == LogHistory(), "an order has mended it"


async def test_a_partition_that_cannot_be_opened_is_no_log_that_does_not_answer():
    log = Log([started(1, 0, 9)], [], [])
    log.corrupt = {1: LogCorrupt("an invalid batch; `rlmm log repair` ends it")}
    known = past(log)
    found = await known.history()
    assert found.unread == {1: "an invalid batch; `rlmm log repair` ends it"}
    log.corrupt.clear()
    assert await known.history() == LogHistory()


async def test_a_log_that_does_not_answer_now_says_nothing():
    log = Log([started(1, 0, 9)], [], [])
    log.silent = {2}
    with pytest.raises(StorageUnavailable, match="ends of metadata partition 2"):
        await past(log).history()
    with pytest.raises(StorageUnavailable, match="away"):
        await past(Log(StorageUnavailable("away"), [], [])).history()


@pytest.mark.parametrize(
    ("record", "layout"),
    [
        (None, None),
        (b"", None),
        (started(1, 0, 9), None),
        (updated(1), None),
        (updated(1, custom=CustomMetadata(b"theirs")), None),
        (updated(1, custom=ONLY_IF_STARTED), None),
        (named(4), 4),
        (b"\xff" + bytes(ONLY_IF_STARTED), None),
        (marked(PartitionDeleteState(0)), None),
    ],
)
def test_which_layout_a_record_names(record: bytes | None, layout: int | None):
    assert named_by(record) == layout


def test_custom_metadata_of_a_newer_program_names_some_layout():
    facts = StoredFacts(layout_number=4, log_crc32c=1, sizes={}, flags=0x80)
    newer = updated(1, custom=custom_metadata.encode(facts))
    assert records.decode(newer) is not None
    assert named_by(newer) == 0


@pytest.mark.parametrize("kept", [b"", b"{", Malformed("no"), OSError(errno.EIO, "no")])
async def test_a_copy_of_the_marker_that_cannot_be_read_is_not_taken_for_none(kept):
    assert await past().kept() is None
    with pytest.raises(Malformed, match=r"marker\.json in the state directory"):
        await past(kept=kept).kept()


async def test_a_copy_that_is_not_read_for_want_of_descriptors_is_read_later():
    with pytest.raises(UnavailableError):
        await past(kept=OSError(errno.EMFILE, "no")).kept()


async def test_a_marker_is_kept_as_it_was_and_a_full_disk_keeps_nobody_from_going_on():
    known = past()
    await known.keep(MARKER)
    assert await known.kept() == MARKER
    assert await past(kept=marker.encode(MARKER)).kept() == MARKER
    await past(kept=OSError("full")).keep(MARKER)
    await past(kept=OSError("full")).paid()


async def test_a_partition_that_grows_while_it_is_read_is_read_no_further_than_it_was_asked_for():
    class Growing(Log):
        async def follow(
            self, number: int, start: int, *, epoch: int
        ) -> AsyncGenerator[LogBatch, None]:
            async for batch in super().follow(number, start, epoch=epoch):
                yield msgspec.structs.replace(batch, next_offset=batch.next_offset + 1)

    assert await past(Growing([started(1, 0, 9)], [], [])).history() == LogHistory()
