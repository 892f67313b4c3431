"""Records of `__cluster_metadata`: what a KRaft cluster's controllers write of topics and brokers.

    record := frame version uvarint = 1 | api key uvarint | version uvarint | fields

All of them are flexible (KIP-482). Only those are read that the cluster's image is folded from; of
each only what it keeps has to be known, but all fields are laid out, since they follow on one
another. Others are passed over unread: settings, and secrets such as SCRAM credentials, stay bytes.
Source: MetadataRecordSerde, AbstractApiMessageSerde, common/metadata/*.json, Kafka 4.3.1.
"""

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Final, NamedTuple

from rlmm_daemon.codec.kraft.schema import (
    BOOL,
    INT8,
    INT16,
    INT32,
    INT64,
    NULLABLE_STRING,
    STRING,
    UINT16,
    UUID,
    Array,
    Field,
    Fields,
    Form,
    Message,
)
from rlmm_daemon.codec.primitives import Cursor, uvarint
from rlmm_daemon.domain.errors import Malformed

FRAME_VERSION: Final = 1
#: Of a PartitionChangeRecord: the leader stays who it is.
SAME_LEADER: Final = -2


class Kind(IntEnum):
    """Every type of record that Kafka 4.3.1 has."""

    REGISTER_BROKER = 0
    UNREGISTER_BROKER = 1
    TOPIC = 2
    PARTITION = 3
    CONFIG = 4
    PARTITION_CHANGE = 5
    FENCE_BROKER = 7
    UNFENCE_BROKER = 8
    REMOVE_TOPIC = 9
    DELEGATION_TOKEN = 10
    USER_SCRAM_CREDENTIAL = 11
    FEATURE_LEVEL = 12
    CLIENT_QUOTA = 14
    PRODUCER_IDS = 15
    BROKER_REGISTRATION_CHANGE = 17
    ACCESS_CONTROL_ENTRY = 18
    REMOVE_ACCESS_CONTROL_ENTRY = 19
    NO_OP = 20
    ZK_MIGRATION_STATE = 21
    REMOVE_USER_SCRAM_CREDENTIAL = 22
    BEGIN_TRANSACTION = 23
    END_TRANSACTION = 24
    ABORT_TRANSACTION = 25
    REMOVE_DELEGATION_TOKEN = 26
    REGISTER_CONTROLLER = 27
    CLEAR_ELR = 28


class Table(NamedTuple):
    """The fields of a type of record, and its newest version."""

    newest: int
    fields: Fields


class Record(NamedTuple):
    """One record: its fields by Kafka's own names."""

    kind: Kind
    fields: Message


class Passed(NamedTuple):
    """A record that the image needs nothing of; `known`: Kafka 4.3.1 has this type."""

    api_key: int
    known: bool


class _NullByDefault(Array):
    """An array that is null where nothing was said, and not empty."""

    default = None  # type: ignore[assignment]  # what `Type` allows


_INTS: Final = Array(INT32)
_NULLABLE_INTS: Final = _NullByDefault(INT32, nullable=True)
_UUIDS: Final = Array(UUID)
_NULLABLE_UUIDS: Final = _NullByDefault(UUID, nullable=True)
_ENDPOINT: Final = Fields(
    Field("Name", STRING),
    Field("Host", STRING),
    Field("Port", UINT16),
    Field("SecurityProtocol", INT16),
)
_FEATURE: Final = Fields(
    Field("Name", STRING),
    Field("MinSupportedVersion", INT16),
    Field("MaxSupportedVersion", INT16),
)
_BROKER: Final = Fields(Field("Id", INT32), Field("Epoch", INT64))

TABLES: Final[Mapping[Kind, Table]] = MappingProxyType({
    Kind.REGISTER_BROKER: Table(4, Fields(
        Field("BrokerId", INT32),
        Field("IsMigratingZkBroker", BOOL, 2),
        Field("IncarnationId", UUID),
        Field("BrokerEpoch", INT64),
        Field("EndPoints", Array(_ENDPOINT)),
        Field("Features", Array(_FEATURE)),
        Field("Rack", NULLABLE_STRING, default=""),
        Field("Fenced", BOOL, default=True),
        Field("InControlledShutdown", BOOL, 1),
        Field("LogDirs", _UUIDS, 3, tag=0),
        Field("CordonedLogDirs", _NULLABLE_UUIDS, 4, tag=1),
    )),
    Kind.UNREGISTER_BROKER: Table(0, Fields(
        Field("BrokerId", INT32),
        Field("BrokerEpoch", INT64),
    )),
    Kind.TOPIC: Table(0, Fields(
        Field("Name", STRING),
        Field("TopicId", UUID),
    )),
    Kind.PARTITION: Table(2, Fields(
        Field("PartitionId", INT32, default=-1),
        Field("TopicId", UUID),
        Field("Replicas", _INTS),
        Field("Isr", _INTS),
        Field("RemovingReplicas", _INTS),
        Field("AddingReplicas", _INTS),
        Field("Leader", INT32, default=-1),
        Field("LeaderRecoveryState", INT8, tag=0),
        Field("LeaderEpoch", INT32, default=-1),
        Field("PartitionEpoch", INT32, default=-1),
        Field("Directories", _UUIDS, 1),
        Field("EligibleLeaderReplicas", _NULLABLE_INTS, 2, tag=1),
        Field("LastKnownElr", _NULLABLE_INTS, 2, tag=2),
    )),
    Kind.PARTITION_CHANGE: Table(2, Fields(
        Field("PartitionId", INT32, default=-1),
        Field("TopicId", UUID),
        Field("Isr", _NULLABLE_INTS, tag=0),
        Field("Leader", INT32, tag=1, default=SAME_LEADER),
        Field("Replicas", _NULLABLE_INTS, tag=2),
        Field("RemovingReplicas", _NULLABLE_INTS, tag=3),
        Field("AddingReplicas", _NULLABLE_INTS, tag=4),
        Field("LeaderRecoveryState", INT8, tag=5, default=-1),
        Field("Directories", _NULLABLE_UUIDS, 1, tag=8),
        Field("EligibleLeaderReplicas", _NULLABLE_INTS, 2, tag=6),
        Field("LastKnownElr", _NULLABLE_INTS, 2, tag=7),
    )),
    Kind.FENCE_BROKER: Table(0, _BROKER),
    Kind.UNFENCE_BROKER: Table(0, _BROKER),
    Kind.REMOVE_TOPIC: Table(0, Fields(Field("TopicId", UUID))),
    Kind.FEATURE_LEVEL: Table(0, Fields(
        Field("Name", STRING),
        Field("FeatureLevel", INT16),
    )),
    Kind.BROKER_REGISTRATION_CHANGE: Table(3, Fields(
        Field("BrokerId", INT32),
        Field("BrokerEpoch", INT64),
        Field("Fenced", INT8, tag=0),
        Field("InControlledShutdown", INT8, 1, tag=1),
        Field("LogDirs", _UUIDS, 2, tag=2),
        Field("CordonedLogDirs", _NULLABLE_UUIDS, 3, tag=3),
    )),
    Kind.BEGIN_TRANSACTION: Table(0, Fields(Field("Name", NULLABLE_STRING, tag=0))),
    Kind.END_TRANSACTION: Table(0, Fields()),
    Kind.ABORT_TRANSACTION: Table(0, Fields(Field("Reason", NULLABLE_STRING, tag=0))),
})  # fmt: skip


def read(value: bytes | None) -> Record | Passed:
    """Return what a record says, or that it says nothing of topics and brokers.

    Raises:
        Malformed: it does not follow its format, or is of a newer version than is known here: what
            it changes can't be told.
    """
    if value is None:
        raise Malformed("a record of cluster metadata without a value")
    cursor = Cursor(value)
    frame = cursor.uvarint("frame version")
    if frame != FRAME_VERSION:
        raise Malformed(f"a record of frame version {frame}: {FRAME_VERSION} is known")
    key, version = cursor.uvarint("api key"), cursor.uvarint("version")
    if key not in _KINDS:
        return Passed(key, known=False)
    kind = Kind(key)
    table = TABLES.get(kind)
    if table is None:
        return Passed(key, known=True)
    if version > table.newest:
        raise Malformed(f"a record {kind.name} of version {version}: {table.newest} is known")
    fields = table.fields.read(cursor, kind.name, Form(version, flexible=True))
    cursor.finish()
    return Record(kind, fields)


def pack(record: Record, version: int) -> bytes:
    """Return a record's value, for tests that play the controllers."""
    out = bytearray(uvarint(FRAME_VERSION) + uvarint(record.kind) + uvarint(version))
    TABLES[record.kind].fields.write(out, record.fields, Form(version, flexible=True))
    return bytes(out)


_KINDS: Final = frozenset(map(int, Kind))
