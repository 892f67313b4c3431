"""What stands behind a damaged batch of an embedded log's file."""

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
