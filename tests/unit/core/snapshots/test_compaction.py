"""Compaction of a log's beginning: what is left folds to the same, whatever comes behind."""

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlmm_daemon.codec import records
from rlmm_daemon.codec.custom_metadata import ONLY_IF_STARTED
from rlmm_daemon.core.fold.fold import Fold
from rlmm_daemon.core.fold.outcome import Rejected, Repeated
from rlmm_daemon.core.snapshots.compaction import Offsets, Survivors
from rlmm_daemon.domain.ids import MetadataPartition, TopicIdPartition
from tests.unit.core.fold.test_fold import told
from tests.unit.core.world import (
    DELETE_FINISHED,
    DELETE_STARTED,
    FINISHED,
    FOO,
    MARKED,
    PARTITION_FINISHED,
    PARTITION_STARTED,
    STARTED,
    TOPIC_ID,
    add,
    delete,
    update,
)

BAR = TopicIdPartition(TOPIC_ID, "bar-x", 3)
EPOCHS = range(5)
OFFSETS = range(-1, 75)


def left_of(rows, *, start=0, lost=()):
    """Return the rows that a compaction leaves; it lost something before the offsets `lost`."""
    survivors = Survivors(MetadataPartition(0), 1, start=start)
    for offset, value in rows:
        if offset in lost:
            survivors.lost()
        survivors.take(offset, value)
    list(survivors.settle())
    return [(offset, value) for offset, value in rows if offset in survivors]


def folded(rows, position):
    fold = Fold(MetadataPartition(0), 1)
    for offset, value in rows:
        fold.apply(offset, value)
    fold.advance(position, 0)
    return fold


def state_of(fold):
    """Return all that can be asked of a fold; not what counts events since it was made."""
    return {at: state_of_partition(cache) for at, cache in fold.partitions.items()}


def state_of_partition(cache):
    numbers = cache.epochs.numbers()
    return {
        "all": cache.list_all(),
        "listed": {epoch: cache.list_epoch(epoch) for epoch in numbers},
        "third": {epoch: cache.third_set(epoch) for epoch in numbers},
        "unreferenced": {epoch: list(index.unreferenced) for epoch, index in cache.epochs.items()},
        "ranks": {epoch: list(index.ranks) for epoch, index in cache.epochs.items()},
        "found": [cache.lookup(epoch, offset) for epoch in EPOCHS for offset in OFFSETS],
        "walked": [
            cache.next_with_txn_index(epoch, offset) for epoch in EPOCHS for offset in OFFSETS
        ],
        "highest": cache.highest_offsets,
        "sizes": (cache.segments_by_state, cache.bytes_by_state),
        "writer": cache.writer,
        "strays": cache.strays,
        "held": cache.held,
        "kept": cache.kept.every(),
        "deletion": cache.delete_state,
    }


def same_from_here(full, left, tail):
    """Everything is the same now, and after each event of the tail, which is taken alike."""
    assert state_of(left) == state_of(full)
    for value in tail:
        a, b = (fold.apply(fold.position, value) for fold in (full, left))
        assert told(a) == told(b)
        assert state_of(left) == state_of(full)


def life(n, start, end, epochs=None, *, upto=DELETE_FINISHED, **fields):
    """Return the events of a segment up to a state."""
    states = [state for state in (FINISHED, DELETE_STARTED, DELETE_FINISHED) if state <= upto]
    partition = fields.get("partition", FOO)
    updates_to = [update(n, state, partition=partition) for state in states]
    return [add(n, start, end, epochs, **fields), *updates_to]


def rows_of(events):
    return [(2 * at, records.encode(event)) for at, event in enumerate(events)]


def numbers_left(events):
    return [offset // 2 for offset, _ in left_of(rows_of(events))]


# Examples: what stays, and why.


def test_of_segments_in_a_row_the_live_ones_stay():
    events = [*life(1, 0, 9), *life(2, 10, 19), *life(3, 20, 29, upto=FINISHED)]
    assert numbers_left(events) == [8, 9]


def test_who_made_the_highest_offset_stays_until_it_is_surpassed():
    events = [*life(1, 0, 9), add(2, 10, 19)]
    assert numbers_left(events) == [0, 1, 2, 3, 4]
    assert numbers_left([*events, update(2, FINISHED)]) == [4, 5]


def test_who_began_the_latest_copy_stays():
    events = [*life(1, 0, 9, upto=FINISHED), add(2, 10, 19, broker_id=2)]
    gone = [update(2, DELETE_STARTED), update(2, DELETE_FINISHED)]
    assert numbers_left([*events, *gone]) == [0, 1, 2, 3, 4]
    assert numbers_left([*events, *gone, add(3, 10, 19)]) == [0, 1, 5]


def test_a_segment_that_hid_one_that_lives_stays():
    hidden = life(1, 0, 9, upto=FINISHED)
    above = life(2, 0, 19)
    behind = life(3, 20, 29, upto=FINISHED)
    assert numbers_left([*hidden, *above, *behind]) == list(range(8))
    ends = [update(1, DELETE_STARTED), update(1, DELETE_FINISHED)]
    assert numbers_left([*hidden, *above, *behind, *ends]) == [6, 7]


def test_who_made_the_highest_offset_of_that_moment_stays_with_who_touched():
    low, far, between = life(1, 10, 15, upto=FINISHED), life(2, 20, 30), life(3, 9, 16)
    highest = life(4, 31, 40, upto=FINISHED)
    events = [*low, *far[:2], *between, *far[2:], *highest]
    assert numbers_left(events) == list(range(len(events)))


def test_a_held_segment_stays():
    stuck = [*life(1, 0, 9, upto=FINISHED), update(1, DELETE_STARTED, ONLY_IF_STARTED)]
    events = [*stuck, update(1, DELETE_FINISHED), *life(2, 10, 19, upto=FINISHED)]
    assert numbers_left(events) == list(range(6))


def test_of_a_removed_partition_its_marks_stay_until_it_is_used_again():
    marks = [delete(MARKED), delete(PARTITION_STARTED), delete(PARTITION_FINISHED)]
    events = [*life(1, 0, 9), *life(2, 10, 19, upto=FINISHED), *marks]
    assert numbers_left(events) == [6, 7, 8]
    assert numbers_left([*events, add(3, 0, 9)]) == [9]


def test_repeats_go_and_so_does_what_was_refused_of_a_segment_that_goes():
    once = [add(1, 0, 9), update(1, FINISHED)]
    again = [once[0], *once, once[1]]
    assert numbers_left(again) == [0, 2]
    gone = [*life(1, 0, 9), update(1, FINISHED), *life(2, 10, 19, upto=FINISHED)]
    refused = [*life(1, 0, 9)[:3], add(1, 0, 8), update(1, DELETE_FINISHED), *gone[-2:]]
    assert numbers_left(refused) == [5, 6]


def test_what_cannot_be_read_or_names_a_segment_that_never_began_stays():
    rows = [*rows_of([update(7, FINISHED), update(8, DELETE_STARTED)]), (4, None), (5, b"garbage")]
    assert left_of(rows) == rows


def test_an_end_without_a_beginning_stays_where_the_log_lost_something():
    events = [*life(1, 0, 9, upto=FINISHED), update(7, DELETE_STARTED), update(7, DELETE_FINISHED)]
    rows = rows_of(events)
    assert [offset for offset, _ in left_of(rows)] == [0, 2, 4]
    assert [offset for offset, _ in left_of(rows, lost={4})] == [0, 2, 4, 6]
    headless = [(offset + 100, value) for offset, value in rows]
    assert [offset for offset, _ in left_of(headless, start=100)] == [100, 102, 104, 106]


def test_pairs_that_are_gone_go_although_they_touched():
    events = []
    for n in range(0, 40, 2):
        one, other = (life(m, 10 * n, 10 * n + 15) for m in (n, n + 1))
        events += [*one[:2], *other[:2], *one[2:], *other[2:]]
    last = life(99, 1_000, 1_009, upto=FINISHED)
    assert numbers_left([*events, *last]) == [len(events), len(events) + 1]


# Properties.


IDS = st.integers(1, 6)


@st.composite
def starts(draw):
    start = draw(st.integers(0, 40))
    end = draw(st.integers(start, start + 30))
    first = draw(st.integers(0, 3))
    epochs = {first: start}
    if draw(st.integers(0, 3)) == 0:
        epochs[first + 1] = draw(st.integers(start, end))
    return add(
        draw(IDS), start, end, epochs,
        txn_index_empty=draw(st.booleans()), broker_id=draw(st.integers(1, 2)),
        partition=draw(st.sampled_from([FOO, FOO, BAR])),
    )  # fmt: skip


@st.composite
def updates(draw):
    state = draw(st.sampled_from([FINISHED, FINISHED, DELETE_STARTED, DELETE_FINISHED]))
    custom = draw(st.sampled_from([None, None, b"c", ONLY_IF_STARTED]))
    return update(
        draw(IDS), state, custom, at_ms=draw(st.integers(1, 3)), broker_id=draw(st.integers(1, 2)),
        partition=draw(st.sampled_from([FOO, FOO, BAR])),
    )  # fmt: skip


MARKS = st.builds(
    lambda state, partition: delete(state, partition=partition),
    st.sampled_from([MARKED, PARTITION_STARTED, PARTITION_FINISHED]),
    st.sampled_from([FOO, BAR]),
)


@st.composite
def lives(draw):
    """A segment's life as it mostly is: at its place in a row, and on to some state."""
    n = draw(st.integers(1, 6))
    start = 8 * n + draw(st.sampled_from([0, 0, 0, 0, -4]))
    upto = draw(st.sampled_from([STARTED, FINISHED, DELETE_FINISHED, DELETE_FINISHED]))
    return life(n, start, 8 * n + 7, upto=upto)


STEPS = st.one_of(
    lives(), *[st.builds(lambda e: [e], one) for one in (starts(), updates(), updates(), MARKS)]
)
GARBAGE = st.sampled_from([b"", b"x", b"\x01\x03\x00garbage"])


@settings(max_examples=150, deadline=None)
@given(st.lists(STEPS, max_size=25), st.lists(STEPS, max_size=8), st.lists(GARBAGE, max_size=2))
def test_what_is_left_and_any_tail_fold_to_what_all_and_that_tail_do(before, behind, garbage):
    values = [records.encode(event) for step in before for event in step] + garbage
    rows = [(2 * at, value) for at, value in enumerate(values)]
    left, position = left_of(rows), 2 * len(rows)
    assert left_of(left) == left, "it is compact"
    tail = [records.encode(event) for step in behind for event in step]
    same_from_here(folded(rows, position), folded(left, position), tail)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(STEPS, max_size=10), min_size=2, max_size=4), st.lists(STEPS, max_size=5))
def test_compacting_again_and_again_as_the_log_grows_changes_nothing_either(parts, behind):
    rows, left, at = [], [], 0
    for part in parts:
        for value in (records.encode(event) for step in part for event in step):
            rows.append((at, value))
            left.append((at, value))
            at += 1
        left = left_of(left)
    tail = [records.encode(event) for step in behind for event in step]
    same_from_here(folded(rows, at), folded(left, at), tail)


@pytest.mark.parametrize("seed", range(12))
def test_a_long_history_of_overlaps_ends_no_larger_than_what_lives(seed):
    """However many pairs, restarts and refused events there were: none of it stays for ever."""
    rng, events, live = random.Random(seed), [], []
    for n in range(400):
        start = 10 * n - (rng.choice([0, 0, 0, 5]) if n else 0)
        events += life(n, start, 10 * n + 9, {n // 90: start}, upto=FINISHED)
        live.append(n)
        if rng.random() < 0.3:
            events.append(msgspec.structs.replace(events[-1], event_timestamp_ms=n))
        while len(live) > 10:
            gone = live.pop(0)
            events += [update(gone, DELETE_STARTED), update(gone, DELETE_FINISHED)]
    rows = rows_of(events)
    left = left_of(rows)
    same_from_here(folded(rows, 10_000), folded(left, 10_000), [])
    chain = 20  # the live ones' chain of overlaps, and each epoch's last one with its own
    assert len(left) <= 4 * (len(live) + 5 * chain)


def test_a_set_of_offsets_is_a_set():
    rng = random.Random(1)
    bits, model = Offsets(5), set()
    for _ in range(2_000):
        offset = rng.randint(5, 300)
        if offset in model and rng.random() < 0.5:
            bits.discard(offset)
            model.discard(offset)
        else:
            bits.add(offset)
            model.add(offset)
    assert {offset for offset in range(400) if offset in bits} == model


def test_refused_and_repeated_are_still_so():
    rows = rows_of([*life(1, 0, 9), *life(2, 10, 19, upto=FINISHED)])
    left = folded(left_of(rows), 100)
    again = [records.encode(update(1, state)) for state in (DELETE_FINISHED, DELETE_STARTED)]
    outcomes = [type(left.apply(left.position, value)) for value in again]
    assert outcomes == [Repeated, Rejected]
