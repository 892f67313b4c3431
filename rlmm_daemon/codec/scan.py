"""Positions of the batches in a segment file, and what an invalid one means.

A file is walked by headers, each batch judged by its CRC and by its base offset, which must follow
the batch before: the embedded log leaves no gaps between batches, and what is dropped or lost is
covered by a batch that has fewer records than offsets.
"""

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec
from crc32c import crc32c

from rlmm_daemon.codec.batches import COMPACTED, CRC_FROM, HEADER_BYTES, LENGTH_END, MAGIC

#: Kafka's record batch v2: base offset, length, leader epoch, magic, CRC, attributes, last delta.
_HEADER: Final = struct.Struct(">qiibIhi")
#: The header's last field: how many records there are.
_COUNT: Final = struct.Struct(">i")
_MAGIC_AT: Final = 16
#: What one empty batch can cover, whose last delta has 32 bits: far more than a file holds.
_GAP_MAX: Final = 2**31 - 1
_SEARCH_STEP: Final = bytes([MAGIC])
#: Bytes that are looked at before it is asked again whether only zeros follow.
_BLANK_STEP: Final = 4096


class FoundBatch(NamedTuple):
    """One valid batch in a buffer."""

    position: int
    size: int
    base_offset: int
    next_offset: int
    leader_epoch: int
    #: Whether the offsets that it has no record of were dropped on purpose.
    compacted: bool = False

    def dropped(self, buffer: bytes) -> int:
        """Return how many offsets it has no record of; `buffer` is the one it was found in."""
        (records,) = _COUNT.unpack_from(buffer, self.position + HEADER_BYTES - _COUNT.size)
        return self.next_offset - self.base_offset - int(records)


class Walk(msgspec.Struct, frozen=True, kw_only=True):
    """The valid batches in a row, and why the row ended at `stop`."""

    found: list[FoundBatch]
    stop: int
    #: The offset that a batch at `stop` would have to begin with.
    next_offset: int
    #: Empty if the buffer ended, or only zeros follow.
    reason: str = ""
    #: The bytes from `stop` on that the batch there claims to have; 0 if it claims nothing.
    claimed: int = 0


def walk(buffer: bytes, next_offset: int, *, begin: int = 0, bytes_max: int | None = None) -> Walk:
    """Return the valid batches from `begin` in the buffer on, at most about `bytes_max` of them."""
    found: list[FoundBatch] = []
    position, limit = begin, len(buffer)
    if bytes_max is not None:
        limit = min(limit, begin + bytes_max)
    while position < limit:
        batch = _batch_at(buffer, position)
        if isinstance(batch, str):
            return _stopped(buffer, found, position, next_offset, reason=batch)
        if batch.base_offset != next_offset:
            reason = f"the batch begins with offset {batch.base_offset}, not {next_offset}"
            return _stopped(buffer, found, position, next_offset, reason=reason)
        found.append(batch)
        position += batch.size
        next_offset = batch.next_offset
    return Walk(found=found, stop=position, next_offset=next_offset)


def skip_to(buffer: bytes, next_offset: int, wanted: int, *, begin: int) -> tuple[int, int]:
    """Return position and offset of the batch that holds `wanted`, trusting headers alone.

    Nothing that is skipped is delivered; a header that lies makes the walk behind it fail. Stops
    early where the buffer ends or a header is implausible.
    """
    position, end = begin, len(buffer) - HEADER_BYTES
    while position <= end:
        base, length, _, _, _, _, delta = _HEADER.unpack_from(buffer, position)
        after = base + delta + 1
        size = LENGTH_END + length
        if base != next_offset or size < HEADER_BYTES or after > wanted or after <= base:
            break
        if position + size > len(buffer):
            break
        position, next_offset = position + size, after
    return position, next_offset


def valid_behind(
    buffer: bytes, position: int, next_offset: int, *, end: int | None = None
) -> FoundBatch | None:
    """Return the valid batch behind `position` that the log goes on with: proof of no torn tail.

    A base offset lies outside the CRC, so a batch that no other agrees with is believed only as far
    as those behind it bear it out, up to the first two in a row. One too far off to be filled up
    to, or beyond the file's `end` where that is known, is damage as well.
    """
    last = next_offset + _GAP_MAX if end is None else min(next_offset + _GAP_MAX, end - 1)
    alone: list[FoundBatch] = []
    past = position
    for candidate in _candidates(buffer, position + 1):
        batch = _batch_at(buffer, candidate) if candidate >= past else ""
        if isinstance(batch, str):
            continue
        past = candidate + batch.size
        if next_offset < batch.base_offset <= last:
            alone.append(batch)
            after = _batch_at(buffer, past)
            if isinstance(after, FoundBatch) and after.base_offset == batch.next_offset:
                break
    believed = None
    for batch in reversed(alone):
        if believed is None or batch.next_offset <= believed.base_offset:
            believed = batch
    return believed


def is_blank(buffer: bytes, position: int) -> bool:
    """Return whether only zeros follow: room made ahead."""
    while position < len(buffer):
        end = min(position + _BLANK_STEP, len(buffer))
        if buffer.count(0, position, end) < end - position:
            return False  # one of many damaged batches must not cost a look at all that follows
        position = end
    return True


def _candidates(buffer: bytes, begin: int) -> Iterator[int]:
    at = buffer.find(_SEARCH_STEP, begin + _MAGIC_AT)
    while at >= 0:
        yield at - _MAGIC_AT
        at = buffer.find(_SEARCH_STEP, at + 1)


def _batch_at(buffer: bytes, position: int) -> FoundBatch | str:
    """Return the batch, or why there is none."""
    if len(buffer) - position < HEADER_BYTES:
        return "a batch header is cut short"
    base, length, epoch, magic, crc, attributes, delta = _HEADER.unpack_from(buffer, position)
    if magic != MAGIC:
        return f"the batch's magic is {magic}, not {MAGIC}"
    size = LENGTH_END + length
    if size < HEADER_BYTES or base < 0 or delta < 0:
        return f"the batch's header is impossible: length {length}, offset {base}, delta {delta}"
    end = position + size
    if end > len(buffer):
        return f"a batch of {size} bytes is cut short"
    if crc32c(memoryview(buffer)[position + CRC_FROM : end]) != crc:
        return "the batch's CRC does not fit"
    compacted = bool(attributes & COMPACTED)
    return FoundBatch(position, size, base, base + delta + 1, epoch, compacted)


def _stopped(
    buffer: bytes, found: list[FoundBatch], position: int, offset: int, *, reason: str
) -> Walk:
    if is_blank(buffer, position):
        return Walk(found=found, stop=position, next_offset=offset)
    claimed = 0
    if len(buffer) - position >= LENGTH_END:
        claimed = LENGTH_END + int.from_bytes(buffer[position + 8 : position + 12], "big")
    return Walk(found=found, stop=position, next_offset=offset, reason=reason, claimed=claimed)
