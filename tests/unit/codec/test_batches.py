"""Record batches, byte for byte against aiokafka's builder and reader."""

import contextlib
import struct
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from rlmm_daemon.codec import batches
from rlmm_daemon.domain.errors import InvalidArgument, LogCorrupt

values = st.lists(st.binary(max_size=300), min_size=1, max_size=80)
offsets = st.integers(0, 2**62)
timestamps = st.integers(0, 2**50)


def theirs(records, *, timestamp_ms, compression=0, keys=False, headers=()):
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=compression,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 30,
    )
    for delta, value in enumerate(records):
        key = b"key" if keys else None
        builder.append(delta, timestamp_ms, key=key, value=value, headers=list(headers))
    return bytes(builder.build())


def placed(batch, base_offset, leader_epoch):
    return (
        struct.pack(">q", base_offset) + batch[8:12] + struct.pack(">i", leader_epoch) + batch[16:]
    )


def ours(records, base_offset=0, leader_epoch=3, timestamp_ms=1_700_000_000_000):
    return batches.build(
        records, base_offset=base_offset, leader_epoch=leader_epoch, timestamp_ms=timestamp_ms
    )


def changed(batch, at, replacement, *, keep_crc=False):
    altered = batch[:at] + replacement + batch[at + len(replacement) :]
    if keep_crc:
        return altered
    return altered[:17] + struct.pack(">I", crc32c(altered[21:])) + altered[21:]


@given(values, offsets, st.integers(0, 2**31 - 1), timestamps)
def test_a_built_batch_is_aiokafkas_byte_for_byte(records, base_offset, leader_epoch, timestamp):
    built = ours(records, base_offset, leader_epoch, timestamp)
    assert built == placed(theirs(records, timestamp_ms=timestamp), base_offset, leader_epoch)


@given(values, offsets, timestamps)
def test_aiokafka_reads_what_is_built(records, base_offset, timestamp):
    reader = DefaultRecordBatch(bytearray(ours(records, base_offset, timestamp_ms=timestamp)))
    assert reader.validate_crc()
    assert [(record.offset, record.value, record.timestamp) for record in reader] == [
        (base_offset + delta, value, timestamp) for delta, value in enumerate(records)
    ]


@given(st.lists(values, max_size=5), st.integers(0, 200), st.integers(0, 2**40))
def test_what_is_built_is_split_again_and_zeros_end_it(groups, zeros, position):
    written, next_offset = b"", 7
    expected: list[tuple[int, bytes]] = []
    for group in groups:
        written += ours(group, next_offset)
        expected += enumerate(group, next_offset)
        next_offset += len(group)
    found = list(batches.split(written + bytes(zeros), position=position))
    assert [record for batch in found for record in batches.records_of(batch)] == expected
    assert [batch.record_count for batch in found] == [len(group) for group in groups]
    assert (found[-1].end if found else position) == position + len(written)
    assert (found[-1].next_offset if found else 7) == next_offset


def test_the_header_fields_are_told():
    (batch,) = batches.split(ours([b"a", b"b"], base_offset=40, leader_epoch=9, timestamp_ms=5))
    assert (batch.base_offset, batch.last_offset, batch.next_offset) == (40, 41, 42)
    assert (batch.leader_epoch, batch.attributes, batch.record_count) == (9, 0, 2)
    assert (batch.base_timestamp_ms, batch.max_timestamp_ms) == (5, 5)
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (-1, -1, -1)
    assert not batch.is_control
    assert not batch.is_compressed


def test_keys_headers_and_null_values_of_others_are_read_past():
    foreign = theirs(
        [b"v", None, b""], timestamp_ms=1, keys=True, headers=[("h", b"x"), ("n", None)]
    )
    (batch,) = batches.split(foreign)
    assert batches.records_of(batch) == [(0, b"v"), (1, None), (2, b"")]


def test_a_compressed_batch_is_split_but_its_records_are_refused():
    (batch,) = batches.split(theirs([b"v" * 1000], timestamp_ms=1, compression=1), position=100)
    assert batch.is_compressed
    with pytest.raises(LogCorrupt, match=r"the batch is compressed \(batch at byte 100\)"):
        batches.records_of(batch)


def test_a_control_batch_has_no_records_to_apply():
    (batch,) = batches.split(changed(ours([b"marker"]), 21, b"\0\x20"))
    assert batch.is_control
    assert batches.records_of(batch) == []


GOOD = ours([b"first"])


@pytest.mark.parametrize(
    ("tail", "reason"),
    [
        (GOOD[:60], "60 bytes are too few for a batch header"),
        (GOOD[:-1], f"the batch claims {len(GOOD)} bytes but only {len(GOOD) - 1} are left"),
        (changed(GOOD, 16, b"\1"), "magic is 1, not 2"),
        (changed(GOOD, 8, b"\0\0\0\x30"), "the batch claims 60 bytes, less than its header"),
        (changed(GOOD, 8, b"\xff\xff\xff\xff"), "the batch claims 11 bytes"),
        (changed(GOOD, 8, b"\x7f\xff\xff\xff"), "the batch claims 2147483659 bytes"),
        (changed(GOOD, 68, b"X", keep_crc=True), "CRC-32C is"),
        (changed(GOOD, 0, b"\xff"), "< 0"),
        (changed(GOOD, 23, b"\xff"), "< 0"),
        (bytes(100) + b"\1", "magic is 0, not 2"),
        (bytes(3 * 65536) + b"\1", "magic is 0, not 2"),
    ],
    ids=lambda value: value if isinstance(value, str) else "bytes",
)
def test_a_broken_batch_is_named_with_its_position_after_the_good_ones(tail, reason):
    found: list[Any] = []
    with pytest.raises(LogCorrupt) as caught:
        found.extend(batches.split(GOOD + tail, position=1000))
    assert reason in caught.value.message
    assert caught.value.fields == {"position": 1000 + len(GOOD)}


def test_batches_before_a_fault_are_handed_out():
    walk = batches.split(GOOD + b"\1" * 70)
    assert next(walk).base_offset == 0
    with pytest.raises(LogCorrupt):
        next(walk)


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (changed(GOOD, 57, b"\0\0\0\0"), "11 bytes behind the last record|bytes behind"),
        (changed(GOOD, 57, b"\0\0\0\2"), "records in|is cut short"),
        (changed(GOOD, 57, b"\x7f\xff\xff\xff"), "2147483647 records in"),
        (changed(GOOD, 61, b"\x7f"), "a record claims -64 bytes"),
        (changed(GOOD, 64, b"\2"), r"offset delta 1 is not in 0\.\.0"),
        (changed(GOOD, 66, b"\x7e"), "value claims 63 bytes"),
        (changed(GOOD, 72, b"\x7e"), "claims 63 headers"),
        (changed(GOOD, 61, b"\x14"), "headers in -1 bytes"),
    ],
    ids=lambda value: value if isinstance(value, str) else "bytes",
)
def test_records_that_do_not_fit_are_corrupt(broken, reason):
    (batch,) = batches.split(broken, position=500)
    with pytest.raises(LogCorrupt, match=reason) as caught:
        batches.records_of(batch)
    assert caught.value.fields == {"position": 500}


@pytest.mark.parametrize(
    "wrong",
    [{"records": []}, {"leader_epoch": 2**31}, {"base_offset": 2**63}, {"timestamp_ms": 2**63}],
)
def test_what_no_header_can_hold_is_refused(wrong):
    with pytest.raises(InvalidArgument):
        ours(**{"records": [b"v"]} | wrong)


@given(st.binary(max_size=300))
def test_arbitrary_bytes_give_batches_or_log_corrupt(noise):
    with contextlib.suppress(LogCorrupt):
        for batch in batches.split(noise):
            batches.records_of(batch)


@given(values, st.data())
def test_one_changed_byte_behind_the_length_is_always_noticed(records, data):
    good = ours(records)
    at = data.draw(st.integers(16, len(good) - 1))
    broken = good[:at] + bytes((good[at] ^ data.draw(st.integers(1, 255)),)) + good[at + 1 :]
    with pytest.raises(LogCorrupt):
        list(batches.split(broken))


@given(values, st.integers(61, 400), st.binary(min_size=1, max_size=3))
def test_records_with_a_valid_checksum_but_changed_bytes_stay_bounded(records, at, noise):
    good = ours(records)
    if at + len(noise) > len(good):
        return
    (batch,) = batches.split(changed(good, at, noise))
    try:
        found = batches.records_of(batch)
    except LogCorrupt:
        return
    assert len(found) == batch.record_count


sparse = st.lists(
    st.tuples(st.integers(0, 2_000), st.one_of(st.none(), st.binary(max_size=300))),
    max_size=30,
    unique_by=lambda row: row[0],
)


@given(sparse, offsets, st.integers(1, 50), st.booleans())
def test_a_batch_with_fewer_records_than_offsets_reads_back_and_says_why(
    rows, base, behind, compacted
):
    rows = sorted((base + delta, value) for delta, value in rows)
    end = max([offset for offset, _ in rows], default=base) + behind
    built = batches.build_spanning(
        rows, base_offset=base, next_offset=end, leader_epoch=4, timestamp_ms=7, compacted=compacted
    )
    (batch,) = batches.split(built)
    assert batches.records_of(batch) == rows
    assert (batch.base_offset, batch.next_offset, batch.leader_epoch) == (base, end, 4)
    assert batch.is_compacted == (compacted and len(rows) < end - base)
    read = [(record.offset, record.value) for record in DefaultRecordBatch(built)]
    assert read == rows, "Kafka's form, whatever it lacks"
