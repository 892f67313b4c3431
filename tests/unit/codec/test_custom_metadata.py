import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from rlmm_daemon.codec import custom_metadata, marker
from rlmm_daemon.codec.custom_metadata import SIZED, StoredFacts
from rlmm_daemon.domain.errors import InvalidArgument, Malformed
from tests.support import markers

U32 = st.integers(0, 2**32 - 1)
FACTS = st.builds(
    StoredFacts,
    layout_number=st.integers(1, 65535),
    log_crc32c=U32,
    sizes=st.dictionaries(st.sampled_from(SIZED), U32),
)


def resealed(raw: bytes) -> bytes:
    return raw[:30] + int(crc32c(raw[:30]) & 0xFFFF).to_bytes(2, "big")


@given(FACTS)
def test_facts_survive_in_32_bytes(facts):
    raw = custom_metadata.encode(facts)
    assert len(raw) == 32
    assert custom_metadata.decode(raw) == facts


def test_the_bytes_of_version_1_stay_what_they_are():
    facts = StoredFacts(layout_number=2, log_crc32c=0xDEADBEEF, sizes={".index": 1, ".snapshot": 0})
    raw = custom_metadata.encode(facts)
    assert raw[:30].hex() == "b7010009" + "0002deadbeef" + "00000001" + "00" * 16
    assert raw == resealed(raw)


@given(st.binary(max_size=64))
def test_foreign_bytes_are_nobodys_facts(raw):
    assert custom_metadata.decode(raw) is None


def test_absent_and_empty_are_no_facts():
    assert custom_metadata.decode(None) is None
    assert custom_metadata.decode(b"") is None


@given(FACTS, st.integers(0, 31), st.integers(1, 255))
def test_a_damaged_byte_is_never_believed(facts, at, mask):
    raw = bytearray(custom_metadata.encode(facts))
    raw[at] ^= mask
    assert custom_metadata.decode(bytes(raw)) is None


@pytest.mark.parametrize("at", [1, 2])
def test_a_newer_version_or_an_unknown_flag_is_refused(at):
    facts = StoredFacts(layout_number=1, log_crc32c=0, sizes={})
    raw = bytearray(custom_metadata.encode(facts))
    raw[at] = 9
    with pytest.raises(Malformed):
        custom_metadata.decode(resealed(bytes(raw)))


@pytest.mark.parametrize(("number", "size"), [(0, 1), (65536, 1), (1, 2**32)])
def test_what_has_no_room_is_refused(number, size):
    with pytest.raises(InvalidArgument):
        custom_metadata.encode(
            StoredFacts(layout_number=number, log_crc32c=0, sizes={".index": size})
        )


MARKER = marker.BucketMarker(
    cluster_id="c",
    partition_count=50,
    metadata_topic_id="AAAAAAAAAAAAAAAAAAAAAQ",
    layouts=(marker.LayoutRow(number=1, kind="local-tiered-storage", prefix="a"),),
    accepted_losses=(
        marker.AcceptedLoss(metadata_partition=None, topic_id="x", accepted_at_ms=1, broker_id=2),
    ),
)


def test_a_marker_survives():
    assert marker.decode_marker(marker.encode(MARKER)) == MARKER


PRESENCE = marker.Presence(
    cluster_id="c",
    broker_id=1,
    incarnation=None,
    started_at_ms=1,
    written_at_ms=2,
    copy_deadline_seconds=600.0,
    lease_end_ms=None,
    metadata_manager="rlmm",
    partitions={
        3: marker.PresencePartition(state="ready", topic_id="x", leader_epoch=1, next_offset=9)
    },
)


def test_a_presence_file_survives():
    assert marker.decode_presence(marker.encode(PRESENCE)) == PRESENCE


@pytest.mark.parametrize(
    ("known", "absurd"),
    [
        (b": 600.0", b": 1e308"),
        (b": 600.0", b": 1e400"),
        (b": 600.0", b": -1"),
        (b'"written_at_ms": 2', b'"written_at_ms": 1000000000000000000'),
        (b'"written_at_ms": 2', b'"written_at_ms": -1'),
    ],
)
def test_a_presence_file_with_a_time_that_nobody_can_count_with_is_refused(known, absurd):
    raw = marker.encode(PRESENCE)
    assert known in raw
    with pytest.raises(Malformed):
        marker.decode_presence(raw.replace(known, absurd))


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{}",
        b"\xff",
        markers.newer(marker.encode(MARKER)),
        markers.edited(marker.encode(MARKER), b'"number": 1', b'"number": 2'),
        markers.edited(marker.encode(MARKER), b'_count": 50', b'_count": 0'),
        markers.edited(marker.encode(MARKER), b'"format": 3', b'"format": 3, "later": 3'),
    ],
)
def test_a_marker_that_is_not_understood_is_refused(raw):
    with pytest.raises(Malformed):
        marker.decode_marker(raw)
