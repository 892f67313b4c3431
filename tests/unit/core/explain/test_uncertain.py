"""What `explain` recommends where nobody knows all that the log said."""

from itertools import product
from typing import Any

import pytest

from rlmm_daemon.core.disposal.observation import UnknownClock
from rlmm_daemon.core.explain.explanation import explain
from rlmm_daemon.core.explain.facts import Facts, ObservedFacts, RemovalFacts, SegmentCount
from rlmm_daemon.core.readiness.states import Failure, FailureReason, PartitionState
from rlmm_daemon.domain.segment import SegmentState
from tests.unit.core.explain.test_explanation import facts

STUCK = (SegmentState.COPY_SEGMENT_STARTED, SegmentState.DELETE_SEGMENT_STARTED)
STATES = [state for state in PartitionState if state is not PartitionState.FAILED]


def stuck(storage: str, **changes: Any) -> Facts:
    count = SegmentCount(count=1, size_bytes=1, oldest_id="an-id", oldest_at_ms=0)
    told: Facts = facts(
        now_ms=10**12, storage_kind=storage, segments=dict.fromkeys(STUCK, count), **changes
    )
    return told


def deletes(told: Facts) -> bool:
    found = explain(told)
    commands = [found.next_command, *(notice.next_command for notice in found.also)]
    return any(f"rlmm {word}" in (each or "") for each in commands for word in ("delete", "purge"))


#: A topic that every live broker calls unknown, and of which a person is to decide.
UNKNOWN = [
    RemovalFacts(observed=ObservedFacts(clock=clock))
    for clock in (UnknownClock.NEVER_SEEN, UnknownClock.FOR_PURGE)
]


@pytest.mark.parametrize("storage", ["none", "local"])
def test_no_deletion_is_recommended_where_history_is_uncertain(storage):
    for reason, held in product(FailureReason, (0, 1)):
        failure = Failure(reason, "here", 0)
        told = stuck(storage, state=PartitionState.FAILED, failure=failure, held=held)
        assert not deletes(told), reason
    doubts: tuple[dict[str, Any], ...] = (
        {"missing": 1}, {"lacks_offsets": True}, {"on_hold": True}, {"on_hold": None},
    )  # fmt: skip
    for state, doubt, removal in product(STATES, doubts, (RemovalFacts(), *UNKNOWN)):
        told = stuck(storage, state=state, removal=removal, **doubt)
        assert not deletes(told), (state, doubt)


def test_where_nothing_is_uncertain_a_stuck_segment_is_ended():
    certain = {"state": PartitionState.READY, "position": 1, "target": 1}
    assert deletes(stuck("local", **certain))
    for removal in UNKNOWN:
        assert deletes(facts(storage_kind="local", removal=removal, **certain))


def test_no_deletion_is_recommended_that_the_daemon_would_refuse_for_it_has_no_storage():
    assert not deletes(stuck("none", state=PartitionState.READY, position=1, target=1))


def test_what_a_hold_keeps_is_looked_for_before_anything_is_ended():
    told = stuck("local", state=PartitionState.READY, position=1, target=1, on_hold=True)
    assert {notice.next_command for notice in explain(told).also} == {"rlmm log recover 7"}


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize(
    ("doubt", "words"),
    [
        ({"on_hold": True}, "a hold keeps what lost events may have named"),
        ({"lacks_offsets": True}, "events that are lost may have named some"),
    ],
)
def test_nobody_says_that_nothing_was_ever_copied_where_events_are_lost(known, doubt, words):
    read = {"state": PartitionState.READY, "position": 1, "target": 1, "confirmed": True}
    told = facts(known=known, **read, **doubt)
    found = explain(told)
    assert (found.cause, words in found.sentence) == ("ready_empty", True)
