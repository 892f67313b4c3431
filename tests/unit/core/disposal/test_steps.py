"""Every combination of facts: what is never done, whatever else holds."""

import enum
import itertools
from typing import Any

import pytest
from msgspec.structs import fields

from rlmm_daemon.core.disposal.steps import (
    HOLDS,
    CopyFacts,
    CopyStep,
    DeleteFacts,
    DeleteStep,
    Listing,
    PartitionFacts,
    PartitionStep,
    Proof,
    copy_step,
    delete_step,
    partition_step,
)
from rlmm_daemon.domain.partition_delete import PartitionDeleteState

MARKED, STARTED, FINISHED = PartitionDeleteState
DELETES = (PartitionStep.DELETE_SEGMENTS, PartitionStep.SWEEP)
APPENDS = (PartitionStep.APPEND_STARTED, PartitionStep.APPEND_FINISHED)


def every(kind: type[Any], **values: Any) -> list[Any]:
    """All combinations; a bool has two values, a count none or some."""
    choices = {
        each.name: values.get(each.name, (False, True) if each.type in (bool, "bool") else (0, 1))
        for each in fields(kind)
    }
    return [
        kind(**dict(zip(choices, drawn, strict=True)))
        for drawn in itertools.product(*choices.values())
    ]


PARTITIONS = every(
    PartitionFacts, state=(None, *PartitionDeleteState), proof=tuple(Proof), listing=tuple(Listing)
)
COPIES = every(
    CopyFacts,
    age_ms=(1000, 1001),
    patience_ms=(1000,),
    registered=(None, False, True),
    lease_over=(None, False, True),
)
DELETIONS = every(DeleteFacts, age_ms=(10, 11, 100, 101), stuck_ms=(100,), copy_ms=(10, None))


def steps(kind: type[enum.Enum], told: set[Any]) -> None:
    assert told == set(kind), f"never answered: {set(kind) - told}"


def test_each_step_is_the_answer_to_something():
    steps(PartitionStep, {partition_step(f) for f in PARTITIONS})
    steps(CopyStep, {copy_step(f) for f in COPIES})
    steps(DeleteStep, {delete_step(f) for f in DELETIONS})


@pytest.mark.parametrize("step", [*DELETES, *APPENDS])
def test_nothing_is_done_without_mark_proof_and_a_fold_to_judge_by(step):
    for facts in PARTITIONS:
        if partition_step(facts) is step:
            assert facts.state in (MARKED, STARTED)
            assert facts.proof is Proof.GONE
            assert not facts.failed
            assert not facts.held


def test_objects_go_only_after_delete_partition_started():
    for facts in PARTITIONS:
        if partition_step(facts) in DELETES:
            assert facts.state is STARTED


def test_finished_needs_an_empty_listing_no_segment_no_copy_and_willing_peers():
    for facts in PARTITIONS:
        if partition_step(facts) is PartitionStep.APPEND_FINISHED:
            assert (facts.state, facts.listing) == (STARTED, Listing.EMPTY)
            assert (facts.segments, facts.copies_here, facts.peers) == (0, 0, True)


def test_a_marked_partition_goes_on_once_nothing_holds_it():
    """No combination rests for ever: it moves, waits for a named thing, or is done."""
    for facts in PARTITIONS:
        step = partition_step(facts)
        if facts.state in (MARKED, STARTED):
            assert step is not PartitionStep.REST
            free = (
                not facts.failed and not facts.held
                and facts.proof is Proof.GONE and facts.peers
            )  # fmt: skip
            assert not (free and step in HOLDS)


def test_a_copy_is_removed_only_when_old_not_running_and_given_up_by_its_broker():
    for facts in COPIES:
        if copy_step(facts) is CopyStep.REMOVE:
            assert facts.age_ms > facts.patience_ms
            assert not facts.running_here
            assert not facts.failed
            if facts.own:
                assert facts.manager_ours
                assert facts.storage_ours
                assert facts.reborn or facts.superseded
            else:
                assert facts.owner
                assert facts.registered is False
                assert facts.lease_over is True


def test_a_young_or_running_copy_is_live_whatever_else_is_said():
    for facts in COPIES:
        if facts.running_here or facts.age_ms <= facts.patience_ms:
            assert copy_step(facts) is CopyStep.LIVE


def test_a_held_segment_is_never_touched():
    for facts in DELETIONS:
        assert (delete_step(facts) is DeleteStep.HELD) == facts.held


def test_a_delete_is_the_brokers_own_for_an_hour_unless_the_topic_is_gone():
    for facts in DELETIONS:
        if delete_step(facts) in (DeleteStep.OBJECTS, DeleteStep.FINISH):
            assert facts.owner
            assert facts.topic_gone or facts.age_ms > facts.stuck_ms


def test_what_another_storage_manager_stored_is_never_ended():
    for facts in DELETIONS:
        if facts.foreign:
            assert delete_step(facts) not in (DeleteStep.OBJECTS, DeleteStep.FINISH)


def test_a_segment_that_never_finished_is_not_finished_while_its_copy_may_still_put_objects():
    for facts in DELETIONS:
        may_live = facts.copy_ms is None or facts.age_ms <= facts.copy_ms
        if facts.never_finished and not facts.copy_ended and may_live:
            assert delete_step(facts) is not DeleteStep.FINISH
