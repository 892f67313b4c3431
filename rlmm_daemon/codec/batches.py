"""Kafka's record batch v2, uncompressed: what the embedded log writes, and how it is read back.

    base offset i64 | length i32 | leader epoch i32 | magic i8 = 2 | CRC-32C u32 | attributes i16 |
    last offset delta i32 | base and max timestamp i64 | producer id i64, epoch i16 |
    base sequence i32 | count i32 | records

`length` counts from behind itself, the CRC covers everything from the attributes on: so base offset
and leader epoch can be set without touching it. Source: DefaultRecordBatch, DefaultRecord.
"""

import struct
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec
from crc32c import crc32c

from rlmm_daemon.codec.primitives import INT32_MAX, read_varint, varint
from rlmm_daemon.domain.errors import InvalidArgument, LogCorrupt, Malformed

MAGIC: Final = 2
#: Everything before the first record.
HEADER_BYTES: Final = 61
#: What `length` does not count: base offset and length itself.
LENGTH_END: Final = 12
#: Where the checksum begins to count.
CRC_FROM: Final = 21

_PREFIX: Final = struct.Struct(">qiibI")
_REST: Final = struct.Struct(">hiqqqhii")
assert _PREFIX.size == CRC_FROM, "the prefix ends where the checksum begins"
assert _PREFIX.size + _REST.size == HEADER_BYTES, "prefix and rest are the header"

_COMPRESSION_MASK: Final = 0x07
_CONTROL: Final = 0x20
#: Ours, a bit that Kafka gives no meaning: whatever the batch lacks of its span was dropped by a
#: compaction. It lies under the checksum.
COMPACTED: Final = 0x4000
#: Producer id and epoch, base sequence.
_NO_PRODUCER_FIELDS: Final = (-1, -1, -1)
_NULL: Final = varint(-1)
_NO_HEADERS: Final = varint(0)
#: Attributes 0 and a timestamp delta of 0.
_RECORD_HEAD: Final = b"\x00" + varint(0)
#: Attributes, timestamp delta, offset delta, key, value and header count, one byte each.
_RECORD_BYTES_MIN: Final = 6
#: Group commits are rarely larger; more deltas are merely made again.
_OWN_HEADS_MAX: Final = 1024
_ZEROS: Final = bytes(64 * 1024)


class Batch(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One batch whose checksum holds. `payload` is what the checksum covers: attributes to end."""

    #: Of its first byte in the file.
    position: int
    #: With its header.
    size: int
    base_offset: int
    leader_epoch: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int
    payload: bytes

    @property
    def end(self) -> int:
        """The position behind it."""
        return self.position + self.size

    @property
    def last_offset(self) -> int:
        """The offset of its last record; compaction may have removed that record itself."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """The offset that a batch right behind it has."""
        return self.last_offset + 1

    @property
    def is_control(self) -> bool:
        """Whether its records are the broker's own markers."""
        return bool(self.attributes & _CONTROL)

    @property
    def is_compacted(self) -> bool:
        """Whether events that it has no record of were dropped on purpose."""
        return bool(self.attributes & COMPACTED)

    @property
    def is_compressed(self) -> bool:
        """Whether a codec was applied to its records."""
        return bool(self.attributes & _COMPRESSION_MASK)


def build(
    records: Sequence[bytes], *, base_offset: int, leader_epoch: int, timestamp_ms: int
) -> bytes:
    """Return one batch of values with null keys, no headers and one timestamp for all.

    Raises:
        InvalidArgument: no records, or a number or a size that its field cannot hold.
    """
    if not records:
        raise InvalidArgument("a batch holds at least one record")
    body = b"".join([_record(delta, value) for delta, value in enumerate(records)])
    last = len(records) - 1
    covered = (0, last, timestamp_ms, timestamp_ms, *_NO_PRODUCER_FIELDS, len(records))
    return _framed(body, covered, base_offset, leader_epoch)


def build_spanning(
    records: Sequence[tuple[int, bytes | None]],
    *,
    base_offset: int,
    next_offset: int,
    leader_epoch: int,
    timestamp_ms: int,
    compacted: bool,
) -> bytes:
    """Return one batch over base_offset..next_offset-1 with records at some of these offsets.

    `compacted` says that the others were dropped on purpose; else they are lost, as far as any
    reader knows. The offsets ascend.

    Raises:
        InvalidArgument: a number or a size that its field cannot hold.
    """
    body = b"".join([_record(offset - base_offset, value) for offset, value in records])
    last = next_offset - base_offset - 1
    attributes = COMPACTED if compacted and len(records) <= last else 0
    covered = (attributes, last, timestamp_ms, timestamp_ms, *_NO_PRODUCER_FIELDS, len(records))
    return _framed(body, covered, base_offset, leader_epoch)


def build_keyed(
    records: Sequence[tuple[bytes | None, bytes | None]],
    *,
    base_offset: int,
    leader_epoch: int,
    timestamp_ms: int,
    control: bool = False,
) -> bytes:
    """Return one batch of keys and values, without headers and with one timestamp for all.

    A control batch's records are the log's own, not its writers'.

    Raises:
        InvalidArgument: no records, or a number or a size that its field cannot hold.
    """
    if not records:
        raise InvalidArgument("a batch holds at least one record")
    body = b"".join([_keyed_record(delta, *each) for delta, each in enumerate(records)])
    last = len(records) - 1
    attributes = _CONTROL if control else 0
    covered = (attributes, last, timestamp_ms, timestamp_ms, *_NO_PRODUCER_FIELDS, len(records))
    return _framed(body, covered, base_offset, leader_epoch)


class Moved(NamedTuple):
    """A batch with another place in a log."""

    content: bytes
    next_offset: int


def moved(content: bytes, *, base_offset: int, leader_epoch: int) -> Moved:
    """Return one whole batch with another place; its checksum does not cover that.

    Raises:
        LogCorrupt: it is not one whole batch.
    """
    batch = _batch(content, 0, 0)
    if batch.size != len(content):
        raise _corrupt(f"{len(content) - batch.size} bytes follow the batch", batch.size)
    _, length, _, magic, crc = _PREFIX.unpack_from(content)
    prefix = _PREFIX.pack(base_offset, length, leader_epoch, magic, crc)
    return Moved(prefix + batch.payload, base_offset + batch.last_offset_delta + 1)


def _framed(body: bytes, fields: tuple[int, ...], base_offset: int, leader_epoch: int) -> bytes:
    """Return a batch of encoded records; `fields` are the header's that the checksum covers."""
    length = HEADER_BYTES - LENGTH_END + len(body)
    if length > INT32_MAX:
        raise InvalidArgument(f"a batch of {length} bytes: {INT32_MAX} are the most")
    try:
        covered = _REST.pack(*fields) + body
        prefix = _PREFIX.pack(base_offset, length, leader_epoch, MAGIC, crc32c(covered))
    except struct.error as error:
        raise InvalidArgument(f"no batch header holds this: {error}") from error
    return prefix + covered


def split(buffer: bytes, *, position: int = 0) -> Iterator[Batch]:
    """Yield the batches of a log file's bytes, each one checked, in the order they stand.

    `position` is that of `buffer` in its file and is added to every position told. Ends where the
    buffer does, or where only zeros follow (preallocated space). A batch is yielded before the next
    one is looked at, so what came before a fault has been handed out.

    Raises:
        LogCorrupt: no valid batch at a position (field `position`), the reason in the message. A
            torn tail looks the same: whether it is one is for the log's recovery to say.
    """
    at = 0
    while at < len(buffer):
        if _only_zeros(buffer, at):
            return
        batch = _batch(buffer, at, position)
        yield batch
        at += batch.size


def records_of(batch: Batch) -> list[tuple[int, bytes | None]]:
    """Return (offset, value) of the records, ascending; none of a control batch.

    Keys and headers are passed over, for this project gives them no meaning.

    Raises:
        LogCorrupt: a compressed batch, which this project never writes, or records that do not fit
            the header or each other.
    """
    if batch.is_control:
        return []
    if batch.is_compressed:
        raise _corrupt("the batch is compressed", batch.position)
    try:
        return _records(batch)
    except Malformed as error:
        raise _corrupt(f"a record is malformed: {error.message}", batch.position) from error


def keyed_records_of(batch: Batch) -> list[tuple[int, bytes | None, bytes | None]]:
    """Return (offset, key, value) of the records, ascending; of a control batch too.

    Headers are passed over.

    Raises:
        LogCorrupt: a compressed batch, or records that do not fit the header or each other.
    """
    if batch.is_compressed:
        raise _corrupt("the batch is compressed", batch.position)
    try:
        return _keyed_records(batch)
    except Malformed as error:
        raise _corrupt(f"a record is malformed: {error.message}", batch.position) from error


def _record(delta: int, value: bytes | None) -> bytes:
    if value is None:
        body = b"".join((_own_head(delta), _NULL, _NO_HEADERS))
    else:
        body = b"".join((_own_head(delta), varint(len(value)), value, _NO_HEADERS))
    return varint(len(body)) + body


def _keyed_record(delta: int, key: bytes | None, value: bytes | None) -> bytes:
    fields = (_RECORD_HEAD, varint(delta), *_packed(key), *_packed(value), _NO_HEADERS)
    body = b"".join(fields)
    return varint(len(body)) + body


def _packed(field: bytes | None) -> tuple[bytes, ...]:
    return (_NULL,) if field is None else (varint(len(field)), field)


@lru_cache(_OWN_HEADS_MAX)
def _own_head(delta: int) -> bytes:
    """Return what `build` writes before a value's length: nothing but the delta varies."""
    return _RECORD_HEAD + varint(delta) + _NULL


#: The same, by delta, for the tight loop.
_OWN_HEADS: Final = tuple(_RECORD_HEAD + varint(delta) + _NULL for delta in range(_OWN_HEADS_MAX))


def _corrupt(reason: str, position: int) -> LogCorrupt:
    return LogCorrupt(f"{reason} (batch at byte {position})", position=position)


def _only_zeros(buffer: bytes, at: int) -> bool:
    """Return whether nothing but zeros follows; a valid batch fails the first look at once."""
    if buffer[at : at + HEADER_BYTES].strip(b"\x00"):
        return False
    for start in range(at, len(buffer), len(_ZEROS)):
        piece = buffer[start : start + len(_ZEROS)]
        if piece != _ZEROS[: len(piece)]:
            return False
    return True


def _batch(buffer: bytes, at: int, shift: int) -> Batch:
    position, left = at + shift, len(buffer) - at
    if left < HEADER_BYTES:
        raise _corrupt(f"{left} bytes are too few for a batch header", position)
    base_offset, length, leader_epoch, magic, crc = _PREFIX.unpack_from(buffer, at)
    size = LENGTH_END + length
    if magic != MAGIC:
        raise _corrupt(f"magic is {magic}, not {MAGIC}", position)
    if size < HEADER_BYTES:
        raise _corrupt(f"the batch claims {size} bytes, less than its header", position)
    if size > left:
        raise _corrupt(f"the batch claims {size} bytes but only {left} are left", position)
    payload = buffer[at + CRC_FROM : at + size]
    if (found := crc32c(payload)) != crc:
        raise _corrupt(f"CRC-32C is {found:08x}, the header says {crc:08x}", position)
    attributes, delta, base_ms, max_ms, producer, epoch, sequence, count = _REST.unpack_from(
        payload
    )
    if base_offset < 0 or delta < 0 or count < 0:
        raise _corrupt(f"offset {base_offset}, delta {delta} or count {count} < 0", position)
    return Batch(
        position=position,
        size=size,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        crc=crc,
        attributes=attributes,
        last_offset_delta=delta,
        base_timestamp_ms=base_ms,
        max_timestamp_ms=max_ms,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        record_count=count,
        payload=payload,
    )


def _records(batch: Batch) -> list[tuple[int, bytes | None]]:
    payload, at = batch.payload, _REST.size
    if batch.record_count * (_RECORD_BYTES_MIN + 1) > len(payload) - at:
        raise Malformed(f"{batch.record_count} records in {len(payload) - at} bytes")
    found: list[tuple[int, bytes | None]] = []
    least, base, last = 0, batch.base_offset, batch.last_offset_delta
    for _ in range(batch.record_count):
        behind = _own_end(payload, at, least)
        if behind:
            if least > last:
                raise Malformed(f"offset delta {least} is not in {least}..{last}")
            # Behind two lengths of two bytes each and the head; before the header count.
            value_at = at + 4 + len(_OWN_HEADS[least])
            found.append((base + least, payload[value_at : behind - 1]))
            least, at = least + 1, behind
            continue
        size, at = read_varint(payload, at, what="record length")
        end = at + size
        if size < _RECORD_BYTES_MIN or end > len(payload):
            raise Malformed(f"a record claims {size} bytes, {len(payload) - at} are left")
        delta, value = least, _own_value(payload, at, end, least)
        if value is None:
            delta, _, value = _read_record(payload, at, end)
        if not least <= delta <= last:
            raise Malformed(f"offset delta {delta} is not in {least}..{last}")
        found.append((base + delta, value))
        least, at = delta + 1, end
    if at != len(payload):
        raise Malformed(f"{len(payload) - at} bytes behind the last record")
    return found


def _keyed_records(batch: Batch) -> list[tuple[int, bytes | None, bytes | None]]:
    payload, at = batch.payload, _REST.size
    if batch.record_count * (_RECORD_BYTES_MIN + 1) > len(payload) - at:
        raise Malformed(f"{batch.record_count} records in {len(payload) - at} bytes")
    found: list[tuple[int, bytes | None, bytes | None]] = []
    least = 0
    for _ in range(batch.record_count):
        size, at = read_varint(payload, at, what="record length")
        end = at + size
        if size < _RECORD_BYTES_MIN or end > len(payload):
            raise Malformed(f"a record claims {size} bytes, {len(payload) - at} are left")
        delta, key, value = _read_record(payload, at, end)
        if not least <= delta <= batch.last_offset_delta:
            raise Malformed(f"offset delta {delta} is not in {least}..{batch.last_offset_delta}")
        found.append((batch.base_offset + delta, key, value))
        least, at = delta + 1, end
    if at != len(payload):
        raise Malformed(f"{len(payload) - at} bytes behind the last record")
    return found


def _own_end(payload: bytes, at: int, delta: int) -> int:
    """Return where a record ends that `build` wrote, of a middling size; else 0.

    Middling: both lengths take two bytes, as those of nearly all events do. Two reads of the
    lengths and one comparison take the place of five varints.
    """
    if delta >= _OWN_HEADS_MAX or at + 3 > len(payload):
        return 0
    low, high = payload[at], payload[at + 1]
    if not low & 0x80 or high & 0x80 or low & 1:
        return 0
    head = _OWN_HEADS[delta]
    end = at + 2 + (low - 0x80 >> 1 | high << 6)
    size_at = at + 2 + len(head)
    if end > len(payload) or size_at + 3 > end or not payload.startswith(head, at + 2):
        return 0
    low, high = payload[size_at], payload[size_at + 1]
    if not low & 0x80 or high & 0x80 or low & 1 or payload[end - 1]:
        return 0
    return end if size_at + 3 + (low - 0x80 >> 1 | high << 6) == end else 0


def _own_value(payload: bytes, at: int, end: int, delta: int) -> bytes | None:
    """Return the value if the record is exactly as `build` writes it for this delta, else None."""
    head = _own_head(delta)
    if not payload.startswith(head, at):
        return None
    size, at = read_varint(payload, at + len(head), what="value")
    if size < 0 or at + size + 1 != end or payload[end - 1] != _NO_HEADERS[0]:
        return None
    return payload[at : end - 1]


def _read_record(payload: bytes, at: int, end: int) -> tuple[int, bytes | None, bytes | None]:
    """Return (offset delta, key, value) of the record that stands in [at, end)."""
    _, at = read_varint(payload, at + 1, what="timestamp delta")
    delta, at = read_varint(payload, at, what="offset delta")
    key, at = _read_bytes(payload, at, end, "key")
    value, at = _read_bytes(payload, at, end, "value")
    headers, at = read_varint(payload, at, what="header count")
    if not 0 <= headers <= end - at:
        raise Malformed(f"a record claims {headers} headers in {end - at} bytes")
    for _ in range(headers):
        _, at = _read_bytes(payload, at, end, "header key")
        _, at = _read_bytes(payload, at, end, "header value")
    if at != end:
        raise Malformed(f"a record's fields end at byte {at}, the record at {end}")
    return delta, key, value


def _read_bytes(payload: bytes, at: int, end: int, what: str) -> tuple[bytes | None, int]:
    size, at = read_varint(payload, at, what=what)
    if size < 0:
        return None, at
    if size > end - at:
        raise Malformed(f"{what} claims {size} bytes, {end - at} are left")
    return payload[at : at + size], at + size
