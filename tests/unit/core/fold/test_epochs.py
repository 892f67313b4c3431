"""A segment of very many leader epochs: put into some at a time, and found in each at once."""

import random

import pytest
from msgspec.structs import replace

from rlmm_daemon.codec import record_suffix as tails
from rlmm_daemon.codec import records
from rlmm_daemon.core.fold import cache as cache_module
from rlmm_daemon.core.fold.cache import EPOCHS_AT_ONCE, PartitionCache
from rlmm_daemon.core.fold.epochs import Epochs
from rlmm_daemon.core.fold.user_partitions import ASIDE_MAX
from rlmm_daemon.core.snapshots import unsealing
from rlmm_daemon.domain.ids import LeaderEpoch, Offset
from rlmm_daemon.domain.segment import SegmentMetadata, SegmentUpdate
from tests.support.folds import listed_ids
from tests.unit.core.fold.test_histories import snapshot_of, some_event
from tests.unit.core.world import (
    DELETE_FINISHED,
    DELETE_STARTED,
    FINISHED,
    FOO,
    World,
    add,
    number,
    update,
)

MANY = 5_000


def of_epochs(segment: int, count: int, first: int = 0) -> SegmentMetadata:
    epochs = {LeaderEpoch(e): Offset(10 * e) for e in range(first, first + count)}
    return replace(add(segment, 10 * first, 10 * (first + count) - 1), segment_leader_epochs=epochs)


@pytest.fixture
def looked_at(monkeypatch) -> list[int]:
    """Epochs whose sets were looked for, one after the other."""
    epochs: list[int] = []
    get = Epochs.get

    def noted(self: Epochs, epoch: int) -> object:
        epochs.append(epoch)
        return get(self, epoch)

    monkeypatch.setattr(Epochs, "get", noted)
    return epochs


def test_no_event_of_many_epochs_is_put_into_all_of_them_in_one_step(looked_at):
    world = World()

    def put(event: SegmentMetadata | SegmentUpdate) -> None:
        looked_at.clear()
        world.put(event)
        assert not looked_at
        steps, more = 0, True
        while more:
            looked_at.clear()
            more = world.fold.settle(EPOCHS_AT_ONCE)
            assert len(set(looked_at)) <= EPOCHS_AT_ONCE
            steps += 1
        assert steps >= MANY // EPOCHS_AT_ONCE

    put(of_epochs(1, MANY))
    for state in (FINISHED, DELETE_STARTED, DELETE_FINISHED):
        put(update(1, state))
    assert world.cache.is_empty


def test_whoever_looks_at_an_epoch_finds_what_is_not_put_into_it_yet():
    world = World()
    world.put(of_epochs(1, MANY))
    assert [number(each) for each in listed_ids(world.cache, LeaderEpoch(MANY - 1))] == [1]
    world.put(update(1, FINISHED))
    assert world.fold.settle(EPOCHS_AT_ONCE), "some are left"
    assert world.cache.lookup(MANY - 1, 10 * MANY - 1) is not None
    assert world.cache.highest_offset(LeaderEpoch(MANY - 2)) == 10 * (MANY - 1) - 1
    assert len(world.cache.epochs.numbers()) == MANY
    world.put(update(1, DELETE_STARTED))
    assert world.cache.lookup(7, 70) is None
    world.put(update(1, DELETE_FINISHED))
    assert list(world.cache.epochs) == []


@pytest.mark.parametrize("marked", [False, True])
@pytest.mark.parametrize("count", [4, 16, 64, 1024, MANY])
def test_what_is_put_aside_of_many_epochs_is_little_to_apply_at_once(looked_at, count, marked):
    """Of 256 copies of 1,024 epochs each the loop was held for seconds when somebody asked."""
    world, segments = World(), range(1, 1 + max(2, min(300, 6_000 // count)))
    for segment in segments:
        world.put(of_epochs(segment, count, count * segment))
        if marked:
            world.put(update(segment, FINISHED))
    _, world.fold = unsealing.in_place(snapshot_of(world.fold))
    most = 0
    for segment in segments:
        looked_at.clear()
        world.put(update(segment, DELETE_STARTED if marked else FINISHED))
        most = max(most, len(set(looked_at)))
        while world.fold.settle(EPOCHS_AT_ONCE):
            pass
    looked_at.clear()
    world.fold.partitions.get(FOO)
    most = max(most, len(set(looked_at)))
    assert most <= 8 * ASIDE_MAX, most


def test_a_repeated_copy_of_many_epochs_costs_each_of_them_little(monkeypatch):
    """Each asks for its part in the former one, which was read whole each time."""
    world, read = World(), list[int]()
    spans = tails.spans

    def noted(tail: bytes) -> object:
        read.append(len(tail))
        return spans(tail)

    monkeypatch.setattr(tails, "spans", noted)
    monkeypatch.setattr(cache_module, "spans", noted)
    for segment in (1, 2):
        world.put(of_epochs(segment, MANY))
        world.put(update(segment, FINISHED))
    world.put(update(2, DELETE_STARTED))
    while world.fold.settle(EPOCHS_AT_ONCE):
        pass
    found = world.cache.lookup(MANY // 2, 10 * (MANY // 2))
    assert found == world.cache.get(add(1, 0, 9).segment_id)
    assert len(read) < 50


@pytest.mark.parametrize("count", [1, 2, 127, 128, 300])
def test_one_epochs_part_is_what_all_parts_say(count):
    rng = random.Random(count)
    numbers = sorted(rng.sample(range(1, 10_000), count))
    epochs = {LeaderEpoch(e): Offset(rng.randint(0, 50)) for e in numbers}
    encoded = records.encode(replace(add(1, 0, 99), segment_leader_epochs=epochs))
    assert records.decode(encoded) == replace(add(1, 0, 99), segment_leader_epochs=epochs)
    tail = encoded[len(tails.ENVELOPE) + len(tails.prefix_of(FOO)) + 16 :]
    spans = tails.spans(tail)
    assert [(epoch, *(tails.span_of(tail, epoch) or ())) for epoch in numbers] == list(spans)
    for absent in {0, 10_000, *(e + 1 for e in numbers)} - set(numbers):
        assert tails.span_of(tail, absent) is None


@pytest.mark.parametrize("seed", range(150))
def test_a_history_that_is_put_into_its_epochs_later_is_as_one_that_is_at_once(seed, monkeypatch):
    rng = random.Random(seed)
    at_once, later = World(), World()
    for _ in range(rng.randint(5, 60)):
        event = some_event(rng, ordinary=seed % 3 == 0)
        expected = at_once.put(event)
        with monkeypatch.context() as patched:
            patched.setattr(cache_module, "EPOCHS_AT_ONCE", 0)
            assert repr(later.put(event)) == repr(expected)
        if rng.random() < 0.5:
            later.fold.settle(rng.randint(1, 3))
        if rng.random() < 0.1:
            assert snapshot_of(later.fold) == snapshot_of(at_once.fold)
    assert snapshot_of(later.fold) == snapshot_of(at_once.fold)
    if FOO in later.fold.partitions:
        one, other = (world.fold.partitions[FOO] for world in (later, at_once))
        assert isinstance(one, PartitionCache)
        assert one.changes == other.changes
        assert one.epochs.highest_offsets() == other.epochs.highest_offsets()


def test_the_newest_epoch_says_how_far_is_finished_though_an_older_ones_tail_was_cut_off():
    epochs = Epochs()
    assert epochs.newest_highest() is None
    epochs.set_highest(3, 900)
    epochs.set_highest(5, 400)
    epochs.defer([(0, 1, 2), (1, 3, 4)], lambda *_: None)
    assert epochs.newest_highest() == 400
    assert len(epochs.due) == 2, "older ones are not looked at for it"
