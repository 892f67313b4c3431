"""Pace of a storage: slow by its last answers, silent by its last calls."""

from rlmm_daemon.core.storage.pace import (
    ANSWERS_MIN,
    SECONDS_KEPT,
    SILENT_CALLS,
    SLOW_SECONDS,
    Pace,
    slow_words,
)


def answered(pace: Pace, *seconds: float, at: float = 0.0) -> None:
    for each in seconds:
        pace.answered(each, at)


def test_few_answers_say_nothing():
    pace = Pace()
    answered(pace, *[9.0] * (ANSWERS_MIN - 1))
    assert pace.answer_seconds(0.0) == 0.0
    answered(pace, 9.0)
    assert pace.answer_seconds(0.0) == 9.0


def test_one_slow_answer_among_quick_ones_makes_no_slow_storage():
    pace = Pace()
    answered(pace, 0.1, 0.1, 30.0, 0.1, 0.1)
    assert slow_words(pace.answer_seconds(0.0)) is None


def test_slow_answers_are_told_and_quick_ones_after_them_end_it():
    pace = Pace()
    answered(pace, *[SLOW_SECONDS + 1] * 6)
    assert slow_words(pace.answer_seconds(0.0)) == "half of its last answers took 3.0 s or longer"
    answered(pace, *[0.1] * 7)
    assert slow_words(pace.answer_seconds(0.0)) is None


def test_what_was_slow_long_ago_is_forgotten():
    pace = Pace()
    answered(pace, *[9.0] * 6)
    assert pace.answer_seconds(SECONDS_KEPT + 1) == 0.0


def test_time_for_an_objects_bytes_is_not_the_storages():
    pace = Pace()
    for _ in range(10):
        pace.answered(None, 0.0)
    assert pace.answer_seconds(0.0) == 0.0


def test_a_storage_is_silent_from_the_third_failure_in_a_row_until_an_answer():
    pace = Pace()
    for at in range(SILENT_CALLS - 1):
        pace.failed("reset", 10.0 + at)
    assert pace.silence(12.0) is None
    pace.failed("refused", 12.0)
    silence = pace.silence(15.0)
    assert silence is not None
    assert (silence.message, silence.calls, silence.seconds) == ("refused", 3, 5.0)
    pace.answered(None, 16.0)
    assert pace.silence(16.0) is None
    pace.failed("reset", 17.0)
    assert pace.silence(17.0) is None
