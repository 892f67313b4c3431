"""Long listings and sizes: drawn in steps while events arrive, and still as of one moment."""

import random
from typing import Any

import pytest

from rlmm_daemon.codec import records
from rlmm_daemon.core.fold import walks
from rlmm_daemon.core.fold.fold import Fold
from rlmm_daemon.domain.ids import MetadataPartition
from tests.unit.core.fold.test_histories import EPOCHS, Layered, event_of_two
from tests.unit.core.world import FINISHED, FOO, World, add, update

AT_ONCE = 2


@pytest.fixture(autouse=True)
def short_steps(monkeypatch):
    monkeypatch.setattr(walks, "SEGMENTS_AT_ONCE", AT_ONCE)


def walks_of(cache):
    """Return walks and what they have to come to."""
    made: list[Any] = [(walks.listing(cache, None), cache.list_all())]
    for epoch in [*EPOCHS, 99]:
        made.append((walks.listing(cache, epoch), cache.list_epoch(epoch)))
        made.append((walks.size(cache, epoch), cache.size(epoch)))
    return made


def joined(pieces, expected):
    return sum(pieces) if isinstance(expected, int) else [one for piece in pieces for one in piece]


@pytest.mark.parametrize("seed", range(100))
def test_a_walk_says_what_was_true_when_it_was_made(seed):
    rng = random.Random(seed)
    layered, done = Layered(rng), 0
    under_way: list[Any] = []
    for offset in range(rng.randint(10, 150)):
        layered.fold.apply(offset, records.encode(event_of_two(rng, ordinary=seed % 3 == 0)))
        layered.step()
        if rng.random() < 0.2:
            for cache in list(layered.fold.partitions.values()):
                under_way += [(walk, expected, []) for walk, expected in walks_of(cache)]
        for walk, _, drawn in under_way:
            if rng.random() < 0.5 and (piece := next(walk.pieces, None)) is not None:
                drawn.append(piece)
    for walk, expected, drawn in under_way:
        drawn.extend(walk.pieces)
        assert joined(drawn, expected) == expected
        done += walk.is_long
        if not isinstance(expected, int):
            assert all(len(piece) < 2 * AT_ONCE for piece in drawn)
            assert walk.is_long == (len(expected) > AT_ONCE)
    assert done or seed != 1, "some of them are what this is about"


def filled(count, **fields):
    world = World()
    world.fold = Fold(MetadataPartition(0), 1)
    for number in range(count):
        world.put(add(number, 10 * number, 10 * number + 9, **fields))
        world.put(update(number, FINISHED))
    return world


def test_the_size_of_what_has_one_epoch_is_counted_already():
    cache = filled(20).cache
    assert walks.size(cache, EPOCHS[0]).is_long is False
    assert list(walks.size(cache, EPOCHS[0]).pieces) == [cache.size(EPOCHS[0])] == [200]


def test_a_second_epoch_makes_the_sizes_to_be_summed():
    world = filled(20)
    world.put(add(99, 200, 209, {0: 200, 1: 205}))
    walk = walks.size(world.cache, EPOCHS[0])
    assert walk.is_long
    world.put(update(99, FINISHED))
    pieces = list(walk.pieces)
    assert len(pieces) > 5
    assert sum(pieces) == 210


def test_what_is_in_no_listing_is_not_counted():
    """The rule of equal starts makes a segment vanish from listings (the third set)."""
    world = World()
    for number, end in ((1, 49), (2, 29), (3, 99), (4, 9)):
        start = 100 if number == 3 else 0
        world.put(add(number, start, start + end))
        world.put(update(number, FINISHED))
    for number in range(5, 12):
        world.put(add(number, 100 * number, 100 * number + 9))
        world.put(update(number, FINISHED))
    assert world.cache.third_set(EPOCHS[0])
    assert sum(walks.size(world.cache, EPOCHS[0]).pieces) == world.cache.size(EPOCHS[0])
    assert sum(world.cache.bytes_by_state) != world.cache.size(EPOCHS[0])


def test_a_listing_is_in_kafkas_order_while_copies_are_under_way():
    world = filled(9)
    for number in (40, 41, 42):
        world.put(add(number, 10 * (number - 38), 10 * (number - 38) + 9))
    expected = world.cache.list_epoch(EPOCHS[0])
    walk = walks.listing(world.cache, EPOCHS[0])
    assert walk.is_long
    assert joined(walk.pieces, expected) == expected
    assert world.fold.partitions[FOO] is world.cache
