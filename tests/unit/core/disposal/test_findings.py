"""What listing and log say of one segment: the module's table, row by row."""

import msgspec
import pytest

from rlmm_daemon.codec.marker import Hold
from rlmm_daemon.core.disposal.findings import (
    CONDEMNABLE,
    FUTURE_MS,
    RULES,
    Ages,
    Finding,
    Judged,
    Present,
    Recorded,
    judge,
    judge_upload,
    lacks_nearly_all,
)
from rlmm_daemon.core.storage.layout import SUFFIXES
from rlmm_daemon.domain.segment import SegmentState as S

DAY = 86_400_000
NOW = 1_700_000_000_000
AGES = Ages(listed_ms=NOW, grace_ms=DAY, stuck_copy_ms=3_600_000)
OLD, YOUNG, NEW = NOW - 2 * DAY, NOW - 600_000, NOW - 60_000
SIZES = {".log": 100, ".index": 8}


def there(modified_ms: int = OLD, **sizes: int) -> dict[str, Present]:
    return {
        f".{name}": Present(suffix=f".{name}", size=size, modified_ms=modified_ms)
        for name, size in (sizes or {"log": 100, "index": 8}).items()
    }


def told(
    state: S | None, present: dict[str, Present], *, event_ms: int = OLD, held: bool = False
) -> list[Judged]:
    recorded = Recorded(state=state, event_ms=event_ms, held=held, sizes=SIZES if state else {})
    return list(judge(recorded, present, AGES))


def kinds(judged: list[Judged]) -> list[tuple[str, str, bool]]:
    return [(one.kind.value, one.suffix, one.condemned) for one in judged]


def test_only_three_kinds_are_ever_condemned() -> None:
    assert {"orphan_object", "deleted_but_present", "incomplete_upload"} == CONDEMNABLE
    assert all(rule.meaning and rule.action for rule in RULES.values())


@pytest.mark.parametrize(
    ("state", "kind"),
    [(None, "orphan_object"), (S.DELETE_SEGMENT_FINISHED, "deleted_but_present")],
)
def test_an_unwanted_object_is_condemned_when_it_is_old(state: S | None, kind: str) -> None:
    event_ms = OLD if state else 0
    assert kinds(told(state, there(), event_ms=event_ms)) == [
        (kind, ".log", True),
        (kind, ".index", True),
    ]
    assert kinds(told(state, there(YOUNG, log=1), event_ms=event_ms)) == [(kind, ".log", False)]


def test_an_object_is_as_young_as_the_event_that_deleted_it() -> None:
    judged = told(S.DELETE_SEGMENT_FINISHED, there(log=1), event_ms=YOUNG)
    assert kinds(judged) == [("deleted_but_present", ".log", False)]


def test_what_was_deleted_while_the_listing_ran_is_no_finding() -> None:
    assert told(S.DELETE_SEGMENT_FINISHED, there(), event_ms=NEW) == []
    assert told(S.DELETE_SEGMENT_FINISHED, there(), event_ms=NOW + 1) == []


def test_grace_is_over_only_after_its_last_millisecond() -> None:
    assert not told(None, there(NOW - DAY, log=1), event_ms=0)[0].condemned
    assert told(None, there(NOW - DAY - 1, log=1), event_ms=0)[0].condemned


def test_an_upload_is_too_old_only_after_the_last_millisecond_of_grace() -> None:
    nothing = Recorded(state=None)
    assert judge_upload(nothing, NOW - DAY, AGES) is None
    found = judge_upload(nothing, NOW - DAY - 1, AGES)
    assert found is not None
    assert (found.facts, found.condemned) == (f"age_ms={DAY + 1}", True)


def test_what_was_deleted_before_the_clocks_can_be_apart_is_a_finding() -> None:
    apart_ms = NOW - AGES.skew_ms
    assert kinds(told(S.DELETE_SEGMENT_FINISHED, there(log=1), event_ms=apart_ms)) == [
        ("deleted_but_present", ".log", False)
    ]
    assert told(S.DELETE_SEGMENT_FINISHED, there(log=1), event_ms=apart_ms + 1) == []


def test_what_only_a_refused_event_names_is_told_and_never_condemned() -> None:
    """Its COPY_SEGMENT_STARTED may be among the records that nobody could read."""
    (judged,) = judge(Recorded(state=None, refused=True), there(log=1), AGES)
    assert (judged.kind, judged.condemned) == (Finding.ORPHAN_OBJECT, False)
    assert "refused" in judged.facts


def test_a_whole_live_segment_is_no_finding() -> None:
    assert told(S.COPY_SEGMENT_FINISHED, there()) == []


def test_an_object_beyond_the_recorded_ones_is_left_alone() -> None:
    assert told(S.COPY_SEGMENT_FINISHED, there(log=100, index=8, txnindex=5)) == []


@pytest.mark.parametrize(
    ("present", "expected"),
    [
        ({}, [("missing_object", ".log"), ("partial_segment", ".index")]),
        (there(log=100), [("partial_segment", ".index")]),
        (there(index=8), [("missing_object", ".log")]),
        (there(log=99, index=8), [("size_mismatch", ".log")]),
        (there(log=100, index=9), [("size_mismatch", ".index")]),
    ],
)
def test_a_live_segment_that_is_not_whole(
    present: dict[str, Present], expected: list[tuple[str, str]]
) -> None:
    judged = told(S.COPY_SEGMENT_FINISHED, present)
    assert [(one.kind.value, one.suffix) for one in judged] == expected
    assert all(one.confirm and not one.condemned for one in judged)


def test_an_index_that_is_missing_leaves_a_segment_partial_whatever_its_name() -> None:
    sizes = {suffix: 8 for suffix in SUFFIXES if suffix != ".log"}
    recorded = Recorded(state=S.COPY_SEGMENT_FINISHED, event_ms=OLD, sizes=sizes)
    assert {one.kind for one in judge(recorded, {}, AGES)} == {Finding.PARTIAL_SEGMENT}


@pytest.mark.parametrize(
    ("state", "kind"),
    [(S.COPY_SEGMENT_STARTED, "stuck_copy"), (S.DELETE_SEGMENT_STARTED, "stuck_delete")],
)
def test_a_step_that_takes_too_long_is_reported_and_condemns_nothing(state: S, kind: str) -> None:
    assert kinds(told(state, there())) == [(kind, "", False)]
    assert told(state, there(), event_ms=YOUNG) == []


@pytest.mark.parametrize("state", [S.DELETE_SEGMENT_STARTED, S.DELETE_SEGMENT_FINISHED, None])
def test_nothing_of_a_held_segment_is_ever_condemned(state: S | None) -> None:
    judged = told(state, there(), held=True)
    assert judged
    assert not any(one.condemned for one in judged)


@pytest.mark.parametrize("state", [None, *S])
def test_an_old_upload_is_condemned_unless_its_copy_may_run(state: S | None) -> None:
    judged = judge_upload(Recorded(state=state), OLD, AGES)
    assert judged is not None
    assert judged.kind is Finding.INCOMPLETE_UPLOAD
    assert judged.condemned == (state is not S.COPY_SEGMENT_STARTED)
    assert judge_upload(Recorded(state=state), YOUNG, AGES) is None
    for kept in (Recorded(state=state, held=True), Recorded(state=state, refused=True)):
        spared = judge_upload(kept, OLD, AGES)
        assert spared is not None
        assert not spared.condemned


FUTURE = NOW + 365 * DAY


@pytest.mark.parametrize("state", [S.COPY_SEGMENT_STARTED, S.DELETE_SEGMENT_STARTED])
def test_a_clock_that_is_far_ahead_does_not_hide_what_is_stuck(state: S) -> None:
    (judged,) = told(state, there(), event_ms=FUTURE)
    assert "is of the future" in judged.facts
    assert not judged.condemned


def test_a_clock_that_is_far_ahead_does_not_hide_what_was_left_behind() -> None:
    judged = told(S.DELETE_SEGMENT_FINISHED, there(log=1), event_ms=FUTURE)
    assert kinds(judged) == [("deleted_but_present", ".log", True)]
    assert "is of the future" in judged[0].facts
    young = told(S.DELETE_SEGMENT_FINISHED, there(YOUNG, log=1), event_ms=FUTURE)
    assert kinds(young) == [("deleted_but_present", ".log", False)]
    assert told(S.DELETE_SEGMENT_FINISHED, there(), event_ms=NOW + FUTURE_MS) == [], "a long run"


@pytest.mark.parametrize("number", [None, 3])
def test_a_hold_keeps_what_may_have_been_needed_by_what_the_log_lost(number: int | None) -> None:
    hold = Hold(metadata_partition=number, before_ms=OLD + 1, broker_id=1)
    ages = msgspec.structs.replace(AGES, holds=(hold,), metadata_partition=3)
    for state in (None, S.DELETE_SEGMENT_FINISHED):
        event_ms = OLD if state else 0
        recorded = Recorded(state=state, event_ms=event_ms, sizes={})
        (judged,) = judge(recorded, there(log=1), ages)
        assert not judged.condemned
        assert "rlmm partition end-hold" in judged.facts
        upload = judge_upload(recorded, OLD, ages)
        assert upload is not None
        assert not upload.condemned
    other = msgspec.structs.replace(ages, metadata_partition=4)
    if number is not None:
        (judged,) = judge(Recorded(state=None), there(log=1), other)
        assert judged.condemned


@pytest.mark.parametrize(("event_ms", "condemned"), [(OLD, True), (OLD - 2, False)])
def test_an_object_that_was_rewritten_since_a_hold_is_as_old_as_what_names_it(event_ms, condemned):
    """By the storage it is younger than the loss: a part of the bucket was rewritten in place."""
    ages = hold_before(OLD - AGES.skew_ms - 1)
    deleted = Recorded(state=S.DELETE_SEGMENT_FINISHED, event_ms=event_ms)
    assert [judged.condemned for judged in judge(deleted, there(log=1), ages)] == [condemned]
    unnamed = judge(Recorded(state=None), there(log=1), ages)
    assert [judged.condemned for judged in unnamed] == [False]
    upload = judge_upload(Recorded(state=None), OLD, ages)
    assert upload is not None
    assert upload.condemned, "no finished segment has one"


@pytest.mark.parametrize(("by_ms", "spared"), [(-DAY, True), (0, True), (1, False)])
def test_what_is_older_than_an_accepted_loss_is_spared(by_ms: int, *, spared: bool) -> None:
    """A clock that is behind may have dated it: as far as clocks can be apart, it is older."""
    ages = msgspec.structs.replace(AGES, loss_ms=OLD - DAY)
    at_ms = ages.loss_ms + ages.skew_ms + by_ms
    (judged,) = judge(Recorded(state=None), there(at_ms, log=1), ages)
    upload = judge_upload(Recorded(state=None), at_ms, ages)
    assert upload is not None
    assert (judged.condemned, upload.condemned) == (not spared, not spared)


def hold_before(before_ms: int) -> Ages:
    hold = Hold(metadata_partition=None, before_ms=before_ms, broker_id=1)
    return msgspec.structs.replace(AGES, holds=(hold,))


@pytest.mark.parametrize(
    ("missing", "finished", "nearly"),
    [(0, 0, False), (0, 9, False), (1, 1, True), (8, 9, False), (9, 10, True), (9, 11, False)],
)
def test_a_storage_that_lacks_nearly_all_is_told_from_one_that_lost_some(missing, finished, nearly):
    assert lacks_nearly_all(missing, finished) == nearly


def test_no_finding_advises_to_delete_a_segment():
    """An object that is missing may lie in another bucket: a daemon was configured with it once."""
    assert not [rule.action for rule in RULES.values() if "rlmm delete" in rule.action]
