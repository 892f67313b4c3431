"""Ages and looks at their edges: what of a topic or an object is forgotten, and from when on."""

import pytest
from msgspec.structs import replace

from rlmm_daemon.core.disposal.findings import Ages, Present, Recorded, judge, judge_upload
from rlmm_daemon.core.disposal.observation import HOUR_MS, Observation, ObservationOptions
from rlmm_daemon.domain.segment import SegmentState as S
from tests.unit.core.disposal.test_findings import DAY, NOW, OLD
from tests.unit.core.disposal.test_observation import GONE, IDS, look

SNAPSHOT = OLD


@pytest.mark.parametrize(("by_ms", "spared"), [(-1, True), (0, True), (1, False)])
def test_what_may_have_begun_before_the_snapshot_of_a_lost_head_is_spared(
    by_ms: int, *, spared: bool
) -> None:
    ages = Ages(
        listed_ms=NOW + 90 * DAY,
        grace_ms=DAY,
        stuck_copy_ms=3_600_000,
        skew_ms=300_000,
        snapshot_ms=SNAPSHOT,
    )
    modified_ms = SNAPSHOT + 3_600_000 + 300_000 + by_ms
    present = {".log": Present(suffix=".log", size=1, modified_ms=modified_ms)}
    (found,) = judge(Recorded(state=None), present, ages)
    assert found.condemned is not spared
    without = replace(ages, snapshot_ms=0)
    (found,) = judge(Recorded(state=None), present, without)
    assert found.condemned


@pytest.mark.parametrize(("by_ms", "spared"), [(0, True), (1, False)])
def test_an_upload_that_may_have_begun_before_that_snapshot_is_spared_unless_events_name_it(
    by_ms: int, *, spared: bool
) -> None:
    ages = Ages(listed_ms=NOW + 90 * DAY, grace_ms=DAY, stuck_copy_ms=0, snapshot_ms=SNAPSHOT)
    initiated_ms = SNAPSHOT + ages.skew_ms + by_ms
    found = judge_upload(Recorded(state=None), initiated_ms, ages)
    assert found is not None
    assert found.condemned is not spared
    named = judge_upload(Recorded(state=S.DELETE_SEGMENT_FINISHED), initiated_ms, ages)
    assert named is not None
    assert named.condemned


@pytest.mark.parametrize("state", [S.COPY_SEGMENT_STARTED, S.DELETE_SEGMENT_STARTED])
def test_a_segment_is_stuck_a_millisecond_behind_its_time(state: S) -> None:
    ages = Ages(listed_ms=NOW, grace_ms=DAY, stuck_copy_ms=5_000, stuck_delete_ms=5_000)
    for event_ms, stuck in ((NOW - 5_000, 0), (NOW - 5_001, 1)):
        recorded = Recorded(state=state, event_ms=event_ms)
        assert len(list(judge(recorded, {}, ages))) == stuck


def test_only_what_is_missing_or_of_another_size_has_to_be_seen_again() -> None:
    ages = Ages(listed_ms=NOW, grace_ms=DAY, stuck_copy_ms=3_600_000)
    present = {".log": Present(suffix=".log", size=1, modified_ms=OLD)}
    sizes = {".log": 100, ".index": 8}
    wrong = judge(Recorded(state=S.COPY_SEGMENT_FINISHED, event_ms=OLD, sizes=sizes), present, ages)
    assert [one.confirm for one in wrong] == [True, True]
    for state in (None, S.COPY_SEGMENT_STARTED, S.DELETE_SEGMENT_STARTED):
        (found,) = judge(Recorded(state=state, event_ms=OLD), present, ages)
        assert found.confirm is False


@pytest.mark.parametrize(("before", "after", "over"), [(0, 0, False), (5, 4, True), (4, 5, True)])
def test_a_clock_starts_over_when_the_count_of_events_is_another_one(
    before: int, after: int, *, over: bool
) -> None:
    """Fewer too: then they were counted anew."""
    watch = Observation()
    watch.look(look(0))
    events = {GONE: before} if before else {}
    watch.look(replace(look(1, GONE), events=events))
    watch.look(replace(look(2, GONE), events={GONE: after}))
    assert watch._suspects[GONE].since_ms == (2 if over else 1)


def test_an_id_that_is_not_asked_about_any_more_is_forgotten() -> None:
    watch = Observation(ObservationOptions(topics_max=1, bytes_share_max=1.0))
    watch.look(look(0))
    watch.look(look(1, *IDS[:2]))
    watch.look(look(DAY + 1, *IDS[:2]))
    assert watch.for_purge == {IDS[1]}
    others = frozenset(IDS[2:])
    watch.look(replace(look(DAY + 2), asked=others))
    assert watch.for_purge == set()
    assert watch.seen == others
    watch.look(look(DAY + 3, IDS[1]))
    assert watch.look(look(9 * DAY, IDS[1])) == [], "it was never seen alive since"


@pytest.mark.parametrize("registered", [0, 1])
def test_the_only_broker_proves_nothing_while_it_does_not_answer(registered: int) -> None:
    watch = Observation()
    watch.look(look(0))
    for at_ms in (1, DAY + 1, 3 * DAY):
        silent = replace(look(at_ms, GONE), answers=0, registered=registered)
        assert watch.look(silent) == []
    assert GONE not in watch._suspects


def test_what_was_marked_is_not_marked_again_nor_left_to_a_person() -> None:
    watch = Observation(ObservationOptions(topics_max=9, bytes_share_max=1.0))
    watch.look(look(0))
    watch.look(look(1, GONE))
    assert watch.look(look(DAY + 1, GONE)) == [GONE]
    assert watch.look(look(DAY + 2, GONE)) == []
    assert watch.for_purge == set()


def test_a_topic_that_holds_nothing_takes_no_share_of_the_bytes() -> None:
    watch = Observation()
    watch.look(look(0))
    watch.look(replace(look(1, GONE), size_bytes={}))
    assert watch.look(replace(look(DAY + 1, GONE), size_bytes={})) == [GONE]


@pytest.mark.parametrize(("later_ms", "room"), [(HOUR_MS - 1, False), (HOUR_MS, True)])
def test_an_hour_after_a_mark_there_is_room_for_another(later_ms: int, *, room: bool) -> None:
    watch = Observation(ObservationOptions(topics_max=1, bytes_share_max=1.0))
    watch.look(look(0))
    watch.look(look(1, IDS[0]))
    watch.look(look(1 + later_ms, *IDS[:2]))
    assert watch.look(look(DAY + 1, *IDS[:2])) == [IDS[0]]
    assert watch.look(look(DAY + 1 + later_ms, IDS[1])) == ([IDS[1]] if room else [])
    assert watch.for_purge == (set() if room else {IDS[1]})
