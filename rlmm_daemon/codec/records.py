"""Kafka's wire form of a `__remote_log_metadata` record: bytes to domain words and back.

    value := frame version (1) | api key (0..3) | record version, each an unsigned varint | body

Kafka's words stay: an event is what a fold applies, api key 3 decodes but is not one. Versions 0
and 1 (KIP-1266) are read, tags that version 0 does not know are dropped; version 0 is written.
**Normal form** is what `encode` writes: version 0, minimal varints, epochs ascending, no tag but a
true TxnIndexEmpty. Kafka's own serde from 4.0 on reads it, and the fold keeps nothing else.
Source: RemoteLogMetadataSerde, BytesApiMessageSerde, Remote*Record.json, KIP-405, KIP-1058.
"""

from rlmm_daemon.codec import common_shape
from rlmm_daemon.codec.primitives import Cursor
from rlmm_daemon.codec.record_reading import leader_epochs_claimed, read_any, read_envelope
from rlmm_daemon.codec.record_writing import RECORD_VERSION, ApiKey, Record, encode, merge

__all__ = [
    "RECORD_VERSION",
    "ApiKey",
    "Record",
    "decode",
    "decode_normal",
    "encode",
    "leader_epochs_claimed",
    "merge",
    "normalise",
    "peek",
]

#: Three varints of at most five bytes each.
_ENVELOPE_BYTES_MAX = 15


def decode(value: bytes | bytearray | memoryview) -> Record:
    """Return what a record says; a state other than COPY_SEGMENT_STARTED in key 0 is fine here.

    Raises:
        Malformed: whatever Kafka's serde or its domain constructors refuse, with the position; and
            three things they let pass: a topic name that is not UTF-8, a number of more than 31
            bits where a length stands, a TxnIndexEmpty tag that is not one byte long.
    """
    raw = value if type(value) is bytes else bytes(value)
    return common_shape.read(raw) or read_any(raw)


def decode_normal(value: bytes | bytearray | memoryview) -> tuple[Record, bytes]:
    """Return what a record says and its normal form: `decode` and `normalise` in one pass.

    Raises:
        Malformed: as `decode`.
    """
    raw = value if type(value) is bytes else bytes(value)
    record = common_shape.read(raw)
    if record is not None:
        return record, raw
    record = read_any(raw)
    return record, encode(record)


def normalise(value: bytes | bytearray | memoryview) -> bytes:
    """Return the normal form, `encode(decode(value))`; the same object if it was in it already.

    Raises:
        Malformed: as `decode`.
    """
    return decode_normal(value)[1]


def peek(value: bytes | bytearray | memoryview) -> ApiKey:
    """Return which record a value claims to hold, from its envelope alone.

    Raises:
        Malformed: the envelope is not one that `decode` reads.
    """
    return read_envelope(Cursor(bytes(value[:_ENVELOPE_BYTES_MAX])))
