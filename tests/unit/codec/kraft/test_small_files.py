"""Kafka's text files beside a log, and checksums where Kafka does not look."""

import contextlib

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from rlmm_daemon.codec.kraft import line_checkpoint, small_files
from rlmm_daemon.codec.kraft.small_files import MetaProperties
from rlmm_daemon.domain.errors import InvalidArgument, Malformed
from rlmm_daemon.domain.ids import uuid_bytes

META = MetaProperties(
    cluster_id="c2lkZWNhci1kZXYta2Fma2",
    node_id=2,
    directory_id=uuid_bytes("Zra-pXf5Agr4AtWPsySp5Q"),
)
#: As Kafka's own tool wrote it.
THEIRS = (
    b"#\n#Thu Nov 26 04:33:50 UTC 2026\nnode.id=2\ndirectory.id=Zra-pXf5Agr4AtWPsySp5Q\n"
    b"version=1\ncluster.id=c2lkZWNhci1kZXYta2Fma2\n"
)


def test_kafkas_meta_properties_are_read_and_ours_differ_in_a_comment_only():
    assert small_files.decode_meta(THEIRS) == META
    ours = small_files.encode_meta(META)
    lines = zip(ours.splitlines(), THEIRS.splitlines(), strict=True)
    assert [a for a, b in lines if a != b] == [ours.splitlines()[1]]
    assert ours.splitlines()[1].startswith(b"#crc32c=")
    assert small_files.decode_meta(ours) == META


@given(st.integers(0, len(small_files.encode_meta(META)) - 1), st.integers(0, 7))
def test_a_flipped_bit_makes_no_other_identity(at, bit):
    damaged = bytearray(small_files.encode_meta(META))
    damaged[at] ^= 1 << bit
    with contextlib.suppress(Malformed):
        assert small_files.decode_meta(bytes(damaged)) == META, "in the comment, perhaps"


@given(st.integers(0, len(small_files.encode_meta(META)) - 1))
def test_meta_properties_that_are_cut_short_are_refused(size):
    whole = small_files.encode_meta(META)
    with pytest.raises(Malformed):
        small_files.decode_meta(whole[:size])


@pytest.mark.parametrize(
    "text",
    [
        THEIRS.replace(b"version=1", b"version=0"),
        THEIRS.replace(b"node.id=2\n", b""),
        THEIRS.replace(b"node.id=2", b"node.id=-2"),
        THEIRS.replace(b"node.id=2", b"node.id=2\nnode.id=3"),
        THEIRS.replace(b"Zra-pXf5Agr4AtWPsySp5Q", b"AAAAAAAAAAAAAAAAAAAAAA"),
        THEIRS.replace(b"Zra-pXf5Agr4AtWPsySp5Q", b"Zra-"),
        THEIRS.replace(b"cluster", b"clu\\\nster"),
        THEIRS.replace(b"cluster", b"\xff"),
    ],
)
def test_what_is_no_identity_is_refused(text):
    with pytest.raises(Malformed):
        small_files.decode_meta(text)


@pytest.mark.parametrize(
    ("field", "value"), [("cluster_id", "a b"), ("node_id", -1), ("directory_id", bytes(16))]
)
def test_no_other_identity_is_written(field, value):
    fields = {"cluster_id": "c", "node_id": 1, "directory_id": bytes([1] * 16)} | {field: value}
    with pytest.raises(InvalidArgument):
        small_files.encode_meta(MetaProperties(**fields))


def test_partition_metadata_is_kafkas():
    real = b"version: 0\ntopic_id: pQOQqrCWRcqXvRz0L3vpEQ"
    topic_id = uuid_bytes("pQOQqrCWRcqXvRz0L3vpEQ")
    assert small_files.encode_partition(topic_id) == real
    assert small_files.decode_partition(real) == topic_id
    for size in range(len(real)):
        with pytest.raises(Malformed):
            small_files.decode_partition(real[:size])


def test_an_offset_is_in_kafkas_checkpoint_with_a_checksum_in_a_row_of_no_topic():
    data = small_files.encode_offset("topic", 17)
    assert data == b"0\n2\ntopic 0 17\n#crc32c 0 %d\n" % crc32c(b"topic 0 17")
    assert small_files.decode_offset(data, "topic") == 17
    with pytest.raises(Malformed, match="not of other-0"):
        small_files.decode_offset(data, "other")
    kafkas = b"0\n2\njourney 0 1500\n__remote_log_metadata 4 0\n"
    assert small_files.decode_offset(kafkas, "topic") is None


@pytest.mark.parametrize("at", range(len(small_files.encode_offset("topic", 17))))
def test_no_damaged_offset_is_believed(at):
    whole = small_files.encode_offset("topic", 17)
    with pytest.raises(Malformed):
        small_files.decode_offset(whole[:at], "topic")
    for bit in range(8):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << bit
        with contextlib.suppress(Malformed):
            assert small_files.decode_offset(bytes(damaged), "topic") == 17


@pytest.mark.parametrize("data", [b"1\n0\n", b"0\n2\n1 0\n", b"0\n1\n1\n", b"\xff", b"0\n1\n1 x\n"])
def test_what_is_no_checkpoint_of_epochs_is_refused(data):
    with pytest.raises(Malformed):
        [line_checkpoint.numbers(row) for row in line_checkpoint.decode(data, fields=2)]


@given(st.binary(min_size=1, max_size=60).filter(lambda line: b"\n" not in line), st.data())
def test_a_sealed_line_is_read_whole_or_refused(line, data):
    sealed = small_files.seal(line)
    assert small_files.unseal(sealed) == line
    assert small_files.unseal(line) == line
    damaged = bytearray(sealed)
    damaged[data.draw(st.integers(0, len(line) - 1))] ^= 1
    with pytest.raises(Malformed):
        small_files.unseal(bytes(damaged))
