"""Long tables, made in many steps: every column is what the cache says, whatever came before."""

import random

import pytest

from rlmm_daemon.codec import record_suffix as tails
from rlmm_daemon.core.fold import id_order
from rlmm_daemon.core.fold.segment_table import SegmentTable
from rlmm_daemon.core.snapshots import unsealing
from tests.support.folds import seal
from tests.unit.core.fold.test_histories import snapshot_of
from tests.unit.core.world import (
    DELETE_FINISHED,
    DELETE_STARTED,
    FINISHED,
    World,
    add,
    seg,
    update,
)

SEGMENTS = 2_700
IDS = {
    "drawn": lambda rng: rng.getrandbits(128),
    "counted": lambda rng: rng.randrange(1 << 24),  # which begin alike
}


def verify(cache):
    table, found = seal(cache), dict(cache.segments.items())
    ordered = sorted(found, key=lambda each: (tails.start_of(found[each]), each))
    row_of = {segment_id: row for row, segment_id in enumerate(ordered)}
    kept = [found[each] for each in ordered]
    heap = b"".join(table.heap)
    assert table.ids == b"".join(ordered)
    assert [heap[a:b] for a, b in zip(table.offs, table.offs[1:], strict=False)] == kept
    assert list(table.states) == [tails.state_of(tail) for tail in kept]
    assert list(table.id_order) == [row_of[each] for each in sorted(ordered)]
    assert table.kept == sorted(
        (row_of[each], custom) for each, custom in cache.kept.every().items()
    )
    epochs = {epoch.epoch: epoch for epoch in table.epochs}
    for number, index in cache.epochs.items():
        epoch = epochs[number]
        assert list(epoch.starts) == list(index.cover.starts())
        for column, ids in (
            (epoch.rows, index.cover.ids()),
            (epoch.unreferenced, index.unreferenced),
            (epoch.third, index.third),
            (epoch.ranked, index.ranks),
        ):
            assert list(column) == [row_of[each] for each in ids]
        if not epoch.plain:
            keys = [row_of[each] for each in index.referenced_ids()]
            assert (list(epoch.key_rows), epoch.keys) == (keys, index.referenced_keys())


def grow(world, rng, draw, *, tidy, first=0):
    """Add segments: tidy ones follow one another, the others come in any order and overlap."""
    live = []
    for n in range(first, first + SEGMENTS):
        start = 10 * (n if tidy or rng.random() < 0.9 else rng.randrange(SEGMENTS))
        one, luck = draw(rng), rng.random()
        epochs = {n // 900: start} if luck < 0.8 else {n // 900: start, n // 900 + 1: start + 5}
        no_txn = tidy or rng.random() < 0.5
        world.put(add(one, start, start + 9, epochs, txn_index_empty=no_txn))
        if luck < 0.97:
            world.put(update(one, FINISHED, b"custom" if not tidy and luck < 0.1 else None))
        live.append(one)
        if not tidy and luck > 0.9:
            other = rng.choice(live)
            world.put(update(other, DELETE_STARTED))
            if luck > 0.95:
                world.put(update(other, DELETE_FINISHED))
                live = [each for each in live if each != other]


@pytest.mark.parametrize("ids", IDS)
@pytest.mark.parametrize("tidy", [True, False], ids=["tidy", "untidy"])
def test_every_column_of_a_long_table_is_what_the_cache_says(tidy, ids):
    rng, world = random.Random(7), World()
    grow(world, rng, IDS[ids], tidy=tidy)
    verify(world.cache)
    _, world.fold = unsealing.in_place(snapshot_of(world.fold))
    verify(world.cache)
    grow(world, rng, IDS[ids], tidy=tidy, first=SEGMENTS // 2 if not tidy else SEGMENTS)
    verify(world.cache)


@pytest.mark.parametrize("ids", IDS)
@pytest.mark.parametrize("count", [0, 1, id_order.AT_ONCE, id_order.AT_ONCE + 1, 9_000])
def test_ids_are_put_in_order_a_few_at_once(count, ids):
    rng = random.Random(count)
    drawn = [seg(IDS[ids](rng)) for _ in range(count)]
    parts = list(id_order.ordered(b"".join(drawn)))
    assert [drawn[at] for part in parts for at in part] == sorted(drawn)
    assert max(map(len, parts)) <= id_order.SORTED_AT_ONCE


def test_segments_that_begin_alike_are_told_apart_by_id_across_pages():
    table = SegmentTable(b"")
    rng = random.Random(1)
    place = {}
    for at in range(2_000):
        segment_id = seg(rng.getrandbits(128))
        start = at // 700  # so that each start lies in several pages
        table.put(segment_id, b"\0" + start.to_bytes(8, "big") + bytes(50), is_new=True)
        place[segment_id] = (start, segment_id)
    assert table.ordered() == sorted(place, key=place.__getitem__)


def test_states_are_found_where_tails_of_one_size_end_differently():
    world = World()
    for n in range(1, 40):
        three = b"" if n % 2 else b"abc"  # as long as what says that there is no transaction index
        world.put(add(n, 10 * n, 10 * n + 9, txn_index_empty=bool(n % 2), custom_metadata=None))
        if n % 3:
            world.put(update(n, FINISHED, three))
    world.put(*[update(n, DELETE_STARTED, b"" if n % 2 else b"abc") for n in range(1, 40) if n % 3])
    world.put(*[update(n, FINISHED, b"" if n % 2 else b"abc") for n in range(3, 20, 3)])
    world.put(*[update(n, DELETE_STARTED, b"" if n % 2 else b"abc") for n in range(21, 40, 3)])
    sizes = [len(tail) for _, tail in world.cache.segments.items()]
    assert set(sizes) == {sizes[0]}
    verify(world.cache)
