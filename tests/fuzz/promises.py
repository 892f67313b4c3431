"""What every parser of foreign bytes promises, each as a judge of one input: it raises or returns.

Only our own errors leave a parser, and what it accepts it writes and reads the same. Checksums are
put right first where a parser looks at them: else nothing behind them would ever be reached.
"""

import math
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any, Final

import msgspec
from crc32c import crc32c

from rlmm_daemon.adapters.kafka.event_log import parsing
from rlmm_daemon.codec import (
    api,
    batches,
    common_shape,
    custom_metadata,
    frames,
    marker,
    records,
    snapshot,
)
from rlmm_daemon.codec.custom_metadata import CUSTOM_METADATA_BYTES
from rlmm_daemon.codec.json import dumps, loads
from rlmm_daemon.codec.record_reading import read_any
from rlmm_daemon.codec.state_files import (
    AcceptedFile,
    Announced,
    Identity,
    Observed,
    Positions,
    from_json,
    lost_from,
    lost_head,
    to_json,
)
from rlmm_daemon.core.snapshots import unsealing
from rlmm_daemon.domain.errors import (
    ChecksumMismatch,
    LogCorrupt,
    Malformed,
    UnsupportedProtocol,
)

#: What a decoder of parameters says of bytes that are none.
UNDECODABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
#: As much as one batch may become in these judgements.
UNPACKED_BYTES_MAX: Final = 1024 * 1024
LOST_HEAD_BYTES: Final = len(lost_head(0))
_METHODS: Final = [*api.METHODS.values()]
_SNAPSHOT_HEADER: Final = struct.Struct("<8sIII4x")
_SNAPSHOT_END: Final = struct.Struct("<QQI4x8s")


def outcome(read: Callable[[bytes], Any], value: bytes) -> Any:
    """Return what a reader of records makes of a value: a record, or the class `Malformed`."""
    try:
        return read(value)
    except Malformed:
        return Malformed


def judge_record(value: bytes) -> None:
    """Hold every promise of the records' decoder against one value."""
    record = outcome(records.decode, value)
    assert outcome(read_any, value) == record
    short = common_shape.read(value)
    if record is Malformed:
        assert short is None
        return
    normal = records.encode(record)
    assert records.normalise(value) == normal
    assert records.decode(normal) == record
    assert records.normalise(normal) == normal
    assert records.encode(loads(dumps(record))) == normal
    assert records.peek(value) == normal[1]
    if short is not None:
        assert short == record
        assert normal == value


def judge_frames(stream: bytes) -> None:
    """Cut a stream at once and byte by byte, and decode each frame of it with its parameters."""
    bodies = _cut(stream, len(stream))
    assert bodies == _cut(stream, 1)
    for body in bodies:
        with suppress(Malformed):
            frames.decode_message(body)
        try:
            _, method, raw = frames.decode_request(body)
        except Malformed:
            continue
        rows = [api.METHODS[method]] if method in api.METHODS else _METHODS
        for row in rows:
            with suppress(*UNDECODABLE):
                params = msgspec.msgpack.decode(raw, type=row.params)
                encoded = msgspec.msgpack.encode(params)
                assert msgspec.msgpack.decode(encoded, type=row.params) == params


def _cut(stream: bytes, size: int) -> list[bytes]:
    splitter, found = frames.Splitter(4096), list[bytes]()
    for at in range(0, len(stream), max(size, 1)):
        splitter.feed(stream[at : at + size])
        try:
            while (body := splitter.next()) is not None:
                found.append(body)
        except Malformed:
            break
    return found


def judge_batches(data: bytes) -> None:
    """Read a log's bytes as this project's own log does, and as the one on Kafka does."""
    buffer = with_sums_of_batches(data)
    own = list[tuple[int, bytes | None]]()
    whole, end = True, -math.inf
    try:
        for batch in batches.split(buffer):
            # The one on Kafka passes over what stands below its position; the gap is told of.
            whole &= batch.base_offset >= end
            end = batch.next_offset
            own += batches.records_of(batch)
    except LogCorrupt:
        whole = False
    theirs = list[tuple[int, bytes | None]]()
    position = -1
    try:
        for piece in parsing.slices(buffer, 0, unpacked_bytes_max=UNPACKED_BYTES_MAX):
            if isinstance(piece, parsing.Packed):
                piece.unpack()
                continue
            assert piece.next_offset > position
            position = piece.next_offset
            assert all(offset < position for offset, _ in piece.records)
            theirs += piece.records
    except parsing.InvalidBatch:
        return
    offsets = [offset for offset, _ in own]
    if whole and offsets and offsets == sorted(set(offsets)):
        assert theirs == [pair for pair in own if pair[0] >= 0]


def with_sums_of_batches(data: bytes) -> bytes:
    """Return a log's bytes with each batch's checksum put right."""
    out, at = bytearray(data), 0
    while len(out) - at >= batches.HEADER_BYTES:
        (length,) = struct.unpack_from(">i", out, at + 8)
        end = at + batches.LENGTH_END + length
        if length < batches.HEADER_BYTES - batches.LENGTH_END or end > len(out):
            break
        struct.pack_into(">I", out, at + 17, crc32c(bytes(out[at + 21 : end])))
        at = end
    return bytes(out)


def judge_snapshot(data: bytes) -> None:
    """Open a snapshot, in memory and in place: each says what it holds, or what is wrong.

    In place only what is read at once is judged: a table is trusted when its checksum holds.
    """
    buffer = with_sums_of_snapshot(data)
    with suppress(ChecksumMismatch, Malformed, UnsupportedProtocol):
        unsealing.load(buffer)
    with suppress(ChecksumMismatch, Malformed, UnsupportedProtocol):
        unsealing.in_place(buffer)
        _, entries = snapshot.decode_directory(buffer)
        for entry in entries:
            snapshot.check_table(buffer, entry)


def with_sums_of_snapshot(data: bytes) -> bytes:
    """Return a snapshot's bytes with the sums of header, tables and directory put right."""
    out = bytearray(data)
    if len(out) < _SNAPSHOT_HEADER.size + _SNAPSHOT_END.size:
        return data
    magic, version, size, _ = _SNAPSHOT_HEADER.unpack_from(out)
    body = bytes(out[_SNAPSHOT_HEADER.size : _SNAPSHOT_HEADER.size + size])
    crc = crc32c(body, crc32c(_SNAPSHOT_HEADER.pack(magic, version, size, 0)))
    _SNAPSHOT_HEADER.pack_into(out, 0, magic, version, size, crc)
    end = len(out) - _SNAPSHOT_END.size
    at, size, _, end_magic = _SNAPSHOT_END.unpack_from(out, end)
    directory = bytes(out[at : at + size]) if at + size == end else b""
    with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        entries = [
            msgspec.structs.replace(
                entry, crc=crc32c(bytes(out[max(entry.at, 0) : max(entry.at + entry.size, 0)]))
            )
            for entry in msgspec.msgpack.decode(directory, type=list[snapshot.TableEntry])
        ]
        directory = msgspec.msgpack.encode(entries)
        out[at:] = directory
        out += _SNAPSHOT_END.pack(at, len(directory), crc32c(directory), end_magic)
    return bytes(out)


def judge_state(data: bytes) -> None:
    """Read a file of the state directory as each of its kinds."""
    kinds: tuple[Any, ...] = (Identity, Announced, Positions, AcceptedFile, Observed)
    for kind in kinds:
        with suppress(Malformed, UnsupportedProtocol):
            found = from_json(data, kind, "a file")
            assert from_json(to_json(found), kind, "a file") == found
    body = data[LOST_HEAD_BYTES:]
    with suppress(Malformed, UnsupportedProtocol):
        lost_from(lost_head(crc32c(body)) + body, "a file")


def judge_bucket(data: bytes) -> None:
    """Read an object of the bucket's own as marker and as presence file, and as custom metadata."""
    with suppress(Malformed):
        found = marker.decode_marker(with_sum_of_marker(data))
        assert marker.decode_marker(marker.encode(found)) == marker.as_written(found)
        with suppress(Malformed):
            marker.require_topic_ids(found)
    with suppress(Malformed):
        said = marker.decode_presence(data)
        read = marker.decode_presence(marker.encode(said))
        assert msgspec.structs.replace(read, format=said.format) == said
    body = (data + bytes(CUSTOM_METADATA_BYTES))[: CUSTOM_METADATA_BYTES - 2]
    with suppress(Malformed):
        facts = custom_metadata.decode(body + struct.pack(">H", crc32c(body) & 0xFFFF))
        if facts is not None and facts.layout_number:
            assert custom_metadata.decode(custom_metadata.encode(facts)) == facts


def with_sum_of_marker(data: bytes) -> bytes:
    """Return a marker's bytes with its checksum put right, if it has one."""
    before, key, _ = data.rpartition(b'"crc32c":')
    body = before.rstrip().removesuffix(b",")
    return b"%b,\n %b %d\n}\n" % (body, key, crc32c(body)) if key else data


JUDGES: Final[Mapping[str, Callable[[bytes], None]]] = MappingProxyType(
    {
        "records": judge_record,
        "frames": judge_frames,
        "batches": judge_batches,
        "snapshot": judge_snapshot,
        "state": judge_state,
        "bucket": judge_bucket,
    }
)
