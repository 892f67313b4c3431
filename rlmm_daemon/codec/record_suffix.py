"""Bytes behind the segment id in a record of key 0: all that differs from segment to segment.

    record := 01 00 00 | prefix (TopicIdPartitionEntry) | segment id | tail

A partition's cache keeps the prefix once and a tail per segment, so a record is one join and an
update one splice. Every tail here is in normal form (`codec.records`), so that its fields stand at
fixed places and the state is found from the end. Source: RemoteLogSegmentMetadataRecord.json.
"""

import struct
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from rlmm_daemon.codec.primitives import read_uvarint, uvarint
from rlmm_daemon.domain.errors import Malformed
from rlmm_daemon.domain.ids import UUID_BYTES, TopicIdPartition

ENVELOPE: Final = b"\x01\x00\x00"
NULL_CUSTOM: Final = b"\x00"
TXN_INDEX_EMPTY: Final = b"\x01\x00\x01\x01"
#: Places in a tail; byte 0 ends RemoteLogSegmentIdEntry.
START_AT: Final = 1
END_AT: Final = 9
BROKER_AT: Final = 17
MAX_TIMESTAMP_AT: Final = 21
EVENT_TIMESTAMP_AT: Final = 29
EPOCHS_AT: Final = 37
EPOCH_BYTES: Final = 13
_VARINT_TOP: Final = 0x80
_ONE_EPOCH: Final = 2  # count + 1
_NO_TAGS: Final = 0

_PARTITION: Final = struct.Struct(">16siB")
_ONE_SPAN: Final = struct.Struct(">iq")
#: A tail of one epoch: end offset, broker, epoch, its first offset, size.
_COMMON: Final = struct.Struct(">9xqi17xiqxi")
_COMMON_CUSTOM_AT: Final = EPOCHS_AT + 5 + EPOCH_BYTES
_EPOCH: Final = struct.Struct(">iqB")
#: (epoch, its first offset in the segment, its last one); last < first when it holds nothing.
Span = tuple[int, int, int]
_STARTED_ENDS: Final = (b"\x00\x00", b"\x00" + TXN_INDEX_EMPTY)


def prefix_of(partition: TopicIdPartition) -> bytes:
    """Return the TopicIdPartitionEntry that all records of one user partition share."""
    name = partition.topic.encode()
    return (
        uvarint(len(name) + 1) + name + _PARTITION.pack(partition.topic_id, partition.partition, 0)
    )


def state_of(tail: bytes) -> int:
    """Return the number of the segment's state."""
    return tail[-2] if tail[-1] == _NO_TAGS else tail[-5]


def states_of(tails: Sequence[bytes], joined: bytes, size: int) -> bytes:
    """Return the states of tails that all have this size: a strided copy if they end alike."""
    ends = joined[size - 1 :: size]
    if not any(ends):
        return joined[size - 2 :: size]
    return bytes(map(state_of, tails)) if _NO_TAGS in ends else joined[size - 5 :: size]


def has_txn_index(tail: bytes) -> bool:
    """Return whether the segment has a non-empty transaction index (TxnIndexEmpty is not set)."""
    return tail[-1] == _NO_TAGS


def start_of(tail: bytes) -> int:
    """Return the segment's start offset (never negative)."""
    return int.from_bytes(tail[START_AT:END_AT], "big")


def end_of(tail: bytes) -> int:
    """Return the segment's inclusive end offset."""
    return int.from_bytes(tail[END_AT:BROKER_AT], "big")


def broker_of(tail: bytes) -> int:
    """Return who wrote the segment's last event."""
    return int.from_bytes(tail[BROKER_AT:MAX_TIMESTAMP_AT], "big", signed=True)


def event_ms_of(tail: bytes) -> int:
    """Return when the segment's last event was written, by its writer's clock."""
    return int.from_bytes(tail[EVENT_TIMESTAMP_AT:EPOCHS_AT], "big", signed=True)


def spans(tail: bytes) -> tuple[Span, ...]:
    """Return the segment's part in each of its epochs, epochs ascending.

    A part ends before the next higher epoch's offset, the last one with the segment; nothing ties
    those offsets to the segment's own range, in Kafka neither.
    Source: RemoteLogLeaderEpochState, RemoteLogMetadataCache.buildSegmentEndOffsetForEpoch.
    """
    end = int.from_bytes(tail[END_AT:BROKER_AT], "big")
    if tail[EPOCHS_AT] == _ONE_EPOCH:
        epoch, start = _ONE_SPAN.unpack_from(tail, EPOCHS_AT + 1)
        return ((epoch, start, end),)
    at, behind = _epoch_bounds(tail)
    firsts = [(epoch, start) for epoch, start, _ in _EPOCH.iter_unpack(tail[at:behind])]
    ends = [start - 1 for _, start in firsts[1:]]
    ends.append(end)
    return tuple((epoch, start, last) for (epoch, start), last in zip(firsts, ends, strict=True))


def span_of(tail: bytes, epoch: int) -> tuple[int, int] | None:
    """Return the first and last offset of the segment's part in an epoch; None if it has none.

    As `spans` says, without reading the other epochs: there may be many.
    """
    at, behind = _epoch_bounds(tail)

    def number(index: int) -> tuple[int, int]:
        found: tuple[int, int] = _ONE_SPAN.unpack_from(tail, at + EPOCH_BYTES * index)
        return found

    count = (behind - at) // EPOCH_BYTES
    index = bisect_left(range(count), epoch, key=lambda each: number(each)[0])
    if index == count or number(index)[0] != epoch:
        return None
    last = number(index + 1)[1] - 1 if index + 1 < count else end_of(tail)
    return number(index)[1], last


def outline(tail: bytes) -> tuple[int, int, int, tuple[Span, ...]]:
    """Return end offset, broker, size in bytes and spans: what a fold wants to know, in one go."""
    if tail[EPOCHS_AT] == _ONE_EPOCH:
        end, broker, epoch, start, size = _COMMON.unpack_from(tail)
        return end, broker, size, ((epoch, start, end),)
    return end_of(tail), broker_of(tail), size_of(tail), spans(tail)


def size_of(tail: bytes) -> int:
    """Return the segment's size in bytes."""
    behind = _epoch_bounds(tail)[1]
    return int.from_bytes(tail[behind : behind + 4], "big", signed=True)


def custom_of(tail: bytes) -> bytes | None:
    """Return the custom metadata: None for null, b"" for present but empty."""
    size, at = read_uvarint(tail, custom_at(tail), what="custom metadata")
    return tail[at : at + size - 1] if size else None


def custom_at(tail: bytes) -> int:
    """Return where the custom metadata's length stands; a zero there means null."""
    if tail[EPOCHS_AT] == _ONE_EPOCH:
        return _COMMON_CUSTOM_AT
    return _epoch_bounds(tail)[1] + 4


def merged(tail: bytes, at: int, written: bytes, custom: bytes, state: int) -> bytes:
    """Return the tail after an update, as `codec.records.merge` would: custom metadata replaced.

    `at` is the tail's `custom_at`, `written` the update's broker id and event timestamp (12 bytes),
    `custom` its custom metadata with the length before it, so that null is one zero byte.
    """
    tags = b"\x00" if tail[-1] == _NO_TAGS else TXN_INDEX_EMPTY
    return b"".join((
        tail[:BROKER_AT],
        written[:4],
        tail[MAX_TIMESTAMP_AT:EVENT_TIMESTAMP_AT],
        written[4:],
        tail[EPOCHS_AT:at],
        custom,
        _STATES[state],
        tags,
    ))  # fmt: skip


_STATES: Final = tuple(bytes((n,)) for n in range(4))


def is_common_start(tail: bytes) -> bool:
    """Return whether this is, for certain, a valid tail in normal form and COPY_SEGMENT_STARTED.

    False means "take the long way", not "invalid": custom metadata and more than 126 epochs go
    there. Total: any bytes may be asked about.
    """
    if len(tail) <= EPOCHS_AT or tail[0] or tail[END_AT] >= _VARINT_TOP:
        return False
    count = tail[EPOCHS_AT]
    behind = EPOCHS_AT + 1 + EPOCH_BYTES * (count - 1)
    if count == _ONE_EPOCH:
        epochs_fine = tail[behind - 1 : behind] == b"\x00"
    else:
        epochs_fine = _ONE_EPOCH < count < _VARINT_TOP and _ascend(tail[EPOCHS_AT + 1 : behind])
    return (
        epochs_fine
        and tail[START_AT:END_AT] <= tail[END_AT:BROKER_AT]
        and tail[behind + 4 : behind + 5] == NULL_CUSTOM
        and tail[behind + 5 :] in _STARTED_ENDS
    )


def check(tail: bytes) -> None:
    """Refuse bytes that no splice above could have made; for tails read back from a file.

    Raises:
        Malformed: the first thing that is wrong.
    """
    if len(tail) <= EPOCHS_AT or tail[0]:
        raise Malformed("a segment's record is cut short")
    at, behind = _epoch_bounds(tail)
    if behind + 4 >= len(tail) or not _ascend(tail[at:behind]):
        raise Malformed("a segment's leader epochs do not ascend or are cut short")
    size, custom_at = read_uvarint(tail, behind + 4, what="custom metadata")
    last = tail[custom_at + max(size - 1, 0) :]
    if last[1:] not in (b"\x00", TXN_INDEX_EMPTY) or last[0] >= len(_STATES):
        raise Malformed("a segment's record does not end in a state and its tags")
    if tail[END_AT] >= _VARINT_TOP or tail[START_AT:END_AT] > tail[END_AT:BROKER_AT]:
        raise Malformed("a segment ends before it starts")


def _ascend(encoded: bytes) -> bool:
    if not encoded or len(encoded) % EPOCH_BYTES:
        return False
    rows = list(_EPOCH.iter_unpack(encoded))
    return not any(tags for _, _, tags in rows) and all(a[0] < b[0] for a, b in pairwise(rows))


def _epoch_bounds(tail: bytes) -> tuple[int, int]:
    count, at = tail[EPOCHS_AT], EPOCHS_AT + 1
    if count >= _VARINT_TOP:
        count, at = read_uvarint(tail, EPOCHS_AT, what="leader epochs")
    return at, at + EPOCH_BYTES * (count - 1)


assert _PARTITION.size == UUID_BYTES + 5
