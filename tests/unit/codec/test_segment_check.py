"""The segment checker on segments that a real Kafka wrote, whole and damaged, in any chunks."""

import itertools
import json
import struct
from pathlib import Path
from typing import Any

import pytest
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from rlmm_daemon.codec import batches
from rlmm_daemon.codec.segment_check import SegmentChecker
from rlmm_daemon.domain.errors import ChecksumMismatch, CorruptError, Malformed

SEGMENTS = Path(__file__).parents[2] / "data" / "segments"
MANIFEST = json.loads((SEGMENTS / "manifest.json").read_text("utf-8"))
REAL = [
    pytest.param(
        SEGMENTS / f"orders-{partition['partition']}" / f"{segment['startOffset']:020}.log",
        segment,
        id=f"orders-{partition['partition']}-{segment['startOffset']}",
    )
    for partition in MANIFEST["partitions"]
    if partition["topic"] == "orders"
    for segment in partition["segments"]
]


def check(content, *, start=0, end=2**40, size=None, chunk=1 << 20):
    declared: Any = {"start_offset": start, "end_offset": end}
    checker = SegmentChecker(**declared, size_bytes=len(content) if size is None else size)
    for at in range(0, len(content), chunk):
        checker.feed(content[at : at + chunk])
    return checker.finish()


def batch(base_offset, *records):
    return batches.build(
        records or [b"value"], base_offset=base_offset, leader_epoch=0, timestamp_ms=1
    )


def legacy(magic, offset, value=b"value", compression=0):
    builder = LegacyRecordBatchBuilder(magic, compression, 1 << 20)
    builder.append(offset, timestamp=1, key=None, value=value)
    return bytes(builder.build())


def edited(content, at, replacement):
    return content[:at] + replacement + content[at + len(replacement) :]


def resealed(content):
    return edited(content, 17, struct.pack(">I", crc32c(content[21:])))


FIRST, SECOND, THIRD = batch(10, b"a", b"b"), batch(12), batch(20, b"long" * 100)
FILE = FIRST + SECOND + THIRD


@pytest.mark.parametrize(("path", "segment"), REAL)
@pytest.mark.parametrize("chunk", [997, 65536])
def test_a_segment_of_a_real_kafka_passes(path, segment, chunk):
    content = path.read_bytes()
    start, end = segment["startOffset"], segment["endOffset"]
    size = segment["segmentSizeInBytes"]
    found = check(content, start=start, end=end, size=size, chunk=chunk)
    assert found.size_bytes == len(content) == size
    assert found.batches == segment["contents"]["batches"]
    assert found.legacy_batches == 0
    assert (found.first_offset, found.last_offset) == (start, end)


@given(st.lists(st.integers(0, len(FILE))))
def test_where_the_chunks_end_makes_no_difference(cuts):
    declared: Any = {"start_offset": 10, "end_offset": 20}
    checker = SegmentChecker(**declared, size_bytes=len(FILE))
    edges = [0, *sorted(cuts), len(FILE)]
    for begin, end in itertools.pairwise(edges):
        checker.feed(memoryview(FILE)[begin:end])
    assert checker.finish() == check(FILE, start=10, end=20)


def test_gaps_at_the_ends_and_between_are_fine():
    found = check(FILE, start=3, end=99)
    assert (found.first_offset, found.last_offset, found.batches) == (10, 20, 3)


def test_an_empty_file_is_a_segment_without_batches():
    found = check(b"")
    assert (found.size_bytes, found.batches, found.first_offset, found.last_offset) == (
        0, 0, None, None,
    )  # fmt: skip


SECOND_AT, THIRD_AT = len(FIRST), len(FIRST + SECOND)


@pytest.mark.parametrize("chunk", [1, 13, 1 << 20])
@pytest.mark.parametrize(
    ("content", "changes", "fields", "reason"),
    [
        (FILE[:-1], {}, (THIRD_AT, 20), "beyond the end of the file"),
        (FILE[:-1], {"size": len(FILE)}, (THIRD_AT, 20), "the file ends 1 bytes before the batch"),
        (FILE, {"size": len(FILE) + 1}, (len(FILE), None), "its metadata says"),
        (FILE, {"size": len(FILE) - 1}, (THIRD_AT, 20), "beyond the end of the file"),
        (FILE + b"\0", {"size": len(FILE)}, (len(FILE), None), "the file goes on beyond"),
        (FILE + b"\0", {}, (len(FILE), None), "1 bytes at the end are no batch"),
        (FILE + bytes(80), {}, (len(FILE), 0), "the batch claims 12 bytes"),
        (FILE + b"\7" * 80, {}, (len(FILE), None), "no batch begins here: magic is 7"),
        (FILE, {"start": 11}, (0, 10), r"offsets 10\.\.11 lie outside the metadata's 11\.\."),
        (FILE, {"end": 19}, (THIRD_AT, 20), r"offsets 20\.\.20 lie outside"),
        (FIRST + FIRST, {}, (SECOND_AT, 10), "the offset does not ascend: 11 came before"),
        (FIRST + batch(11), {}, (SECOND_AT, 11), "the offset does not ascend: 11 came before"),
        (resealed(edited(FIRST, 23, b"\xff")), {}, (0, 10), "is below its first"),
        (edited(FILE, SECOND_AT + 8, b"\0\0\0\x30"), {}, (SECOND_AT, 12), "claims 60 bytes"),
        (edited(FILE, SECOND_AT + 8, b"\xff\xff\xff\0"), {}, (SECOND_AT, 12), "less than its"),
        (edited(FILE, SECOND_AT + 8, b"\x7f\xff\xff\0"), {}, (SECOND_AT, 12), "beyond the end"),
    ],
)
def test_a_fault_names_reason_position_and_offset(content, changes, fields, reason, chunk):
    with pytest.raises(Malformed, match=reason) as caught:
        check(content, **changes, chunk=chunk)
    assert caught.value.fields == dict(zip(("position", "offset"), fields, strict=True))


@pytest.mark.parametrize("chunk", [1, 70, 1 << 20])
@pytest.mark.parametrize("content", [FILE, FIRST + legacy(0, 12) + THIRD], ids=["v2", "magic 0"])
def test_a_changed_byte_is_a_checksum_mismatch_of_its_batch(content, chunk):
    behind = content.index(THIRD)
    with pytest.raises(ChecksumMismatch) as caught:
        check(edited(content, behind - 1, b"\xee"), chunk=chunk)
    assert caught.value.fields == {"position": SECOND_AT, "offset": 12}
    assert f"batch at offset 12, file position {SECOND_AT}" in caught.value.message


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("compression", [0, 1])
@pytest.mark.parametrize("chunk", [1, 20, 1 << 20])
def test_old_message_formats_are_checked_by_their_own_crc(magic, compression, chunk):
    old = legacy(magic, 0, b"v" * 300, compression) + batch(7)
    found = check(old, chunk=chunk)
    assert (found.batches, found.legacy_batches, found.last_offset) == (2, 1, 7)
    with pytest.raises(ChecksumMismatch):
        check(edited(old, 40, b"\xee"), chunk=chunk)


def test_the_smallest_old_message_may_end_the_file():
    smallest = legacy(0, 3, value=None)
    assert len(smallest) == 26
    for chunk in (1, 17, 26):
        assert check(smallest, chunk=chunk).last_offset == 3


@given(st.binary(max_size=400), st.integers(1, 100))
def test_arbitrary_bytes_are_refused_or_empty(noise, chunk):
    if noise:
        with pytest.raises((Malformed, CorruptError)):
            check(noise, chunk=chunk)


@given(st.data())
def test_no_changed_byte_behind_a_header_passes(data):
    at = data.draw(st.sampled_from([0, SECOND_AT, THIRD_AT])) + 16
    at = data.draw(st.integers(at, at + 50))
    changed = edited(FILE, at, bytes((FILE[at] ^ data.draw(st.integers(1, 255)),)))
    with pytest.raises((Malformed, ChecksumMismatch)):
        check(changed)
