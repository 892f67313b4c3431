"""Every deliberate difference from Kafka's cache, by name; what Kafka would do stands beside it."""

import pytest

from rlmm_daemon.core.fold.outcome import ACCEPT, REPEAT, Applied, Rejected, Repeated
from rlmm_daemon.core.snapshots import sealing, unsealing
from rlmm_daemon.domain.errors import IllegalTransition, InvalidArgument, SegmentNotFound
from rlmm_daemon.domain.ids import TopicId, TopicIdPartition
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
    World,
    add,
    delete,
    seg,
    update,
)


@pytest.fixture
def world():
    return World()


def snapshot_of(fold):
    header = sealing.header_of(fold, cluster_id="c", topic_id=TopicId(bytes(16)), created_at_ms=1)
    return b"".join(sealing.write_chunks(fold, header))


# Row: Look-up checks only the floor entry


def test_a_look_up_finds_a_longer_earlier_segment_behind_a_contained_one(world):
    world.upload(1, 0, 100)
    world.upload(2, 10, 20)
    assert [world.look(0, offset) for offset in (5, 15, 50)] == [1, 2, 1]  # Kafka: 50 -> none


def test_a_look_up_finds_the_longer_segment_that_a_shorter_one_replaced(world):
    world.upload(1, 10, 100)
    world.upload(2, 10, 90)
    assert (world.look(0, 50), world.look(0, 95)) == (2, 1)  # Kafka: 95 -> none


@pytest.mark.parametrize("restarted", [False, True])
def test_who_reads_on_is_told_where_a_later_segment_lies_over_the_one_that_was_found(
    world, restarted
):
    world.upload(1, 0, 100)
    world.upload(2, 40, 60)
    world.upload(3, 101, 200)
    if restarted:
        _, world.fold = unsealing.in_place(snapshot_of(world.fold))
    until = {offset: world.cache.answers_until(0, offset) for offset in (0, 39, 40, 61, 101, 150)}
    assert until == {0: 39, 39: 39, 40: 60, 61: 100, 101: 200, 150: 200}
    world.remove(2)
    assert world.cache.answers_until(0, 10) == 100


def test_a_deleted_winner_brings_back_what_it_shadowed(world):
    world.upload(1, 0, 100)
    world.upload(2, 0, 200)
    world.put(update(2, DELETE_STARTED))
    assert (world.look(0, 50), world.look(0, 150)) == (1, None)  # Kafka: 50 -> none
    assert world.listed(0) == [1, 2]


def test_of_several_the_one_that_finished_last_answers_even_after_the_top_is_gone(world):
    for n, start, end in ((1, 0, 100), (2, 20, 120), (3, 10, 90), (4, 0, 130)):
        world.upload(n, start, end)
    world.put(update(4, DELETE_STARTED))
    assert [world.look(0, o) for o in (5, 10, 90, 91, 120, 121)] == [1, 3, 3, 2, 2, None]


def test_a_segment_that_finished_again_is_on_top_again(world):
    world.upload(1, 0, 100)
    world.upload(2, 50, 150)
    world.put(update(1, FINISHED))
    assert [world.look(0, offset) for offset in (40, 60, 120)] == [1, 1, 2]


# A finished segment can vanish from epoch listings


def test_a_vanished_segment_is_not_listed_but_in_the_third_set_and_still_looked_up(world):
    world.upload(1, 0, 100)
    world.upload(2, 0, 200)
    world.put(update(1, FINISHED))
    assert (world.listed(0), world.third(0)) == ([1], [2])
    assert (world.look(0, 50), world.look(0, 150)) == (1, 2)
    world.put(update(2, DELETE_STARTED))
    assert (world.listed(0), world.third(0), world.look(0, 150)) == ([1, 2], [], None)


def test_a_vanished_segment_that_finishes_again_is_referenced_again(world):
    world.upload(1, 10, 100)
    world.upload(2, 10, 90)
    world.put(update(1, FINISHED, at_ms=9))
    assert (world.referenced(0), world.third(0), world.unreferenced(0)) == ([1], [], {2})


# Row: Epoch entries never shrink


def test_an_epoch_with_nothing_left_keeps_only_its_highest_offset(world):
    world.upload(1, 0, 100, {0: 0, 1: 50})
    world.upload(2, 101, 200, {1: 101})
    world.remove(1)
    assert set(world.cache.epochs) == {1}
    assert world.cache.highest_offset(0) == 49
    world.remove(2)
    assert (list(world.cache.epochs), world.cache.is_empty) == ([], True)
    assert world.cache.highest_offset(1) == 200


def test_an_epoch_of_copies_that_never_finished_is_in_no_later_snapshot(world):
    world.upload(1, 0, 9)
    world.put(add(2, 10, 19, {5: 10}))
    _, world.fold = unsealing.in_place(snapshot_of(world.fold))
    world.remove(2)
    _, world.fold = unsealing.in_place(snapshot_of(world.fold))
    assert world.cache.epochs.numbers() == [0]


def test_a_start_repeated_with_other_epochs_leaves_no_leak(world):
    world.put(add(1, 0, 100, {0: 0}), add(1, 0, 100, {5: 0}))
    assert (world.listed(0), world.listed(5)) == ([1], [1])  # as in Kafka while it lives
    world.put(update(1, FINISHED))
    assert (world.look(0, 5), world.look(5, 5), world.listed(0)) == (None, 1, [1])
    world.remove(1)
    assert (world.listed(0), world.listed(5)) == ([], [])  # Kafka: listing epoch 0 throws for ever
    assert not list(world.cache.epochs)


# Erased custom metadata is Kafka's; the last one is kept beside the record


def test_erased_custom_metadata_is_kept_beside_the_record_for_deletes(world):
    world.put(add(1, 0, 100), update(1, FINISHED, b"where"), update(1, DELETE_STARTED))
    assert world.cache.get(seg(1)).endswith(b"\x00\x02\x00")  # null, DELETE_SEGMENT_STARTED, no tag
    assert world.cache.last_custom_metadata(seg(1)) == b"where"
    world.put(update(1, DELETE_FINISHED))
    assert world.cache.last_custom_metadata(seg(1)) is None
    assert world.cache.kept.every() == {}


def test_present_but_empty_custom_metadata_is_not_null(world):
    world.put(add(1, 0, 100, custom_metadata=b"old"), update(1, FINISHED, b""))
    assert world.cache.last_custom_metadata(seg(1)) == b""


# Row: Delete-partition machine never enforced


@pytest.mark.parametrize("event", [delete(PARTITION_STARTED), delete(PARTITION_FINISHED)])
def test_a_partition_delete_out_of_order_is_rejected(world, event):
    world.upload(1, 0, 100)
    assert isinstance(world.put(event), Rejected)  # Kafka: FINISHED drops the partition
    assert (world.look(0, 5), world.cache.delete_state) == (1, None)


def test_a_finished_partition_delete_drops_everything_and_rejects_what_follows(world):
    world.upload(1, 0, 100)
    world.put(delete(MARKED), delete(PARTITION_STARTED), delete(PARTITION_FINISHED))
    assert (world.cache.is_empty, world.cache.highest_offset(0)) == (True, None)
    for event in (update(1, DELETE_STARTED), update(1, DELETE_FINISHED), delete(MARKED)):
        assert isinstance(world.put(event), Rejected)
    assert sum(world.fold.rejected.values()) == 3
    assert isinstance(world.put(delete(PARTITION_FINISHED)), Repeated)


def test_a_copy_started_after_the_partitions_end_starts_a_new_life(world):
    world.upload(1, 0, 100)
    world.put(delete(MARKED), delete(PARTITION_STARTED), delete(PARTITION_FINISHED))
    assert isinstance(world.upload(2, 500, 600, {3: 500}), Applied)
    assert (world.cache.delete_state, world.look(3, 550)) == (None, 2)
    assert isinstance(world.put(delete(MARKED)), Applied)


def test_a_marked_partition_still_takes_segment_events(world):
    world.upload(1, 0, 100)
    world.put(delete(MARKED))
    assert isinstance(world.remove(1), Applied)


# Row: Writes are never validated

HISTORY = {
    "never seen": (),
    "started": (add(1, 0, 100),),
    "finished": (add(1, 0, 100), update(1, FINISHED, b"c")),
    "delete started": (add(1, 0, 100), update(1, FINISHED), update(1, DELETE_STARTED)),
    "gone": (
        add(1, 0, 100), update(1, FINISHED), update(1, DELETE_STARTED), update(1, DELETE_FINISHED)
    ),
    "marked": (delete(MARKED),),
    "delete finished": (delete(MARKED), delete(PARTITION_STARTED), delete(PARTITION_FINISHED)),
}  # fmt: skip
VERDICTS = [
    ("never seen", add(1, 0, 100), ACCEPT),
    ("never seen", add(1, 0, 100, state=FINISHED), InvalidArgument),
    ("never seen", update(1, FINISHED), SegmentNotFound),
    ("never seen", update(1, STARTED), InvalidArgument),
    ("never seen", update(1, DELETE_FINISHED), REPEAT),
    ("never seen", delete(MARKED), ACCEPT),
    ("never seen", delete(PARTITION_STARTED), IllegalTransition),
    ("never seen", delete(PARTITION_FINISHED), IllegalTransition),
    ("started", add(1, 0, 100), REPEAT),
    ("started", add(1, 0, 100, event_timestamp_ms=99999), REPEAT),
    ("started", add(1, 0, 101), IllegalTransition),
    ("started", add(1, 0, 100, broker_id=2), IllegalTransition),
    ("started", add(1, 0, 100, {0: 0, 1: 7}), IllegalTransition),
    ("started", add(1, 0, 100, txn_index_empty=True), IllegalTransition),
    ("started", add(1, 0, 100, segment_size_bytes=11), IllegalTransition),
    ("started", update(1, FINISHED), ACCEPT),
    ("started", update(1, DELETE_STARTED), ACCEPT),
    ("started", update(1, DELETE_FINISHED), IllegalTransition),
    ("finished", add(1, 0, 100), IllegalTransition),
    ("finished", update(1, FINISHED, b"c"), REPEAT),
    ("finished", update(1, FINISHED), REPEAT),
    ("finished", update(1, FINISHED, b"other"), ACCEPT),
    ("finished", update(1, DELETE_STARTED), ACCEPT),
    ("delete started", update(1, FINISHED), IllegalTransition),
    ("delete started", update(1, DELETE_STARTED), REPEAT),
    ("delete started", update(1, DELETE_FINISHED), ACCEPT),
    ("gone", update(1, DELETE_FINISHED), REPEAT),
    ("gone", update(1, DELETE_STARTED), SegmentNotFound),
    ("gone", add(1, 0, 100), ACCEPT),
    ("marked", delete(MARKED), REPEAT),
    ("marked", delete(PARTITION_STARTED), ACCEPT),
    ("marked", add(1, 0, 100), ACCEPT),
    ("delete finished", delete(PARTITION_FINISHED), REPEAT),
    ("delete finished", delete(MARKED), IllegalTransition),
    ("delete finished", add(1, 0, 100), ACCEPT),
    ("delete finished", update(1, DELETE_STARTED), SegmentNotFound),
]


@pytest.mark.parametrize(("history", "event", "expected"), VERDICTS)
def test_a_write_is_judged_before_it_is_appended(world, history, event, expected):
    if HISTORY[history]:
        world.put(*HISTORY[history])
    position = world.fold.position
    if isinstance(expected, type):
        with pytest.raises(expected):
            world.fold.validate(event)
    else:
        assert world.fold.validate(event) is expected
        outcome = world.put(event)
        assert isinstance(outcome, Applied | Repeated)
        assert world.fold.position == position + 1


def test_a_write_for_another_metadata_partition_is_refused(world):
    world.fold.partition_count = 1000
    stranger = TopicIdPartition(TOPIC_ID, "foo", 1)
    assert not world.fold.owns(stranger)
    with pytest.raises(InvalidArgument):
        world.fold.validate(add(1, 0, 100, partition=stranger))


def test_a_copy_that_finishes_after_another_broker_began_one_is_counted(world):
    world.put(add(1, 0, 100, broker_id=1), add(2, 0, 100, broker_id=2))
    world.put(update(2, FINISHED, broker_id=2))
    assert world.cache.late_writers == {}
    world.put(update(1, FINISHED, broker_id=1))
    assert world.cache.late_writers == {1: 1}


# Row W2: one more user partition replays the metadata partition


def test_the_fold_covers_every_user_partition_of_its_metadata_partition(world):
    others = [TopicIdPartition(TOPIC_ID, "foo", n) for n in range(1, 5)]
    for other in others:
        world.put(add(1, 0, 100, partition=other), update(1, FINISHED, partition=other))
    assert list(world.fold.partitions) == others
    assert FOO not in world.fold.partitions
