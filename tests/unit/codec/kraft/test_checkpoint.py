"""Snapshots of a quorum's log: Kafka's names and bytes, and every damage found."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlmm_daemon.codec import batches
from rlmm_daemon.codec.kraft import checkpoint, control
from rlmm_daemon.codec.kraft.checkpoint import Checkpoint
from rlmm_daemon.codec.kraft.control import KRaftVersion, SnapshotFooter, SnapshotHeader
from rlmm_daemon.core.raft.log_facts import BEGINNING, LogPoint
from rlmm_daemon.core.raft.voters import Endpoint, ReplicaKey, Voter, VotersAt, VoterSet
from rlmm_daemon.domain.errors import LogCorrupt

VOTERS = VoterSet.of(
    Voter(ReplicaKey(n, bytes([n]) * 16), (Endpoint("CONTROLLER", "localhost", 19_090 + n),))
    for n in (1, 2, 3)
)
POINT = LogPoint(epoch=3, end=120)
nullable = st.none() | st.binary(max_size=50)


IN_FORCE = VotersAt(7, VOTERS, 1)


def built(records=(), voters=IN_FORCE, point=POINT) -> bytes:
    pieces = checkpoint.build(point, voters, records, timestamp_ms=9, last_timestamp_ms=5)
    return b"".join(pieces)


def batch(*rows, base=0, epoch=3, control_records=True) -> bytes:
    return batches.build_keyed(
        rows, base_offset=base, leader_epoch=epoch, timestamp_ms=0, control=control_records
    )


HEADER = control.pair(SnapshotHeader(5))
FOOTER = control.pair(SnapshotFooter())


def test_names_are_kafkas():
    assert checkpoint.name(POINT) == "00000000000000000120-0000000003.checkpoint"
    assert checkpoint.parse_name(checkpoint.name(POINT)) == POINT
    for other in ("bootstrap.checkpoint", checkpoint.name(POINT) + ".part", "x" * 42):
        assert checkpoint.parse_name(other) is None


@given(st.lists(st.tuples(nullable, nullable), max_size=30))
def test_what_was_built_is_read_again(records):
    data = built(records)
    assert checkpoint.read(data, POINT) == Checkpoint(
        last_timestamp_ms=5, voters=VotersAt(-1, VOTERS, 1)
    )
    assert list(checkpoint.records(data)) == records


def test_many_records_go_into_batches_of_a_bounded_size():
    records = [(None, bytes(100_000))] * 7
    data = built(records)
    sizes = [each.record_count for each in batches.split(data) if not each.is_control]
    assert sizes == [3, 3, 1]
    assert list(checkpoint.records(data)) == records


def test_without_dynamic_voters_a_snapshot_names_none():
    read = checkpoint.read(built(voters=VotersAt(-1, VOTERS, 0)), POINT)
    assert read.voters == VotersAt(-1, VoterSet(), 0)


def test_the_bootstraps_checkpoint_has_the_size_that_kafka_gives_it():
    """For three voters whose listeners are called CONTROLLER, on localhost: 344 bytes."""
    data = checkpoint.bootstrap(VOTERS, timestamp_ms=1)
    assert len(data) == 344
    assert checkpoint.read(data, BEGINNING).voters == VotersAt(-1, VOTERS, 1)


@pytest.mark.parametrize("at", range(len(built([(b"k", b"v")]))))
def test_no_damaged_byte_is_read(at):
    whole = built([(b"k", b"v")])
    for bit in range(8):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << bit
        with pytest.raises(LogCorrupt):
            checkpoint.read(bytes(damaged), POINT)
    with pytest.raises(LogCorrupt):
        checkpoint.read(whole[:at], POINT)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "cut short"),
        (batch(FOOTER), "begins with its header"),
        (batch((None, b"data"), control_records=False), "begins with its header"),
        (batch(HEADER), "cut short"),
        (batch(HEADER) + batch(FOOTER, base=2), "offset 2 of epoch 3 at offset 1"),
        (batch(HEADER) + batch(FOOTER, base=1, epoch=4), "offset 1 of epoch 4"),
        (batch(HEADER) + batch(FOOTER, base=1) + batch(FOOTER, base=2), "behind the footer"),
        (built() + b"!", "cut short"),
        (batch((b"\0\0\0\3", b"!")), "the control record at offset 0"),
        (batch(control.pair(KRaftVersion(1)), FOOTER), "begins with its header"),
    ],
)
def test_what_is_no_whole_snapshot_is_refused(data, reason):
    with pytest.raises(LogCorrupt, match=reason):
        checkpoint.read(data, POINT)


@given(st.lists(st.integers(1, 300), min_size=1, max_size=30))
def test_it_is_read_in_any_pieces(sizes):
    data = built([(None, bytes(100))] * 3)
    reading, at = checkpoint.Reading(POINT), 0
    for size in sizes:
        reading.take(data[at : at + size])
        at += size
    if at < len(data):
        with pytest.raises(LogCorrupt, match="cut short"):
            reading.end()
    else:
        assert reading.end() == checkpoint.read(data, POINT)


def test_another_snapshots_name_is_refused():
    with pytest.raises(LogCorrupt, match="epoch 3"):
        checkpoint.read(built(), LogPoint(epoch=4, end=120))
