"""Marks that nobody asked for: what starts the clock over, and what is never marked."""

import pytest
from msgspec.structs import replace

from rlmm_daemon.core.disposal.observation import (
    HOUR_MS,
    Observation,
    ObservationOptions,
    TopicLook,
    UnknownClock,
    Watched,
)
from rlmm_daemon.domain.ids import TopicId

DAY = 24 * HOUR_MS
IDS = [TopicId(bytes([n]) * 16) for n in range(1, 31)]
GONE = IDS[0]


def look(at_ms: int, *unknown: TopicId) -> TopicLook:
    return TopicLook(
        at_ms=at_ms,
        cluster_id="c",
        controller=(1, 7),
        answers=3,
        registered=3,
        asked=frozenset(IDS),
        unknown=frozenset(unknown),
        on_disk=frozenset(),
        events={},
        size_bytes=dict.fromkeys(IDS, 100),
    )


@pytest.fixture
def watch():
    watch = Observation()
    assert watch.look(look(0)) == []
    assert watch.look(look(1, GONE)) == []
    return watch


def test_unknown_for_the_whole_grace_period_is_marked_once(watch):
    assert watch.look(look(DAY, GONE)) == []
    assert watch.look(look(DAY + 1, GONE)) == [GONE]
    assert watch.look(look(DAY + 2, GONE)) == []


def test_an_id_that_was_never_seen_alive_is_never_marked():
    watch = Observation()
    watch.look(look(0, GONE))
    assert watch.look(look(2 * DAY, GONE)) == []


@pytest.mark.parametrize(
    "odd",
    [
        {"unknown": frozenset()},
        {"controller": (2, 8)},
        {"controller": (1, 9)},
        {"cluster_id": "another"},
        {"on_disk": frozenset({GONE})},
        {"events": {GONE: 1}},
        {"answers": 1},
        {"answers": 0},
    ],
    ids=lambda odd: next(iter(odd)),
)
def test_anything_odd_starts_the_clock_over(watch, odd):
    watch.look(replace(look(DAY - 5, GONE), **odd))
    lasting = {name: value for name, value in odd.items() if name in ("events", "controller")}
    assert watch.look(replace(look(DAY + 1, GONE), **lasting)) == []
    # In another cluster it was never seen alive, so it is never marked there.
    due = [] if "cluster_id" in odd else [GONE]
    assert watch.look(replace(look(3 * DAY, GONE), **lasting)) == due


@pytest.mark.parametrize("over", [Observation.failed, Observation.stopped])
def test_a_failed_look_or_another_daemons_turn_starts_the_clock_over(watch, over):
    over(watch)
    assert watch.look(look(DAY + 1, GONE)) == []
    assert watch.look(look(2 * DAY, GONE)) == []
    assert watch.look(look(2 * DAY + 1, GONE)) == [GONE]


def test_a_clock_of_the_former_cluster_says_nothing_in_another_one(watch):
    watch.alive("another", frozenset(IDS))
    assert watch.look(replace(look(DAY + 1, GONE), cluster_id="another")) == []
    assert watch._suspects[GONE].since_ms == DAY + 1


def test_the_only_broker_is_enough():
    watch = Observation()

    def alone(at_ms: int, *unknown: TopicId) -> TopicLook:
        return replace(look(at_ms, *unknown), answers=1, registered=1)

    watch.look(alone(0))
    watch.look(alone(1, GONE))
    assert watch.look(alone(DAY + 1, GONE)) == [GONE]


def test_many_unknown_at_once_mark_nothing():
    watch = Observation()
    watch.look(look(0))
    for at in (1, DAY + 1, 3 * DAY):
        assert watch.look(look(at, *IDS[:4])) == []  # 4 of 30
    assert watch.look(look(3 * DAY + 1, *IDS[:3])) == IDS[:1]  # 300 of 3,000 bytes: one fits in 5 %


def test_beyond_the_cap_it_takes_a_person_for_good():
    watch = Observation(ObservationOptions(topics_max=1, bytes_share_max=1.0))
    watch.look(look(0))
    watch.look(look(1, *IDS[:3]))
    assert watch.look(look(DAY + 1, *IDS[:3])) == IDS[:1]
    assert watch.for_purge == set(IDS[1:3])
    assert watch.look(look(9 * DAY, *IDS[1:3])) == []


def test_whoever_looks_on_knows_what_was_left_for_a_person_when_it_marks():
    """Clocks start over with it; what the other one had not marked in its time stays unmarked."""
    watch = Observation()
    watch.look_on(look(0))
    watch.look_on(look(1, *IDS[:2]))
    watch.look_on(look(DAY + 1, *IDS[:2]))
    assert watch.for_purge == set(), "the other one is about to mark them"
    watch.look_on(look(DAY + 1 + HOUR_MS, IDS[1]))  # it marked one, which is not asked about now
    assert watch.for_purge == {IDS[1]}
    watch.stopped()
    later = 3 * DAY
    assert watch.look(look(later, *IDS[1:3])) == []
    assert watch.look(look(later + DAY, *IDS[1:3])) == [IDS[2]]
    watch.look_on(look(later + DAY + 1))
    assert watch.for_purge == set(), "it is known again"


@pytest.mark.parametrize("odd", [{"controller": (2, 8)}, {"answers": 1}, {"events": {GONE: 1}}])
def test_whoever_looks_on_starts_clocks_over_as_the_other_one_does(odd):
    watch = Observation()
    watch.look_on(look(0))
    watch.look_on(look(1, GONE))
    watch.look_on(replace(look(DAY, GONE), **odd))
    lasting = {name: value for name, value in odd.items() if name != "answers"}
    watch.look_on(replace(look(DAY + 1 + HOUR_MS, GONE), **lasting))
    assert watch.for_purge == set()


def test_whoever_looks_on_leaves_nothing_to_a_person_while_too_much_is_unknown():
    watch = Observation()
    watch.look_on(look(0))
    watch.look_on(look(1, *IDS[:4]))
    watch.look_on(look(2 * DAY, *IDS[:4]))
    assert watch.for_purge == set()


def test_the_cap_is_by_the_hour():
    watch = Observation(ObservationOptions(topics_max=1, bytes_share_max=1.0))
    watch.look(look(0))
    watch.look(look(1, IDS[0]))
    watch.look(look(1 + HOUR_MS, *IDS[:2]))
    assert watch.look(look(DAY + 1, *IDS[:2])) == [IDS[0]]
    assert watch.look(look(DAY + 1 + HOUR_MS, IDS[1])) == [IDS[1]]


def test_marks_count_for_an_hour_each():
    watch = Observation(ObservationOptions(topics_max=2, bytes_share_max=1.0))
    watch.look(look(0))
    watch.look(look(1, IDS[0]))
    half, later = HOUR_MS // 2, HOUR_MS + 5
    watch.look(look(1 + half, *IDS[:2]))
    watch.look(look(1 + later, *IDS[:3]))
    assert watch.look(look(DAY + 1, *IDS[:3])) == [IDS[0]]
    assert watch.look(look(DAY + 1 + half, *IDS[1:3])) == [IDS[1]]
    assert watch.look(look(DAY + 1 + later, IDS[2])) == [IDS[2]]
    assert watch.for_purge == set()


# What people are told.


def test_people_are_told_how_the_clock_of_each_unknown_id_stands(watch):
    assert watch.watched == {GONE: Watched(UnknownClock.RUNNING, 1)}
    watch.look(replace(look(2, GONE, IDS[1]), on_disk=frozenset({IDS[1]})))
    assert watch.watched == {
        GONE: Watched(UnknownClock.RUNNING, 1),
        IDS[1]: Watched(UnknownClock.ON_DISK),
    }
    watch.look(look(3, *IDS[:4]))
    assert watch.watched[GONE] == Watched(UnknownClock.TOO_MANY, 1)
    assert watch.watched[IDS[3]] == Watched(UnknownClock.TOO_MANY, 3)
    watch.look(replace(look(4, GONE), answers=1))
    assert watch.watched == {GONE: Watched(UnknownClock.TOO_FEW)}
    watch.look(look(5, GONE))
    watch.failed()
    assert watch.watched == {GONE: Watched(UnknownClock.LOOK_FAILED)}
    watch.look(replace(look(6, GONE), cluster_id="another"))
    assert watch.watched == {GONE: Watched(UnknownClock.NEVER_SEEN)}
    watch.stopped()
    assert watch.watched == {}


def test_people_are_told_of_what_waits_for_them_and_not_of_what_was_marked():
    watch = Observation(ObservationOptions(topics_max=1, bytes_share_max=1.0))
    watch.look(look(0))
    watch.look(look(1, *IDS[:2]))
    assert watch.look(look(DAY + 1, *IDS[:2])) == [IDS[0]]
    assert watch.watched == {IDS[1]: Watched(UnknownClock.FOR_PURGE)}
    watch.failed()
    assert watch.watched == {IDS[1]: Watched(UnknownClock.FOR_PURGE)}, "no look changes that"
    watch.look(replace(look(DAY + 2, *IDS[:2]), cluster_id="another"))
    assert watch.for_purge == set(), "it was due in the former cluster"
