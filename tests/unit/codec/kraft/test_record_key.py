import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlmm_daemon.codec.kraft import record_key
from rlmm_daemon.codec.kraft.record_key import RecordKey, pack_key, read_key
from rlmm_daemon.domain.errors import InvalidArgument, UnsupportedProtocol

INT32 = st.integers(-(2**31), 2**31 - 1)
KEYS = st.builds(RecordKey, INT32, INT32, st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1))


def test_a_key_is_these_bytes() -> None:
    key = RecordKey(partition=7, submitter=2, incarnation=3, serial=258)
    assert pack_key(key).hex() == "00000000000700000002000000030000000000000102"


@given(KEYS)
def test_a_key_is_read_as_it_was_packed(key: RecordKey) -> None:
    packed = pack_key(key)
    assert len(packed) == record_key.KEY_BYTES == 22
    assert read_key(packed) == key


@given(st.none() | st.binary(max_size=40).filter(lambda key: len(key) != 22))
def test_what_has_another_size_is_none_of_ours(key: bytes | None) -> None:
    assert read_key(key) is None


@given(st.integers(-(2**15), 2**15 - 1).filter(bool), st.binary(min_size=20, max_size=20))
def test_a_newer_key_is_refused_since_it_may_take_an_offset(version: int, rest: bytes) -> None:
    with pytest.raises(UnsupportedProtocol):
        read_key(version.to_bytes(2, "big", signed=True) + rest)


@pytest.mark.parametrize(
    "key", [RecordKey(2**31, 0, 0, 0), RecordKey(0, 0, -1, 0), RecordKey(0, 0, 0, 2**64)]
)
def test_what_no_field_holds_is_refused(key: RecordKey) -> None:
    with pytest.raises(InvalidArgument):
        pack_key(key)


def test_a_count_of_partitions_is_one_that_a_log_can_have() -> None:
    assert record_key.read_count(record_key.pack_count(50)) == 50
    assert record_key.read_count(bytes(4)) is None
    assert record_key.read_count(b"\xff" * 4) is None
    assert record_key.read_count(b"") is None
    assert record_key.read_count(None) is None
    for count in (0, 10_001):
        with pytest.raises(InvalidArgument):
            record_key.pack_count(count)
