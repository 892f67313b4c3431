"""Key of a record in a quorum's log: whose it is, and which one of them.

    version i16 = 0 | metadata partition i32 | submitter i32 | incarnation u32 | serial u64

The value is the event's own bytes, or null. Two numbers that no partition has mark records that are
no events: the first one, which says how many partitions there are, and a submitter's that takes a
new incarnation, whose value tells it from another one's of the same number.
"""

import struct
from typing import Final, NamedTuple

from rlmm_daemon.domain.errors import InvalidArgument, UnsupportedProtocol

KEY_BYTES: Final = 22
#: In the partition's place: the submitter takes this incarnation.
GRANT: Final = -1
#: In the partition's place: the log begins; the value is the count of its partitions.
FOUNDING: Final = -2
NONCE_BYTES: Final = 16
#: A quorum's log has no more; as the configuration has it.
PARTITIONS_MAX: Final = 10_000

_VERSION: Final = 0
_KEY: Final = struct.Struct(">hiiIQ")
assert _KEY.size == KEY_BYTES, "the fields are the key"
_FOUNDING: Final = struct.Struct(">i")


class RecordKey(NamedTuple):
    """What a key says."""

    partition: int
    submitter: int
    incarnation: int
    serial: int


def pack_key(key: RecordKey) -> bytes:
    """Return a key's bytes.

    Raises:
        InvalidArgument: a number that its field cannot hold.
    """
    try:
        return _KEY.pack(_VERSION, *key)
    except struct.error as error:
        raise InvalidArgument(f"no record's key holds {key}: {error}") from error


def read_key(key: bytes | None) -> RecordKey | None:
    """Return what a key says; None where the record is none of ours.

    Raises:
        UnsupportedProtocol: a newer version wrote it: whether it takes an offset is unknown.
    """
    if key is None or len(key) != KEY_BYTES:
        return None
    version, *fields = _KEY.unpack(key)
    if version != _VERSION:
        raise UnsupportedProtocol(f"a record of the quorum's log has version {version}, not 0")
    return RecordKey(*fields)


def pack_count(partitions: int) -> bytes:
    """Return the value of the first record.

    Raises:
        InvalidArgument: no log has so many partitions.
    """
    if not 1 <= partitions <= PARTITIONS_MAX:
        raise InvalidArgument(f"a log of {partitions} partitions: 1 to {PARTITIONS_MAX} can be")
    return _FOUNDING.pack(partitions)


def read_count(value: bytes | None) -> int | None:
    """Return the count of partitions; None where the value is none."""
    if value is None or len(value) != _FOUNDING.size:
        return None
    count = int(_FOUNDING.unpack(value)[0])
    return count if 1 <= count <= PARTITIONS_MAX else None
