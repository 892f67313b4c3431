"""A finished segment that a stuck copy's delete ended is held until it was put back whole."""

import pytest

from rlmm_daemon.codec import records
from rlmm_daemon.codec.custom_metadata import ONLY_IF_STARTED, StoredFacts, encode
from rlmm_daemon.core.fold.fold import Fold
from rlmm_daemon.core.snapshots import sealing, unsealing
from rlmm_daemon.domain.ids import TopicId
from rlmm_daemon.domain.segment import CustomMetadata, SegmentMetadata
from tests.unit.core.world import (
    DELETE_FINISHED,
    DELETE_STARTED,
    FINISHED,
    FOO,
    MARKED,
    PARTITION_FINISHED,
    PARTITION_STARTED,
    STARTED,
    World,
    add,
    delete,
    seg,
    update,
)

OURS = encode(StoredFacts(layout_number=1, log_crc32c=7, sizes={".index": 3}))
MARK = update(1, DELETE_STARTED, ONLY_IF_STARTED)


def held_world(custom: CustomMetadata | None = OURS) -> World:
    world = World()
    world.put(add(1, 0, 9), update(1, FINISHED, custom), MARK)
    return world


def reloaded(world: World) -> World:
    header = sealing.header_of(
        world.fold, cluster_id="c", topic_id=TopicId(bytes(16)), created_at_ms=1
    )
    other = World()
    _, other.fold = unsealing.load(b"".join(sealing.write_chunks(world.fold, header)))
    return other


def held(fold: Fold) -> list[SegmentMetadata]:
    found = [records.decode(record) for record in fold.held_records()]
    return [each for each in found if isinstance(each, SegmentMetadata)]


@pytest.mark.parametrize("custom", [OURS, None, CustomMetadata(b"foreign")])
def test_the_mark_of_a_stuck_copy_holds_a_segment_that_had_been_finished(custom):
    world = held_world(custom)
    assert world.fold.holding == {FOO}
    (segment,) = held(world.fold)
    assert (segment.segment_id, segment.state, segment.custom_metadata) == (
        seg(1), FINISHED, custom,
    )  # fmt: skip
    assert world.cache.last_custom_metadata(seg(1)) == custom


def test_the_mark_holds_nothing_where_it_does_what_it_was_meant_for():
    world = World()
    world.put(add(1, 0, 9), MARK, update(1, DELETE_FINISHED))
    assert not world.fold.holding


def test_an_ordinary_delete_and_a_repeated_mark_hold_nothing():
    world = World()
    world.put(add(1, 0, 9), update(1, FINISHED, OURS), update(1, DELETE_STARTED, OURS), MARK)
    assert not world.fold.holding


def test_whatever_follows_it_stays_held_until_it_is_finished_again():
    world = held_world()
    for event in (
        update(1, DELETE_STARTED, OURS),
        update(1, DELETE_FINISHED),
        add(1, 0, 9),
    ):
        world.put(event)
        assert len(held(world.fold)) == 1
    world.put(update(1, FINISHED, OURS))
    assert not world.fold.holding
    assert world.look(0, 5) == 1


def test_a_partition_that_is_deleted_whole_holds_nothing_any_more():
    world = held_world()
    world.put(delete(MARKED), delete(PARTITION_STARTED), delete(PARTITION_FINISHED))
    assert not world.fold.holding


def test_a_snapshot_keeps_what_is_held_with_and_without_a_row_of_its_own():
    world = held_world()
    for event in (update(1, DELETE_FINISHED), add(1, 0, 9, {0: 0}), update(2, FINISHED)):
        loaded = reloaded(world)
        assert loaded.fold.holding == {FOO}
        assert held(loaded.fold) == held(world.fold)
        world.put(event)
    assert world.cache.state(seg(1)) is STARTED
