"""What takes long to free goes in short steps, and never while anybody reads it."""

import sys

import pytest

from rlmm_daemon.core.fold import deferred_free, segment_table, walks
from rlmm_daemon.core.fold.cache import PartitionCache
from rlmm_daemon.domain.ids import LeaderEpoch, TopicIdPartition
from tests.unit.core.fold.test_walks import filled
from tests.unit.core.world import FINISHED, FOO, TOPIC_ID, add, seg, update

SEGMENTS = 10 * deferred_free.LONG


@pytest.fixture(autouse=True)
def somebody_frees(monkeypatch):
    monkeypatch.setattr(segment_table, "GENERATION", SEGMENTS // 2)
    emptied()
    with deferred_free.freed():
        yield


def emptied() -> int:
    """Return the steps in which everything went that was left."""
    steps = 0
    while deferred_free.free_some():
        steps += 1
    return steps


def test_a_fold_goes_in_steps():
    world = filled(SEGMENTS)
    tail = world.cache.segments[seg(1)]
    before = sys.getrefcount(tail)
    world.fold = None
    assert sys.getrefcount(tail) == before
    assert emptied() >= SEGMENTS // deferred_free.AT_ONCE
    assert sys.getrefcount(tail) == before - 1


def test_so_do_many_user_partitions():
    world = filled(0)
    many = [TopicIdPartition(TOPIC_ID, "many", each) for each in range(2 * deferred_free.LONG)]
    for tp in many:
        world.put(add(1, 0, 9, partition=tp), update(1, FINISHED, partition=tp))
    tail = world.fold.partitions[many[0]].segments[seg(1)]
    before = sys.getrefcount(tail)
    world.fold = None
    assert sys.getrefcount(tail) == before
    assert emptied() >= 2 * deferred_free.LONG // deferred_free.AT_ONCE
    assert sys.getrefcount(tail) == before - 1


def test_where_nobody_frees_everything_goes_at_once():
    deferred_free._freeing.clear()
    try:
        world = filled(SEGMENTS)
        tail = world.cache.segments[seg(1)]
        before = sys.getrefcount(tail)
        world.fold = None
        assert sys.getrefcount(tail) == before - 1
        assert emptied() == 0
    finally:
        deferred_free._freeing.append(None)


def test_what_is_left_when_the_last_one_ends_goes_too():
    deferred_free.leave([object()] * SEGMENTS)
    with deferred_free.freed():
        pass
    assert deferred_free.free_some(), "another one frees still"
    deferred_free._freeing.clear()
    with deferred_free.freed():
        deferred_free.leave([object()] * SEGMENTS)
    assert not deferred_free.free_some()
    deferred_free._freeing.append(None)


def test_what_is_short_goes_at_once():
    world = filled(deferred_free.LONG // 2)
    world.fold = None
    assert emptied() == 0


@pytest.mark.parametrize("epoch", [None, LeaderEpoch(0)])
def test_a_listing_under_way_loses_nothing(epoch):
    world = filled(SEGMENTS)
    expected = world.cache.list_all()
    walk = walks.listing(world.cache, epoch)
    found = list(next(walk.pieces))
    world.fold = None
    assert emptied()
    found += [record for piece in walk.pieces for record in piece]
    assert found == expected
    del walk
    assert emptied() >= SEGMENTS // deferred_free.AT_ONCE, "the listing's own copy"


def test_whoever_reads_a_table_keeps_it():
    """As a snapshot does that is drawn, a history that is written down, and a look-up."""
    world = filled(SEGMENTS)
    cache = world.cache
    expected, known = cache.list_all(), sorted(cache.live_finished())
    reader = cache.live_finished()
    found = [next(reader)]
    cache.segments, former = PartitionCache(FOO).segments, cache.segments
    index = cache.epochs[LeaderEpoch(0)]
    world.fold = cache = None
    emptied()
    assert [former.record(ref) for ref in former.refs()] == expected
    del former
    emptied()
    assert sorted([*found, *reader]) == known
    assert index.referenced_ids() == sorted(known)
    del index, reader
    assert emptied() >= 2 * SEGMENTS // deferred_free.AT_ONCE
