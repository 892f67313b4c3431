"""Produce v13, packed by hand: a request holds a batch for each of many partitions."""

import struct
from collections.abc import Sequence
from typing import Final

from rlmm_daemon.adapters.kafka.connection.packed import Packed, uvarint
from rlmm_daemon.adapters.kafka.connection.requests import ProduceById

_ALL_REPLICAS: Final = -1
#: no transactional id, acks, timeout, 1 topic
_BEFORE_ID: Final = struct.Struct(">bhib")
_PARTITION: Final = struct.Struct(">i")
_ONE: Final = 2  # compact arrays count from 1


class ProduceBatches(Packed):
    """Batches of one topic, acknowledged by all replicas in sync."""

    API_KEY = ProduceById.API_KEY
    API_VERSION = ProduceById.API_VERSION
    SCHEMA = ProduceById.SCHEMA
    RESPONSE_TYPE = ProduceById.RESPONSE_TYPE

    def __init__(
        self, topic_id: bytes, batches: Sequence[tuple[int, bytes]], *, timeout_ms: int
    ) -> None:
        parts = [
            _BEFORE_ID.pack(0, _ALL_REPLICAS, timeout_ms, _ONE),
            topic_id,
            uvarint(len(batches) + 1),
        ]
        for partition, records in batches:
            parts += (_PARTITION.pack(partition), uvarint(len(records) + 1), records, b"\0")
        parts.append(b"\0\0")  # the tags of topic and request
        super().__init__(b"".join(parts))
