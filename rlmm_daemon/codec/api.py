"""Every method of the socket as a table: parameters, result, right, and how the answer comes.

The server dispatches by it, both clients are typed by it, and the plugin is written against it.
Segment metadata travels as Kafka record bytes (api key 0, version 0, with the present state).
All structs are arrays on the wire; every params struct may end in `timeout_ms`, the caller's own
deadline, which can only shorten the daemon's.
"""

import enum
from types import MappingProxyType
from typing import Annotated, Any, Final

import msgspec

from rlmm_daemon.codec.frames import BulkHeader
from rlmm_daemon.domain.ids import UUID_BYTES, BrokerId, SegmentId, TopicId, TopicIdPartition

#: The numbers of Kafka's int32 and int64 fields that are never negative.
Int32 = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Int64 = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
UuidBytes = Annotated[bytes, msgspec.Meta(min_length=UUID_BYTES, max_length=UUID_BYTES)]
#: Kafka's own limit on topic names.
TopicName = Annotated[str, msgspec.Meta(min_length=1, max_length=249)]


class _Array(msgspec.Struct, array_like=True, frozen=True):
    pass


class Partition(_Array, frozen=True):
    """A user partition: 16 id bytes, name, number."""

    topic_id: UuidBytes
    topic: TopicName
    partition: Int32

    def to_domain(self) -> TopicIdPartition:
        """Return the domain's word for it."""
        return TopicIdPartition(TopicId(self.topic_id), self.topic, self.partition)

    @classmethod
    def of(cls, partition: TopicIdPartition) -> "Partition":
        """Return the wire form."""
        return cls(partition.topic_id, partition.topic, partition.partition)


class HelloParams(_Array, frozen=True):
    """First on every connection. Ids are required of brokers; a wrong one is refused.

    A storage manager may leave the cluster id out: Kafka does not tell it.
    """

    #: The version that the client speaks.
    protocol: int
    #: Free text for logs: name and version.
    client: str
    #: "broker", "operator" or "bulk".
    role: str
    #: "metadata" or "storage"; "" for operators.
    part: str = ""
    #: Refused if it is another cluster's than the daemon's.
    cluster_id: str | None = None
    #: Refused if it is not that of the daemon's broker.
    broker_id: int | None = None
    #: The broker JVM's start in ms since 1970, the same for both parts.
    broker_incarnation: int | None = None
    #: The broker's own listener. Not used: a daemon with its log in the cluster warms its folds
    #: before the broker starts, with rights that no hello can give; its configuration names them.
    bootstrap: str | None = None


class HelloResult(_Array, frozen=True):
    """Who answers."""

    #: The version that the daemon speaks.
    protocol: int
    #: Name and version.
    daemon: str
    #: None until configuration, state directory or Metadata has named the cluster.
    cluster_id: str | None
    broker_id: BrokerId
    #: What this connection may do: "read", "write", "admin".
    rights: list[str]
    #: The kind of the event log: a broker refuses "embedded" in a cluster of several, so a daemon
    #: with `single_broker = true` says that, whatever keeps its log. An earlier version leaves it
    #: out; `status` says it too.
    event_log: str | None = None


class RecordParams(_Array, frozen=True):
    """One event as Kafka record bytes."""

    record: bytes
    timeout_ms: int | None = None


class AssignmentParams(_Array, frozen=True):
    """Partitions that this broker leads and follows."""

    leaders: list[Partition]
    followers: list[Partition]
    timeout_ms: int | None = None


class PartitionsParams(_Array, frozen=True):
    """Some user partitions."""

    partitions: list[Partition]
    timeout_ms: int | None = None


class EpochOffsetParams(_Array, frozen=True):
    """Where to look: a leader epoch and an offset in it."""

    partition: Partition
    epoch: Int32
    offset: Int64
    timeout_ms: int | None = None
    #: Of `remote_log_segment_metadata`: answer with `FoundUntil`. An earlier version does not know
    #: it, and answers with the record alone.
    until: bool = False


class FoundUntil(_Array, frozen=True):
    """A segment, and how far a reader who goes on in this leader epoch gets no other answer."""

    record: bytes
    #: An offset, inclusive.
    until: Int64


class EpochParams(_Array, frozen=True):
    """A partition's leader epoch; None means all epochs, where the method allows it."""

    partition: Partition
    epoch: Int32 | None = None
    timeout_ms: int | None = None


class PartitionParams(_Array, frozen=True):
    """One user partition."""

    partition: Partition
    timeout_ms: int | None = None


class SegmentFiles(_Array, frozen=True):
    """Absolute paths of a segment's files on the broker's disk; the epoch checkpoint as bytes."""

    log: str
    offset_index: str
    time_index: str
    producer_snapshot: str
    leader_epoch_checkpoint: bytes
    transaction_index: str | None = None


class CopyParams(_Array, frozen=True):
    """A segment's COPY_SEGMENT_STARTED record and its files."""

    record: bytes
    files: SegmentFiles
    timeout_ms: int | None = None


class WholeCopyParams(CopyParams, frozen=True):
    """The same for the whole job."""

    #: Begin nothing: join what runs under this id, or answer with what was finished under it.
    repeats: bool = False


class FetchParams(_Array, frozen=True):
    """A range of a segment's log: [start, end_inclusive], positions in bytes; None: to the end.

    `may_open`: the answer may name a file of this host, the whole log, instead of holding bytes.
    """

    record: bytes
    start: Int64
    end_inclusive: Int64 | None = None
    timeout_ms: int | None = None
    may_open: bool = False


class FetchIndexParams(_Array, frozen=True):
    """One of OFFSET, TIMESTAMP, TRANSACTION, PRODUCER_SNAPSHOT, LEADER_EPOCH."""

    record: bytes
    index: str
    timeout_ms: int | None = None


class SegmentParams(_Array, frozen=True):
    """One segment by its id."""

    partition: Partition
    segment_id: Annotated[SegmentId, msgspec.Meta(min_length=UUID_BYTES, max_length=UUID_BYTES)]
    timeout_ms: int | None = None


class SelectorParams(_Array, frozen=True):
    """What a person typed: `topic-partition`, `topicId`, `topicId-partition`, or Kafka's form."""

    selector: str
    epoch: Int32 | None = None
    timeout_ms: int | None = None


class ExplainParams(_Array, frozen=True):
    """What a person typed, and perhaps one offset of it that is looked for."""

    selector: str
    #: None asks in every epoch.
    epoch: Int32 | None = None
    offset: Int64 | None = None
    timeout_ms: int | None = None


class MetadataPartitionParams(_Array, frozen=True):
    """A partition of the metadata topic; None means all."""

    metadata_partition: Int32 | None = None
    timeout_ms: int | None = None


class TailParams(_Array, frozen=True):
    """Where to start (None: the last few) and whether to go on for ever."""

    metadata_partition: Int32 | None = None
    from_offset: Int64 | None = None
    follow: bool = False
    timeout_ms: int | None = None


class ExportParams(_Array, frozen=True):
    """What to export; None means every followed partition."""

    selector: str | None = None
    timeout_ms: int | None = None


class TopicParams(_Array, frozen=True):
    """A topic by its name or its id; None means all."""

    topic: str | None = None
    timeout_ms: int | None = None


class AcceptLossParams(_Array, frozen=True):
    """The metadata partition whose missing events are given up; None needs `everything`."""

    metadata_partition: Int32 | None = None
    everything: bool = False
    timeout_ms: int | None = None
    #: Give up also what nobody has looked for the objects of.
    without_looking: bool = False


class RecoverParams(_Array, frozen=True):
    """A metadata partition whose lost segments are looked for; `execute` puts them back."""

    metadata_partition: Int32
    execute: bool = False
    timeout_ms: int | None = None


class EndHoldParams(_Array, frozen=True):
    """The metadata partition whose hold ends, None for every one; only said without `execute`."""

    metadata_partition: Int32 | None = None
    execute: bool = False
    timeout_ms: int | None = None


class PurgeParams(_Array, frozen=True):
    """A topic whose remote data is to go; nothing happens without `execute`."""

    topic_id: UuidBytes
    execute: bool = False
    #: The topic exists, and that is meant.
    existing: bool = False
    timeout_ms: int | None = None


class PauseParams(_Array, frozen=True):
    """A topic, by name or id, whose copies stop or go on; nothing happens without `execute`."""

    topic: TopicName
    execute: bool = False
    timeout_ms: int | None = None


class NoParams(_Array, frozen=True):
    """Nothing but a deadline."""

    timeout_ms: int | None = None


class RecordPage(_Array, frozen=True):
    """Some records of a streamed answer."""

    records: list[bytes]
    #: Another page follows.
    more: bool


class UserPartition(_Array, frozen=True):
    """A user partition as a daemon knows it."""

    partition: Partition
    #: None until the event log is open.
    metadata_partition: int | None
    #: "leader" or "follower", as the broker announced it; None if it did not.
    role: str | None
    #: State's name -> segments; empty if no event names the partition.
    segments: dict[str, int]
    #: Of the finished segments.
    size_bytes: int
    #: The partition's own mark on its way to removal.
    delete_state: str | None = None


class UserPartitionPage(_Array, frozen=True):
    """Some user partitions of a streamed answer."""

    partitions: list[UserPartition]
    more: bool


class TailEvent(_Array, frozen=True):
    """One record of the metadata topic and what its apply came to."""

    metadata_partition: int
    offset: int
    #: None: a tombstone.
    value: bytes | None
    #: applied, repeated, deferred, rejected, unreadable (with the reason behind it) or unknown.
    outcome: str


class TailPage(_Array, frozen=True):
    """Some events of a streamed answer."""

    events: list[TailEvent]
    more: bool


class Right(enum.Enum):
    """What a peer's uid and gid must carry for a method."""

    READ = "read"
    WRITE = "write"
    ADMIN = "admin"


class Shape(enum.Enum):
    """How an answer comes."""

    ONE = "one"
    STREAM = "stream"
    BULK = "bulk"


class Method(msgspec.Struct, frozen=True):
    """One row of the table."""

    name: str
    params: type[msgspec.Struct]
    #: Decoded type of one response's result.
    result: Any
    right: Right
    shape: Shape = Shape.ONE


R, W, A = Right.READ, Right.WRITE, Right.ADMIN
_ROWS: Final = (
    # metadata, write
    Method("add_remote_log_segment_metadata", RecordParams, None, W),
    Method("update_remote_log_segment_metadata", RecordParams, None, W),
    Method("put_remote_partition_delete_metadata", RecordParams, None, W),
    Method("on_partition_leadership_changes", AssignmentParams, None, W),
    Method("on_stop_partitions", PartitionsParams, None, W),
    Method("replace_assignment", AssignmentParams, None, W),
    # metadata, read
    Method("remote_log_segment_metadata", EpochOffsetParams, bytes | FoundUntil | None, R),
    Method("highest_offset_for_epoch", EpochParams, int | None, R),
    Method("list_remote_log_segments", EpochParams, RecordPage, R, Shape.STREAM),
    Method("remote_log_size", EpochParams, int, R),
    Method("next_segment_with_txn_index", EpochOffsetParams, bytes | None, R),
    Method("is_ready", PartitionParams, bool, R),
    # storage
    Method("copy_log_segment_data", CopyParams, bytes | None, W),
    Method("delete_log_segment_data", RecordParams, None, W),
    Method("fetch_log_segment", FetchParams, BulkHeader, R, Shape.BULK),
    Method("fetch_index", FetchIndexParams, BulkHeader, R, Shape.BULK),
    # whole jobs
    Method("copy_segment", WholeCopyParams, bytes, W),
    Method("delete_segment", SegmentParams, None, W),
    # operator
    Method("resolve", SelectorParams, list[Partition], R),
    Method("status", NoParams, dict[str, Any], R),
    Method("partitions", NoParams, list[dict[str, Any]], R),
    Method("user_partitions", TopicParams, UserPartitionPage, R, Shape.STREAM),
    Method("segments", SelectorParams, RecordPage, R, Shape.STREAM),
    Method("explain", ExplainParams, dict[str, Any], R),
    Method("tail", TailParams, TailPage, R, Shape.STREAM),
    Method("export", ExportParams, RecordPage, R, Shape.STREAM),
    Method("snapshot_now", MetadataPartitionParams, list[dict[str, Any]], A),
    Method("cleanup", NoParams, dict[str, Any], R),
    Method("forecast", TopicParams, dict[str, Any], R),
    Method("purge", PurgeParams, dict[str, Any], A),
    Method("topic_pause", PauseParams, dict[str, Any], A),
    Method("topic_resume", PauseParams, dict[str, Any], A),
    Method("drain", NoParams, None, A),
    Method("partition_retry", MetadataPartitionParams, dict[str, Any], A),
    Method("partition_rebuild", MetadataPartitionParams, dict[str, Any], A),
    Method("partition_accept_loss", AcceptLossParams, dict[str, Any], A),
    Method("partition_end_hold", EndHoldParams, dict[str, Any], A),
    Method("log_repair", MetadataPartitionParams, dict[str, Any], A),
    Method("log_recover", RecoverParams, dict[str, Any], A),
)
METHODS: Final = MappingProxyType({row.name: row for row in _ROWS})
