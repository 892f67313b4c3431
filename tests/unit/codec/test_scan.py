"""What stands behind a damaged batch of an embedded log's file."""

from typing import Any

import pytest

from rlmm_daemon.adapters.event_log.embedded.verify import pieces
from rlmm_daemon.codec import batches, scan


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


class _Counted(bytes):
    """A file's content that counts the bytes which are copied or looked through."""

    handled = 0

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        if isinstance(found, bytes):
            self.handled += len(found)
        return found

    def count(self, *given: Any) -> int:
        _, begin, *rest = given
        self.handled += (rest[0] if rest else len(self)) - begin
        return super().count(*given)


def test_many_damaged_batches_cost_no_look_at_the_rest_of_the_file_each():
    rows = [_batch(at) for at in range(20_000)]
    for row in rows[10::50]:
        row[-1] ^= 1
    buffer = _Counted(b"".join(rows))
    assert sum(not piece.found for piece in pieces(buffer, 0)) == 400
    assert buffer.handled < 4 * len(buffer)


@pytest.mark.parametrize("length", [0, 1, 4095, 4096, 4097, 10_000])
def test_only_zeros_are_room_made_ahead(length: int) -> None:
    assert scan.is_blank(b"x" + bytes(length), 1)
    assert not scan.is_blank(b"x" + bytes(length) + b"y", 1)
