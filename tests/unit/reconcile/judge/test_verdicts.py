"""What a task makes of one segment's rows: held, given up, strangers, somewhere else, long ago."""

from typing import Any

import pyarrow as pa
import pytest

from rlmm_daemon.codec.custom_metadata import SIZED
from rlmm_daemon.codec.marker import AcceptedLoss, Hold, LayoutRow
from rlmm_daemon.core.disposal.findings import Ages
from rlmm_daemon.core.partitioner import metadata_partition
from rlmm_daemon.core.storage.layout import LOCAL_TIERED_STORAGE
from rlmm_daemon.domain.ids import TopicId, uuid_text
from rlmm_daemon.domain.segment import SegmentState as S
from rlmm_daemon.reconcile.judge.suspects import ROW_COLUMNS
from rlmm_daemon.reconcile.judge.verdicts import Judge
from rlmm_daemon.reconcile.schema import FINDINGS

DAY = 86_400_000
NOW = 1_000 * DAY
TOPIC = TopicId(b"t" * 16)
COUNT = 50
NUMBER = metadata_partition(TOPIC, 0, COUNT)
SEGMENT = uuid_text(b"s" * 16)
KEY = f"orders-0-{uuid_text(TOPIC)}/{0:020}-{SEGMENT}"
AGES = Ages(listed_ms=NOW, grace_ms=DAY, stuck_copy_ms=DAY)
LAYOUTS = (LayoutRow(number=1, kind=LOCAL_TIERED_STORAGE, prefix=""),)


def row(**changes: Any) -> dict[str, Any]:
    named = {"topic_id": uuid_text(TOPIC), "partition": 0, "segment_id": SEGMENT, "topic": "orders"}
    return {**dict.fromkeys(ROW_COLUMNS), **named, **changes}


def stored(suffix: str = ".log", *, days: float = 3, **changes: Any) -> dict[str, Any]:
    modified_ms = NOW - round(days * DAY)
    return row(key=KEY + suffix, size=7, modified_ms=modified_ms, etag="e", **changes)


def event(offset: int, state: S, **changes: Any) -> dict[str, Any]:
    begins = {"log_size": 7, "start_offset": 0} if state is S.COPY_SEGMENT_STARTED else {}
    return row(offset=offset, state=int(state), event_ms=NOW - 3 * DAY, **{**begins, **changes})


def findings(rows: list[dict[str, Any]], **changes: Any) -> list[dict[str, Any]]:
    known = {"cluster": "c", "layouts": LAYOUTS, "ages": AGES, "partition_count": COUNT}
    judge = Judge(**{**known, **changes})
    schema = pa.schema([(name, _TYPES.get(name, pa.string())) for name in ROW_COLUMNS])
    batches = judge([pa.RecordBatch.from_pylist(rows, schema=schema)])
    found: list[dict[str, Any]] = pa.Table.from_batches(batches, schema=FINDINGS).to_pylist()
    return found


_TYPES = dict.fromkeys(
    ("h", "start_offset", "size", "modified_ms", "offset", "event_ms", "log_size"), pa.int64()
) | {
    "partition": pa.int32(),
    "state": pa.int8(),
    "layout": pa.int32(),
    "sizes": pa.list_(pa.int64()),
    "only_if_started": pa.bool_(),
}


def condemned(rows: list[dict[str, Any]], **changes: Any) -> list[bool]:
    return [found["condemned"] for found in findings(rows, **changes)]


def loss(number: int | None, *, days: float) -> AcceptedLoss:
    at_ms = NOW - round(days * DAY)
    return AcceptedLoss(metadata_partition=number, topic_id="x", accepted_at_ms=at_ms, broker_id=1)


def test_an_old_orphan_is_condemned_and_a_young_one_only_told() -> None:
    assert condemned([stored()]) == [True]
    assert condemned([stored(days=0.9)]) == [False]


@pytest.mark.parametrize(
    "only", [S.COPY_SEGMENT_FINISHED, S.DELETE_SEGMENT_STARTED, S.DELETE_SEGMENT_FINISHED]
)
def test_what_an_event_names_is_never_condemned_though_the_life_cycle_refuses_it(only: S) -> None:
    # Its COPY_SEGMENT_STARTED is a record that could not be read, and was accepted.
    upload = stored(upload_id="u")
    found = findings([event(1, only), stored(), upload])
    assert [each["condemned"] for each in found] == [False, False]
    assert "an event that was refused names it" in found[0]["facts"]
    assert condemned([stored(), upload]) == [True, True]


@pytest.mark.parametrize("number", [None, NUMBER])
def test_what_is_older_than_an_accepted_loss_is_told_and_never_condemned(
    number: int | None,
) -> None:
    (found,) = findings([stored()], losses=(loss(number, days=2),))
    assert (found["kind"], found["condemned"]) == ("orphan_object", False)
    assert "older than an accepted loss" in found["facts"]
    upload = stored(upload_id="u")
    assert condemned([upload]) == [True]
    assert condemned([upload], losses=(loss(number, days=2),)) == [False]
    deleted = [event(0, S.COPY_SEGMENT_STARTED), event(1, S.DELETE_SEGMENT_STARTED),
               event(2, S.DELETE_SEGMENT_FINISHED), stored()]  # fmt: skip
    assert condemned(deleted) == [True]
    assert condemned(deleted, losses=(loss(number, days=2),)) == [False]


def test_what_is_younger_than_a_loss_or_of_another_partition_is_condemned() -> None:
    assert condemned([stored()], losses=(loss(NUMBER, days=5),)) == [True]
    assert condemned([stored()], losses=(loss((NUMBER + 1) % COUNT, days=2),)) == [True]
    both = (loss(NUMBER, days=5), loss(None, days=2))
    assert condemned([stored()], losses=both) == [False], "the last one counts"


def test_an_orphan_from_before_a_snapshot_in_place_of_the_log_is_told_and_never_condemned() -> None:
    """The snapshot has no word for records that its daemon could not decode, or refused."""
    upload = stored(upload_id="u")
    covered = {NUMBER: NOW - 2 * DAY}
    (found,) = findings([stored()], covered_ms=covered)
    assert (found["kind"], found["condemned"]) == ("orphan_object", False)
    assert "older than the snapshot" in found["facts"]
    assert condemned([upload], covered_ms=covered) == [False]
    begun = NOW - 3 * DAY - DAY // 2, NOW - 4 * DAY - DAY // 2
    assert [condemned([stored()], covered_ms={NUMBER: ms}) for ms in begun] == [[False], [True]], (
        "what was being copied when it was made ends within a copy's deadline"
    )
    assert condemned([stored()], covered_ms={(NUMBER + 1) % COUNT: NOW}) == [True]
    deleted = [event(0, S.COPY_SEGMENT_STARTED), event(1, S.DELETE_SEGMENT_STARTED),
               event(2, S.DELETE_SEGMENT_FINISHED), stored()]  # fmt: skip
    assert condemned(deleted, covered_ms=covered) == [True], "the log itself says so"


def test_a_held_segments_objects_are_never_condemned() -> None:
    life = [
        event(0, S.COPY_SEGMENT_STARTED),
        event(1, S.COPY_SEGMENT_FINISHED),
        event(2, S.DELETE_SEGMENT_STARTED, only_if_started=True),
        event(3, S.DELETE_SEGMENT_FINISHED),
        stored(),
    ]
    assert condemned(life) == [False]
    life[2] = event(2, S.DELETE_SEGMENT_STARTED)
    assert condemned(life) == [True]


def test_strangers_are_told_one_by_one_and_never_condemned() -> None:
    nobody: dict[str, Any] = {
        "topic_id": None,
        "partition": None,
        "segment_id": None,
        "topic": None,
    }
    rows = [stored(**nobody) | {"key": f"stray{n}", "size": n} for n in range(3)]
    found = findings(rows)
    assert [(each["kind"], each["key"], each["facts"]) for each in found] == [
        ("unknown_key", f"stray{n}", f"stored={n}") for n in range(3)
    ]
    assert not any(each["condemned"] for each in found)


def test_a_live_segments_name_in_another_place_is_a_stranger() -> None:
    life = [
        event(0, S.COPY_SEGMENT_STARTED),
        event(1, S.COPY_SEGMENT_FINISHED, layout=1, sizes=[-1] * 5),
        stored(),
        stored() | {"key": "elsewhere/" + KEY + ".log"},
    ]
    kinds = {(each["kind"], each["condemned"]) for each in findings(life)}
    assert kinds == {("unknown_key", False)}


def test_what_was_recorded_without_a_place_is_asked_for_all_the_same() -> None:
    life = [event(0, S.COPY_SEGMENT_STARTED), event(1, S.COPY_SEGMENT_FINISHED)]
    (found,) = findings(life)
    assert (found["kind"], found["key"], found["confirm"]) == ("missing_object", KEY + ".log", True)
    # Of two layouts the one that anything of it lies under, else the newest.
    two = (*LAYOUTS, LayoutRow(number=2, kind=LOCAL_TIERED_STORAGE, prefix="tier"))
    assert [each["key"] for each in findings(life, layouts=two)] == [f"tier/{KEY}.log"]
    (found,) = findings([*life, stored(".index")], layouts=two)
    assert (found["kind"], found["key"]) == ("missing_object", KEY + ".log")
    (found,) = findings([*life, stored(".index") | {"key": f"tier/{KEY}.index"}], layouts=two)
    assert (found["kind"], found["key"]) == ("missing_object", f"tier/{KEY}.log")
    assert findings([*life, stored()], layouts=two) == []


def test_a_report_of_another_day_is_looked_at_again_before_it_counts() -> None:
    (found,) = findings([stored()], listing_is_old=True)
    assert found["confirm"]


@pytest.mark.parametrize("key", [f"backup/{KEY}.log", f"tier/{KEY}.bak", f"{KEY}.log"])
def test_an_upload_under_a_key_of_no_layout_is_a_strangers(key: str) -> None:
    tier = (LayoutRow(number=1, kind=LOCAL_TIERED_STORAGE, prefix="tier"),)
    uploads = [stored(upload_id="u") | {"key": key}, stored() | {"key": key}]
    found = findings(uploads, layouts=tier)
    assert [(each["kind"], each["condemned"]) for each in found] == [("unknown_key", False)] * 2
    ours = stored(upload_id="u") | {"key": f"tier/{KEY}.log"}
    (one,) = findings([ours], layouts=tier)
    assert (one["kind"], one["condemned"]) == ("incomplete_upload", True)


def test_a_segment_of_a_topic_whose_name_kafka_forbids_is_told_and_the_rest_goes_on() -> None:
    """Nothing of it can be stored, and another manager's log may hold its events."""
    bad = [
        event(0, S.COPY_SEGMENT_STARTED, topic="a/../b\0"),
        event(1, S.COPY_SEGMENT_FINISHED, topic="a/../b\0", layout=1, sizes=[-1] * len(SIZED)),
    ]
    (found,) = findings(bad)
    assert (found["kind"], found["key"], found["condemned"]) == ("missing_object", None, False)
    assert "is no name that Kafka allows a topic" in found["facts"]


def test_a_segment_under_a_layout_that_the_marker_lacks_is_not_looked_for_elsewhere() -> None:
    told = [
        event(0, S.COPY_SEGMENT_STARTED),
        event(1, S.COPY_SEGMENT_FINISHED, layout=7, sizes=[-1] * len(SIZED)),
    ]
    (found,) = findings(told)
    assert found["key"] is None, "under another layout it would be missing for certain"
    assert "layout 7 is not in the marker" in found["facts"]


def test_a_hold_is_of_the_metadata_partition_of_the_segment() -> None:
    def hold(number: int) -> Hold:
        return Hold(metadata_partition=number, before_ms=NOW, broker_id=1)

    assert condemned([stored()], holds=(hold(NUMBER),)) == [False]
    assert condemned([stored()], holds=(hold((NUMBER + 1) % COUNT),)) == [True]
