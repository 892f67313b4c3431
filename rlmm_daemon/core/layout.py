"""Where a segment's objects lie: Kafka's LocalTieredStorage naming, under numbered prefixes.

    <prefix>/<topic>-<partition>-<topicId>/<start offset, 20 digits>-<segmentId><suffix>

A key is a pure function of what was recorded, so nobody ever has to search for an object.
Source: LocalTieredStorage, RemoteLogSegmentFileset, RemoteTopicPartitionDirectory.
"""

import re
from dataclasses import dataclass
from typing import Final

from rlmm_daemon.domain.errors import InvalidArgument
from rlmm_daemon.domain.ids import (
    Offset,
    SegmentId,
    TopicId,
    TopicIdPartition,
    uuid_bytes,
    uuid_text,
)

#: The only kind so far; the marker's table names it so that another may follow.
LOCAL_TIERED_STORAGE: Final = "local-tiered-storage"
#: Kafka's names of a segment's six objects, in upload order: the `.log` is last.
SUFFIXES: Final = (
    ".index",
    ".timeindex",
    ".txnindex",
    ".snapshot",
    ".leader_epoch_checkpoint",
    ".log",
)

_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_PREFIX: Final = re.compile(r"(?:[a-zA-Z0-9._=-]{1,255}(?:/[a-zA-Z0-9._=-]{1,255})*)?")
_KEY: Final = re.compile(
    r"(?P<topic>[a-zA-Z0-9._-]{1,249})-(?P<partition>\d{1,10})-(?P<topic_id>[A-Za-z0-9_-]{22})/"
    r"(?P<start>\d{20})-(?P<segment_id>[A-Za-z0-9_-]{22})(?P<suffix>\.[a-z_]+)"
)


@dataclass(frozen=True, slots=True)
class Layout:
    """One row of the bucket marker's table, without its number."""

    prefix: str = ""
    kind: str = LOCAL_TIERED_STORAGE

    def __post_init__(self) -> None:
        """Refuse what could leave the storage's root, or what this version cannot name.

        Raises:
            InvalidArgument: another kind, or a prefix that is not plain `a/b/c`.
        """
        if self.kind != LOCAL_TIERED_STORAGE:
            raise InvalidArgument(f"layout kind {self.kind!r} is not known to this version")
        if not _PREFIX.fullmatch(self.prefix) or {".", ".."} & set(self.prefix.split("/")):
            raise InvalidArgument(f"layout prefix {self.prefix!r} is not a plain relative path")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedKey:
    """What an object's key says about it."""

    partition: TopicIdPartition
    start_offset: Offset
    segment_id: SegmentId
    suffix: str


def partition_directory(layout: Layout, partition: TopicIdPartition) -> str:
    """Return the key prefix of a partition's objects, without a slash at its end.

    Raises:
        InvalidArgument: a topic name that Kafka forbids.
    """
    if not _TOPIC.fullmatch(partition.topic) or partition.partition < 0:
        raise InvalidArgument(f"{partition.topic!r} is not a topic name of Kafka's")
    name = f"{partition.topic}-{partition.partition}-{uuid_text(partition.topic_id)}"
    return f"{layout.prefix}/{name}" if layout.prefix else name


def object_key(
    layout: Layout,
    partition: TopicIdPartition,
    start_offset: Offset,
    segment_id: SegmentId,
    suffix: str,
) -> str:
    """Return the key of one object.

    Raises:
        InvalidArgument: a topic name that Kafka forbids.
    """
    assert suffix in SUFFIXES, suffix
    directory = partition_directory(layout, partition)
    return f"{directory}/{start_offset:020d}-{uuid_text(segment_id)}{suffix}"


def parse_key(layout: Layout, key: str) -> ParsedKey | None:
    """Return what `key` names under this layout; None if `object_key` could not have made it."""
    prefix = f"{layout.prefix}/" if layout.prefix else ""
    match = _KEY.fullmatch(key[len(prefix) :]) if key.startswith(prefix) else None
    if match is None or match["suffix"] not in SUFFIXES:
        return None
    topic_id = TopicId(uuid_bytes(match["topic_id"]))
    parsed = ParsedKey(
        partition=TopicIdPartition(topic_id, match["topic"], int(match["partition"])),
        start_offset=Offset(int(match["start"])),
        segment_id=SegmentId(uuid_bytes(match["segment_id"])),
        suffix=match["suffix"],
    )
    made = object_key(
        layout, parsed.partition, parsed.start_offset, parsed.segment_id, parsed.suffix
    )
    # A partition of 007 or an id with stray low bits reads well but is nobody's key.
    return parsed if made == key else None
