"""One metadata partition: what is passed over, what is found, and the two ways to read a record."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlmm_daemon.codec import custom_metadata, records
from rlmm_daemon.codec import record_suffix as tails
from rlmm_daemon.core.fold.fold import TROUBLES_MAX, Fold
from rlmm_daemon.core.fold.outcome import Applied, Rejected, Repeated, Unreadable
from rlmm_daemon.core.partitioner import metadata_partition
from rlmm_daemon.domain.ids import (
    BrokerId,
    LeaderEpoch,
    MetadataPartition,
    Offset,
    TopicId,
    TopicIdPartition,
)
from rlmm_daemon.domain.partition_delete import PartitionDeleteState
from rlmm_daemon.domain.segment import SegmentSnapshot, SegmentState, SegmentUpdate
from tests.unit.core.world import (
    DELETE_FINISHED,
    DELETE_STARTED,
    FINISHED,
    FOO,
    STARTED,
    TOPIC_ID,
    World,
    add,
    delete,
    seg,
    update,
)


def fold_of(partition, count):
    return Fold(MetadataPartition(partition), count)


GOOD = records.encode(add(1, 0, 100))
KEY_3 = records.encode(
    SegmentSnapshot(
        segment_id=seg(1),
        start_offset=Offset(0),
        end_offset=Offset(9),
        broker_id=BrokerId(1),
        max_timestamp_ms=1,
        event_timestamp_ms=1,
        segment_leader_epochs={LeaderEpoch(0): Offset(0)},
        segment_size_bytes=1,
        state=STARTED,
    )
)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "tombstone"),
        (b"", "malformed"),
        (b"\x01", "malformed"),
        (b"garbage", "malformed"),
        (b"\x02" + GOOD[1:], "malformed"),
        (b"\x01\x04" + GOOD[2:], "unknown_key"),
        (b"\x01\x00\x02" + GOOD[3:], "malformed"),
        (GOOD[:-1], "malformed"),
        (GOOD + b"\x00", "malformed"),
        (KEY_3, "snapshot_record"),
    ],
)
def test_what_is_no_event_is_passed_over_counted_and_shown(value, reason):
    fold = fold_of(0, 1)
    fold.apply(0, GOOD)
    outcome = fold.apply(7, value)
    assert outcome == Unreadable(reason, (value or b"")[:32].hex())
    assert (fold.position, fold.unreadable) == (8, {reason: 1})
    assert [(t.offset, t.reason, t.head_hex) for t in fold.unreadable_recent] == [
        (7, reason, outcome.head_hex)
    ]


def test_an_event_that_belongs_to_another_metadata_partition_is_passed_over():
    home = metadata_partition(TOPIC_ID, 0, 50)
    stranger = fold_of((home + 1) % 50, 50)
    assert stranger.apply(0, GOOD).reason == "wrong_partition"
    assert not len(stranger.partitions)
    assert isinstance(fold_of(home, 50).apply(0, GOOD), Applied)


def test_the_ring_of_troubles_is_bounded_and_the_counters_are_not():
    fold = fold_of(0, 1)
    for offset in range(3 * TROUBLES_MAX):
        fold.apply(offset, None)
    assert fold.unreadable == {"tombstone": 3 * TROUBLES_MAX}
    assert len(fold.unreadable_recent) == TROUBLES_MAX


def test_refused_events_of_unknown_partitions_take_no_memory():
    fold = fold_of(0, 1)
    for number in range(100):
        other = TopicIdPartition(TOPIC_ID, "foo", number)
        fold.apply(number, records.encode(update(1, FINISHED, partition=other)))
    assert not len(fold.partitions)


def test_the_position_moves_past_gaps():
    fold = fold_of(0, 1)
    fold.apply(3, GOOD)
    fold.advance(10, 4)
    assert (fold.position, fold.leader_epoch) == (10, 4)
    with pytest.raises(AssertionError):
        fold.apply(9, GOOD)


def test_operators_find_partitions_by_name_or_topic_id():
    world = World()
    again = TopicIdPartition(TopicId(bytes(16)), "foo", 0)
    world.put(add(1, 0, 100), add(2, 0, 100, partition=again))
    assert [c.partition for c in world.fold.find("foo", 0)] == [FOO, again]
    assert [c.partition for c in world.fold.find(TOPIC_ID, 0)] == [FOO]
    assert world.fold.find("foo", 1) == []


def test_live_finished_names_exactly_the_finished_segments():
    world = World()
    world.upload(1, 0, 100)
    world.put(add(2, 101, 200), add(3, 201, 300), update(3, DELETE_STARTED))
    assert list(world.fold.live_finished()) == [(FOO, seg(1))]


def test_counts_by_state_follow_every_step():
    world = World()
    world.upload(1, 0, 100)
    world.put(add(2, 101, 200), update(1, DELETE_STARTED), add(2, 101, 200, segment_size_bytes=7))
    assert world.cache.segments_by_state == [1, 0, 1, 0]
    assert world.cache.bytes_by_state == [7, 0, 10, 0]


events = st.one_of(
    st.builds(
        add,
        st.integers(1, 4),
        st.integers(0, 50),
        st.integers(50, 90),
        st.dictionaries(st.integers(0, 200), st.integers(0, 90), min_size=1, max_size=4),
        txn_index_empty=st.booleans(),
        custom_metadata=st.sampled_from([None, b"", b"x", bytes(200)]),
    ),
    st.builds(
        update,
        st.integers(1, 4),
        st.sampled_from([STARTED, FINISHED, DELETE_STARTED]),
        st.sampled_from([None, b"", b"x", bytes(200)]),
    ),
)
mutations = st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=2)


def told(outcome):
    match outcome:
        case Applied() | Repeated():
            return type(outcome), outcome.partition, outcome.event
        case Rejected(error=error):
            return type(outcome), outcome.partition, error.wire_name()
        case _:
            return outcome


@given(st.lists(st.tuples(events, mutations), max_size=30))
def test_the_short_way_through_apply_equals_the_long_way(steps):
    short, long = fold_of(0, 1), fold_of(0, 1)
    for offset, (event, changes) in enumerate(steps):
        value = bytearray(records.encode(event))
        for at, byte in changes:
            value[at % len(value)] = byte
        long.partitions.by_prefix.clear()  # so that nothing is known by its prefix
        a, b = short.apply(offset, bytes(value)), long.apply(offset, bytes(value))
        assert told(a) == told(b)
    assert short.unreadable == long.unreadable
    for partition, cache in short.partitions.items():
        assert cache.list_all() == long.partitions[partition].list_all()


def test_records_of_a_common_shape_are_not_decoded(monkeypatch):
    """A replay is little else; to decode each takes many times as long."""
    fold = fold_of(0, 1)
    fold.apply(0, GOOD)

    def decoded(_value):
        raise AssertionError("decoded")

    monkeypatch.setattr(records, "decode_normal", decoded)
    for event in (
        update(1, FINISHED),
        add(2, 101, 200, {3: 101}, txn_index_empty=True),
        add(3, 201, 300, {3: 201}),
        add(3, 201, 300, {3: 201, 4: 250}, segment_size_bytes=7),  # begun once more
        update(2, FINISHED, bytes(100)),
        update(3, FINISHED),
        update(2, DELETE_STARTED, bytes(60)),
        update(2, DELETE_FINISHED),
    ):
        assert isinstance(fold.apply(fold.position, records.encode(event)), Applied)
    assert isinstance(fold.apply(9, records.encode(update(3, DELETE_FINISHED))), Rejected)
    with pytest.raises(AssertionError, match="decoded"):
        fold.apply(10, records.encode(delete(PartitionDeleteState.DELETE_PARTITION_MARKED)))


#: What a broker writes all day: copies of one epoch behind one another, of two user partitions.
ordinary = st.builds(
    lambda segment, partition, seen, custom, broker: (
        add(
            segment, segment * 10, segment * 10 + 9, {0: segment * 10},
            partition=partition, txn_index_empty=True, broker_id=broker,
        )
        if seen
        else update(segment, FINISHED, custom, partition=partition, broker_id=broker)
    ),
    st.integers(1, 4),
    st.sampled_from([FOO, TopicIdPartition(TOPIC_ID, "foo", 1)]),
    st.booleans(),
    st.sampled_from([None, None, b"x"]),
    st.sampled_from([1, 1, 2]),
)  # fmt: skip
#: Deletes that free an id for another copy, meant for a stuck copy or not, and moved epochs.
deletes = st.one_of(
    st.builds(
        update,
        st.integers(1, 4),
        st.sampled_from([DELETE_STARTED, DELETE_FINISHED]),
        st.sampled_from([None, custom_metadata.ONLY_IF_STARTED]),
    ),
    st.builds(
        lambda n, epoch: add(n, n * 10, n * 10 + 9, {epoch: n * 10}, txn_index_empty=True),
        st.integers(1, 4),
        st.integers(0, 1),
    ),
)


def everything(fold):
    return fold.position, fold.applied, fold.repeated, fold.rejected, fold.unreadable, {
        at: (
            cache.list_all(),
            {epoch: cache.list_epoch(epoch) for epoch in cache.epochs.numbers()},
            {epoch: cache.third_set(epoch) for epoch in cache.epochs.numbers()},
            {epoch: index.cover.reach for epoch, index in cache.epochs.items()},
            [cache.lookup(epoch, offset) for epoch in (0, 1) for offset in range(100)],
            cache.highest_offsets, cache.segments_by_state, cache.bytes_by_state, cache.writer,
            cache.late_writers, cache.strays, cache.held, cache.kept.every(),
            cache.delete_state, cache.changes, len(cache.segments),
        )
        for at, cache in fold.partitions.items()
    }  # fmt: skip


@settings(max_examples=400)
@given(
    st.lists(
        st.tuples(
            st.one_of(*[ordinary] * 6, events, deletes),
            st.one_of(*[st.just([])] * 9, mutations),
        ),
        min_size=8,
        max_size=40,
    ),
    st.integers(1, 9),
)
def test_a_run_equals_its_events_one_by_one(steps, at_once):
    values = []
    for event, changes in steps:
        value = bytearray(records.encode(event))
        for at, byte in changes:
            value[at % len(value)] = byte
        values.append(bytes(value))
    hold_equal(values, at_once)


def copy(n, **fields):
    return add(n, n * 10, n * 10 + 9, {0: n * 10}, txn_index_empty=True, **fields)


@pytest.mark.parametrize(
    "before",
    [
        pytest.param(
            [
                copy(2), update(2, FINISHED),
                update(2, DELETE_STARTED, custom_metadata.ONLY_IF_STARTED),
                update(2, DELETE_FINISHED),
            ],
            id="held",
        ),
        pytest.param([copy(2, custom_metadata=b"old"), copy(2)], id="custom metadata was kept"),
        pytest.param(
            [
                add(4, 0, 5, {0: 0}), update(4, FINISHED), add(3, 3, 19, {0: 3}),
                update(3, FINISHED),
            ],
            id="segments overlap",
        ),
        pytest.param(
            [delete(state) for state in PartitionDeleteState], id="the partition was deleted"
        ),
        pytest.param(
            [add(2, 20, 29, {1: 20}, txn_index_empty=True)], id="in another epoch before"
        ),
    ],
)  # fmt: skip
def test_a_run_minds_what_was_before(before):
    steps = [copy(1), update(1, FINISHED), *before, copy(2), update(2, FINISHED, b"new")]
    steps += [copy(3), update(3, FINISHED), add(4, 5, 35, {0: 5}), update(4, FINISHED)]
    hold_equal([records.encode(step) for step in steps], len(steps))


def hold_equal(encoded, at_once):
    values = [(2 * n, value) for n, value in enumerate(encoded)]
    runs, singly = fold_of(0, 1), fold_of(0, 1)
    at = 0
    while at < len(values):
        reached = runs.apply_run(values, at, min(at + at_once, len(values)))
        if reached == at:
            runs.apply(*values[at])
            reached += 1
        at = reached
    for offset, value in values:
        singly.partitions.by_prefix.clear()  # so that nothing is known by its prefix
        singly.apply(offset, value)
    assert everything(runs) == everything(singly)
    assert runs.holding == singly.holding


def test_a_run_takes_all_that_is_ordinary_and_stops_before_what_is_not():
    fold = fold_of(0, 1)
    steps = [
        e
        for n in range(1, 5)
        for e in (
            add(n, n * 10, n * 10 + 9, {0: n * 10}, txn_index_empty=True),
            update(n, FINISHED),
        )
    ]
    values = [*enumerate(map(records.encode, [*steps, update(1, DELETE_STARTED)])), (9, None)]
    assert fold.apply_run(values, 0, len(values)) == 0, "nothing is known of it"
    fold.apply(*values[0])
    assert fold.apply_run(values, 1, len(values)) == 8
    assert (fold.position, fold.applied) == (8, 8)
    assert fold.apply_run(values, 8, len(values)) == 8
    fold.apply(*values[8])
    assert fold.apply_run(values, 9, len(values)) == 9, "a tombstone"


def test_there_are_no_runs_while_a_snapshot_is_drawn():
    fold = fold_of(0, 1)
    fold.apply(0, records.encode(add(1, 0, 9, {0: 0}, txn_index_empty=True)))
    fold.journal = {}
    assert fold.apply_run([(1, records.encode(update(1, FINISHED)))], 0, 1) == 0


@given(st.binary(max_size=200))
def test_apply_never_raises(value):
    fold = fold_of(0, 1)
    fold.apply(0, GOOD)
    fold.apply(1, value)
    fold.apply(2, GOOD[:45] + value)
    assert fold.position == 3


@given(events, st.lists(st.tuples(st.integers(0, 3), st.sampled_from([None, b"", bytes(200)]))))
def test_a_spliced_tail_equals_the_codecs_merge(event, updates):
    if isinstance(event, SegmentUpdate):
        return
    prefix = 3 + len(tails.prefix_of(FOO)) + 16
    record = records.encode(event)
    for state, custom in updates:
        change = msgspec.structs.replace(
            update(1, SegmentState(state), custom, broker_id=9), segment_id=event.segment_id
        )
        value = records.encode(change)
        at = prefix + 1
        tail = tails.merged(
            record[prefix:], tails.custom_at(record[prefix:]), value[at : at + 12],
            value[at + 12 : -2], state,
        )  # fmt: skip
        record = records.merge(record, change)
        assert record[prefix:] == tail
        tails.check(tail)
        assert tails.custom_of(tail) == custom
        assert tails.state_of(tail) == state
        assert tails.size_of(tail) == 10
        assert tails.has_txn_index(tail) != event.txn_index_empty


@pytest.mark.parametrize(
    "event",
    [
        add(2, 0, 100, txn_index_empty=True),
        add(2, 0, 100, {0: 0, 1: 50}),
        update(1, FINISHED),
        update(1, FINISHED, b"xy"),
    ],
)
def test_each_changed_byte_is_judged_alike_on_the_short_and_the_long_way(event):
    good = records.encode(event)
    for at in range(len(good)):
        for byte in {0, 1, 2, 3, 4, 127, 128, 255} - {good[at]}:
            value = good[:at] + bytes((byte,)) + good[at + 1 :]
            short, long = fold_of(0, 1), fold_of(0, 1)
            short.apply(0, GOOD)
            long.apply(0, GOOD)
            long.partitions.by_prefix.clear()
            assert told(short.apply(1, value)) == told(long.apply(1, value)), (at, byte)
