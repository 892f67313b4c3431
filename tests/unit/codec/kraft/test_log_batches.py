"""Batches of a quorum's log: built as Kafka's, and read with what control records set."""

import struct

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from rlmm_daemon.codec import batches
from rlmm_daemon.codec.kraft import log_batches
from rlmm_daemon.core.raft.log_facts import Batch
from rlmm_daemon.core.raft.turn import LeaderChange
from rlmm_daemon.core.raft.voters import Endpoint, ReplicaKey, Voter, VotersAt, VoterSet
from rlmm_daemon.domain.errors import InvalidArgument, LogCorrupt, Malformed

#: The first batch of a real quorum's log: leader 1 of voters 1, 2, 3, elected by 1 and 3.
REAL = bytes.fromhex(
    "00000000000000000000005e00000001021b737ce2002000000000000001a21621a68c000001a216"
    "21a68cffffffffffffffffffffffffffff0000000158000000080000000244000000000001040000"
    "0001000000000200000000030003000000010000000003000000"
)
NOW = 1_700_000_000_000
VOTERS = VoterSet.of(
    Voter(ReplicaKey(n, bytes([n]) * 16), (Endpoint("CONTROLLER", "localhost", 19_090 + n),))
    for n in (1, 2, 3)
)
nullable = st.none() | st.binary(max_size=50)
rows = st.lists(st.tuples(nullable, nullable), min_size=1, max_size=20)


def built(payload: object, count: int = 1, base: int = 0, epoch: int = 1) -> bytes:
    return log_batches.build(Batch(base, count, epoch, payload=payload), timestamp_ms=NOW)


def resealed(batch: bytes, at: int, replacement: bytes) -> bytes:
    altered = batch[:at] + replacement + batch[at + len(replacement) :]
    return altered[:17] + struct.pack(">I", crc32c(altered[21:])) + altered[21:]


def test_a_leaders_first_batch_is_kafkas_byte_for_byte():
    timestamp = struct.unpack_from(">q", REAL, 27)[0]
    batch = Batch(0, 1, 1, payload=LeaderChange(1, (1, 2, 3), (1, 3)))
    assert log_batches.build(batch, timestamp_ms=timestamp) == REAL
    (read,) = log_batches.read(REAL)
    assert read == Batch(0, 1, 1, payload=REAL)
    assert log_batches.starts_epoch(read)
    assert log_batches.place(REAL) == (0, 1)


def test_the_first_batch_of_all_sets_version_and_voters():
    change = LeaderChange(2, (1, 2, 3), (2, 3), VotersAt(-1, VOTERS, 1))
    data = built(change, count=3, epoch=4)
    assert log_batches.read(data) == (Batch(0, 3, 4, VOTERS, 1, data),)


def test_a_change_of_voters_keeps_the_version():
    data = built(VOTERS, base=9)
    (read,) = log_batches.read(data)
    assert read == Batch(9, 1, 1, VOTERS, None, data)
    assert not log_batches.starts_epoch(read)


@given(rows, st.integers(0, 2**40), st.integers(0, 2**31 - 1))
def test_records_are_keys_and_values(records, base, epoch):
    data = built(records, len(records), base, epoch)
    (read,) = log_batches.read(data)
    assert read == Batch(base, len(records), epoch, payload=data)
    (kept,) = batches.split(data)
    expected = [(base + n, *row) for n, row in enumerate(records)]
    assert batches.keyed_records_of(kept) == expected


@given(st.lists(rows, min_size=1, max_size=5), st.data())
def test_a_last_batch_that_is_cut_short_is_left_out(lists, data):
    pieces, base = [], 5
    for records in lists:
        pieces.append(built(records, len(records), base))
        base += len(records)
    whole = b"".join(pieces)
    size = data.draw(st.integers(len(pieces[0]), len(whole)))
    read = log_batches.read(whole[:size])
    found = [batch.payload for batch in read if isinstance(batch.payload, bytes)]
    assert b"".join(found) == whole[: sum(map(len, pieces[: len(read)]))]
    assert len(read) == len(lists) or len(whole[:size]) < sum(map(len, pieces[: len(read) + 1]))


def test_bytes_without_one_whole_batch_are_refused():
    assert log_batches.read(b"") == ()
    for size in (1, 12, 61, len(REAL) - 1):
        with pytest.raises(Malformed, match="no whole batch"):
            log_batches.read(REAL[:size])


@pytest.mark.parametrize("at", [n for n in range(len(REAL)) if not (n < 8 or 12 <= n < 16)])
def test_no_damage_under_a_checksum_is_read(at):
    for bit in range(8):
        damaged = bytearray(REAL)
        damaged[at] ^= 1 << bit
        with pytest.raises((LogCorrupt, Malformed)):
            log_batches.read(bytes(damaged))


def test_sizes_are_bounded():
    with pytest.raises(LogCorrupt, match="of 8388609 bytes"):
        log_batches.read(REAL[:8] + struct.pack(">i", log_batches.BATCH_BYTES_MAX - 11) + REAL[12:])
    with pytest.raises(LogCorrupt, match="of 60 bytes"):
        log_batches.read(REAL[:8] + struct.pack(">i", 48) + REAL[12:])
    with pytest.raises(InvalidArgument, match="are the most"):
        built([(None, bytes(log_batches.BATCH_BYTES_MAX))])


def test_offsets_and_records_are_as_many():
    with pytest.raises(InvalidArgument, match="2 offsets is given 1"):
        built([(None, b"one")], count=2)
    with pytest.raises(LogCorrupt, match="1 records for 2 offsets"):
        log_batches.read(resealed(REAL, 23, struct.pack(">i", 1)))


def test_nothing_else_is_built():
    with pytest.raises(InvalidArgument, match="nothing that a log holds: int"):
        built(7)
    assert built(REAL) == REAL


def test_a_control_record_that_does_not_hold_is_named_with_its_batch():
    bad = batches.build_keyed(
        [(b"\0\0\0\6", b"\0\0\1!")], base_offset=3, leader_epoch=1, timestamp_ms=0, control=True
    )
    with pytest.raises(LogCorrupt, match=r"control record at offset 3.*batch at byte 0"):
        log_batches.read(bad)
