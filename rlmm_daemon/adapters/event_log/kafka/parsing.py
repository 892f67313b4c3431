"""The records of a Fetch answer: batch headers walked here, records read by aiokafka's parser.

aiokafka's iteration checks no checksum, gives no leader epoch and hands out control batches as if
they were events; so each batch's header is read first. A slice bounds how long decoding keeps the
event loop: a megabyte is some 10,000 events.
"""

import struct
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final, NamedTuple

from aiokafka.errors import KafkaError
from aiokafka.record.default_records import DefaultRecordBatch

from rlmm_daemon.ports.event_log import LogRange, ranges_without

#: base offset, length, leader epoch, magic, checksum, attributes, last offset delta, count
_HEAD: Final = struct.Struct(">qiibIhi30xi")
_HEADER_BYTES: Final = 61
assert _HEAD.size == _HEADER_BYTES, "the count ends the header"
#: What a batch's length does not count: base offset and length itself.
_UNCOUNTED_BYTES: Final = 12
_CONTROL: Final = 0x20
_MAGIC: Final = 2
SLICE_RECORDS: Final = 512

#: Offset and value; None is a tombstone.
Pair = tuple[int, bytes | None]


class InvalidBatch(Exception):
    """Bytes that are no record batch, or whose checksum is wrong."""

    def __init__(self, position: int, reason: str) -> None:
        self.position = position
        super().__init__(f"the batch at offset {position} {reason}")


class Slice(NamedTuple):
    """Some records, and where the position and its leader epoch stand behind them."""

    records: list[Pair]
    next_offset: int
    leader_epoch: int
    #: Offsets passed over for which nobody vouches: the log cleaner, or worse, was there.
    unvouched: tuple[LogRange, ...] = ()


def slices(buffer: bytes, position: int, slice_records: int = SLICE_RECORDS) -> Iterator[Slice]:
    """Yield what `buffer` holds from `position` on; the position passes control batches and gaps.

    Records before `position` are left out, since a broker always sends the whole batch. The last
    batch may be cut off by the size limit. Transactional records are events like others, aborted
    or not: Kafka's own consumer of this topic reads uncommitted, and one topic has one truth.
    So a broker's control batches alone are vouched for: in a log that nobody compacted, records
    stand at all other offsets.

    Raises:
        InvalidBatch: after everything before it was yielded.
    """
    at, told, epoch = 0, position, -1
    gathered: list[Pair] = []
    gaps: list[LogRange] = []
    try:
        while (end := _end_of(buffer, at, position)) is not None:
            base, _, batch_epoch, magic, _, attributes, last, count = _HEAD.unpack_from(buffer, at)
            batch, after = _checked(buffer[at:end], magic, position), base + last + 1
            if after <= position:
                raise InvalidBatch(position, f"ends before it, at {after}")
            # Looked at closely only where something may be missing, which is next to never.
            dense, vouched = base <= position and count == last + 1, bool(attributes & _CONTROL)
            small = count <= slice_records and base >= position
            for chunk in _chunks(batch, attributes, position, None if small else slice_records):
                if gathered and len(gathered) + len(chunk) > slice_records:
                    yield Slice(gathered, position, epoch, tuple(gaps))
                    told, gathered, gaps = position, [], []
                gathered += chunk
                if chunk:
                    behind = chunk[-1][0] + 1
                    gaps += () if dense else ranges_without(position, behind, _offsets(chunk))
                    position, epoch = behind, batch_epoch
            gaps += () if dense else ranges_without(position, base if vouched else after, ())
            position, epoch, at = after, batch_epoch, end
    except InvalidBatch:
        if position > told:
            yield Slice(gathered, position, epoch, tuple(gaps))
        raise
    if position > told:
        yield Slice(gathered, position, epoch, tuple(gaps))


def _offsets(chunk: list[Pair]) -> Iterator[int]:
    return (offset for offset, _ in chunk)


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


def _chunks(
    batch: DefaultRecordBatch, attributes: int, position: int, count: int | None
) -> Iterable[list[Pair]]:
    """Return the batch's records in one piece, or `count` at a time; none of a control batch."""
    if attributes & _CONTROL:
        return ()
    return (_all(batch, position),) if count is None else _some(batch, position, count)


def _all(batch: DefaultRecordBatch, position: int) -> list[Pair]:
    """Return the records of the usual batch: small, and wanted as a whole."""
    try:
        return [(each.offset, each.value) for each in batch]
    except (KafkaError, ValueError) as error:
        raise InvalidBatch(position, f"can't be read: {error}") from error


def _some(batch: DefaultRecordBatch, position: int, count: int) -> Iterator[list[Pair]]:
    """Yield the records at or after `position`, at most `count` at a time."""
    # A generator, since the batch's own iterator starts anew after its end.
    records = ((each.offset, each.value) for each in batch if each.offset >= position)
    try:
        while chunk := list(islice(records, count)):
            yield chunk
    except (KafkaError, ValueError) as error:
        raise InvalidBatch(position, f"can't be read: {error}") from error
