"""The line of `rlmm status` on the controllers: whose word counts now, and why."""

import pytest

from rlmm_daemon.cli.look.status import _controllers

CURRENT = {
    "standing": "current",
    "trouble": None,
    "at": {"epoch": 3, "end": 1_200},
    "age_seconds": 2.0,
    "topics": 7,
    "brokers": 3,
    "unknown_kinds": (),
}


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (CURRENT, "7 topics at offset 1,200 of epoch 3, 2 s ago"),
        (
            CURRENT | {"standing": "stale", "trouble": "c1:9093: nobody listens"},
            "stale, so brokers alone say what is deleted: c1:9093: nobody listens",
        ),
        (
            CURRENT | {"standing": "loading", "at": None, "age_seconds": None},
            "loading, so brokers alone say what is deleted",
        ),
    ],
)
def test_it_says_how_far_the_log_was_read_or_that_brokers_are_alone(told, said):
    assert _controllers(told) == {"controllers": said}


def test_where_they_are_not_followed_nothing_is_said():
    assert _controllers(None) == {}
