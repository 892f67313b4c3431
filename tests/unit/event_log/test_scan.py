"""What stands behind a damaged batch of an embedded log's file."""

import pytest

from rlmm_daemon.adapters.event_log.embedded import scan
from rlmm_daemon.adapters.event_log.embedded.verify import pieces
from rlmm_daemon.codec import batches


def test_a_base_offset_that_a_flipped_bit_sent_far_away_is_damage_too():
    one, two, three = (
        bytearray(batches.build([b"event"], base_offset=at, leader_epoch=1, timestamp_ms=1))
        for at in range(3)
    )
    one[-1] ^= 1
    two[1] ^= 1  # base offset: outside the CRC, so the batch is valid at offset 2^48 + 1
    buffer = bytes(one + two + three)
    assert scan.walk(buffer[len(one) :], (1 << 48) + 1).found
    found = scan.valid_behind(buffer, 0, 0)
    assert found is not None
    assert found.base_offset == 2
    assert [piece.next_offset for piece in pieces(buffer, 0)] == [2, 3]


def _batch(offset: int) -> bytearray:
    return bytearray(batches.build([b"event"], base_offset=offset, leader_epoch=1, timestamp_ms=1))


def _begins_with(batch: bytearray, offset: int) -> None:
    batch[:8] = offset.to_bytes(8, "big")  # outside the CRC, so the batch stays valid


@pytest.mark.parametrize("damaged_to", [2 + (1 << 23), 3])
def test_batches_that_follow_each_other_outweigh_one_whose_base_offset_a_flipped_bit_raised(
    damaged_to: int,
) -> None:
    rows = [_batch(at) for at in range(6)]
    rows[1][-1] ^= 1
    _begins_with(rows[2], damaged_to)
    buffer = b"".join(rows)
    found = [piece.next_offset for piece in pieces(buffer, 0)]
    assert found == [1, 3, 6], "what stands behind is kept at its own offsets"


def test_a_sound_batch_between_two_damaged_ones_is_kept():
    rows = [_batch(at) for at in range(6)]
    rows[1][-1] ^= 1
    rows[3][-1] ^= 1
    found = [piece.next_offset for piece in pieces(b"".join(rows), 0)]
    assert found == [1, 2, 3, 4, 6]


def test_no_batch_is_believed_that_the_next_file_contradicts():
    rows = [_batch(at) for at in range(3)]
    rows[1][-1] ^= 1
    _begins_with(rows[2], 1000)
    buffer = b"".join(rows)
    assert [piece.next_offset for piece in pieces(buffer, 0)] == [1, 1000, 1001]
    assert [piece.next_offset for piece in pieces(buffer, 0, end=3)] == [1, 1]
