"""What a Fetch answer holds, batch by batch."""

import gzip
import tracemalloc
from collections.abc import Iterator

import cramjam
import pytest
from aiokafka.codec import snappy_encode
from crc32c import crc32c

from rlmm_daemon.adapters.kafka.event_log import parsing
from rlmm_daemon.adapters.kafka.event_log.parsing import (
    BatchTooLarge,
    InvalidBatch,
    Packed,
    Slice,
)
from tests.unit.adapters.kafka.broker import (
    compressed,
    encoded,
    placed,
    with_records,
    with_value_of_length,
)

CONTROL = 0x20


def control(base: int) -> bytes:
    """A transaction marker: attributes are inside the checksum, so it is made anew."""
    batch = bytearray(encoded(base, [b"marker"]))
    batch[21:23] = (0x30).to_bytes(2, "big")
    batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, "big")
    return bytes(batch)


def slices(buffer: bytes, position: int, size: int = 512, **limits: int) -> Iterator[Slice]:
    """Yield the slices; what is packed is unpacked here, as the fetcher does elsewhere."""
    for part in parsing.slices(buffer, position, size, **limits):
        if isinstance(part, Packed):
            part.unpack()
        else:
            yield part


def read(buffer: bytes, position: int, size: int = 512):
    found = list(slices(buffer, position, size))
    return [pair for part in found for pair in part.records], found[
        -1
    ].next_offset if found else None


def test_small_batches_are_gathered_and_the_last_one_names_the_epoch():
    buffer = encoded(0, [b"a"], 3) + encoded(1, [b"b", b"c"], 4)
    (part,) = slices(buffer, 0)
    assert part == ([(0, b"a"), (1, b"b"), (2, b"c")], 3, 4, ())


def test_a_large_batch_comes_in_slices_that_lose_nothing():
    buffer = encoded(0, [b"%d" % n for n in range(25)], 2) + encoded(25, [b"x"], 3)
    parts = list(slices(buffer, 0, 10))
    assert [len(part.records) for part in parts] == [10, 10, 6]
    assert [part.next_offset for part in parts] == [10, 20, 26]
    assert [part.leader_epoch for part in parts] == [2, 2, 3]
    assert [offset for part in parts for offset, _ in part.records] == list(range(26))


def test_a_fetch_from_inside_a_batch_leaves_out_what_comes_before():
    buffer = encoded(0, [b"a", b"b", b"c"])
    assert read(buffer, 2) == ([(2, b"c")], 3)
    assert read(buffer, 2, 1) == ([(2, b"c")], 3)


def test_a_control_batch_is_passed_over_and_the_position_moves():
    assert read(control(5), 5) == ([], 6)
    assert read(encoded(4, [b"a"]) + control(5) + encoded(6, [b"b"]), 4) == (
        [(4, b"a"), (6, b"b")],
        7,
    )


def test_transactional_records_are_events_as_for_kafkas_own_consumer():
    assert read(encoded(0, [b"a"], attributes=0x10), 0) == ([(0, b"a")], 1)


def test_a_gap_is_passed():
    assert read(encoded(9, [b"a"]), 3) == ([(9, b"a")], 10)


def gaps(buffer: bytes, position: int, size: int = 512) -> list[tuple[int, int]]:
    found = list(slices(buffer, position, size))
    return [(gap.start, gap.end) for part in found for gap in part.unvouched]


def compacted(base: int, kept: list[int], span: int) -> bytes:
    """A batch of `span` offsets of which the log cleaner kept a few, at their deltas."""
    batch = bytearray(encoded(base, [b"%d" % n for n in kept]))
    at = 61
    for delta in kept:
        batch[at + 3] = delta << 1  # behind length, attributes and timestamp delta
        at += 1 + (batch[at] >> 1)
    batch[23:27] = (span - 1).to_bytes(4, "big")
    batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, "big")
    return bytes(batch)


def test_a_hole_between_batches_is_not_vouched_for():
    assert gaps(encoded(9, [b"a"]), 3) == [(3, 9)]
    assert gaps(encoded(3, [b"a"]) + encoded(9, [b"b"]), 3) == [(4, 9)]
    assert gaps(encoded(3, [b"a"]) + encoded(4, [b"b"]), 3) == []


@pytest.mark.parametrize("size", [1, 2, 512])
def test_the_records_that_a_batch_lacks_are_not_vouched_for(size: int):
    batch = compacted(10, [1, 4], 6)
    assert read(batch, 10, size) == ([(11, b"1"), (14, b"4")], 16)
    assert gaps(batch, 10, size) == [(10, 11), (12, 14), (15, 16)]
    assert gaps(batch, 13, size) == [(13, 14), (15, 16)]
    assert gaps(compacted(10, [], 6), 12, size) == [(12, 16)]
    assert gaps(compacted(10, [0, 1, 2], 3), 11, size) == []


def test_a_control_batch_is_vouched_for_and_a_hole_before_it_is_not():
    assert gaps(encoded(4, [b"a"]) + control(5) + encoded(6, [b"b"]), 4) == []
    assert gaps(control(5), 3) == [(3, 5)]


def test_a_gap_before_a_damaged_batch_is_told_when_the_position_has_passed_it():
    """What cannot be read yet is no gap: the position still stands before it."""
    broken = bytearray(encoded(9, [b"b"]))
    broken[61] ^= 1
    parts = slices(encoded(3, [b"a"]) + bytes(broken), 3)
    assert next(parts) == ([(3, b"a")], 4, 0, ())
    with pytest.raises(InvalidBatch):
        next(parts)


def test_a_null_value_is_delivered_as_none():
    assert read(encoded(0, [b"a", None]), 0) == ([(0, b"a"), (1, None)], 2)


def test_a_batch_that_was_cut_off_is_left_for_the_next_fetch():
    whole = encoded(0, [b"a"])
    for cut in (1, 30, 61, 66):
        assert read(whole + encoded(1, [b"b"])[:cut], 0) == ([(0, b"a")], 1)


@pytest.mark.parametrize("at", [16, 17, 21, 40, 57, 65])
def test_a_flipped_bit_is_noticed_after_everything_before_it_was_given(at: int):
    broken = bytearray(encoded(1, [b"b"]))
    broken[at] ^= 1
    parts = slices(encoded(0, [b"a"]) + bytes(broken), 0)
    assert next(parts).records == [(0, b"a")]
    with pytest.raises(InvalidBatch) as raised:
        next(parts)
    assert raised.value.position == 1


@pytest.mark.parametrize("length", [0, -1, 10])
def test_an_impossible_length_is_an_invalid_batch(length: int):
    broken = bytearray(encoded(0, [b"a"]))
    broken[8:12] = length.to_bytes(4, "big", signed=True)
    with pytest.raises(InvalidBatch):
        list(slices(bytes(broken), 0))


@pytest.mark.parametrize("size", [1, 512])
@pytest.mark.parametrize("length", [2**30, 2**44, 2**63 - 1])
def test_a_value_longer_than_any_memory_is_an_invalid_batch(length: int, size: int):
    with pytest.raises(InvalidBatch, match="can't be read"):
        list(slices(with_value_of_length(length), 0, size))


def test_an_answer_that_would_not_move_the_position_is_invalid():
    with pytest.raises(InvalidBatch, match="ends before"):
        list(slices(encoded(0, [b"a"]), 5))
    with pytest.raises(InvalidBatch, match="not whole"):
        list(slices(encoded(0, [b"a" * 100])[:-1], 0))


def test_nothing_is_nothing():
    assert list(slices(b"", 7)) == []


CODECS = {1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}


@pytest.mark.parametrize("codec", CODECS, ids=CODECS.get)
@pytest.mark.parametrize("count", [1, 300, 9_000])
def test_compressed_batches_are_read_whole_small_ones_at_once(codec: int, count: int):
    values = [b"value %d of many" % number for number in range(count)]
    before = encoded(0, [b"before"])
    buffer = before + compressed(1, values, codec, 3) + encoded(count + 1, [b"b"])
    rows, end = read(buffer, 0)
    assert rows == [*enumerate([b"before", *values, b"b"])]
    assert end == count + 2
    packed = [part for part in parsing_of(buffer) if isinstance(part, Packed)]
    assert bool(packed) is (count == 9_000), "what is large is not unpacked in the loop"
    assert read(buffer[len(before) :], count)[0][0] == (count, values[-1]), "from inside of it"


def parsing_of(buffer: bytes) -> list[Slice | Packed]:
    parts = list[Slice | Packed]()
    for part in parsing.slices(buffer, 0):
        parts.append(part)
        if isinstance(part, Packed):
            part.unpack()
    return parts


def bomb(codec: int, size: int) -> bytes:
    """Return a batch of one record of so many zeros."""
    packers = {
        1: gzip.compress,
        2: snappy_encode,
        3: lambda plain: bytes(cramjam.lz4.compress(plain)),
        4: lambda plain: bytes(cramjam.zstd.compress(plain)),
    }
    return with_records(packers[codec](bytes(size)), codec)


@pytest.mark.parametrize("codec", CODECS, ids=CODECS.get)
def test_a_batch_that_holds_more_than_it_may_is_told_and_takes_no_room(codec: int):
    limit, size = 1 << 20, 64 << 20
    buffer = encoded(0, [b"before"]) + placed(bomb(codec, size), 1, 0)
    parts = slices(buffer, 0, unpacked_bytes_max=limit)
    assert next(parts).records == [(0, b"before")]
    tracemalloc.start()
    try:
        with pytest.raises(BatchTooLarge, match="at offset 1 takes more than 1048576 bytes"):
            next(parts)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 8 * limit


def test_blocks_of_snappy_without_a_head_are_read_too():
    values: list[bytes | None] = [b"one", b"two"]
    plain = encoded(0, values)[61:]
    buffer = with_records(bytes(cramjam.snappy.compress_raw(plain)), 2, 2)
    assert read(buffer, 0) == ([*enumerate(values)], 2)


def test_members_of_gzip_in_a_row_are_read():
    values: list[bytes | None] = [b"one", b"two"]
    plain = encoded(0, values)[61:]
    buffer = with_records(gzip.compress(plain[:4]) + gzip.compress(plain[4:]), 1, 2)
    assert read(buffer, 0) == ([*enumerate(values)], 2)


@pytest.mark.parametrize("codec", [*CODECS, 5, 6, 7])
@pytest.mark.parametrize("cut", [0, 1, 5, 20])
def test_what_cannot_be_unpacked_is_an_invalid_batch(codec: int, cut: int):
    whole = compressed(0, [b"value %d" % number for number in range(40)], min(codec, 4))[61:]
    buffer = with_records(whole[:cut] or b"\x00garbage", codec, 40)
    with pytest.raises(InvalidBatch, match="offset 0"):
        read(buffer, 0)
