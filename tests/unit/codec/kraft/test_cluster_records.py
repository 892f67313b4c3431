"""Records of `__cluster_metadata`; tests/kafka holds them to Kafka's own classes."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlmm_daemon.codec.kraft import cluster_records
from rlmm_daemon.codec.kraft.cluster_records import TABLES, Kind, Passed, Record
from rlmm_daemon.domain.errors import Malformed

UUID = bytes(range(16))


def test_the_bytes_are_those_that_a_real_controller_wrote():
    # Seen on a 4.3.1 cluster: frame 1, type 2, version 0, name, id, no tags.
    told = b"\x01\x02\x00" + b"\x07orders" + UUID + b"\x00"
    assert cluster_records.read(told) == Record(Kind.TOPIC, {"Name": "orders", "TopicId": UUID})
    gone = b"\x01\x09\x00" + UUID + b"\x00"
    assert cluster_records.read(gone) == Record(Kind.REMOVE_TOPIC, {"TopicId": UUID})


def test_tags_that_are_not_known_are_passed_over():
    gone = b"\x01\x09\x00" + UUID + b"\x01\x05\x02hi"
    assert cluster_records.read(gone) == Record(Kind.REMOVE_TOPIC, {"TopicId": UUID})


@given(st.binary(max_size=20))
def test_secrets_and_what_is_new_stay_bytes(rest):
    scram, newer = b"\x01\x0b\x00" + rest, b"\x01\x63\x07" + rest
    assert cluster_records.read(scram) == Passed(Kind.USER_SCRAM_CREDENTIAL, known=True)
    assert cluster_records.read(newer) == Passed(0x63, known=False)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (None, "without a value"),
        (b"", "cut short"),
        (b"\x00\x02\x00", "frame version 0"),
        (b"\x02\x02\x00", "frame version 2"),
        (b"\x01\x09\x01" + UUID + b"\x00", "REMOVE_TOPIC of version 1: 0 is known"),
        (b"\x01\x09\x00" + UUID[:-1], "15 are left"),
        (b"\x01\x09\x00" + UUID + b"\x00\x00", "1 bytes of garbage"),
    ],
)
def test_what_can_not_be_told_is_refused(value, why):
    with pytest.raises(Malformed, match=why):
        cluster_records.read(value)


@given(st.sampled_from(sorted(TABLES)), st.integers(0, 4), st.binary(max_size=60))
def test_no_bytes_end_in_anything_but_a_refusal(kind, version, rest):
    with contextlib.suppress(Malformed):
        cluster_records.read(bytes((1, kind, version)) + rest)
