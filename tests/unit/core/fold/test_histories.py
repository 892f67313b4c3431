"""Random histories against a dumb model of Kafka's rules, and round trips."""

import random

import msgspec
import pytest

from rlmm_daemon.codec import record_suffix as tails
from rlmm_daemon.codec import records, snapshot
from rlmm_daemon.codec.custom_metadata import ONLY_IF_STARTED
from rlmm_daemon.core.fold import common_events
from rlmm_daemon.core.fold import fold as fold_module
from rlmm_daemon.core.fold.cache import PartitionCache
from rlmm_daemon.core.fold.fold import Fold
from rlmm_daemon.core.fold.outcome import Applied, Deferred, Repeated
from rlmm_daemon.core.fold.user_partitions import ASIDE_MAX, Image, Sleeping
from rlmm_daemon.core.snapshots import sealing, unsealing
from rlmm_daemon.core.snapshots.rebasing import SINCE_MAX, rebase
from rlmm_daemon.domain.errors import NotReady
from rlmm_daemon.domain.ids import LeaderEpoch, MetadataPartition, TopicId, TopicIdPartition
from rlmm_daemon.domain.segment import SegmentMetadata
from tests.support.folds import listed_ids
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
    number,
    update,
)

EPOCHS = [LeaderEpoch(epoch) for epoch in range(4)]
OFFSETS = range(-1, 72)


def parts(md):
    """{epoch: (first, last)}, as the reference computes it."""
    epochs = sorted(md.segment_leader_epochs.items())
    ends = [start - 1 for _, start in epochs[1:]] + [md.end_offset]
    return {epoch: (start, end) for (epoch, start), end in zip(epochs, ends, strict=True)}


ALLOWED = {
    STARTED: (FINISHED, DELETE_STARTED),
    FINISHED: (FINISHED, DELETE_STARTED),
    DELETE_STARTED: (DELETE_STARTED, DELETE_FINISHED),
}


class Model:
    """Kafka's cache as its javadoc says it, rebuilt lists and all."""

    def __init__(self):
        self.md, self.offset_to_id, self.unreferenced = {}, {}, {}
        self.highest, self.finished_order, self.strays = {}, [], {}

    def apply(self, event):
        old = self.md.get(event.segment_id)
        if isinstance(event, SegmentMetadata):
            if old is None or old.state == STARTED:
                self.start(event)
        elif old is not None and event.state in ALLOWED[old.state]:
            self.update(event.segment_id, old, event)

    def start(self, event):
        self.md[event.segment_id] = event
        for epoch in event.segment_leader_epochs:
            self.offset_to_id.setdefault(epoch, {})
            loose = self.unreferenced.setdefault(epoch, [])
            loose += [] if event.segment_id in loose else [event.segment_id]
            self.strays.setdefault(event.segment_id, set()).add(epoch)

    def update(self, i, old, event):
        self.md[i] = old.with_update(event)
        self.finished_order = [x for x in self.finished_order if x != i]
        for epoch, (start, end) in parts(old).items():
            keys, loose = self.offset_to_id[epoch], self.unreferenced[epoch]
            if event.state == FINISHED:
                while keys and max(keys) >= start and self.highest[epoch] <= end:
                    loose.append(keys.pop(max(keys)))
                keys[start] = i
                self.unreferenced[epoch] = list(dict.fromkeys(x for x in loose if x != i))
                self.highest[epoch] = max(end, self.highest.get(epoch, end))
            elif event.state == DELETE_STARTED:
                self.offset_to_id[epoch] = {k: x for k, x in keys.items() if (k, x) != (start, i)}
                loose += [] if i in loose else [i]
        if event.state == FINISHED:
            self.finished_order.append(i)
        if event.state == DELETE_FINISHED:
            del self.md[i]
            for epoch in self.strays.pop(i):  # Kafka forgets some: the leak that we do not have
                self.unreferenced[epoch] = [x for x in self.unreferenced[epoch] if x != i]

    def listing(self, epoch):
        keys = self.offset_to_id.get(epoch, {})
        ids = [keys[k] for k in sorted(keys)]
        loose = self.unreferenced.get(epoch, [])
        return sorted(ids + loose, key=lambda i: self.md[i].start_offset) if loose else ids

    def lookup(self, epoch, offset):
        for i in reversed(self.finished_order):
            first, last = parts(self.md[i]).get(epoch, (0, -1))
            if first <= offset <= last:
                return i
        return None

    def next_with_txn_index(self, epoch, offset):
        while (i := self.lookup(epoch, offset)) is not None:
            if not self.md[i].txn_index_empty:
                return i
            if self.md[i].end_offset + 1 <= offset:
                return None
            offset = self.md[i].end_offset + 1
        return None


def some_event(rng, ordinary):
    n = rng.randint(1, 9)
    if rng.random() < 0.35:
        start = 7 * n if ordinary else rng.randint(0, 60)
        end = start + 6 if ordinary else rng.randint(start, min(start + 30, 70))
        first = rng.randint(0, 3)
        epochs = {first: start}
        if rng.random() < 0.4 and first < 3:
            epochs[first + 1] = rng.randint(start, end)
        return add(n, start, end, epochs, txn_index_empty=rng.random() < 0.7)
    state = rng.choice([FINISHED, FINISHED, FINISHED, DELETE_STARTED, DELETE_FINISHED])
    return update(n, state, rng.choice([None, None, b"c"]), at_ms=rng.randint(1, 3))


def verify(world, model):
    cache = world.cache
    for epoch in EPOCHS:
        assert listed_ids(cache, epoch) == model.listing(epoch)
        assert cache.highest_offset(epoch) == model.highest.get(epoch)
        for offset in OFFSETS:
            look = cache.lookup(epoch, offset)
            assert number(look) == number(model.lookup(epoch, offset))
            walked = cache.next_with_txn_index(epoch, offset)
            assert number(walked) == number(model.next_with_txn_index(epoch, offset))
    for record in cache.list_all():
        metadata = records.decode(record)
        assert isinstance(metadata, SegmentMetadata)
        assert metadata == model.md[metadata.segment_id]
    assert len(cache.segments) == len(model.md)
    verify_sets(cache)


def verify_sets(cache):
    """For each of its epochs a live segment is in exactly one of Kafka's two sets or the third."""
    for segment_id in cache.segments:
        for epoch, _, _ in tails.spans(cache.segments[segment_id]):
            index = cache.epochs[epoch]
            sets = (index.referenced_ids(), index.unreferenced, index.third)
            assert sum(segment_id in members for members in sets) == 1
    assert all(not index.is_empty for index in cache.epochs.values())


@pytest.mark.parametrize("seed", range(150))
def test_a_random_history_answers_as_the_model_does(seed):
    rng = random.Random(seed)
    world, model = World(), Model()
    for _ in range(rng.randint(5, 60)):
        event = some_event(rng, ordinary=seed % 3 == 0)
        world.put(event)
        model.apply(event)
        if world.fold.partitions:
            verify_sets(world.cache)
    if world.fold.partitions:
        verify(world, model)


def snapshot_of(fold):
    header = sealing.header_of(fold, cluster_id="c", topic_id=TopicId(bytes(16)), created_at_ms=1)
    return b"".join(sealing.write_chunks(fold, header))


@pytest.mark.parametrize("seed", range(80))
def test_a_loaded_snapshot_goes_on_as_the_fold_it_was_made_from(seed):
    rng = random.Random(seed)
    world, model = World(), Model()
    stirred = [delete(MARKED), delete(PARTITION_STARTED), delete(PARTITION_FINISHED)]
    for _ in range(rng.randint(0, 50)):
        event = some_event(rng, ordinary=seed % 3 == 0)
        world.put(event)
        model.apply(event)
    if seed % 4 == 0:
        for event in stirred[: rng.randint(1, 2)]:
            world.put(event)
    buffer = snapshot_of(world.fold)
    header, loaded = unsealing.load(buffer)
    assert (loaded.position, header.next_offset) == (world.fold.position,) * 2
    assert snapshot_of(loaded) == buffer
    assert snapshot_of(unsealing.in_place(buffer)[1]) == buffer
    restored = World()
    restored.fold = loaded
    for _ in range(30):
        event = some_event(rng, ordinary=seed % 3 == 0)
        a, b = world.put(event), restored.put(event)
        model.apply(event)
        assert type(a) is type(b)
    if FOO in loaded.partitions:
        verify(restored, model)
        assert restored.cache.segments_by_state == world.cache.segments_by_state
        assert restored.cache.bytes_by_state == world.cache.bytes_by_state
        assert restored.cache.kept.every() == world.cache.kept.every()
        assert restored.cache.delete_state == world.cache.delete_state
    assert snapshot_of(loaded) == snapshot_of(world.fold)


def awaken(fold: Fold) -> None:
    """Let nothing sleep in the snapshot, so that each event is applied to what lies over it."""
    for partition in fold.partitions:
        fold.partitions.get(partition)


@pytest.mark.parametrize("seed", range(200))
def test_a_snapshot_in_place_and_what_changed_since_answer_as_the_plain_cache_does(seed):
    rng = random.Random(seed)
    world, model, sleeping = World(), Model(), World()
    length = rng.randint(5, 120)
    stored = {rng.randrange(length) for _ in range(rng.randint(1, 5))}
    for step in range(length):
        event = some_event(rng, ordinary=seed % 3 == 0)
        plain, layered = world.put(event), sleeping.put(event)
        assert type(plain) is type(layered) or isinstance(layered, Deferred)
        model.apply(event)
        if step in stored:
            _, sleeping.fold = unsealing.in_place(snapshot_of(sleeping.fold))
            if rng.random() < 0.5:
                awaken(sleeping.fold)
        if FOO in sleeping.fold.partitions and rng.random() < 0.1:
            verify(sleeping, model)
    if FOO not in world.fold.partitions:
        return
    verify(sleeping, model)
    for name in (
        "segments_by_state", "bytes_by_state", "delete_state", "writer",
        "highest_offsets", "strays", "held",
    ):  # fmt: skip
        assert getattr(sleeping.cache, name) == getattr(world.cache, name), name
    assert sleeping.cache.kept.every() == world.cache.kept.every()
    assert sleeping.cache.list_all() == world.cache.list_all()
    for epoch in EPOCHS:
        assert sleeping.cache.size(epoch) == world.cache.size(epoch)
        assert sleeping.cache.list_epoch(epoch) == world.cache.list_epoch(epoch)
        assert sleeping.cache.third_set(epoch) == world.cache.third_set(epoch)
    assert snapshot_of(sleeping.fold) == snapshot_of(world.fold)
    assert unsealing.load(snapshot_of(sleeping.fold))


BAR = TopicIdPartition(TOPIC_ID, "bar-x", 3)


def event_of_two(rng, ordinary):
    """Return what `some_event` has, and partition marks, stuck copies and erased metadata."""
    partition, luck = rng.choice([FOO, BAR]), rng.random()
    if luck < 0.03:
        state = rng.choice([MARKED, PARTITION_STARTED, PARTITION_FINISHED])
        return delete(state, partition=partition)
    if luck < 0.08:
        return update(rng.randint(1, 9), DELETE_STARTED, ONLY_IF_STARTED, partition=partition)
    event = some_event(rng, ordinary)
    if rng.random() < 0.2:
        event = msgspec.structs.replace(event, custom_metadata=rng.choice([None, b"k"]))
    return msgspec.structs.replace(event, partition=partition, broker_id=rng.choice([1, 1, 2]))


def reader_goes_on(cache, epoch, offset):
    """Whether who answers for an offset answers for all up to where the cache says."""
    found = cache.lookup(epoch, offset)
    if found is None:
        return True
    until = cache.answers_until(epoch, offset)
    return until >= offset and all(
        cache.lookup(epoch, on) == found for on in OFFSETS if offset <= on <= until
    )


def answers_of(cache):
    """Return everything that decides an answer, but for an epoch of which nothing is left."""
    assert all(reader_goes_on(cache, epoch, offset) for epoch in EPOCHS for offset in OFFSETS)
    return (
        cache.list_all(),
        cache.kept.every(),
        cache.segments_by_state,
        cache.bytes_by_state,
        cache.delete_state,
        cache.writer,
        cache.strays,
        cache.held,
        [
            (
                cache.list_epoch(epoch),
                cache.third_set(epoch),
                cache.size(epoch),
                cache.highest_offset(epoch),
                [cache.lookup(epoch, offset) for offset in OFFSETS],
                [cache.next_with_txn_index(epoch, offset) for offset in OFFSETS],
            )
            for epoch in EPOCHS
            if cache.epochs.get(epoch) is not None or cache.epochs.highest(epoch) is not None
        ],
    )


class Layered:
    """A fold that at any moment is snapshotted, moved onto the snapshot, woken or restarted."""

    def __init__(self, rng):
        self.rng = rng
        self.fold = Fold(MetadataPartition(0), 1)
        self.drawn = None
        self.moves = None
        self.moved = 0
        self.restarted = False

    def step(self):
        asleep = [at for at in self.fold.partitions.at_rest() if isinstance(at, Sleeping)]
        assert self.fold.partitions.aside_bytes == sum(at.aside_bytes for at in asleep)
        luck = self.rng.random()
        if self.drawn is not None:
            if luck < 0.3:
                self.take_up(self.drawn)
        elif self.moves is None and luck < 0.08:
            self.draw()
        elif self.moves is None and luck < 0.12:
            _, self.fold = unsealing.in_place(snapshot_of(self.fold))
            self.restarted = True
            if self.rng.random() < 0.3:
                awaken(self.fold)
        if self.moves is not None and self.rng.random() < 0.6 and next(self.moves, self) is self:
            self.moves, self.moved = None, self.moved + 1
        self.wake(0.1)

    def wake(self, share):
        if self.rng.random() < share and len(self.fold.partitions):
            self.fold.partitions.get(self.rng.choice(list(self.fold.partitions)))

    def draw(self):
        header = sealing.header_of(
            self.fold, cluster_id="c", topic_id=TopicId(bytes(16)), created_at_ms=1
        )
        pieces = []
        for piece in sealing.write_chunks(self.fold, header):
            pieces.append(bytes(piece))
            self.wake(0.2)
        self.drawn, self.fold.journal = b"".join(pieces), {}

    def take_up(self, drawn):
        image = Image(drawn, snapshot.decode_directory(drawn)[1], checked=True)
        in_use = self.rng.random()
        self.moves = rebase(self.fold, image, lambda _: self.rng.random() < in_use)
        self.drawn = None


@pytest.mark.parametrize("seed", range(100))
def test_a_snapshot_taken_while_events_arrive_forgets_and_repeats_nothing(seed):
    rng = random.Random(seed)
    plain, layered = Fold(MetadataPartition(0), 1), Layered(rng)
    for _ in range(rng.randint(10, 200)):
        value = records.encode(event_of_two(rng, ordinary=seed % 3 == 0))
        layered.fold.apply(plain.position, value)
        plain.apply(plain.position, value)
        layered.step()
    assert set(plain.partitions) == set(layered.fold.partitions)
    for partition, cache in plain.partitions.items():
        there = layered.fold.partitions[partition]
        assert answers_of(there) == answers_of(cache)
        assert layered.restarted or there.late_writers == cache.late_writers
    assert layered.fold.holding == plain.holding
    assert layered.fold.partitions.aside_bytes == 0, "all are awake now"
    if not layered.restarted:  # these count since the process began
        for name in ("applied", "repeated", "rejected", "unreadable"):
            assert getattr(layered.fold, name) == getattr(plain, name), name


def test_such_histories_do_move_onto_their_snapshots():
    layered = Layered(random.Random(1))
    for _ in range(1000):
        value = records.encode(event_of_two(layered.rng, ordinary=False))
        layered.fold.apply(layered.fold.position, value)
        layered.step()
    assert layered.moved > 10
    assert layered.restarted


def some_rows(rng, ordinary):
    """A log with gaps, ordinary copies, strange records, and brokers that take turns."""
    strange = [None, b"", b"\x01\x00\x00", b"\x01\x00\x00\x7f", b"\x01\x01\x00" + bytes(80)]
    values = list[bytes | None]()
    for n in range(rng.randint(1, 120)):
        broker = rng.choice([1, 1, 1, 2])
        if ordinary and rng.random() < 0.7:
            txn = rng.random() < 0.7
            values.append(
                records.encode(add(100 + n, 7 * n, 7 * n + 6, {0: 7 * n}, txn_index_empty=txn))
            )
            custom = rng.choice([None, b"c", b"", bytes(32)])
            values.append(records.encode(update(100 + n, FINISHED, custom, broker_id=broker)))
        elif rng.random() < 0.1:
            values.append(rng.choice(strange))
        elif rng.random() < 0.1:
            stuck = update(rng.randint(1, 9), DELETE_STARTED, ONLY_IF_STARTED)
            values.append(records.encode(stuck))
        else:
            values.append(records.encode(some_event(rng, ordinary)))
    return [(offset + offset // 9, value) for offset, value in enumerate(values)]


@pytest.mark.parametrize("seed", range(200))
def test_a_tail_is_folded_onto_a_snapshot_as_the_long_way_would(seed, monkeypatch):
    """Both restart from the same snapshots, and everything awake stands on a table."""
    rng = random.Random(seed)
    rows = some_rows(rng, seed % 3 != 0)
    cuts = [*sorted(rng.sample(range(len(rows) + 1), min(3, len(rows)))), len(rows)]
    long_way, in_runs = World().fold, World().fold
    begin = onto_tables = 0
    for cut in cuts:
        with monkeypatch.context() as patched:
            patched.setattr(common_events, "start", lambda *_: False)
            patched.setattr(common_events, "finish", lambda *_: False)
            for offset, value in rows[begin:cut]:
                long_way.apply(offset, value)
        at = begin
        while at < cut:
            behind = in_runs.apply_run(rows, at, cut)
            cache = in_runs.partitions.peek(FOO)
            onto_tables += behind - at if awake_on_a_table(cache) else 0
            at = behind
            if at < cut:
                in_runs.apply(*rows[at])
                at += 1
        assert snapshot_of(in_runs) == snapshot_of(long_way)
        begin = cut
        _, long_way = unsealing.in_place(snapshot_of(long_way))
        _, in_runs = unsealing.in_place(snapshot_of(in_runs))
        for fold in (long_way, in_runs):
            for partition in list(fold.partitions):
                assert fold.partitions[partition] is not None, "awake now"
    if seed == 1:
        assert onto_tables, "some of it is what this is about"


def awake_on_a_table(cache: object) -> bool:
    return isinstance(cache, PartitionCache) and cache.segments.sealed is not None


@pytest.mark.parametrize("seed", range(200))
def test_a_log_that_is_folded_run_by_run_is_folded_as_the_long_way_would(seed, monkeypatch):
    rng = random.Random(seed)
    ordinary = seed % 3 != 0
    rows = some_rows(rng, ordinary)
    long_way, in_runs = World().fold, World().fold
    with monkeypatch.context() as patched:
        patched.setattr(common_events, "start", lambda *_: False)
        patched.setattr(common_events, "finish", lambda *_: False)
        for offset, value in rows:
            long_way.apply(offset, value)
    at = in_a_run = 0
    while at < len(rows):
        in_runs.journal = {} if rng.random() < 0.05 else None
        turn = rng.randint(at, len(rows))
        behind = in_runs.apply_run(rows, at, turn)
        assert at <= behind <= turn
        assert behind == at or in_runs.position == rows[behind - 1][0] + 1
        assert behind == at or in_runs.journal is None, "a snapshot that is drawn would lack them"
        in_a_run += behind - at
        at = behind
        if at < turn:
            in_runs.apply(*rows[at])
            at += 1
    assert in_a_run or not ordinary or len(rows) < 20, "nothing came in a run"
    assert snapshot_of(in_runs) == snapshot_of(long_way)
    for name in ("position", "applied", "repeated", "rejected", "unreadable", "holding"):
        assert getattr(in_runs, name) == getattr(long_way, name), name
    if FOO in long_way.partitions:
        for name in ("changes", "late_writers", "held", "writer"):
            assert getattr(in_runs.partitions[FOO], name) == getattr(
                long_way.partitions[FOO], name
            ), name
        assert in_runs.partitions[FOO].kept.every() == long_way.partitions[FOO].kept.every()


def test_events_of_one_that_sleeps_are_put_aside_and_applied_when_somebody_asks():
    world = World()
    world.upload(1, 0, 9)
    _, world.fold = unsealing.in_place(snapshot_of(world.fold))
    assert isinstance(world.upload(2, 10, 19), Deferred)
    sleeping = world.fold.partitions.peek(FOO)
    assert isinstance(sleeping, Sleeping)
    assert world.fold.partitions.aside_bytes == sleeping.aside_bytes > 2 * len(FOO.topic)
    assert world.fold.partitions.by_prefix[world.cache.prefix] is world.cache
    assert world.listed(0) == [1, 2]
    assert isinstance(world.put(update(2, FINISHED)), Repeated)


def test_one_that_is_woken_while_the_snapshot_is_drawn_is_not_woken_again():
    world = World()
    bar = TopicIdPartition(TOPIC_ID, "bar", 3)
    world.upload(1, 0, 9)
    world.put(add(7, 0, 9, partition=bar), update(7, FINISHED, partition=bar))
    _, world.fold = unsealing.in_place(snapshot_of(world.fold))
    world.put(update(7, STARTED, partition=bar), add(8, 10, 19, partition=bar))
    assert world.listed(0) == [1]  # awake, so it takes steps
    header = sealing.header_of(
        world.fold, cluster_id="c", topic_id=TopicId(bytes(16)), created_at_ms=1
    )
    pieces = sealing.write_chunks(world.fold, header)
    begun = next(pieces)
    assert isinstance(world.fold.partitions.peek(bar), Sleeping)
    asked = world.fold.partitions[bar]
    buffer = b"".join([begun, *pieces])
    assert world.fold.partitions[bar] is asked
    assert (world.fold.applied, sum(world.fold.rejected.values())) == (1, 1)
    assert len(unsealing.in_place(buffer)[1].partitions[bar].segments) == 2


def test_no_more_is_put_aside_than_can_be_applied_at_once():
    world = World()
    world.upload(1, 0, 9)
    _, world.fold = unsealing.in_place(snapshot_of(world.fold))
    for n in range(ASIDE_MAX):
        assert isinstance(world.put(update(1, FINISHED, at_ms=n)), Deferred)
    assert isinstance(world.put(update(1, FINISHED, at_ms=7)), Applied)


def test_the_mark_of_a_stuck_copy_is_never_put_aside():
    world = World()
    world.upload(1, 0, 9)
    _, world.fold = unsealing.in_place(snapshot_of(world.fold))
    world.put(update(1, DELETE_STARTED, ONLY_IF_STARTED))
    assert world.fold.holding == {FOO}
    _, world.fold = unsealing.in_place(snapshot_of(world.fold))
    assert world.fold.holding == {FOO}
    for event in (update(1, DELETE_FINISHED), add(1, 0, 9), update(1, FINISHED)):
        assert isinstance(world.put(event), Applied)
    assert not world.fold.holding


def test_a_held_segment_that_is_copied_anew_is_held_no_longer():
    world = World()
    world.upload(1, 0, 9)
    world.put(update(1, DELETE_STARTED, ONLY_IF_STARTED), update(1, DELETE_FINISHED))
    assert world.fold.holding == {FOO}
    world.upload(1, 10, 19)
    assert not world.cache.held
    assert not world.fold.holding


@pytest.mark.parametrize("in_use", [True, False])
def test_moving_to_a_new_snapshot_lets_only_those_sleep_that_nobody_uses(in_use):
    world = World()
    world.upload(1, 0, 9)
    cache = world.cache
    _, other = unsealing.in_place(snapshot_of(world.fold))
    assert other.image is not None
    world.fold.journal = {}
    list(rebase(world.fold, other.image, lambda _: in_use))
    assert (world.fold.partitions.peek(FOO) is cache) == in_use
    assert isinstance(world.upload(2, 10, 19), Applied if in_use else Deferred)
    assert world.listed(0) == [1, 2]
    world.fold.journal = {}
    _, other = unsealing.in_place(snapshot_of(world.fold))
    world.upload(3, 20, 29)
    assert other.image is not None
    list(rebase(world.fold, other.image, lambda _: False))
    assert world.fold.partitions.peek(FOO) is world.cache  # what came since keeps it awake
    assert (world.listed(0), world.cache.segments.changed) == ([1, 2, 3], 1)


@pytest.mark.parametrize("since", [SINCE_MAX, SINCE_MAX + 2])
def test_what_was_written_to_much_since_a_snapshot_stays_as_it_is(since):
    """Applying it all again would hold everybody else up; nothing is lost or answered otherwise."""
    world = World()
    world.upload(0, 0, 9)
    world.fold.journal = {}
    _, other = unsealing.in_place(snapshot_of(world.fold))
    for n in range(1, since // 2 + 1):
        world.upload(n, 10 * n, 10 * n + 9)
    assert other.image is not None
    list(rebase(world.fold, other.image, lambda _: True))
    moved = since <= SINCE_MAX
    assert (world.cache.segments.sealed is not None) == moved
    everything = list(range(since // 2 + 1))
    assert world.listed(0) == everything
    assert [world.look(0, 10 * n) for n in everything] == everything
    _, world.fold = unsealing.in_place(snapshot_of(world.fold))
    assert world.listed(0) == everything


def test_where_the_journal_was_full_the_rest_stays_on_the_snapshot_before(monkeypatch):
    monkeypatch.setattr(fold_module, "JOURNAL_EVENTS_MAX", 4)
    world = World()
    world.upload(0, 0, 9)
    bar = TopicIdPartition(TOPIC_ID, "bar", 0)
    world.put(add(1, 0, 9, partition=bar), update(1, FINISHED, partition=bar))
    _, other = unsealing.in_place(snapshot_of(world.fold))
    assert other.image is not None
    world.fold.keep_journal()
    moving = rebase(world.fold, other.image, lambda _: True)
    next(moving)
    caches = [world.fold.partitions[entry.user_partition] for entry in other.image.entries]
    world.upload(2, 20, 29)
    is_kept = [world.fold.journal is not None]
    for n in range(3, 6):
        world.upload(n, 10 * n, 10 * n + 9)
    is_kept.append(world.fold.journal is not None)
    assert is_kept == [True, False], "what was before it does not count"
    assert list(moving) == []
    assert [cache.segments.sealed is not None for cache in caches] == [True, False]
    assert world.fold.image is None
    _, world.fold = unsealing.in_place(snapshot_of(world.fold))
    assert world.listed(0) == [0, 2, 3, 4, 5]


@pytest.mark.parametrize(
    "envelope", [b"\x01\x02\x00", b"\x01\x02\x01", b"\x01\x82\x00\x00", b"\x01\x02\x80\x00"]
)
def test_a_mark_of_a_partition_that_sleeps_is_never_put_aside(envelope):
    """However its version and key are written: all of these are legal, and mean the same."""
    world = World()
    world.upload(1, 0, 9)
    _, world.fold = unsealing.in_place(snapshot_of(world.fold))
    marked = envelope + records.encode(delete(MARKED))[3:]
    outcome = world.fold.apply(world.fold.position, marked)
    assert isinstance(outcome, Applied)
    present = world.fold.partitions.peek(FOO)
    assert present is not None
    assert present.delete_state is MARKED


def test_a_damaged_table_is_told_once_and_never_answered_from():
    world = World()
    world.upload(1, 0, 9)
    buffer = bytearray(snapshot_of(world.fold))
    buffer[-200] ^= 1
    told = list[str]()
    _, fold = unsealing.in_place(bytes(buffer))
    fold.partitions.on_damage = told.append
    for _ in range(2):
        with pytest.raises(NotReady):
            fold.partitions.get(FOO)
    assert len(told) == 1


def test_ordinary_uploads_and_deletes_keep_no_second_copy_of_kafkas_set():
    world = World()
    for n in range(50):
        world.upload(n, 10 * n, 10 * n + 9)
        world.put(update(n, FINISHED))
        if n > 20:
            world.remove(n - 20)
    before = world.cache.epochs[0].is_plain
    world.upload(99, 400, 450)
    assert (before, world.cache.epochs[0].is_plain) == (True, False)
    world.remove(99)
    for n in range(40, 46):
        assert world.look(0, 10 * n) == n


def test_a_fold_that_moves_under_its_snapshot_is_a_bug_and_says_so():
    fold = Fold(MetadataPartition(0), 1)
    fold.apply(0, records.encode(add(1, 0, 9)))
    header = sealing.header_of(fold, cluster_id=None, topic_id=TopicId(bytes(16)), created_at_ms=1)
    pieces = sealing.write_chunks(fold, header)
    next(pieces)
    fold.advance(5, 0)
    refused = pytest.raises(AssertionError, match="moved")
    with refused:
        next(pieces)


@pytest.mark.parametrize("first", [-(2**63), -1])
def test_a_segment_whose_epoch_begins_absurdly_low_does_not_stop_snapshots(first):
    """Nothing forbids it (RemoteLogSegmentMetadata), and one record must not end all snapshots."""
    world = World()
    world.put(add(1, 0, 2**63 - 1, {0: first}))
    world.put(update(1, FINISHED))
    before = world.listed(0)
    _, world.fold = unsealing.in_place(snapshot_of(world.fold))
    assert (world.listed(0), world.look(0, 5)) == (before, 1)
