"""Whole copies, column by column: what is taken, and that it is exactly what one by one gives."""

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlmm_daemon.codec import record_suffix as tails
from rlmm_daemon.codec import records
from rlmm_daemon.codec.custom_metadata import ONLY_IF_STARTED
from rlmm_daemon.core.fold import common_events, copy_runs
from rlmm_daemon.core.fold.fold import Fold
from rlmm_daemon.core.snapshots import unsealing
from rlmm_daemon.domain.ids import LeaderEpoch, MetadataPartition, TopicIdPartition
from rlmm_daemon.domain.partition_delete import PartitionDeleteState
from tests.unit.core.fold.test_fold import everything
from tests.unit.core.fold.test_histories import snapshot_of
from tests.unit.core.world import (
    DELETE_FINISHED,
    DELETE_STARTED,
    FINISHED,
    FOO,
    TOPIC_ID,
    add,
    delete,
    update,
)

BAR = TopicIdPartition(TOPIC_ID, "bar-of-another-length", 3)
COPIES = 10


def copy(n, at=FOO, custom=None, *, seg=None, no_txn=True):
    seg = n if seg is None else seg
    started = add(seg, n * 10, n * 10 + 9, {0: n * 10}, txn_index_empty=no_txn)
    return [
        records.encode(msgspec.structs.replace(event, partition=at))
        for event in (started, update(seg, FINISHED, custom))
    ]


def one(n, first, last):
    added = add(n, first, last, {0: first}, txn_index_empty=True)
    return [records.encode(added), records.encode(update(n, FINISHED))]


def copies(first, count, **fields):
    return [value for n in range(first, first + count) for value in copy(n, **fields)]


def both_ways(values):
    """Return the fold by runs and how many rows each look for whole copies took."""
    by_runs, singly = (Fold(MetadataPartition(0), 1) for _ in range(2))
    rows = [(2 * at, value) for at, value in enumerate(values)]
    at = 0
    while at < len(rows):
        behind = by_runs.apply_run(rows, at, len(rows), min(at + 4, len(rows)))
        if behind == at:
            by_runs.apply(*rows[at])
            behind += 1
        at = behind
    for offset, value in rows:
        singly.partitions.by_prefix.clear()  # so that nothing is known by its prefix
        singly.apply(offset, value)
    assert everything(by_runs) == everything(singly)
    assert snapshot_of(by_runs) == snapshot_of(singly)
    return by_runs


GOLDEN = Path(__file__).parents[3] / "data" / "golden"
KAFKAS = [
    bytes.fromhex(json.loads(line)["hex"])
    for name in ("records.jsonl", "tolerated.jsonl")
    for line in (GOLDEN / name).read_text("utf-8").splitlines()
]


ENVELOPE_BYTES = 3
#: Of a TopicIdPartitionEntry: id, partition and tags. Its name comes with its length + 1 in front.
BEHIND_NAME_BYTES = 16 + 4 + 1


def of_foo(value):
    """Return Kafka's record as one of the user partition whose copies stand around it."""
    if len(value) <= ENVELOPE_BYTES:
        return value
    behind = ENVELOPE_BYTES + value[ENVELOPE_BYTES] + BEHIND_NAME_BYTES
    return value[:ENVELOPE_BYTES] + tails.prefix_of(FOO) + value[behind:]


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_records_that_kafka_wrote_and_what_became_of_them_come_to_the_same(data):
    """Whatever lies between whole copies: Kafka's own bytes, and those with a few bits turned."""
    begun, ended = copy(COPIES)
    values = [*copies(0, COPIES), begun]
    picked = st.sampled_from(KAFKAS) | st.sampled_from(values) | st.just(ended)
    for value in data.draw(st.lists(picked, max_size=8)):
        changed = bytearray(of_foo(value))
        for at in data.draw(st.lists(st.integers(-30, len(changed) - 1), max_size=2)):
            changed[at] ^= 1 << data.draw(st.integers(0, 7))
        changed += bytes(data.draw(st.sampled_from([0, 0, 1])))
        values.insert(data.draw(st.integers(0, len(values))), bytes(changed))
    both_ways(values)


@pytest.fixture
def taken(monkeypatch):
    """How many copies were put at once, in order."""
    counts = []
    put = copy_runs._put

    def counted(found):
        counts.append(len(found.ids))
        put(found)

    monkeypatch.setattr(copy_runs, "_put", counted)
    return counts


@pytest.mark.parametrize("custom", [None, b"", b"x" * 30], ids=["none", "empty", "some"])
@pytest.mark.parametrize("no_txn", [True, False])
def test_copies_in_a_row_are_put_at_once(taken, custom, no_txn):
    both_ways(copies(0, 1) + copies(1, COPIES, custom=custom, no_txn=no_txn))
    assert taken == [COPIES]


@pytest.fixture(params=["columns", "pairs"])
def way(request, monkeypatch):
    """Whole copies side by side, or each for itself."""
    if request.param == "pairs":
        monkeypatch.setattr(copy_runs, "apply", lambda _caches, _rows, begin, _end: (begin, begin))


@pytest.fixture
def pairs(monkeypatch):
    """How many copies were applied each for itself, both records at once."""
    counts = []
    copied = common_events.copied

    def counted(*fields):
        counts.append(copied(*fields))
        return counts[-1]

    monkeypatch.setattr(common_events, "copied", counted)
    return counts


@pytest.mark.parametrize("custom", [None, b"", b"x" * 30], ids=["none", "empty", "some"])
@pytest.mark.parametrize("no_txn", [True, False])
def test_copies_of_many_user_partitions_are_applied_one_by_one(taken, pairs, custom, no_txn):
    many = [FOO._replace(partition=number) for number in range(40)]
    first = [copy(0, at=at, custom=custom, no_txn=no_txn) for at in many]
    turns = [copy(n, at=at, custom=custom, no_txn=no_txn) for n in range(1, 4) for at in many]
    rows = [*enumerate(value for both in [*first, *turns] for value in both)]
    fold = Fold(MetadataPartition(0), 1)
    for offset, value in rows[: 2 * len(many)]:
        fold.apply(offset, value)
    for at in range(2 * len(many), len(rows), 2 * len(many)):
        assert fold.apply_run(rows, at, at + 2 * len(many)) == at + 2 * len(many)
    assert not taken
    assert pairs == [True] * len(turns)
    singly = Fold(MetadataPartition(0), 1)
    for offset, value in rows:
        singly.partitions.by_prefix.clear()
        singly.apply(offset, value)
    assert everything(fold) == everything(singly)
    assert snapshot_of(fold) == snapshot_of(singly)


def test_a_look_for_whole_copies_ends_where_too_many_take_turns():
    many = [FOO._replace(partition=number) for number in range(40)]
    fold = Fold(MetadataPartition(0), 1)
    values = [value for n in range(2) for at in many for value in copy(n, at=at)]
    for offset, value in enumerate(values[: 2 * len(many)]):
        fold.apply(offset, value)
    rows = list(enumerate(values))
    caches = fold.partitions.by_prefix
    begin, end = 2 * len(many), len(rows)
    found, _, behind = copy_runs._look(caches, rows, begin, end)
    assert behind == end
    assert len(found) == (end - begin) // (2 * copy_runs.COPIES_MIN) + 1
    assert copy_runs.apply(caches, rows, begin, end) == (begin, end)


def test_user_partitions_that_take_turns_are_put_at_once(taken):
    turns = [value for n in range(COPIES) for at in (FOO, BAR) for value in copy(n, at=at)]
    both_ways(turns)
    assert taken == [COPIES - 1] * 2


def test_a_copy_that_began_before_does_not_stop_the_ones_behind_it(taken):
    first, last = copy(0)
    fold = Fold(MetadataPartition(0), 1)
    fold.apply(0, first)
    rows = list(enumerate([last, *copies(1, COPIES)], 1))
    assert fold.apply_run(rows, 0, len(rows), 1) == len(rows)
    assert taken == [COPIES]


def test_copies_before_one_of_an_unknown_partition_are_put(taken):
    values = copies(0, 1) + copies(1, 4) + copies(0, 4, at=BAR)
    fold = both_ways(values)
    assert taken == [4, 3]
    assert len(fold.partitions) == 2


def test_rows_are_not_looked_at_in_vain_again_and_again(monkeypatch):
    looked = []
    apply = copy_runs.apply

    def noted(caches, rows, begin, end):
        behind, until = apply(caches, rows, begin, end)
        looked.append(until - begin)
        return behind, until

    monkeypatch.setattr(copy_runs, "apply", noted)
    apart = [value for n in range(0, 400, 2) for value in copy(n)]  # gaps all over
    fold = both_ways(apart)
    assert fold.applied == len(apart)
    assert sum(looked) <= 2 * len(apart)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("everywhere", [True, False], ids=["all of them", "one of them"])
@pytest.mark.parametrize("which", [0, 1], ids=["started", "finished"])
@pytest.mark.parametrize("change", [1, 2, 0x80])
def test_no_changed_byte_makes_a_difference(which, change, everywhere):
    """Every byte of a run's records in turn: what is odd is found, wherever it stands."""
    values = [*copies(0, 1), *copies(1, COPIES, custom=b"custom"), None, *copies(COPIES + 1, 2)]
    changed = range(2 + which, 2 * COPIES + 2, 2) if everywhere else [COPIES + which]
    for at in range(len(values[changed[0]])):
        odd = list(values)
        for index in changed:
            value = bytearray(odd[index])
            value[at] ^= change
            odd[index] = bytes(value)
        both_ways(odd)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(
    "odd",
    [
        pytest.param([None], id="a tombstone"),
        pytest.param([b""], id="an empty record"),
        pytest.param([b"\x01\x00\x00"], id="a cut record"),
        pytest.param([b"\x01\x00\x00\x7f"], id="a cut prefix"),
        pytest.param(copy(2), id="the same copy again"),
        pytest.param(copy(30), id="a gap"),
        pytest.param([records.encode(update(2, DELETE_STARTED))], id="a delete"),
        pytest.param(copy(5)[:1], id="a copy that does not end"),
        pytest.param(copy(5)[1:], id="an end without a beginning"),
        pytest.param(copy(5, custom=b"x"), id="of another length"),
        pytest.param(copy(5, no_txn=False), id="with a transaction index"),
        pytest.param(
            [records.encode(add(40, 10, 90, {0: 10}, txn_index_empty=True)),
             records.encode(update(40, FINISHED))],
            id="an overlap",
        ),
        pytest.param(
            [records.encode(add(40, 50, 59, {1: 50}, txn_index_empty=True)),
             records.encode(update(40, FINISHED))],
            id="another epoch",
        ),
        pytest.param(
            [records.encode(add(40, 50, 59, {0: 53}, txn_index_empty=True)),
             records.encode(update(40, FINISHED))],
            id="an epoch that begins within",
        ),
    ],
)  # fmt: skip
def test_what_is_odd_in_the_middle_goes_its_own_way(odd):
    both_ways([*copies(0, 5), *odd, *copies(5, 4), None, *copies(9, 4)])


STUCK = update(1, DELETE_STARTED, ONLY_IF_STARTED)
#: Segment 99, and more behind it.
AGAIN = [*copy(5, seg=99, custom=b"c"), *copies(6, 4, custom=b"c")]
#: A record whose size differs from all others', so that it is alike to none.
OTHER = add(50, 50, 59, {0: 50}, txn_index_empty=True)


def behind_head(changed):
    """Return a copy whose update has another end: custom metadata, state, tags."""
    started, finished = copy(1)
    return [started, finished[:-3] + changed]


@pytest.mark.parametrize(
    "last",
    [
        pytest.param(behind_head(b"\0\1\0\0"), id="a byte behind the end"),
        pytest.param(behind_head(b"\x90\1" + bytes(0x8E) + b"\1\0"), id="a size of two bytes"),
    ],
)
@pytest.mark.usefixtures("way")
def test_an_end_that_does_not_fit_is_minded(last):
    both_ways([*copies(0, 1), *last])


@pytest.mark.usefixtures("way")
def test_a_highest_offset_stays_where_it_was():
    gone = [records.encode(update(4, state)) for state in (DELETE_STARTED, DELETE_FINISHED)]
    both_ways([*copies(0, 5), *gone, *one(9, 40, 44)])


@pytest.mark.usefixtures("way")
def test_an_epoch_that_begins_behind_the_segments_end_is_minded():
    odd = add(9, 10, 19, {0: 20}, txn_index_empty=True)
    both_ways([records.encode(each) for each in (add(1, 0, 9), odd, update(9, FINISHED))])


BEFORE = [
    pytest.param([STUCK, update(1, DELETE_FINISHED)], copies(1, 1) + copies(5, 4), id="held"),
    pytest.param([delete(state) for state in PartitionDeleteState], copies(5, 4), id="deleted"),
    pytest.param([], copies(5, 1) * 4, id="the same one"),
    pytest.param([], [v for n in range(5, 9) for v in copy(n, seg=5)], id="one id for all"),
    pytest.param([add(99, 0, 9, {1: 0}), update(99, FINISHED)], AGAIN, id="in another epoch"),
    pytest.param(
        [add(99, 0, 9, {1: 0}), update(99, FINISHED),
         update(99, DELETE_STARTED, ONLY_IF_STARTED), update(99, DELETE_FINISHED)],
        AGAIN, id="held before",
    ),
    pytest.param(
        [add(99, 0, 9, {1: 0}), update(99, FINISHED, b"kept"), update(99, FINISHED)],
        AGAIN, id="custom metadata of that one was kept",
    ),
    pytest.param([], [*one(9, 33, 36), *one(10, 50, 55)], id="overlap behind"),
    pytest.param(
        [update(4, DELETE_STARTED), update(4, DELETE_FINISHED)],
        [*one(9, 40, 44), *one(10, 45, 47)], id="below the highest",
    ),
    pytest.param([], copies(1, 4), id="known ones"),
    pytest.param([add(6, 60, 69, {0: 60}, txn_index_empty=True)], copies(5, 4), id="begun"),
    pytest.param(
        [add(40, 30, 39, {0: 30}, txn_index_empty=True), update(40, FINISHED)],
        copies(4, 4), id="overlap before",
    ),
    pytest.param([OTHER, update(50, FINISHED), update(50, DELETE_STARTED)], copies(5, 4),
                 id="highest is above"),
    pytest.param([update(4, DELETE_STARTED), update(4, DELETE_FINISHED)], copies(4, 4),
                 id="the last one was deleted"),
    pytest.param(
        [add(7, 70, 79, {0: 70}, txn_index_empty=True), add(7, 70, 79, {1: 70})],
        copies(5, 4), id="a stray",
    ),
    pytest.param([update(3, FINISHED, b"kept"), update(3, FINISHED)],
                 copies(5, 4, custom=b"new"), id="custom metadata was kept"),
]  # fmt: skip


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(("before", "behind"), BEFORE)
def test_what_was_before_is_minded(before, behind):
    both_ways([*copies(0, 5), *map(records.encode, before), *behind, None, *copies(9, 4)])


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(("before", "behind"), BEFORE)
def test_what_a_snapshot_has_is_minded(before, behind, monkeypatch):
    former = snapshot_of(both_ways([*copies(0, 5), *map(records.encode, before)]))
    folds = [unsealing.in_place(former)[1] for _ in range(2)]
    for fold in folds:
        assert [fold.partitions[partition] for partition in list(fold.partitions)], "awake"
    by_runs, singly = folds
    rows = list(enumerate([*behind, None], by_runs.position))
    at = 0
    while at < len(rows):
        if (behind_at := by_runs.apply_run(rows, at, len(rows))) == at:
            by_runs.apply(*rows[at])
            behind_at += 1
        at = behind_at
    monkeypatch.setattr(common_events, "start", lambda *_: False)
    monkeypatch.setattr(common_events, "finish", lambda *_: False)
    for offset, value in rows:
        singly.apply(offset, value)
    assert everything(by_runs) == everything(singly)
    assert snapshot_of(by_runs) == snapshot_of(singly)


def test_a_partition_with_a_sealed_table_goes_row_by_row(taken):
    sealed = both_ways(copies(0, 5))
    _, fold = unsealing.in_place(snapshot_of(sealed))
    taken.clear()
    assert fold.partitions[FOO].segments.sealed is not None
    rows = list(enumerate(copies(5, 4), fold.position))
    assert fold.apply_run(rows, 0, len(rows)) == len(rows)
    assert not taken, "not as whole copies"
    plain = both_ways(copies(0, 9)).partitions[FOO]
    assert fold.partitions[FOO].list_epoch(LeaderEpoch(0)) == plain.list_epoch(LeaderEpoch(0))


def test_an_id_that_came_long_before_is_known():
    """It is in a generation of changes that is not the newest."""
    former = copies(0, COPIES)
    again = [value for n in range(4) for value in copy(COPIES + n, seg=n)]
    by_runs, singly = (Fold(MetadataPartition(0), 1) for _ in range(2))
    for fold in (by_runs, singly):
        for offset, value in enumerate(former):
            fold.apply(offset, value)
        assert fold.partitions[FOO].segments.older
    rows = list(enumerate(again, len(former)))
    assert by_runs.apply_run(rows, 0, len(rows)) == 0, "each is refused"
    for offset, value in rows:
        by_runs.apply(offset, value)
        singly.partitions.by_prefix.clear()
        singly.apply(offset, value)
    assert everything(by_runs) == everything(singly)
