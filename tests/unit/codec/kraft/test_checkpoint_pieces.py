"""Snapshots in pieces: the records of the whole, whatever the pieces' sizes, and every damage."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlmm_daemon.codec.kraft import control
from rlmm_daemon.codec.kraft.checkpoint_pieces import Pieces
from rlmm_daemon.codec.kraft.control import SnapshotFooter, SnapshotHeader
from rlmm_daemon.core.raft.log_facts import LogPoint
from rlmm_daemon.domain.errors import CorruptError, Malformed
from tests.unit.codec.kraft.test_checkpoint import FOOTER, HEADER, POINT, batch, built

#: More than one batch.
VALUES = [bytes([n]) * 90_000 for n in range(7)]
WHOLE = built([(None, each) for each in VALUES])


def read(data: bytes, size: int, point: LogPoint = POINT) -> tuple[list[bytes | None], bool]:
    pieces = Pieces(point)
    found = [
        value for at in range(0, len(data), size) for value in pieces.take(data[at : at + size])
    ]
    return found, pieces.is_whole


@given(st.integers(1_000, len(WHOLE)))
def test_the_records_come_whatever_the_sizes(size):
    assert read(WHOLE, size) == (VALUES, True)


@pytest.mark.parametrize("size", [1, 7])
def test_a_byte_at_a_time_too(size):
    assert read(built([(None, b"one")]), size) == ([b"one"], True)


@given(st.integers(0, len(WHOLE) - 1))
def test_cut_short_it_is_not_whole(size):
    assert read(WHOLE[:size], 1 << 20)[1] is False


@given(st.integers(12, len(WHOLE) - 1), st.integers(1, 255))
def test_no_damage_passes(position, flip):
    damaged = bytearray(WHOLE)
    damaged[position] ^= flip
    try:
        values, whole = read(bytes(damaged), 1 << 20)
    except (CorruptError, Malformed):
        return
    assert not whole, f"byte {position}: {len(values)} records"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (batch(FOOTER), "begins with its header"),
        (batch((None, b"x"), control_records=False), "begins with its header"),
        (batch(HEADER) + batch((None, b"x"), base=2, control_records=False), "offset 1 of"),
        (batch(HEADER, epoch=2), "epoch 2"),
        (batch(HEADER, FOOTER) + batch(FOOTER, base=2), "behind the footer"),
    ],
)
def test_what_is_no_snapshot_is_refused(data, why):
    with pytest.raises(CorruptError, match=why):
        read(data, len(data))


def test_header_and_footer_are_those_of_kafka():
    assert control.read(*HEADER) == SnapshotHeader(5)
    assert control.read(*FOOTER) == SnapshotFooter()
