"""`rlmm top`: what two looks at a daemon tell together."""

from typing import Any

from rlmm_daemon.cli.look.status import waiting_words
from rlmm_daemon.cli.look.top import view
from rlmm_daemon.domain.ids import uuid_text


def job(number: int, done: int, **changed: Any) -> dict[str, Any]:
    return {
        "partition": f"{uuid_text(bytes(16))}:orders-{number}",
        "segment_id": uuid_text(bytes([number]) * 16),
        "phase": "upload",
        "bytes_done": done,
        "bytes_total": 1_000,
        "age_seconds": 60.0,
        "call": "",
    } | changed


def status(*copies: dict[str, Any], **changed: Any) -> dict[str, Any]:
    return {
        "uptime_seconds": 5.0,
        "draining": False,
        "storage": {"error": None},
        "log": {"trouble": None},
        "metadata_partitions": {"ready": 3},
        "segments": {},
        "segment_bytes": 0,
        "copies": list(copies),
    } | changed


def test_a_copy_has_the_rate_between_two_looks_and_what_is_left_at_it():
    (copy,) = view(status(job(1, 200)), status(job(1, 400)), 2.0)["copies"]
    assert (copy["per_second"], copy["left_seconds"]) == (100, 6.0)


def test_one_that_began_meanwhile_has_its_rate_since_then():
    (copy,) = view(status(), status(job(1, 100, age_seconds=0.5)), 2.0)["copies"]
    assert copy["per_second"] == 200


def test_one_that_stands_still_or_takes_bytes_back_has_no_rate_and_no_end():
    still, back = view(status(job(1, 400), job(2, 400)), status(job(1, 400), job(2, 100)), 2.0)[
        "copies"
    ]
    assert (still["per_second"], still["left_seconds"]) == (0, None)
    assert (back["per_second"], back["left_seconds"]) == (0, None)


def test_the_whole_is_the_sum_and_the_oldest_comes_first():
    seen = view(status(), status(job(1, 100, age_seconds=1.0), job(2, 300, age_seconds=2.0)), 2.0)
    assert seen["copied_per_second"] == 250
    assert [copy["age_seconds"] for copy in seen["copies"]] == [2.0, 1.0]


def test_what_the_broker_has_not_handed_over_is_told_where_it_is_known():
    topics = [{"topic": "orders", "segments": 3, "bytes": 3_000, "seconds": 90.0}]
    lag = {"segments": 3, "bytes": 3_000, "seconds": 90.0, "topics": topics, "untold_partitions": 1}
    seen = view(status(), status(copy_lag=lag), 2.0)
    assert seen["copy_lag"] == lag
    assert waiting_words(seen) == (
        "3 closed segments, 2.9 KiB, for 1 min at least (orders 2.9 KiB); of 1 partition it is "
        "not known"
    )
    assert waiting_words(view(status(), status(), 2.0)) is None
    nothing = lag | {"segments": 0, "untold_partitions": 0}
    assert waiting_words({"copy_lag": nothing}) == "none"


def test_what_is_paused_is_named_and_an_earlier_daemon_says_nothing_of_it():
    paused = {"topics": [{"topic": "orders", "since_ms": 1}], "trouble": None, "refused": 0}
    assert view(status(), status(paused=paused), 2.0)["paused"] == ["orders"]
    assert view(status(), status(), 2.0)["paused"] == []
