"""Text files beside a quorum's log, in Kafka's forms: whose they are, and where the log begins.

Ours end in a checksum where Kafka's readers pass over it: a comment in `meta.properties`, a second
line in `quorum-state`, a row of no topic in checkpoints of offsets. What Kafka wrote has none, and
is read as it is.
"""

import re
from typing import Final

import msgspec
from crc32c import crc32c

from rlmm_daemon.codec.kraft import line_checkpoint
from rlmm_daemon.domain.errors import InvalidArgument, Malformed
from rlmm_daemon.domain.ids import uuid_bytes, uuid_text

META_PROPERTIES: Final = "meta.properties"
PARTITION_METADATA: Final = "partition.metadata"
_VERSION: Final = "1"
_CHECKSUM: Final = re.compile(rb"^#crc32c=([0-9a-f]{8})\n", re.MULTILINE)
_CHECKSUM_ROW: Final = "#crc32c"
_LINE: Final = re.compile(r"([^=:\s\\]+)\s*[=:]\s*([^\\]*)")


class MetaProperties(msgspec.Struct, frozen=True, kw_only=True):
    """What a directory was formatted as, once and for ever."""

    cluster_id: str
    node_id: int
    directory_id: bytes


def encode_meta(meta: MetaProperties) -> bytes:
    """Return the file as Kafka reads it, with its checksum in a comment.

    Raises:
        InvalidArgument: no cluster's id, node's id or directory's id.
    """
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,249}", meta.cluster_id):
        raise InvalidArgument(f"{meta.cluster_id!r} is no cluster's id")
    if meta.node_id < 0 or not any(meta.directory_id):
        raise InvalidArgument(f"node {meta.node_id}: an id is >= 0, and a directory has one")
    lines = {
        "node.id": meta.node_id,
        "directory.id": uuid_text(meta.directory_id),
        "version": _VERSION,
        "cluster.id": meta.cluster_id,
    }
    body = "".join(f"{key}={value}\n" for key, value in lines.items()).encode("ascii")
    return b"#\n#crc32c=%08x\n" % crc32c(body) + body


def decode_meta(data: bytes) -> MetaProperties:
    """Return what the directory was formatted as.

    Raises:
        Malformed: not version 1 of that file, something is missing, or its checksum does not hold.
    """
    found = _CHECKSUM.search(data)
    if found is not None and int(found[1], 16) != crc32c(data[found.end() :]):
        raise Malformed("its checksum does not hold")
    values = _properties(data)
    try:
        if values["version"] != _VERSION:
            raise Malformed(f"version {values['version']}: {_VERSION} is known")
        node, directory = values["node.id"], uuid_bytes(values["directory.id"])
        cluster = values["cluster.id"]
    except KeyError as error:
        raise Malformed(f"{error.args[0]} is missing") from error
    except InvalidArgument as error:
        raise Malformed(error.message) from error
    if not (node.isascii() and node.isdecimal()) or not any(directory) or not cluster:
        raise Malformed(f"node.id {node!r}, directory.id or cluster.id is none")
    return MetaProperties(cluster_id=cluster, node_id=int(node), directory_id=directory)


def encode_partition(topic_id: bytes) -> bytes:
    """Return `partition.metadata`."""
    return f"version: 0\ntopic_id: {uuid_text(topic_id)}".encode("ascii")


def decode_partition(data: bytes) -> bytes:
    """Return the topic's id.

    Raises:
        Malformed: not version 0 of that file.
    """
    found = re.fullmatch(rb"version: 0\ntopic_id: ([A-Za-z0-9_-]{22})\n?", data)
    if found is None:
        raise Malformed("no partition.metadata of version 0")
    return uuid_bytes(found[1].decode("ascii"))


def encode_offset(topic: str, offset: int) -> bytes:
    """Return a checkpoint of one offset of the topic's only partition."""
    return line_checkpoint.encode([(topic, 0, offset), _checksum_row(topic, offset)])


def decode_offset(data: bytes, topic: str) -> int | None:
    """Return the topic's offset, None where the file is a broker's, of other topics.

    Raises:
        Malformed: no such checkpoint, ours of another name, or its checksum does not hold.
    """
    offsets = {}
    for name, *rest in line_checkpoint.decode(data, fields=3):
        partition, offset = line_checkpoint.numbers(rest)
        offsets[name, partition] = offset
    found, checksum = offsets.get((topic, 0)), offsets.get((_CHECKSUM_ROW, 0))
    if found is None and checksum is None:
        return None
    if found is None or checksum != _checksum_row(topic, found)[-1]:
        raise Malformed(f"its checksum does not hold, or it is not of {topic}-0")
    return found


def _checksum_row(topic: str, offset: int) -> tuple[str, int, int]:
    return _CHECKSUM_ROW, 0, crc32c(f"{topic} 0 {offset}".encode("ascii"))


def seal(line: bytes) -> bytes:
    """Return a line with its checksum in a second one, which Kafka does not read."""
    return b"%b\n#crc32c=%08x\n" % (line, crc32c(line))


def unseal(data: bytes) -> bytes:
    """Return the first line; Kafka's own comes without another.

    Raises:
        Malformed: its checksum does not hold, or something else follows.
    """
    line, _, rest = data.partition(b"\n")
    if rest:
        found = _CHECKSUM.fullmatch(rest)
        if found is None or int(found[1], 16) != crc32c(line):
            raise Malformed("its checksum does not hold")
    return line


def _properties(data: bytes) -> dict[str, str]:
    """Return keys and values; none of Kafka's own need what else a Java properties file may do."""
    values: dict[str, str] = {}
    try:
        lines = [line.strip() for line in data.decode("ascii").splitlines()]
    except UnicodeDecodeError as error:
        raise Malformed(f"no properties: {error.reason}") from error
    for line in lines:
        if not line or line[0] in "#!":
            continue
        found = _LINE.fullmatch(line)
        if found is None or found[1] in values:
            raise Malformed(f"no property, or a second one of its name: {line[:80]!r}")
        values[found[1]] = found[2]
    return values
