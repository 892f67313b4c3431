"""Kafka's observable answers, row by row, as its reference classes gave them."""

import pytest

from rlmm_daemon.codec import records
from rlmm_daemon.core.fold.outcome import Applied, Rejected, Repeated
from rlmm_daemon.domain.errors import IllegalTransition, InvalidArgument, SegmentNotFound
from tests.unit.core.world import (
    DELETE_FINISHED,
    DELETE_STARTED,
    FINISHED,
    STARTED,
    World,
    add,
    number,
    update,
)


@pytest.fixture
def world():
    return World()


# RemoteLogMetadataCache's transitions

PATHS = {
    None: (),
    STARTED: (STARTED,),
    FINISHED: (STARTED, FINISHED),
    DELETE_STARTED: (STARTED, FINISHED, DELETE_STARTED),
    DELETE_FINISHED: (STARTED, FINISHED, DELETE_STARTED, DELETE_FINISHED),
}


def event_to(state):
    return add(1, 0, 100) if state is STARTED else update(1, state)


@pytest.mark.parametrize(
    ("before", "event", "error"),
    [
        (None, add(1, 0, 9, state=FINISHED), InvalidArgument),
        (None, update(1, FINISHED), SegmentNotFound),
        (None, update(1, STARTED), SegmentNotFound),
        (None, update(1, DELETE_STARTED), SegmentNotFound),
        (STARTED, update(1, STARTED), InvalidArgument),
        (STARTED, update(1, DELETE_FINISHED), IllegalTransition),
        (FINISHED, add(1, 0, 100), IllegalTransition),
        (FINISHED, update(1, STARTED), IllegalTransition),
        (FINISHED, update(1, DELETE_FINISHED), IllegalTransition),
        (DELETE_STARTED, add(1, 0, 100), IllegalTransition),
        (DELETE_STARTED, update(1, FINISHED), IllegalTransition),
        (DELETE_STARTED, update(1, STARTED), IllegalTransition),
        (DELETE_FINISHED, update(1, FINISHED), SegmentNotFound),
    ],
)
def test_an_event_that_kafka_drops_is_rejected_and_changes_nothing(world, before, event, error):
    world.put(add(2, 500, 600), *(event_to(state) for state in PATHS[before]))
    changes, listing = world.cache.changes, world.cache.list_all()
    outcome = world.put(event)
    assert isinstance(outcome, Rejected)
    assert type(outcome.error) is error
    assert (world.cache.changes, world.cache.list_all()) == (changes, listing)
    assert world.fold.rejected == {error("").wire_name(): 1}
    assert world.fold.rejected_recent[0].reason == error("").wire_name()


@pytest.mark.parametrize("states", list(PATHS.values())[1:])
def test_a_legal_step_is_applied_and_tells_the_state_before_it(world, states):
    for before, state in zip((None, *states), states, strict=False):
        outcome = world.put(event_to(state))
        assert isinstance(outcome, Applied)
        assert outcome.previous_state is before
        assert outcome.event == event_to(state)


def test_a_copy_started_is_unreferenced_in_every_epoch_and_has_no_highest_offset(world):
    world.put(add(1, 0, 100, {0: 0, 1: 50}))
    assert world.unreferenced(0) == world.unreferenced(1) == {1}
    assert world.cache.highest_offset(0) is None
    assert (world.look(0, 10), world.listed(0), world.listed(1)) == (None, [1], [1])


def test_a_copy_finished_is_merged_from_the_stored_metadata_and_the_update(world):
    world.put(add(1, 0, 100, custom_metadata=b"x"), update(1, FINISHED, broker_id=7, at_ms=99))
    expected = add(1, 0, 100, broker_id=7, event_timestamp_ms=99, state=FINISHED)
    assert world.cache.lookup(0, 0) == records.encode(expected)


def test_a_delete_started_is_listed_but_not_found_and_highest_stays(world):
    world.upload(1, 0, 100)
    world.put(update(1, DELETE_STARTED))
    assert (world.look(0, 5), world.listed(0), world.unreferenced(0)) == (None, [1], {1})
    assert world.cache.highest_offset(0) == 100


def test_a_copy_that_never_finished_may_be_deleted(world):
    world.put(add(1, 0, 100), update(1, DELETE_STARTED))
    assert (world.look(0, 5), world.listed(0)) == (None, [1])
    world.put(update(1, DELETE_FINISHED))
    assert (world.listed(0), world.cache.list_all()) == ([], [])


def test_an_id_may_be_added_again_from_scratch_after_its_end(world):
    world.upload(1, 0, 100)
    world.remove(1)
    assert isinstance(world.upload(1, 200, 300, {2: 200}), Applied)
    assert (world.listed(0), world.listed(2), world.look(2, 250)) == ([], [1], 1)


def test_an_identical_event_is_a_repeat(world):
    events = add(1, 0, 100), update(1, FINISHED), update(1, DELETE_STARTED)
    for event in (*events, update(1, DELETE_FINISHED)):
        assert isinstance(world.put(event), Applied)
        assert isinstance(world.put(event), Repeated)


# RemoteLogLeaderEpochState's overlap rule, single epoch: uploads in order

OVERLAPS = [
    ("1:10-100 2:10-100", [2], {1}, 100, [], {50: 2}),
    ("1:0-100 2:0-200", [2], {1}, 200, [], {150: 2}),
    ("1:10-90 2:5-100", [2], {1}, 100, [], {95: 2, 7: 2}),
    ("1:10-90 2:5-80", [2, 1], set(), 90, [], {85: 1, 7: 2}),
    ("1:0-100 2:50-200", [1, 2], set(), 200, [], {40: 1, 60: 2, 150: 2, 201: None}),
    ("1:0-100 2:10-20", [1, 2], set(), 100, [], {15: 2, 5: 1}),
    ("1:10-100 2:10-90", [2], set(), 100, [1], {50: 2}),
    ("1:0-100 2:0-200 1:0-100", [1], set(), 200, [2], {50: 1}),
    ("1:0-100 2:101-200 1:0-100", [1, 2], set(), 200, [], {50: 1, 150: 2}),
    ("2:101-200 1:0-100", [1, 2], set(), 200, [], {50: 1, 150: 2}),
]


@pytest.mark.parametrize(
    ("uploads", "expected"), [(uploads, expected) for uploads, *expected in OVERLAPS]
)
def test_the_overlap_rule_leaves_kafkas_sets(world, uploads, expected):
    referenced, unreferenced, highest, third, looks = expected
    known = set()
    for upload in uploads.split():
        n, _, bounds = upload.partition(":")
        start, end = map(int, bounds.split("-"))
        if n not in known:
            world.put(add(int(n), start, end))
        known.add(n)
        world.put(update(int(n), FINISHED))
    assert world.referenced(0) == referenced
    assert world.unreferenced(0) == unreferenced
    assert world.third(0) == third
    assert world.cache.highest_offset(0) == highest
    assert {offset: world.look(0, offset) for offset in looks} == looks
    assert sorted(world.listed(0)) == sorted([*referenced, *unreferenced])


def test_the_overlap_rule_works_epoch_by_epoch(world):
    world.upload(1, 0, 100, {0: 0, 1: 50})
    world.upload(2, 60, 150, {1: 60})
    world.upload(3, 40, 160, {0: 40, 1: 50})
    assert (world.referenced(0), world.referenced(1)) == ([1, 3], [3])
    assert (world.unreferenced(0), world.unreferenced(1)) == (set(), {1, 2})
    assert (world.cache.highest_offset(0), world.cache.highest_offset(1)) == (49, 160)
    looks = [(0, 45), (0, 30), (1, 55), (1, 155)]
    assert [world.look(*look) for look in looks] == [3, 1, 3, 3]


def test_an_epoch_without_records_gets_a_highest_offset_below_its_start(world):
    world.upload(1, 0, 100, {0: 0, 1: 50, 2: 50})
    assert [world.cache.highest_offset(epoch) for epoch in (0, 1, 2)] == [49, 49, 100]
    assert [world.look(1, offset) for offset in (49, 50, 51)] == [None] * 3
    assert world.listed(1) == [1]


# RemoteLogSegmentLifecycleTest's layout

LAYOUT = [
    (1, 0, 100, {0: 0, 1: 20, 2: 80}),
    (2, 101, 200, {2: 101}),
    (3, 201, 300, {2: 201, 3: 240}),
    (4, 250, 400, {3: 250, 4: 370}),
]
LOOKS = {
    (0, 19): 1, (0, 20): None, (1, 19): None, (1, 20): 1, (1, 40): 1, (1, 110): None,
    (2, 79): None, (2, 110): 2, (2, 239): 3, (2, 240): None, (3, 240): 3, (3, 250): 4,
    (3, 290): 4, (3, 369): 4, (3, 370): None, (4, 375): 4, (4, 401): None, (5, 301): None,
}  # fmt: skip
HIGHEST = [19, 79, 239, 369, 400, None]


@pytest.mark.parametrize(("look", "found"), LOOKS.items())
def test_a_look_up_in_the_life_cycle_layout(world, look, found):
    for segment in LAYOUT:
        world.upload(*segment)
    assert world.look(*look) == found


def test_highest_offsets_outlive_the_segment(world):
    for segment in LAYOUT:
        world.upload(*segment)
    assert [world.cache.highest_offset(epoch) for epoch in range(6)] == HIGHEST
    world.remove(1)
    assert [world.cache.highest_offset(epoch) for epoch in range(6)] == HIGHEST
    assert world.look(0, 5) is None


# Listings


def test_the_epoch_listing_keeps_epoch_order_while_nothing_is_unreferenced(world):
    # By their starts in epoch 1 it is 2 before 1, by their own starts the other way round.
    world.upload(1, 0, 100, {0: 0, 1: 60})
    world.upload(2, 10, 50, {1: 30})
    assert world.listed(1) == [2, 1]
    world.put(add(3, 5, 200, {1: 150}))
    assert world.listed(1) == [1, 3, 2]


def test_ties_in_a_listing_put_referenced_before_unreferenced(world):
    world.put(add(1, 0, 50), add(2, 0, 60))
    world.upload(3, 0, 100)
    assert world.listed(0) == [3, 1, 2]


def test_unknown_epochs_are_empty(world):
    world.upload(1, 0, 100)
    assert (world.listed(9), world.cache.size(9), world.cache.highest_offset(9)) == ([], 0, None)


def test_the_size_counts_every_state_and_a_segment_in_each_epoch(world):
    world.upload(1, 0, 100, {0: 0, 1: 50}, segment_size_bytes=7)
    world.put(add(2, 101, 200, {1: 101}, segment_size_bytes=5))
    assert (world.cache.size(0), world.cache.size(1)) == (7, 12)


def test_the_whole_listing_is_by_start_offset_whatever_the_state(world):
    world.put(add(3, 200, 300))
    world.upload(2, 100, 199)
    world.upload(1, 0, 99)
    world.put(update(1, DELETE_STARTED))
    assert [number(record) for record in world.cache.list_all()] == [1, 2, 3]


# nextSegmentWithTxnIndex (KIP-1058); "!" marks a segment with a non-empty transaction index

WALKS = [
    ("0-99 100-199! 200-299!", 0, 2),
    ("0-99! 100-199!", 50, 1),
    ("0-99 100-199", 0, None),
    ("0-99 150-199!", 0, None),
    ("0-99 100-199 200-299 301-399!", 0, None),
    ("0-99 100-199 200-299 300-399!", 299, 4),
    ("0-99 100-199!", 200, None),
    ("100-199!", 0, None),
]


@pytest.mark.parametrize(("segments", "offset", "found"), WALKS)
def test_the_transaction_index_walk_stops_at_the_first_gap(world, segments, offset, found):
    for n, text in enumerate(segments.split(), start=1):
        start, end = map(int, text.rstrip("!").split("-"))
        world.upload(n, start, end, txn_index_empty=not text.endswith("!"))
    assert number(world.cache.next_with_txn_index(0, offset)) == found
