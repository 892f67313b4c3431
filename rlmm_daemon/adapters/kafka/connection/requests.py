"""The requests that aiokafka 0.14 lacks, as structs of its own kind, each pinned to one version.

A version is chosen for what it carries: Fetch 13 and Produce 13 name the topic by its id (by name,
a recreated topic is read and written silently), ListOffsets 6 and OffsetForLeaderEpoch 4 carry the
leader epoch, Metadata 12 may be asked by id, DescribeCluster 2 lists fenced brokers. All of them
are flexible: request header 2, response header 1. Source: Kafka's message definitions.

Tagged fields are only ever sent empty: aiokafka's encoder leaves out the field's size.
"""

import uuid
from io import BytesIO
from typing import Any, ClassVar, Final, Self

from aiokafka.protocol.abstract import AbstractType
from aiokafka.protocol.api import RequestStruct, Response
from aiokafka.protocol.types import (
    Boolean,
    CompactArray,
    CompactBytes,
    CompactString,
    Int8,
    Int16,
    Int32,
    Int64,
    Schema,
    TaggedFields,
    UnsignedVarInt32,
)

NO_TAGS: Final[dict[int, bytes]] = {}
NO_ID: Final = bytes(16)
#: Tag of a Fetch answer's partition that says where the asked epoch diverges.
DIVERGING_TAG: Final = 0
#: Keys that more than one version of a request has here.
PRODUCE, FETCH, DESCRIBE_CLUSTER = 0, 1, 60


class Uuid(AbstractType[bytes]):  # type: ignore[misc]  # aiokafka ships no types
    """Sixteen bytes, kept as bytes."""

    @classmethod
    def encode(cls, value: bytes) -> bytes:
        """Return the bytes as they are."""
        return value

    @classmethod
    def decode(cls, data: BytesIO) -> bytes:
        """Read sixteen bytes."""
        return data.read(16)

    @classmethod
    def repr(cls, value: bytes) -> str:
        """Return the canonical text of an id."""
        return str(uuid.UUID(bytes=value))


class VersionMissing(Exception):
    """The broker does not speak the version that is needed."""


class Pinned(RequestStruct):  # type: ignore[misc]  # aiokafka ships no types
    """A request of exactly one version."""

    API_KEY: ClassVar[int] = -1
    API_VERSION: ClassVar[int] = -1
    SCHEMA: ClassVar[Schema] = Schema()
    RESPONSE_TYPE: ClassVar[type[Response]] = Response
    FLEXIBLE_VERSION: ClassVar[bool] = True

    def prepare(self, versions: dict[int, tuple[int, int]]) -> Self:
        """Return the struct that is sent, which is this one; aiokafka's connection asks.

        Raises:
            VersionMissing: the broker's range leaves this version out.
        """
        low, high = versions.get(self.API_KEY, (0, -1))
        if not low <= self.API_VERSION <= high:
            raise VersionMissing(
                f"{type(self).__name__} needs version {self.API_VERSION} of api {self.API_KEY}, "
                f"the broker speaks {low} to {high}"
            )
        return self


_Fields = tuple[tuple[str, Any], ...]


def _ended(fields: _Fields) -> _Fields:
    """Return the fields with the tags that end every flexible struct."""
    return (*fields, ("tags", TaggedFields))


def _api(name: str, key: int, version: int, request: _Fields, *, response: _Fields) -> type[Pinned]:
    """Return the request class of one api and version; its answers decode by themselves."""
    ids = {"API_KEY": key, "API_VERSION": version}
    answer = type(f"{name}Response", (Response,), ids | {"SCHEMA": Schema(*_ended(response))})
    body = {"SCHEMA": Schema(*_ended(request)), "RESPONSE_TYPE": answer}
    return type(name, (Pinned,), ids | body)


def _many(*fields: tuple[str, Any]) -> CompactArray:
    """Return an array of structs, each with its tags."""
    return CompactArray(*_ended(fields))


class _FirstError(AbstractType[int]):  # type: ignore[misc]  # aiokafka ships no types
    """The error of an array's first struct, which begins with it; nothing behind it is read."""

    @classmethod
    def decode(cls, data: BytesIO) -> int | None:
        """Return the error; None if the array is empty."""
        return Int16.decode(data) if UnsignedVarInt32.decode(data) > 1 else None


_TEXT = CompactString()
_INTS = CompactArray(Int32)
_TEXTS = CompactArray(_TEXT)

_METADATA: Final[_Fields] = (
    ("topics", _many(("id", Uuid), ("name", _TEXT))), ("create", Boolean), ("operations", Boolean),
)  # fmt: skip
_BEFORE_TOPICS: Final[_Fields] = (
    ("throttle", Int32),
    ("brokers", _many(("id", Int32), ("host", _TEXT), ("port", Int32), ("rack", _TEXT))),
    ("cluster_id", _TEXT), ("controller", Int32),
)  # fmt: skip
Metadata = _api(
    "Metadata", 3, 12,
    _METADATA,
    response=(*_BEFORE_TOPICS,
     ("topics", _many(
         ("error", Int16), ("name", _TEXT), ("id", Uuid), ("internal", Boolean),
         ("partitions", _many(
             ("error", Int16), ("index", Int32), ("leader", Int32), ("epoch", Int32),
             ("replicas", _INTS), ("isr", _INTS), ("offline", _INTS))),
         ("operations", Int32)))),
)  # fmt: skip


class TopicError(Metadata):  # type: ignore[misc, valid-type]  # made above
    """The same question of one topic, when nothing but its error is wanted of the answer.

    Of a topic with 50 partitions, that saves nearly all of the reading.
    """

    class RESPONSE_TYPE(Response):  # type: ignore[misc]  # noqa: N801 - aiokafka's name
        """What stands before the topics, and the first one's error."""

        API_KEY = 3
        API_VERSION = 12
        SCHEMA = Schema(*_BEFORE_TOPICS, ("error", _FirstError))


Fetch = _api(
    "Fetch", FETCH, 13,
    (("replica", Int32), ("max_wait", Int32), ("min_bytes", Int32), ("max_bytes", Int32),
     ("isolation", Int8), ("session", Int32), ("session_epoch", Int32),
     ("topics", _many(("id", Uuid), ("partitions", _many(
         ("index", Int32), ("current_epoch", Int32), ("offset", Int64), ("last_epoch", Int32),
         ("log_start", Int64), ("max_bytes", Int32))))),
     ("forgotten", _many(("id", Uuid), ("partitions", _INTS))), ("rack", _TEXT)),
    response=(("throttle", Int32), ("error", Int16), ("session", Int32),
     ("topics", _many(("id", Uuid), ("partitions", _many(
         ("index", Int32), ("error", Int16), ("high_watermark", Int64), ("stable", Int64),
         ("log_start", Int64), ("aborted", _many(("producer", Int64), ("first", Int64))),
         ("replica", Int32), ("records", CompactBytes)))))),
)  # fmt: skip

ListOffsets = _api(
    "ListOffsets", 2, 6,
    (("replica", Int32), ("isolation", Int8),
     ("topics", _many(("name", _TEXT), ("partitions", _many(
         ("index", Int32), ("current_epoch", Int32), ("timestamp", Int64)))))),
    response=(("throttle", Int32), ("topics", _many(("name", _TEXT), ("partitions", _many(
        ("index", Int32), ("error", Int16), ("timestamp", Int64), ("offset", Int64),
        ("epoch", Int32)))))),
)  # fmt: skip

OffsetForLeaderEpoch = _api(
    "OffsetForLeaderEpoch", 23, 4,
    (("replica", Int32), ("topics", _many(("name", _TEXT), ("partitions", _many(
        ("index", Int32), ("current_epoch", Int32), ("epoch", Int32)))))),
    response=(("throttle", Int32), ("topics", _many(("name", _TEXT), ("partitions", _many(
        ("error", Int16), ("index", Int32), ("epoch", Int32), ("end", Int64)))))),
)  # fmt: skip

InitProducerId = _api(
    "InitProducerId", 22, 2,
    (("transactional_id", _TEXT), ("timeout", Int32)),
    response=(
        ("throttle", Int32), ("error", Int16), ("producer_id", Int64), ("producer_epoch", Int16),
    ),
)  # fmt: skip


def _produce(name: str, version: int, topic: tuple[str, Any]) -> type[Pinned]:
    return _api(
        name, PRODUCE, version,
        (("transactional_id", _TEXT), ("acks", Int16), ("timeout", Int32),
         ("topics", _many(topic, ("partitions", _many(
             ("index", Int32), ("records", CompactBytes)))))),
        response=(("topics", _many(topic, ("partitions", _many(
            ("index", Int32), ("error", Int16), ("base_offset", Int64), ("append_time", Int64),
            ("log_start", Int64), ("record_errors", _many(("index", Int32), ("message", _TEXT))),
            ("message", _TEXT))))), ("throttle", Int32)),
    )  # fmt: skip


ProduceById = _produce("ProduceById", 13, ("id", Uuid))
#: For brokers before 4.1.
ProduceByName = _produce("ProduceByName", 9, ("name", _TEXT))

DescribeCluster = _api(
    "DescribeCluster", DESCRIBE_CLUSTER, 2,
    (("operations", Boolean), ("endpoint_type", Int8), ("fenced", Boolean)),
    response=(("throttle", Int32), ("error", Int16), ("message", _TEXT), ("endpoint_type", Int8),
     ("cluster_id", _TEXT), ("controller", Int32),
     ("brokers", _many(("id", Int32), ("host", _TEXT), ("port", Int32), ("rack", _TEXT),
                       ("fenced", Boolean))),
     ("operations", Int32)),
)  # fmt: skip

_REPLICAS = _many(("id", Int32), ("end", Int64))

DescribeQuorum = _api(
    "DescribeQuorum", 55, 0,
    (("topics", _many(("name", _TEXT), ("partitions", _many(("index", Int32))))),),
    response=(("error", Int16), ("topics", _many(("name", _TEXT), ("partitions", _many(
        ("index", Int32), ("error", Int16), ("leader", Int32), ("epoch", Int32),
        ("high_watermark", Int64), ("voters", _REPLICAS), ("observers", _REPLICAS)))))),
)  # fmt: skip

CreateTopics = _api(
    "CreateTopics", 19, 5,
    (("topics", _many(
        ("name", _TEXT), ("partitions", Int32), ("replication", Int16),
        ("assignments", _many(("index", Int32), ("brokers", _INTS))),
        ("configs", _many(("name", _TEXT), ("value", _TEXT))))),
     ("timeout", Int32), ("validate_only", Boolean)),
    response=(("throttle", Int32), ("topics", _many(
        ("name", _TEXT), ("error", Int16), ("message", _TEXT), ("partitions", Int32),
        ("replication", Int16), ("configs", _many(
            ("name", _TEXT), ("value", _TEXT), ("read_only", Boolean), ("source", Int8),
            ("sensitive", Boolean)))))),
)  # fmt: skip

DescribeConfigs = _api(
    "DescribeConfigs", 32, 4,
    (("resources", _many(("type", Int8), ("name", _TEXT), ("keys", _TEXTS))),
     ("synonyms", Boolean), ("documentation", Boolean)),
    response=(("throttle", Int32), ("results", _many(
        ("error", Int16), ("message", _TEXT), ("type", Int8), ("name", _TEXT),
        ("configs", _many(
            ("name", _TEXT), ("value", _TEXT), ("read_only", Boolean), ("source", Int8),
            ("sensitive", Boolean),
            ("synonyms", _many(("name", _TEXT), ("value", _TEXT), ("source", Int8))),
            ("config_type", Int8), ("documentation", _TEXT)))))),
)  # fmt: skip
