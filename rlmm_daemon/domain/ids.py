"""Names and numbers that would be mixed up if they were plain `int` and `bytes`."""

import binascii
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Final, NamedTuple, NewType

import msgspec

from rlmm_daemon.domain.errors import InvalidArgument

#: 16 bytes, most significant first: the order of Kafka's wire form and of its text form decoded.
TopicId = NewType("TopicId", bytes)
SegmentId = NewType("SegmentId", bytes)
Offset = NewType("Offset", int)
LeaderEpoch = NewType("LeaderEpoch", int)
BrokerId = NewType("BrokerId", int)
#: A partition of `__remote_log_metadata`, never of a user's topic.
MetadataPartition = NewType("MetadataPartition", int)

UUID_BYTES: Final = 16

_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_TOPIC_PARTITION: Final = re.compile(r"(?P<topic>[a-zA-Z0-9._-]{1,249})-(?P<partition>\d{1,10})")


def uuid_text(uuid: bytes) -> str:
    """Return Kafka's text of a 16-byte uuid: url-safe base64 without padding (`Uuid.toString`)."""
    return urlsafe_b64encode(uuid).rstrip(b"=").decode("ascii")


def uuid_bytes(text: str) -> bytes:
    """Return the 16 bytes of Kafka's uuid text; padding is tolerated as `Uuid.fromString` does.

    Raises:
        InvalidArgument: not url-safe base64 of exactly 16 bytes.
    """
    stripped = text.rstrip("=")
    try:
        decoded = urlsafe_b64decode(stripped + "=" * (-len(stripped) % 4))
    except (binascii.Error, ValueError) as error:
        raise InvalidArgument(f"{text!r} is not a Kafka uuid: {error}") from error
    if len(decoded) != UUID_BYTES or not re.fullmatch(r"[A-Za-z0-9_-]+", stripped):
        raise InvalidArgument(f"{text!r} is not a Kafka uuid: 22 url-safe base64 characters wanted")
    return decoded


class TopicPartition(msgspec.Struct, frozen=True, order=True):
    """What people type: `orders-7`. The name may hold dashes, so the last one separates."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    @classmethod
    def parse(cls, text: str) -> "TopicPartition":
        """Return the partition that `topic-partition` names.

        Raises:
            InvalidArgument: no dash and number at the end, or a character Kafka forbids.
        """
        match = _TOPIC_PARTITION.fullmatch(text)
        if match is None:
            raise InvalidArgument(f"{text!r} is not TOPIC-PARTITION, for example orders-0")
        return cls(match["topic"], int(match["partition"]))


class TopicIdPartition(NamedTuple):
    """One user partition. Equality covers id, name and partition, as in Kafka.

    A tuple, since every look-up hashes and compares one: in C, that costs a tenth.
    """

    topic_id: TopicId
    topic: str
    partition: int

    def __str__(self) -> str:
        """Return Kafka's form, `<topicId>:<topic>-<partition>`."""
        return f"{uuid_text(self.topic_id)}:{self.topic}-{self.partition}"


def require_topic_name(name: str) -> None:
    """Refuse what Kafka takes for no topic's name.

    A log may hold others: look-ups bear them, and no segment of theirs begins.

    Raises:
        InvalidArgument: it says the rule.

    Source: org.apache.kafka.common.internals.Topic.validate.
    """
    if not _TOPIC.fullmatch(name) or name in {".", ".."}:
        raise InvalidArgument(
            f"{name[:249]!r} is no topic name: Kafka takes 1 to 249 of [a-zA-Z0-9._-], "
            'and neither "." nor ".."'
        )
