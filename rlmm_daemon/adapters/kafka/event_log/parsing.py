"""The records of a Fetch answer: batch headers walked here, records read by aiokafka's parser.

aiokafka's iteration checks no checksum, gives no leader epoch and hands out control batches as if
they were events; so each batch's header is read first. A slice bounds how long decoding keeps the
event loop: a megabyte is some 10,000 events. A compressed batch is unpacked here if its records are
few; if not, whoever reads is asked to have it done elsewhere (`Packed`).
"""

import struct
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from operator import ge
from typing import Final, NamedTuple

from aiokafka.errors import KafkaError
from aiokafka.record.default_records import DefaultRecordBatch

from rlmm_daemon.adapters.kafka.event_log.unpacking import (
    INLINE_BYTES,
    TooLarge,
    codec_of,
    unpacked,
)
from rlmm_daemon.ports.event_log import LogRange, ranges_without

#: base offset, length, leader epoch, magic, checksum, attributes, last offset delta, count
_HEAD: Final = struct.Struct(">qiibIhi30xi")
_HEADER_BYTES: Final = 61
assert _HEAD.size == _HEADER_BYTES, "the count ends the header"
#: What a batch's length does not count: base offset and length itself.
_UNCOUNTED_BYTES: Final = 12
_CONTROL: Final = 0x20
_MAGIC: Final = 2
#: Of aiokafka's parser; the last two of a length that no memory holds, which it believes.
_UNREADABLE: Final = (KafkaError, ValueError, OverflowError, MemoryError)
SLICE_RECORDS: Final = 512
#: A batch's records may take so much room without compression, where nobody says otherwise.
UNPACKED_BYTES_MAX: Final = 16 * 1024 * 1024

#: Offset and value; None is a tombstone.
Pair = tuple[int, bytes | None]


class InvalidBatch(Exception):
    """Bytes that are no record batch, or whose checksum is wrong."""

    def __init__(self, position: int, reason: str) -> None:
        self.position = position
        super().__init__(f"the batch at offset {position} {reason}")


class BatchTooLarge(InvalidBatch):
    """A compressed batch whose records take more room than they may; it is as it was written."""

    def __init__(self, position: int, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        super().__init__(position, f"takes more than {bytes_max} bytes without its compression")


class Packed:
    """A compressed batch that is too large to be unpacked in the loop.

    `unpack` may be called in any thread, before the iterator that gave this is asked for more.
    """

    def __init__(self, batch: bytes, attributes: int, position: int, bytes_max: int) -> None:
        self._batch = batch
        self._attributes = attributes
        self._position = position
        self._bytes_max = bytes_max
        #: What is left of the batch from the position on; None before it was unpacked.
        self.records: Iterator[Pair] | None = None

    def unpack(self) -> None:
        """Unpack the batch, and pass over the records before the position.

        Raises:
            InvalidBatch: it can't be.
        """
        batch = _unpacked(self._batch, self._attributes, self._position, self._bytes_max)
        if batch is None:
            raise BatchTooLarge(self._position, self._bytes_max)
        self.records = _read_from(batch, self._position)


class Slice(NamedTuple):
    """Some records, and where the position and its leader epoch stand behind them."""

    records: list[Pair]
    next_offset: int
    leader_epoch: int
    #: Offsets passed over for which nobody vouches: the log cleaner, or worse, was there.
    unvouched: tuple[LogRange, ...] = ()


class _One(NamedTuple):
    """One batch of an answer, its header read."""

    base: int
    #: The offset behind it.
    after: int
    epoch: int
    attributes: int
    #: How many, as the header says.
    records: int
    data: bytes
    batch: DefaultRecordBatch

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & _CONTROL)


def slices(
    buffer: bytes,
    position: int,
    slice_records: int = SLICE_RECORDS,
    *,
    unpacked_bytes_max: int = UNPACKED_BYTES_MAX,
) -> Iterator[Slice | Packed]:
    """Yield what `buffer` holds from `position` on; the position passes control batches and gaps.

    Records before `position` are left out, since a broker always sends the whole batch. The last
    batch may be cut off by the size limit. Transactional records are events like others, aborted
    or not: Kafka's own consumer of this topic reads uncommitted, and one topic has one truth.
    So a broker's control batches alone are vouched for: in a log that nobody compacted, records
    stand at all other offsets.

    A `Packed` comes in between where a compressed batch is too large to be unpacked in the loop:
    it has to be unpacked before the next one is asked for. What stands before it comes first.

    Raises:
        InvalidBatch: after everything before it was yielded.
    """
    told, epoch = position, -1
    gathered: list[Pair] = []
    gaps: list[LogRange] = []
    try:
        for one in _walk(buffer, position):
            # Looked at closely only where something may be missing, which is next to never.
            dense = one.base <= position and one.records == one.after - one.base
            small = one.records <= slice_records and one.base >= position
            batch = _opened(one, position, unpacked_bytes_max)
            if isinstance(batch, Packed):
                if position > told:
                    yield Slice(gathered, position, epoch, tuple(gaps))
                    told, gathered, gaps = position, [], []
                yield batch
            for chunk in _chunks(batch, one, position, None if small else slice_records):
                if gathered and len(gathered) + len(chunk) > slice_records:
                    yield Slice(gathered, position, epoch, tuple(gaps))
                    told, gathered, gaps = position, [], []
                _require_order(chunk, one, position)
                gathered += chunk
                if chunk:
                    behind = chunk[-1][0] + 1
                    gaps += () if dense else ranges_without(position, behind, _offsets(chunk))
                    position, epoch = behind, one.epoch
            end = one.base if one.is_control else one.after
            gaps += () if dense else ranges_without(position, end, ())
            position, epoch = one.after, one.epoch
    except InvalidBatch:
        if position > told:
            yield Slice(gathered, position, epoch, tuple(gaps))
        raise
    if position > told:
        yield Slice(gathered, position, epoch, tuple(gaps))


def _require_order(chunk: list[Pair], one: _One, position: int) -> None:
    """Refuse records that don't ascend, or lie outside their batch: the position would go back.

    Raises:
        InvalidBatch: nothing of this chunk was taken.
    """
    offsets = [offset for offset, _ in chunk]
    if offsets and (offsets[-1] >= one.after or any(map(ge, offsets, islice(offsets, 1, None)))):
        raise InvalidBatch(position, "holds records whose offsets are out of order")


def _offsets(chunk: list[Pair]) -> Iterator[int]:
    return (offset for offset, _ in chunk)


def _walk(buffer: bytes, position: int) -> Iterator[_One]:
    """Yield each batch whose checksum holds."""
    at = 0
    while (end := _end_of(buffer, at, position)) is not None:
        base, _, epoch, magic, _, attributes, last, count = _HEAD.unpack_from(buffer, at)
        packed, after = buffer[at:end], base + last + 1
        batch = _checked(packed, magic, position)
        if after <= position:
            raise InvalidBatch(position, f"ends before it, at {after}")
        yield _One(base, after, epoch, attributes, count, packed, batch)
        position, at = after, end


def _end_of(buffer: bytes, at: int, position: int) -> int | None:
    """Return where the batch at `at` ends; None: the rest was cut off, or there is none."""
    if len(buffer) - at >= _HEADER_BYTES:
        end: int = at + _UNCOUNTED_BYTES + _HEAD.unpack_from(buffer, at)[1]
        if end - at < _HEADER_BYTES:
            raise InvalidBatch(position, f"claims to be {end - at} bytes long")
        if end <= len(buffer):
            return end
    if at == 0 and buffer:
        raise InvalidBatch(position, "is not whole, and the broker sent nothing else")
    return None


def _checked(data: bytes, magic: int, position: int) -> DefaultRecordBatch:
    if magic != _MAGIC:
        raise InvalidBatch(position, f"has the unknown format {magic}")
    batch = DefaultRecordBatch(data)
    if not batch.validate_crc():
        raise InvalidBatch(position, "has a wrong checksum")
    return batch


def _opened(one: _One, position: int, bytes_max: int) -> DefaultRecordBatch | Packed:
    """Return the batch without its compression, or what has to be unpacked elsewhere."""
    if one.is_control or not codec_of(one.attributes):
        return one.batch
    batch = _unpacked(one.data, one.attributes, position, min(INLINE_BYTES, bytes_max))
    return Packed(one.data, one.attributes, position, bytes_max) if batch is None else batch


def _chunks(
    batch: DefaultRecordBatch | Packed, one: _One, position: int, count: int | None
) -> Iterable[list[Pair]]:
    """Return the batch's records in one piece, or `count` at a time; none of a control batch."""
    if one.is_control:
        return ()
    if isinstance(batch, Packed):
        assert batch.records is not None, "unpacked by whoever was given it"
        return _chunked(batch.records, position, count or SLICE_RECORDS)
    return (_all(batch, position),) if count is None else _some(batch, position, count)


def _all(batch: DefaultRecordBatch, position: int) -> list[Pair]:
    """Return the records of the usual batch: small, and wanted as a whole."""
    try:
        return [(each.offset, each.value) for each in batch]
    except _UNREADABLE as error:
        raise InvalidBatch(position, f"can't be read: {error}") from error


def _unpacked(
    packed: bytes, attributes: int, position: int, bytes_max: int
) -> DefaultRecordBatch | None:
    """Return a compressed batch without its compression; None: it takes more than `bytes_max`."""
    try:
        return DefaultRecordBatch(unpacked(packed, attributes, bytes_max))
    except TooLarge:
        return None
    except ValueError as error:
        raise InvalidBatch(position, f"can't be unpacked: {error}") from error


def _some(batch: DefaultRecordBatch, position: int, count: int) -> Iterator[list[Pair]]:
    """Yield the records at or after `position`, at most `count` at a time."""
    return _chunked(_from(batch, position), position, count)


def _from(batch: DefaultRecordBatch, position: int) -> Iterator[Pair]:
    # A generator, since the batch's own iterator starts anew after its end.
    return ((each.offset, each.value) for each in batch if each.offset >= position)


def _read_from(batch: DefaultRecordBatch, position: int) -> Iterator[Pair]:
    """Return the records at or after `position`; those before it are passed over at once."""
    records = _from(batch, position)
    try:
        first = next(records, None)
    except _UNREADABLE as error:
        raise InvalidBatch(position, f"can't be read: {error}") from error
    return iter(()) if first is None else chain((first,), records)


def _chunked(records: Iterator[Pair], position: int, count: int) -> Iterator[list[Pair]]:
    try:
        while chunk := list(islice(records, count)):
            yield chunk
    except _UNREADABLE as error:
        raise InvalidBatch(position, f"can't be read: {error}") from error
