"""Control records of a quorum's log and of its snapshots: a leader's first word, and the voters.

A key is a version and a type, a value a message whose first field is its own version; each is
flexible (KIP-482). Source: ControlRecordType, ControlRecordUtils, LeaderChangeMessage,
VotersRecord, KRaftVersionRecord, SnapshotHeaderRecord, SnapshotFooterRecord.
"""

import struct
from collections.abc import Iterable
from enum import IntEnum
from typing import Final, TypeAlias

import msgspec

from rlmm_daemon.codec.primitives import INT32, INT64, STRING_BYTES_MAX, Cursor, uvarint
from rlmm_daemon.core.raft.voters import Endpoint, ReplicaKey, Voter, VoterSet
from rlmm_daemon.domain.errors import InvalidArgument, Malformed

INT16: Final = struct.Struct(">h")
UINT16: Final = struct.Struct(">H")
_KEY: Final = struct.Struct(">hh")
_NO_TAGS: Final = uvarint(0)
#: Kafka's current versions of all values, and of the keys.
_VERSION: Final = 0
#: Of a LeaderChange, the newest that is read: each voter comes with its directory's id.
_LEADER_CHANGE_READ: Final = 1
#: Id and tags; an id of 16 bytes more from LeaderChange v1 on.
_ID_BYTES_MIN: Final = INT32.size + 1
#: Id, directory, no endpoints, two versions with their tags, tags.
_VOTER_BYTES_MIN: Final = 27
#: Two empty strings, a port, tags.
_ENDPOINT_BYTES_MIN: Final = 5

#: A control record as it stands in a batch: its key and its value.
Pair: TypeAlias = tuple[bytes | None, bytes | None]


class ControlType(IntEnum):
    """Types of control records; 0 and 1 are those of transactions."""

    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    VOTERS = 6


class LeaderChanged(msgspec.Struct, frozen=True):
    """The first record of a leader's epoch: the voters then, and those that voted for it."""

    leader: int
    voters: tuple[int, ...]
    granting: tuple[int, ...]


class KRaftVersion(msgspec.Struct, frozen=True):
    """Whether directories count, and the voters may change (1), or not (0)."""

    version: int


class SnapshotHeader(msgspec.Struct, frozen=True):
    """A snapshot's first record."""

    #: When the last record that it replaces was appended, in ms since 1970.
    last_timestamp_ms: int


class SnapshotFooter(msgspec.Struct, frozen=True):
    """A snapshot's last record: without it, it is cut short."""


Control: TypeAlias = LeaderChanged | KRaftVersion | VoterSet | SnapshotHeader | SnapshotFooter


def pair(record: Control) -> Pair:
    """Return a control record's key and value.

    Raises:
        InvalidArgument: an id, a port, a version or a name that its field cannot hold.
    """
    try:
        kind, body = _body(record)
    except struct.error as error:
        raise InvalidArgument(f"no control record holds this: {error}") from error
    return _KEY.pack(_VERSION, kind), INT16.pack(_VERSION) + body + _NO_TAGS


def read(key: bytes | None, value: bytes | None) -> Control | None:
    """Return the record; None for a type that says nothing to a replica.

    Raises:
        Malformed: it does not follow its format, or one that is known is of a newer version.
    """
    if key is None or value is None:
        raise Malformed("a control record without a key, or without a value")
    kind = _type(key)
    if kind is None:
        return None
    cursor = Cursor(value)
    version = cursor.number(INT16, "version")
    newest = _LEADER_CHANGE_READ if kind is ControlType.LEADER_CHANGE else _VERSION
    if not 0 <= version <= newest:
        raise Malformed(f"a record {kind.name} of version {version}: {newest} is known")
    record = _read(kind, cursor, version)
    cursor.skip_tags(kind.name)
    cursor.finish()
    return record


def _type(key: bytes) -> ControlType | None:
    cursor = Cursor(key)
    version, kind = cursor.number(INT16, "key version"), cursor.number(INT16, "type")
    if version < 0:
        raise Malformed(f"a control record's key has version {version}")
    return ControlType(kind) if kind in ControlType.__members__.values() else None


def _body(record: Control) -> tuple[ControlType, bytes]:
    match record:
        case LeaderChanged():
            ids = _ids(record.voters) + _ids(record.granting)
            return ControlType.LEADER_CHANGE, INT32.pack(record.leader) + ids
        case KRaftVersion(version=version):
            return ControlType.KRAFT_VERSION, INT16.pack(version)
        case SnapshotHeader(last_timestamp_ms=timestamp):
            return ControlType.SNAPSHOT_HEADER, INT64.pack(timestamp)
        case SnapshotFooter():
            return ControlType.SNAPSHOT_FOOTER, b""
        case VoterSet(voters=voters):
            return ControlType.VOTERS, _array(_voter(each) for each in voters)


def _read(kind: ControlType, cursor: Cursor, version: int) -> Control:
    match kind:
        case ControlType.LEADER_CHANGE:
            leader = cursor.number(INT32, "leader id")
            voters = _read_ids(cursor, version, "voters")
            return LeaderChanged(leader, voters, _read_ids(cursor, version, "granting voters"))
        case ControlType.KRAFT_VERSION:
            return KRaftVersion(cursor.number(INT16, "kraft.version"))
        case ControlType.SNAPSHOT_HEADER:
            return SnapshotHeader(cursor.number(INT64, "last contained timestamp"))
        case ControlType.SNAPSHOT_FOOTER:
            return SnapshotFooter()
        case ControlType.VOTERS:
            return _read_voters(cursor)


def _array(items: Iterable[bytes]) -> bytes:
    parts = list(items)
    return uvarint(len(parts) + 1) + b"".join(parts)


def _ids(ids: Iterable[int]) -> bytes:
    return _array(INT32.pack(each) + _NO_TAGS for each in ids)


def _string(text: str) -> bytes:
    encoded = text.encode()
    if len(encoded) > STRING_BYTES_MAX:
        raise InvalidArgument(f"a name of {len(encoded)} bytes: {STRING_BYTES_MAX} are the most")
    return uvarint(len(encoded) + 1) + encoded


def _voter(voter: Voter) -> bytes:
    endpoints = _array(
        _string(each.name) + _string(each.host) + UINT16.pack(each.port) + _NO_TAGS
        for each in voter.endpoints
    )
    versions = b"".join(INT16.pack(each) for each in voter.versions) + _NO_TAGS
    return INT32.pack(voter.key.id) + voter.key.directory + endpoints + versions + _NO_TAGS


def _read_ids(cursor: Cursor, version: int, what: str) -> tuple[int, ...]:
    found = []
    for _ in range(cursor.array_length(what, element_bytes_min=_ID_BYTES_MIN)):
        found.append(cursor.number(INT32, what))
        if version > 0:
            cursor.uuid(f"directory of {what}")
        cursor.skip_tags(what)
    return tuple(found)


def _read_voters(cursor: Cursor) -> VoterSet:
    count = cursor.array_length("voters", element_bytes_min=_VOTER_BYTES_MIN)
    voters = [_read_voter(cursor) for _ in range(count)]
    if len({voter.key.id for voter in voters}) < len(voters):
        raise cursor.fail("two voters have one id")
    return VoterSet.of(voters)


def _read_voter(cursor: Cursor) -> Voter:
    key = ReplicaKey(cursor.number(INT32, "voter id"), cursor.uuid("voter's directory"))
    if key.id < 0:
        raise cursor.fail(f"a voter's id is {key.id}")
    count = cursor.array_length("voter's endpoints", element_bytes_min=_ENDPOINT_BYTES_MIN)
    endpoints = tuple(_read_endpoint(cursor) for _ in range(count))
    versions = cursor.number(INT16, "least kraft.version"), cursor.number(INT16, "kraft.version")
    cursor.skip_tags("voter's versions")
    cursor.skip_tags("voter")
    return Voter(key, endpoints, versions)


def _read_endpoint(cursor: Cursor) -> Endpoint:
    name, host = cursor.string("listener"), cursor.string("host")
    port = cursor.number(UINT16, "port")
    cursor.skip_tags("endpoint")
    return Endpoint(name, host, port)
