"""Control records, byte for byte as a 4.3.1 quorum writes them."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlmm_daemon.codec.kraft import control
from rlmm_daemon.codec.kraft.control import (
    KRaftVersion,
    LeaderChanged,
    SnapshotFooter,
    SnapshotHeader,
)
from rlmm_daemon.core.raft.voters import Endpoint, ReplicaKey, Voter, VoterSet
from rlmm_daemon.domain.errors import InvalidArgument, Malformed

ids = st.integers(0, 2**31 - 1)
names = st.text(max_size=20)
ports = st.integers(0, 2**16 - 1)
versions = st.integers(0, 2**15 - 1)
voters = st.builds(
    Voter,
    st.builds(ReplicaKey, ids, st.binary(min_size=16, max_size=16)),
    st.lists(st.builds(Endpoint, names, names, ports), max_size=3).map(tuple),
    st.tuples(versions, versions),
)
sets = st.lists(voters, max_size=5, unique_by=lambda voter: voter.key.id).map(VoterSet.of)
records = st.one_of(
    st.builds(LeaderChanged, ids, st.lists(ids).map(tuple), st.lists(ids).map(tuple)),
    st.builds(KRaftVersion, versions),
    st.builds(SnapshotHeader, st.integers(-(2**63), 2**63 - 1)),
    st.just(SnapshotFooter()),
    sets,
)
ONE = VoterSet.of([Voter(ReplicaKey(1, bytes([7] * 16)), (Endpoint("C", "h", 9093),))])


@given(records)
def test_what_was_built_is_read_again(record):
    assert control.read(*control.pair(record)) == record


@pytest.mark.parametrize(
    ("record", "key", "value"),
    [
        # Leader 1 of voters 1, 2, 3, elected by itself and 3: from a real quorum's log.
        (
            LeaderChanged(1, (1, 2, 3), (1, 3)),
            "00000002",
            "0000 00000001 04 0000000100 0000000200 0000000300 03 0000000100 0000000300 00",
        ),
        (KRaftVersion(1), "00000005", "0000 0001 00"),
        (SnapshotHeader(5), "00000003", "0000 0000000000000005 00"),
        (SnapshotFooter(), "00000004", "0000 00"),
        (ONE, "00000006", f"0000 02 00000001 {'07' * 16} 02 0243 0268 2385 00 0000 0001 00 00 00"),
    ],
)
def test_a_record_is_kafkas_byte_for_byte(record, key, value):
    assert control.pair(record) == (bytes.fromhex(key), bytes.fromhex(value))


def test_a_leaders_record_with_directories_is_read():
    value = f"0001 00000001 02 00000001 {'07' * 16} 00 02 00000001 {'07' * 16} 00 00"
    read = control.read(bytes.fromhex("00000002"), bytes.fromhex(value))
    assert read == LeaderChanged(1, (1,), (1,))


def test_a_type_that_says_nothing_to_a_replica_is_passed_over():
    for kind in ("0000", "0001", "0007", "7fff"):
        assert control.read(bytes.fromhex("0000" + kind), b"anything") is None


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        (None, b"", "without a key"),
        (b"\0\0\0\5", None, "without a value"),
        (b"\0\0", b"", "wants 2 bytes"),
        (b"\xff\xff\0\5", b"", "key has version -1"),
        (b"\0\0\0\5", b"\0\1\0\1\0", "KRAFT_VERSION of version 1: 0 is known"),
        (b"\0\0\0\2", b"\0\2", "LEADER_CHANGE of version 2: 1 is known"),
        (b"\0\0\0\5", b"\0\0\0\1", "cut short"),
        (b"\0\0\0\5", b"\0\0\0\1\0!", "garbage"),
    ],
)
def test_what_does_not_follow_its_format_is_refused(key, value, reason):
    with pytest.raises(Malformed, match=reason):
        control.read(key, value)


def test_two_voters_of_one_id_are_refused():
    key, value = control.pair(ONE)
    assert value is not None
    twice = value[:2] + b"\x03" + value[3:-1] * 2 + b"\0"
    with pytest.raises(Malformed, match="one id"):
        control.read(key, twice)


@given(st.sampled_from([2, 3, 4, 5, 6]), st.binary(max_size=200))
def test_garbage_is_read_or_refused(kind, value):
    with contextlib.suppress(Malformed):
        control.read(b"\0\0\0" + bytes([kind]), value)


def test_what_no_field_holds_is_refused():
    with pytest.raises(InvalidArgument, match="no control record"):
        control.pair(KRaftVersion(2**15))
    with pytest.raises(InvalidArgument, match="no control record"):
        control.pair(VoterSet.of([Voter(ReplicaKey(1), (Endpoint("C", "h", 2**16),))]))
    with pytest.raises(InvalidArgument, match="32767 are the most"):
        control.pair(VoterSet.of([Voter(ReplicaKey(1), (Endpoint("C", "h" * 40_000, 1),))]))
