"""The snapshot file: its sample stays loadable, and no damage goes unseen."""

import json
from pathlib import Path

import msgspec
import pytest

from rlmm_daemon.codec import snapshot
from rlmm_daemon.codec.sealed_table import SealedTable
from rlmm_daemon.codec.snapshot_table import PART_BYTES_MAX, decode_table, encode_table, size_of
from rlmm_daemon.core.partitioner import metadata_partition
from rlmm_daemon.core.snapshots import sealing, unsealing
from rlmm_daemon.domain.errors import ChecksumMismatch, Malformed, NotReady, UnsupportedProtocol
from rlmm_daemon.domain.ids import LeaderEpoch, TopicId, TopicIdPartition
from tests.support.folds import listed_ids, seal
from tests.unit.core.world import (
    DELETE_STARTED,
    FINISHED,
    MARKED,
    TOPIC_ID,
    World,
    add,
    delete,
    update,
)

EPOCHS = [LeaderEpoch(epoch) for epoch in range(6)]
SAMPLES = Path(__file__).parents[2] / "data" / "formats"
BAR = TopicIdPartition(TOPIC_ID, "bar", 3)


def sample_world() -> World:
    """Return a fold with every column in use: overlaps, a third set, a stray, kept metadata."""
    world = World()
    world.upload(1, 0, 100, {0: 0, 1: 50}, txn_index_empty=True)
    world.upload(2, 50, 200, {1: 50})
    world.put(update(1, FINISHED))
    world.upload(3, 300, 400, {1: 300})
    world.put(add(4, 401, 500, {2: 401}), add(4, 401, 500, {3: 401}))
    world.put(add(5, 501, 600, {4: 501}, custom_metadata=b"kept"), update(5, DELETE_STARTED))
    world.upload(6, 601, 700, {5: 601})
    world.remove(6)
    world.put(add(1, 0, 9, partition=BAR), update(1, FINISHED, b"custom", partition=BAR))
    world.put(delete(MARKED, partition=BAR))
    world.fold.advance(world.fold.position + 3, 7)
    return world


def file_of(world: World) -> bytes:
    topic_id = TopicId(bytes(range(16, 32)))
    header = sealing.header_of(
        world.fold, cluster_id="cluster", topic_id=topic_id, created_at_ms=1_700_000_000_000
    )
    return b"".join(sealing.write_chunks(world.fold, header))


def looked(cache, epoch, offset):
    found = cache.lookup(epoch, offset)
    return None if found is None else found[len(cache.segments.head) :][:16].hex()


def story(buffer, read=unsealing.load):
    """Return what a file says, as plain JSON."""
    header, fold = read(buffer)
    return {
        "header": {**{f: getattr(header, f) for f in header.__struct_fields__},
                   "topic_id": header.topic_id.hex()},
        "partitions": [
            {
                "partition": str(partition),
                "delete_state": cache.delete_state,
                "writer": cache.writer,
                "segments": [record.hex() for record in cache.list_all()],
                "kept": {i.hex(): c.hex() for i, c in cache.kept.every().items()},
                "highest": {str(e): o for e, o in sorted(cache.highest_offsets.items())},
                "listed": {str(e): [i.hex() for i in listed_ids(cache, e)] for e in EPOCHS},
                "third": {str(e): [i.hex() for i in cache.third_set(e)] for e in EPOCHS},
                "looks": {f"{e}:{o}": looked(cache, e, o) for e in EPOCHS
                          for o in range(0, 700, 50)},
            }
            for partition, cache in fold.partitions.items()
        ],
    }  # fmt: skip


@pytest.mark.parametrize("read", [unsealing.load, unsealing.in_place])
@pytest.mark.parametrize("version", ["1", "2"])
def test_the_sample_of_each_format_says_what_it_said(version, read):
    sample = SAMPLES / version
    expected = json.loads((sample / "snapshot.json").read_text())
    assert story((sample / "snapshot.bin").read_bytes(), read) == expected


def test_the_same_fold_still_writes_the_sample_byte_for_byte():
    assert file_of(sample_world()) == (SAMPLES / "2" / "snapshot.bin").read_bytes()


def test_any_changed_byte_is_refused_when_its_part_is_looked_at():
    buffer = file_of(sample_world())
    for at in range(len(buffer)):
        changed = bytearray(buffer)
        changed[at] ^= 0x40
        with pytest.raises((ChecksumMismatch, Malformed, UnsupportedProtocol, NotReady)):
            list(unsealing.in_place(bytes(changed))[1].partitions.values())


def test_any_changed_byte_is_refused():
    buffer = file_of(sample_world())
    for at in range(len(buffer)):
        for flip in (0x01, 0x80):
            changed = bytearray(buffer)
            changed[at] ^= flip
            with pytest.raises((ChecksumMismatch, Malformed, UnsupportedProtocol)):
                unsealing.load(bytes(changed))


def test_any_shortened_or_lengthened_file_is_refused():
    buffer = file_of(sample_world())
    for size in range(len(buffer)):
        with pytest.raises((ChecksumMismatch, Malformed)):
            unsealing.load(buffer[:size])
    with pytest.raises(Malformed):
        unsealing.load(buffer + b"\x00")


def test_an_unknown_newer_format_is_refused_as_such_even_if_all_else_is_unreadable():
    buffer = bytearray(file_of(sample_world()))
    buffer[8:12] = (snapshot.FORMAT + 1).to_bytes(4, "little")
    with pytest.raises(UnsupportedProtocol) as refused:
        unsealing.load(bytes(buffer[:24]) + b"whatever")
    assert refused.value.fields == {"format": snapshot.FORMAT + 1}


def test_another_partitioner_is_refused():
    world = sample_world()
    header = sealing.header_of(
        world.fold, cluster_id=None, topic_id=TopicId(bytes(16)), created_at_ms=0
    )
    other = snapshot.Header(
        **{f: getattr(header, f) for f in header.__struct_fields__} | {"partitioner_id": 99}
    )
    with pytest.raises(UnsupportedProtocol):
        unsealing.load(b"".join(sealing.write_chunks(world.fold, other)))


@pytest.mark.parametrize("read", [unsealing.load, unsealing.in_place])
def test_a_user_partition_of_another_metadata_partition_is_refused(read):
    world = sample_world()
    header = sealing.header_of(
        world.fold, cluster_id=None, topic_id=TopicId(bytes(16)), created_at_ms=0
    )
    elsewhere = 1 - metadata_partition(BAR.topic_id, BAR.partition, 2)
    other = msgspec.structs.replace(header, metadata_partition=elsewhere, partition_count=2)
    with pytest.raises(Malformed, match="another metadata partition"):
        read(b"".join(sealing.write_chunks(world.fold, other)))


@pytest.mark.parametrize("read", [unsealing.load, unsealing.in_place])
def test_a_user_partition_that_is_there_twice_is_refused(read):
    world = sample_world()
    header = sealing.header_of(
        world.fold, cluster_id=None, topic_id=TopicId(bytes(16)), created_at_ms=0
    )
    table = seal(world.cache)
    assert read(b"".join(snapshot.encode_file(header, [snapshot.image_of(table)])))
    twice = b"".join(snapshot.encode_file(header, [snapshot.image_of(table) for _ in range(2)]))
    with pytest.raises(Malformed, match="twice"):
        read(twice)


@pytest.mark.parametrize("column", ["third", "unreferenced", "states", "ids", "id_order", "heap"])
def test_a_table_that_contradicts_itself_is_refused_though_its_checksum_holds(column):
    table = seal(sample_world().cache)
    if column in {"third", "unreferenced"}:
        epoch = next(epoch for epoch in reversed(table.epochs) if getattr(epoch, column))
        getattr(epoch, column).pop()
    elif column == "id_order":
        table.id_order.reverse()
    elif column == "ids":
        table.ids = table.ids[16:] + table.ids[:16]
    elif column == "heap":
        table.heap = [b"\x03" * sum(map(len, table.heap))]
    else:
        setattr(table, column, b"\x03" * len(getattr(table, column)))
    with pytest.raises(Malformed):
        unsealing.unseal(decode_table(b"".join(encode_table(table)), table.partition))


def test_columns_are_aligned_so_that_they_can_be_read_in_place():
    buffer = file_of(sample_world())
    _, behind = snapshot.decode_header(buffer)
    assert behind % 8 == 0
    for table in (seal(cache) for cache in sample_world().fold.partitions.values()):
        assert len(b"".join(encode_table(table))) % 8 == 0


@pytest.mark.parametrize("segments", [300, 1500, 2000, 2500, 3500, 9000])
def test_pieces_of_whatever_size_come_in_order(segments):
    world = World()
    for n in range(segments):
        world.upload(n, 10 * n, 10 * n + 9)
        world.put(add(n, 10 * n, 10 * n + 9, partition=BAR))
    buffer = file_of(world)
    _, whole = unsealing.load(buffer)
    assert whole.partitions[BAR].list_all() == world.fold.partitions[BAR].list_all()
    _, asleep = unsealing.in_place(buffer)
    again = World()
    again.fold = asleep
    again.put(add(1, 0, 9, partition=BAR), update(1, FINISHED, partition=BAR))
    world.put(add(1, 0, 9, partition=BAR), update(1, FINISHED, partition=BAR))
    assert file_of(again) == file_of(world)  # one table passed on, one made anew


def test_no_step_looks_for_more_than_a_few_rows_however_many_changed(monkeypatch):
    """Retention marks thousands at once, and each is looked for in the table below."""
    world = World()
    for n in range(1000):
        world.upload(n << 99, 10 * n, 10 * n + 9)  # ids that begin differently, as Kafka's do
    _, world.fold = unsealing.in_place(file_of(world))
    world.fold.partitions.get(world.cache.partition)  # so that it is awake
    for n in range(700):  # in no order: one behind the other they are not looked for one by one
        world.put(update((n * 9 % 700) << 99, DELETE_STARTED))
    for n in range(1000, 1300):
        world.upload(n << 99, 10 * n, 10 * n + 9)
    looks = most = 0

    def counting(original):
        def counted(table, row):
            nonlocal looks
            looks += 1
            return original(table, row)

        return counted

    def most_looks() -> int:
        nonlocal looks, most
        looks = most = 0
        with monkeypatch.context() as patched:
            for table in (SealedTable, sealing._Rows):
                patched.setattr(table, "id", counting(table.id))
            for _ in sealing.steps(world.cache):
                looks, most = 0, max(most, looks)
        return most

    assert most_looks() <= 64 * 13  # steps of a bisect
    _, world.fold = unsealing.in_place(file_of(world))  # what is under way is in the table, too
    world.fold.partitions.get(world.cache.partition)  # so that it is awake
    world.put(update(700 << 99, DELETE_STARTED))
    assert 300 < most_looks() <= 64 * 13
    _, world.fold = unsealing.in_place(file_of(world))
    world.put(add(2000, 9000, 9019), update(2000, FINISHED))  # over two others: the sets part
    assert not world.cache.epochs[0].is_plain
    assert most_looks() <= 64 * 13 + sealing.ROWS_AT_ONCE


def test_a_table_is_copied_in_parts_and_its_size_known_before():
    world = sample_world()
    for n in range(10, 9_000):
        world.upload(n, 1000 * n, 1000 * n + 9, {5: 1000 * n})
    for cache in world.fold.partitions.values():
        table = seal(cache)
        parts = list(encode_table(table))
        assert max(map(len, parts)) <= PART_BYTES_MAX
        assert sum(map(len, parts)) == size_of(table)
    assert size_of(seal(world.cache)) > 5 * PART_BYTES_MAX


def test_pieces_are_bounded_and_a_common_segment_costs_at_most_110_bytes():
    world = World()
    for n in range(5000):
        world.upload(n, 10 * n, 10 * n + 9)
    header = sealing.header_of(
        world.fold, cluster_id="c", topic_id=TopicId(bytes(16)), created_at_ms=0
    )
    pieces = list(sealing.write_chunks(world.fold, header))
    assert max(map(len, pieces)) <= snapshot.PIECE_BYTES_MAX
    assert sum(map(len, pieces)) / 5000 <= 110
