"""Which calls a copy waits for, and when that was too long for what it moved."""

import pytest

from rlmm_daemon.core.storage.calls import Calls
from rlmm_daemon.core.storage.progress_floor import ProgressFloor, TooSlow

MIB = 1024 * 1024


class Clock:
    def __init__(self) -> None:
        self.now = 5.0

    def __call__(self) -> float:
        return self.now


def floor() -> ProgressFloor:
    return ProgressFloor(bytes_per_second=64 * 1024, window_seconds=60)


def test_only_the_time_in_which_the_storage_has_the_turn_counts_and_once_for_all_calls():
    clock = Clock()
    calls = Calls(clock)
    clock.now += 100  # for a place
    assert calls.waited_seconds == 0
    with calls.made("UploadPart 1 .log") as first:
        clock.now += 1
        with calls.made("UploadPart 2 .log") as second:
            clock.now += 2
            first.ours()
            first.ours()
            clock.now += 4
            second.ours()
            assert calls.waited_seconds == 7
            clock.now += 50  # for the rate
            assert calls.waited_seconds == 7
            second.theirs()
            clock.now += 1
            assert calls.waited_seconds == 8
        clock.now += 50
    second.theirs()  # its writer may outlive it
    clock.now += 50
    assert calls.waited_seconds == 8


def test_the_oldest_call_is_named_with_its_age():
    clock = Clock()
    calls = Calls(clock)
    assert str(calls) == ""
    with calls.made("UploadPart 2 .log"):
        clock.now += 40
        for number in range(3, 6):
            with calls.made(f"UploadPart {number} .log"):
                clock.now += 1
                assert str(calls) == f"UploadPart 2 .log ({38 + number} s, 2 in flight)"
        assert str(calls) == "UploadPart 2 .log (43 s)"
    assert str(calls) == ""


@pytest.mark.parametrize("rate", [0, 1024, 64 * 1024, MIB])
def test_a_window_is_judged_when_it_is_full_and_by_its_own_bytes(rate):
    looked, moved = floor(), 7 * MIB
    assert looked.look(moved, 1000.0) is None
    assert looked.left_seconds(1000.0) == 60
    assert looked.look(moved, 1030.0) is None
    assert looked.left_seconds(1030.0) == 30
    moved += 60 * rate
    slow = rate < 64 * 1024
    expected = TooSlow(moved_bytes=60 * rate, seconds=60.0) if slow else None
    assert looked.look(moved, 1060.0) == expected


def test_what_is_forgotten_begins_anew():
    looked = floor()
    looked.look(0, 0.0)
    looked.forget()
    assert looked.look(0, 600.0) is None
    assert looked.left_seconds(600.0) == 60


def test_another_clock_begins_a_window_anew():
    looked = floor()
    looked.look(0, 600.0)
    assert looked.look(0, 1.0) is None
    assert looked.left_seconds(1.0) == 60
