"""Keys of a segment's objects: Kafka's LocalTieredStorage naming, under numbered prefixes.

    <prefix>/<topic>-<partition>-<topicId>/<start offset, 20 digits>-<segmentId><suffix>

A prefix may begin with `{hash:BITS}`: so many bits of the segment id's CRC-32C as hexadecimal
digits. It spreads a bucket's load over many key ranges, and what follows still tells whose object
it is. Kafka's own reader of that naming does not find segments under such a prefix.

A key is a pure function of what was recorded, so nobody ever has to search for an object.
Source: LocalTieredStorage, RemoteLogSegmentFileset, RemoteTopicPartitionDirectory.
"""

import re
from typing import Final

import msgspec
from crc32c import crc32c

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
#: In front only, and a name of its own: a listing needs the part before it.
_HASH: Final = re.compile(r"\{hash:(?P<bits>4|8|12|16|20|24|28|32)\}(?:/(?P<rest>.+))?")
_KEY: Final = re.compile(
    r"(?P<topic>[a-zA-Z0-9._-]{1,249})-(?P<partition>\d{1,10})-(?P<topic_id>[A-Za-z0-9_-]{22})/"
    r"(?P<start>\d{20})-(?P<segment_id>[A-Za-z0-9_-]{22})(?P<suffix>\.[a-z_]+)"
)
#: The end of every key of a segment, below whatever prefix.
SEGMENT_KEY: Final = re.compile(rf"(?:^|/){_KEY.pattern}$")


class Layout(msgspec.Struct, frozen=True):
    """One row of the bucket marker's table, without its number."""

    #: `a/b`, or `{hash:16}/a/b`.
    prefix: str = ""
    kind: str = LOCAL_TIERED_STORAGE

    def __post_init__(self) -> None:
        """Refuse what could leave the storage's root, or what this version cannot name.

        Raises:
            InvalidArgument: another kind, or a prefix that is not `a/b/c` or `{hash:16}/a/b`.
        """
        if self.kind != LOCAL_TIERED_STORAGE:
            raise InvalidArgument(f"layout kind {self.kind!r} is not known to this version")
        plain = self._hashed()[1]
        if not _PREFIX.fullmatch(plain) or {".", ".."} & set(plain.split("/")):
            raise InvalidArgument(f"layout prefix {self.prefix!r} is not a plain relative path")

    @property
    def listed_prefix(self) -> str:
        """What the keys of all segments begin with, good for a listing; "" for the whole bucket."""
        return f"{self.prefix}/" if self.prefix and not self._hashed()[0] else ""

    def directory(self, segment_id: SegmentId) -> str:
        """Return the prefix of one segment's keys, its slash included."""
        bits, plain = self._hashed()
        names = [f"{_hash(segment_id) >> (32 - bits):0{bits // 4}x}"] if bits else []
        return "".join(f"{name}/" for name in [*names, plain] if name)

    def _hashed(self) -> tuple[int, str]:
        """Return how many bits come in front, and the rest of the prefix."""
        match = _HASH.fullmatch(self.prefix)
        return (int(match["bits"]), match["rest"] or "") if match else (0, self.prefix)


class ParsedKey(msgspec.Struct, frozen=True, kw_only=True):
    """What an object's key says about it."""

    partition: TopicIdPartition
    start_offset: Offset
    segment_id: SegmentId
    suffix: str


def is_topic_name(text: str) -> bool:
    """Whether a key can name the topic: as Kafka's own rule, but for `.` and `..`."""
    return _TOPIC.fullmatch(text) is not None


def _hash(segment_id: SegmentId) -> int:
    """Return 32 bits that are even over ids of any kind."""
    return crc32c(segment_id)


def may_have_objects(partition: TopicIdPartition) -> bool:
    """Return whether `object_key` names any: a log may hold topic names that Kafka forbids."""
    return is_topic_name(partition.topic) and partition.partition >= 0


def object_key(
    layout: Layout,
    partition: TopicIdPartition,
    start_offset: Offset,
    segment_id: SegmentId,
    *,
    suffix: str,
) -> str:
    """Return the key of one object.

    Raises:
        InvalidArgument: a topic name that Kafka forbids.
    """
    assert suffix in SUFFIXES, suffix
    return key_stem(layout, partition, start_offset, segment_id) + suffix


def key_stem(
    layout: Layout, partition: TopicIdPartition, start_offset: Offset, segment_id: SegmentId
) -> str:
    """Return what the keys of all objects of a segment begin with, up to their suffix.

    Raises:
        InvalidArgument: a topic name that Kafka forbids.
    """
    if not may_have_objects(partition):
        raise InvalidArgument(f"{partition.topic!r} is not a topic name of Kafka's")
    directory = f"{partition.topic}-{partition.partition}-{uuid_text(partition.topic_id)}"
    name = f"{start_offset:020d}-{uuid_text(segment_id)}"
    return f"{layout.directory(segment_id)}{directory}/{name}"


def listing_prefix(layout: Layout, partition: TopicIdPartition) -> str:
    """Return what all keys of a partition begin with; "" where hash bits stand in front.

    A listing by it shows others' objects too then: `parse_key` tells them apart.
    """
    if layout.prefix and not layout.listed_prefix:
        return ""
    directory = f"{partition.topic}-{partition.partition}-{uuid_text(partition.topic_id)}"
    return f"{layout.listed_prefix}{directory}/"


def parse_key(layout: Layout, key: str) -> ParsedKey | None:
    """Return what `key` names under this layout; None if `object_key` could not have made it."""
    # Found by its end: where it begins depends on the segment's id.
    match = SEGMENT_KEY.search(key)
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
        layout, parsed.partition, parsed.start_offset, parsed.segment_id, suffix=parsed.suffix
    )
    # A partition of 007, stray low bits of an id, another prefix: they read well and are nobody's.
    return parsed if made == key else None
