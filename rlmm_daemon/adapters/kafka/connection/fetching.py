"""Fetch v13 of one partition, packed and unpacked by hand: what a follower sends all the time.

aiokafka's structs take ten times as long, which is most of what a small answer costs. They stay the
authority: a shape that is not the usual one is decoded by them, and tests hold both equal.
"""

import struct
from io import BytesIO
from typing import Any, Final

import msgspec

from rlmm_daemon.adapters.kafka.connection.packed import Packed
from rlmm_daemon.adapters.kafka.connection.requests import DIVERGING_TAG, Fetch

_CONSUMER: Final = -1
_NO_SESSION: Final = -1
#: replica, max wait, min and max bytes, isolation, session id and epoch, 1 topic
_BEFORE_ID: Final = struct.Struct(">iiiibiib")
#: 1 partition: index, current epoch, offset, last epoch, log start, max bytes, its tags; the
#: topic's tags, no forgotten topics, an empty rack, the request's tags
_AFTER_ID: Final = struct.Struct(">biiqiqibbbbb")
#: correlation id, tags; throttle, error, session, 1 topic, its id, 1 partition
_ANSWER: Final = struct.Struct(">ihib16sb")
#: index, error, high watermark, stable offset, log start
_PARTITION: Final = struct.Struct(">ihqqq")
_DIVERGING: Final = struct.Struct(">iq")
_ONE: Final = 2  # compact arrays count from 1
_HALF: Final = 0x80


class FetchAnswer(msgspec.Struct, frozen=True):
    """One partition of a Fetch answer; an error of the whole stands as the partition's."""

    error: int
    high_watermark: int
    log_start: int
    records: bytes
    #: Epoch and end offset to go back to.
    diverging: tuple[int, int] | None

    @classmethod
    def decode(cls, data: BytesIO) -> "FetchAnswer":
        """Read the body of an answer; the name is aiokafka's."""
        at = data.tell()
        return _usual(data.getbuffer()[at:]) or of_struct(Fetch.RESPONSE_TYPE.decode(data))


def of_struct(answer: Any) -> FetchAnswer:
    """Return what aiokafka's struct holds."""
    if answer.error or not answer.topics:
        return FetchAnswer(answer.error or -1, -1, -1, b"", None)
    _, error, high, _, start, _, _, records, tags = answer.topics[0][1][0]
    diverging = tags.get(DIVERGING_TAG)
    return FetchAnswer(
        error, high, start, records or b"", diverging and _DIVERGING.unpack_from(diverging)
    )


def _usual(body: memoryview) -> FetchAnswer | None:
    """Return the answer if it is one partition without error, aborted transactions or tags."""
    at = _ANSWER.size
    if len(body) < at + _PARTITION.size + 1:
        return None
    _, error, _, topics, _, partitions = _ANSWER.unpack_from(body)
    if error or topics != _ONE or partitions != _ONE:
        return None
    _, code, high, _, start = _PARTITION.unpack_from(body, at)
    at += _PARTITION.size
    if body[at] > 1:  # 0: null, 1: none
        return None
    at += 1 + 4  # and the preferred replica
    length = shift = 0
    while True:
        byte = body[at]
        at += 1
        length |= (byte & 0x7F) << shift
        if byte < _HALF:
            break
        shift += 7
    end = at + max(length - 1, 0)
    if bytes(body[end:]) != b"\0\0\0":  # the tags of partition, topic and answer
        return None
    return FetchAnswer(code, high, start, bytes(body[at:end]), None)


class FetchPartition(Packed):
    """Fetch of one partition; carries the epochs that let the broker say where we diverge."""

    API_KEY = Fetch.API_KEY
    API_VERSION = Fetch.API_VERSION
    SCHEMA = Fetch.SCHEMA
    RESPONSE_TYPE = FetchAnswer

    def __init__(
        self,
        topic_id: bytes,
        partition: int,
        *,
        leader_epoch: int,
        position: int,
        last_epoch: int,
        wait_ms: int,
        bytes_max: int,
    ) -> None:
        super().__init__(
            _BEFORE_ID.pack(_CONSUMER, wait_ms, 1, bytes_max, 0, 0, _NO_SESSION, _ONE)
            + topic_id
            + _AFTER_ID.pack(
                _ONE, partition, leader_epoch, position, last_epoch, -1, bytes_max, 0, 0, 1, 1, 0
            )
        )
