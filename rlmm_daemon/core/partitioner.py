"""Metadata partition of a user partition: Kafka's hash of topic id and number, name left out.

Source: RemoteLogMetadataTopicPartitioner, java.util.Objects.hash, Utils.murmur2.
"""

import struct
from functools import lru_cache
from typing import Final

from rlmm_daemon.domain.errors import InvalidArgument
from rlmm_daemon.domain.ids import UUID_BYTES, MetadataPartition, TopicId

#: Names the hash below. Stored with every snapshot and log: another id means another placement.
PARTITIONER_ID: Final = 1

_HALVES: Final = struct.Struct(">QQ")
_INT32_MAX: Final = 2**31 - 1
_U32: Final = 0xFFFFFFFF
_PRIME: Final = 31
_MURMUR_SEED: Final = 0x9747B28C
_MURMUR_M: Final = 0x5BD1E995
#: More user partitions than one broker asks about.
_CACHED_MAX: Final = 16384


@lru_cache(_CACHED_MAX)
def metadata_partition(topic_id: TopicId, partition: int, count: int) -> MetadataPartition:
    """Return which of `count` metadata partitions holds the events of a user partition.

    Raises:
        InvalidArgument: a topic id that is not 16 bytes, a partition outside int32, a count < 1.
    """
    if len(topic_id) != UUID_BYTES:
        raise InvalidArgument(f"topic id is {len(topic_id)} bytes long, not {UUID_BYTES}")
    if not -_INT32_MAX - 1 <= partition <= _INT32_MAX:
        raise InvalidArgument(f"partition {partition} is not an int32")
    if not 1 <= count <= _INT32_MAX:
        raise InvalidArgument(f"{count} metadata partitions: at least 1 is needed")
    return MetadataPartition((_murmur2(_hash(topic_id, partition)) & _INT32_MAX) % count)


def _hash(topic_id: bytes, partition: int) -> int:
    """Return `Objects.hash(least significant, most significant, partition)`, unsigned."""
    most, least = _HALVES.unpack(topic_id)
    result = 1
    for code in (least ^ least >> 32, most ^ most >> 32, partition):
        result = (_PRIME * result + code) & _U32
    return result


def _murmur2(number: int) -> int:
    """Return Kafka's murmur2 of a number's four big-endian bytes, unsigned."""
    block = int.from_bytes(number.to_bytes(4, "big"), "little")
    block = block * _MURMUR_M & _U32
    block = (block ^ block >> 24) * _MURMUR_M & _U32
    state = (_MURMUR_SEED ^ 4) * _MURMUR_M & _U32 ^ block
    state = (state ^ state >> 13) * _MURMUR_M & _U32
    return state ^ state >> 15
