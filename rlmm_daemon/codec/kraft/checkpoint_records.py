"""Records of an event log's checkpoint: counters of the log that it stands for, and its events.

    version i16 = 0 | kind i8 | what the kind needs

First how many metadata partitions there are, then of each where it ends and which epochs wrote to
it, then of each submitter what is known; then events with their offsets, in ascending order within
a partition. Each batch of events begins with where all partitions stand before it: so an event is
found without reading those before.
"""

import struct
from typing import Final, TypeAlias

import msgspec

from rlmm_daemon.codec.kraft.record_key import NONCE_BYTES, PARTITIONS_MAX
from rlmm_daemon.domain.errors import InvalidArgument, LogCorrupt, UnsupportedProtocol

#: Key and value.
Pair: TypeAlias = tuple[bytes | None, bytes | None]

DIGEST_BYTES: Final = 16
#: Of one record; a partition with more has several.
EPOCHS_MAX: Final = 4096

_VERSION: Final = 0
_HEAD: Final = struct.Struct(">hb")
_INT32: Final = struct.Struct(">i")
_COUNTS: Final = struct.Struct(">qqq")
_EPOCH: Final = struct.Struct(">iq")
_SUBMITTER: Final = struct.Struct(f">I{NONCE_BYTES}sQ")
_EVENT: Final = struct.Struct(">hbiq")
_OFFSET_BYTES: Final = 8
_FOUNDED, _PARTITION, _EPOCHS, _KNOWN, _STARTS, _ONE = range(6)


class Founded(msgspec.Struct, frozen=True):
    """The log was founded, with so many metadata partitions."""

    partition_count: int


class PartitionAt(msgspec.Struct, frozen=True):
    """Where a metadata partition stands."""

    partition: int
    #: The next offset.
    end: int
    #: Of the offsets before this one some events were dropped; 0: none was.
    dropped_to: int = 0
    #: So many.
    dropped: int = 0


class EpochsOf(msgspec.Struct, frozen=True):
    """Leader epochs that wrote to a partition, and their first offsets; both ascend."""

    partition: int
    entries: tuple[tuple[int, int], ...]


class SubmitterAt(msgspec.Struct, frozen=True):
    """Where a submitter stands: its incarnation, the last serial of that, the newest digests."""

    submitter: int
    incarnation: int
    nonce: bytes
    serial: int
    #: Of the records up to the last serial, ascending.
    digests: tuple[bytes, ...]


class Starts(msgspec.Struct, frozen=True):
    """By partition, the offset that its first event behind this record has at least."""

    offsets: tuple[int, ...]


class Event(msgspec.Struct, frozen=True):
    """One event, at its offset."""

    partition: int
    offset: int
    value: bytes | None


Counter: TypeAlias = Founded | PartitionAt | EpochsOf | SubmitterAt
CheckpointRecord: TypeAlias = Counter | Starts | Event


def pack(record: CheckpointRecord) -> Pair:
    """Return key and value of a record.

    Raises:
        InvalidArgument: a number that its field cannot hold.
    """
    try:
        return _packed(record)
    except struct.error as error:
        raise InvalidArgument(f"no record of a checkpoint holds {record}: {error}") from error


def _packed(record: CheckpointRecord) -> Pair:
    match record:
        case Event(partition=partition, offset=offset, value=value):
            return _EVENT.pack(_VERSION, _ONE, partition, offset), value
        case Starts(offsets=offsets):
            return _key(_STARTS), struct.pack(f">{len(offsets)}q", *offsets)
        case Founded(partition_count=count):
            return _key(_FOUNDED), _INT32.pack(count)
        case PartitionAt(partition=partition):
            counts = _COUNTS.pack(record.end, record.dropped_to, record.dropped)
            return _key(_PARTITION, partition), counts
        case EpochsOf(partition=partition, entries=entries):
            return _key(_EPOCHS, partition), b"".join(_EPOCH.pack(*each) for each in entries)
        case SubmitterAt(submitter=submitter):
            fields = _SUBMITTER.pack(record.incarnation, record.nonce, record.serial)
            return _key(_KNOWN, submitter), fields + b"".join(record.digests)


def _key(kind: int, number: int | None = None) -> bytes:
    return _HEAD.pack(_VERSION, kind) + (b"" if number is None else _INT32.pack(number))


def are_starts(key: bytes) -> bool:
    """Whether a record with this key begins a batch of events."""
    return key == _key(_STARTS)


def read(key: bytes | None, value: bytes | None) -> CheckpointRecord:
    """Return what a record says.

    Raises:
        LogCorrupt: no checkpoint of an event log has such a record.
        UnsupportedProtocol: a newer version wrote it.
    """
    if key is None or len(key) < _HEAD.size:
        raise _wrong("a key of no kind")
    version, kind = _HEAD.unpack_from(key)
    if version != _VERSION or kind > _ONE:
        raise UnsupportedProtocol(
            f"a record of a checkpoint has version {version} and kind {kind}: a newer one wrote it"
        )
    if kind == _ONE:
        if len(key) != _EVENT.size:
            raise _wrong("an event's key of another size")
        _, _, partition, offset = _EVENT.unpack(key)
        return Event(partition, offset, value)
    if value is None:
        raise _wrong("a counter without a value")
    try:
        return _counter(kind, key[_HEAD.size :], value)
    except struct.error as error:
        raise _wrong(f"a record of kind {kind} of another size") from error


def _counter(kind: int, number: bytes, value: bytes) -> Counter | Starts:
    if kind == _STARTS:
        if number:
            raise _wrong("a key of another size")
        return Starts(struct.unpack(f">{len(value) // _OFFSET_BYTES}q", value))
    if kind == _FOUNDED:
        (count,) = _INT32.unpack(value)
        if number or not 1 <= count <= PARTITIONS_MAX:
            raise _wrong(f"a log of {count} partitions")
        return Founded(count)
    (which,) = _INT32.unpack(number)
    if kind == _PARTITION:
        end, dropped_to, dropped = _COUNTS.unpack(value)
        return PartitionAt(which, end, dropped_to, dropped)
    if kind == _EPOCHS:
        return EpochsOf(which, tuple((epoch, at) for epoch, at in _EPOCH.iter_unpack(value)))
    if kind == _KNOWN:
        digests = value[_SUBMITTER.size :]
        if len(digests) % DIGEST_BYTES:
            raise _wrong("a submitter's digests are cut short")
        cut = range(0, len(digests), DIGEST_BYTES)
        apart = tuple(digests[at : at + DIGEST_BYTES] for at in cut)
        incarnation, nonce, serial = _SUBMITTER.unpack_from(value)
        return SubmitterAt(which, incarnation, nonce, serial, apart)
    raise _wrong(f"kind {kind}")


def _wrong(what: str) -> LogCorrupt:
    return LogCorrupt(f"this is no checkpoint of an event log: {what}")
