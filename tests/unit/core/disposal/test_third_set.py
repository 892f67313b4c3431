"""The third set: what is listed nowhere goes only if others that are listed hold its offsets."""

import random

import pytest

from rlmm_daemon.core.disposal.third_set import holders, may_go, removable
from tests.unit.core.world import (
    DELETE_FINISHED,
    DELETE_STARTED,
    World,
    add,
    number,
    seg,
    update,
)


@pytest.fixture
def world():
    return World()


def going(world: World) -> int | None:
    found = removable(world.cache)
    return None if found is None else number(found)


def test_a_segment_replaced_by_a_shorter_one_of_the_same_start_stays_for_its_tail(world):
    world.upload(1, 10, 100)
    world.upload(2, 10, 90)
    assert world.third(0) == [1]
    assert going(world) is None  # 91..100 are in segment 1 alone


@pytest.mark.parametrize("start", [91, 80])
def test_it_goes_once_referenced_segments_hold_all_of_it(world, start):
    world.upload(1, 10, 100)
    world.upload(2, 10, 90)
    world.upload(3, start, 200)
    assert going(world) == 1


def test_a_gap_of_one_offset_keeps_it(world):
    world.upload(1, 10, 100)
    world.upload(2, 10, 90)
    world.upload(3, 92, 200)
    assert going(world) is None


def test_another_of_the_third_set_is_no_cover(world):
    """Two that would be judged by each other would both go."""
    world.upload(1, 10, 100)
    world.upload(2, 10, 95)
    world.upload(3, 10, 90)
    assert world.third(0) == [1, 2]
    assert going(world) is None


def test_only_those_that_were_looked_for_are_a_cover(world):
    world.upload(1, 10, 100)
    world.upload(2, 10, 90)
    world.upload(3, 91, 200)
    assert holders(world.cache, seg(1)) == frozenset({seg(2), seg(3)})
    assert may_go(world.cache, seg(1), {seg(2), seg(3), seg(4)})
    assert not may_go(world.cache, seg(1), {seg(2)})


def test_one_that_fails_holds_up_no_other(world):
    for first, start in ((1, 10), (4, 310)):
        world.upload(first, start, start + 90)
        world.upload(first + 1, start, start + 80)
        world.upload(first + 2, start + 81, start + 190)
    assert going(world) == 1
    waiting = removable(world.cache, lambda each: each == seg(1))
    assert waiting == seg(4)


def test_a_segment_that_is_being_deleted_is_no_cover(world):
    world.upload(1, 10, 100)
    world.upload(2, 10, 90)
    world.upload(3, 91, 200)
    world.put(update(3, DELETE_STARTED))
    assert going(world) is None


def test_every_epoch_must_be_covered_in_that_epoch(world):
    world.upload(1, 0, 99, {0: 0, 1: 50})
    world.upload(2, 0, 40, {0: 0})
    world.upload(3, 41, 98, {0: 41, 1: 50})
    # In epoch 0 segment 2 took its place; in epoch 1 segment 3, which lacks offset 99.
    assert going(world) is None
    assert 1 in world.third(0)
    assert 1 in world.third(1)
    world.upload(4, 99, 120, {1: 99})
    assert going(world) == 1


def test_listed_in_one_epoch_is_listed(world):
    """Retention finds it there."""
    world.upload(1, 0, 99, {0: 0, 1: 50})
    world.upload(2, 0, 40, {0: 0})
    world.upload(3, 41, 49, {0: 41})
    assert world.third(0) == [1]
    assert 1 in world.referenced(1)
    assert going(world) is None


def test_only_a_finished_one_goes(world):
    world.upload(1, 10, 100)
    world.upload(2, 10, 90)
    world.upload(3, 91, 200)
    world.put(update(1, DELETE_STARTED))
    assert holders(world.cache, seg(1)) is None
    world.put(update(1, DELETE_FINISHED))
    assert holders(world.cache, seg(1)) is None


@pytest.mark.parametrize("seed", range(60))
def test_removing_what_may_go_one_by_one_never_takes_an_answer_away(seed):
    """Over random histories: every offset that a look-up answered is answered still."""
    luck = random.Random(f"third/{seed}")
    world = World()
    for n in range(1, luck.randint(4, 14)):
        start = luck.choice([0, 10, 20, 30])
        end = start + luck.choice([5, 9, 19, 29])
        epochs = {0: start}
        if end - start > 8 and luck.random() < 0.5:
            epochs[1] = start + luck.choice([4, 5])
        world.put(add(n, start, end, epochs))
        if luck.random() < 0.9:
            world.put(update(n, 1))
    before = {(e, o) for e in (0, 1) for o in range(80) if world.look(e, o) is not None}
    while (victim := removable(world.cache)) is not None:
        referenced = {i for e in world.cache.epochs.values() for i in e.referenced_ids()}
        assert victim not in referenced
        world.put(update(number(victim), DELETE_STARTED), update(number(victim), DELETE_FINISHED))
    after = {(e, o) for e in (0, 1) for o in range(80) if world.look(e, o) is not None}
    assert after == before
