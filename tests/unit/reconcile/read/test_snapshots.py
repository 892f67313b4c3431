"""A snapshot in place of a log's head: says what the log said, and only if the log confirms it."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rlmm_daemon.codec import custom_metadata, records
from rlmm_daemon.codec.custom_metadata import ONLY_IF_STARTED, StoredFacts
from rlmm_daemon.core.disposal.history import Segment, last_word
from rlmm_daemon.core.fold.fold import Fold
from rlmm_daemon.core.snapshots import sealing
from rlmm_daemon.domain.ids import (
    BrokerId,
    LeaderEpoch,
    MetadataPartition,
    Offset,
    SegmentId,
    TopicId,
    TopicIdPartition,
    uuid_text,
)
from rlmm_daemon.domain.segment import (
    CustomMetadata,
    SegmentMetadata,
    SegmentState,
    SegmentUpdate,
)
from rlmm_daemon.ports.event_log import EpochEnd, LogIdentity, LogRange
from rlmm_daemon.reconcile.errors import Incomplete
from rlmm_daemon.reconcile.judge import verdicts
from rlmm_daemon.reconcile.read import snapshots
from rlmm_daemon.reconcile.read.event_rows import EventRows
from rlmm_daemon.reconcile.schema import RowKind

S = SegmentState
LOG_ID = TopicId(bytes(range(16)))
WHOSE = TopicIdPartition(TopicId(b"t" * 16), "orders", 0)
NUMBER = MetadataPartition(0)
FACTS = custom_metadata.encode(StoredFacts(layout_number=1, log_crc32c=1, sizes={".index": 24}))
EPOCH = 4


def segment(number: int) -> SegmentMetadata:
    return SegmentMetadata(
        partition=WHOSE,
        segment_id=SegmentId(number.to_bytes(16, "big")),
        start_offset=Offset(number * 100),
        end_offset=Offset(number * 100 + 99),
        broker_id=BrokerId(1),
        max_timestamp_ms=1,
        event_timestamp_ms=7,
        segment_leader_epochs={LeaderEpoch(3): Offset(number * 100)},
        segment_size_bytes=1_000 + number,
    )


def update(number: int, state: SegmentState, custom: bytes | None = FACTS) -> SegmentUpdate:
    return SegmentUpdate(
        partition=WHOSE,
        segment_id=segment(number).segment_id,
        broker_id=BrokerId(1),
        event_timestamp_ms=7,
        custom_metadata=None if custom is None else CustomMetadata(custom),
        state=state,
    )


def history() -> list[bytes]:
    """Return a life of every length: plain, erased, held and begun, held and gone."""
    events: list[SegmentMetadata | SegmentUpdate] = [segment(number) for number in range(7)]
    events += [update(number, S.COPY_SEGMENT_FINISHED) for number in range(1, 7)]
    events += [update(2, S.COPY_SEGMENT_FINISHED, None)]
    events += [update(3, S.DELETE_SEGMENT_STARTED, None)]
    events += [update(4, S.DELETE_SEGMENT_STARTED), update(4, S.DELETE_SEGMENT_FINISHED)]
    events += [update(number, S.DELETE_SEGMENT_STARTED, ONLY_IF_STARTED) for number in (5, 6)]
    events += [update(6, S.DELETE_SEGMENT_FINISHED)]
    return [records.encode(event) for event in events]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    fold = Fold(NUMBER, 1)
    for offset, value in enumerate(history()):
        fold.apply(offset, value)
    fold.advance(len(history()), EPOCH)
    header = sealing.header_of(fold, cluster_id="c", topic_id=LOG_ID, created_at_ms=1)
    path = tmp_path / "00-1.snapshot"
    path.write_bytes(b"".join(bytes(piece) for piece in sealing.write_chunks(fold, header)))
    return path


def last_words(batches: Iterator[pa.RecordBatch]) -> dict[str, Segment]:
    groups: dict[str, list[dict[str, Any]]] = {}
    for batch in batches:
        for row in batch.to_pylist():
            if row["kind"] == RowKind.SEGMENT:
                groups.setdefault(row["segment_id"], []).append(row)
    return {
        name: last_word(verdicts._told(row) for row in sorted(rows, key=lambda row: row["offset"]))
        for name, rows in groups.items()
    }


def test_a_snapshot_says_what_the_log_said_of_every_segment_that_is_left(file: Path) -> None:
    from_log = EventRows(NUMBER, 1)
    for offset, value in enumerate(history()):
        from_log.add(offset, value)
    expected = last_words(iter([from_log.take()]))
    assert expected.pop(uuid_text(segment(4).segment_id)).state is S.DELETE_SEGMENT_FINISHED
    found = last_words(snapshots.rows(str(file), NUMBER, len(history()), 1))
    assert found == expected
    assert found[uuid_text(segment(5).segment_id)].held
    assert found[uuid_text(segment(6).segment_id)].held


def test_its_last_row_says_how_far_it_reaches(file: Path) -> None:
    row = [*snapshots.rows(str(file), NUMBER, len(history()), 1)][-1].to_pylist()[-1]
    assert (row["kind"], row["start_offset"], row["offset"]) == (RowKind.READ, 0, len(history()))


IDENTITY = LogIdentity(cluster_id="c", topic_id=LOG_ID, partition_count=1)


def covered(file: Path, **changes: Any) -> set[int]:
    end = changes.pop("end", EpochEnd(epoch=EPOCH, end_offset=len(history())))
    known = changes.pop("known", LogRange(start=5, end=100))
    identity = LogIdentity(
        **{"cluster_id": "c", "topic_id": LOG_ID, "partition_count": 1, **changes}
    )

    def epoch_ends(asked: Iterable[tuple[int, int]]) -> dict[tuple[int, int], EpochEnd]:
        return dict.fromkeys(asked, end)

    return {*snapshots.covers([str(file.parent)], identity, {0: known}, epoch_ends)}


def test_a_whole_snapshot_of_this_log_covers_its_head(file: Path) -> None:
    assert covered(file) == {0}
    assert covered(file, known=LogRange(start=0, end=100)) == set(), "nothing is gone"


def test_a_snapshot_that_is_not_of_this_log_covers_nothing(file: Path) -> None:
    assert not covered(file, cluster_id="other")
    assert not covered(file, topic_id=TopicId(bytes(16)))
    assert not covered(file, partition_count=2)


def test_a_snapshot_that_does_not_meet_the_log_covers_nothing(file: Path) -> None:
    behind = len(history()) + 1
    assert not covered(file, known=LogRange(start=behind, end=100)), "a gap between the two"
    assert not covered(file, known=LogRange(start=2, end=behind - 2)), "the log ends before it"


def test_a_snapshot_that_the_log_does_not_confirm_covers_nothing(file: Path) -> None:
    assert not covered(file, end=EpochEnd(epoch=EPOCH - 1, end_offset=len(history())))
    assert not covered(file, end=EpochEnd(epoch=EPOCH, end_offset=len(history()) - 1))


def test_a_damaged_snapshot_is_an_error_and_no_shorter_answer(file: Path) -> None:
    whole = file.read_bytes()
    at = whole.index(segment(2).segment_id)
    file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    with pytest.raises(Incomplete, match="damaged"):
        [*snapshots.rows(str(file), NUMBER, len(history()), 1)]


def test_a_snapshot_that_was_replaced_meanwhile_is_an_error(file: Path) -> None:
    with pytest.raises(Incomplete, match="replaced"):
        [*snapshots.rows(str(file), NUMBER, len(history()) + 1, 1)]
