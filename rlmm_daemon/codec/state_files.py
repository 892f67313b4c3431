"""The small files of the state directory: who the log is, what is announced, how far we had read.

All but `Lost` are JSON, so that an operator can read them; each carries a format number, and an
unknown newer one is refused untouched. They end in a checksum (`sealed_json`); older daemons wrote
none, and read past it. The announcement has none: it only decides what to warm.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, TypeVar

import msgspec
from crc32c import crc32c

from rlmm_daemon.codec.sealed_json import sealed, unsealed
from rlmm_daemon.domain.errors import (
    ChecksumMismatch,
    InvalidArgument,
    Malformed,
    UnsupportedProtocol,
)
from rlmm_daemon.domain.ids import uuid_bytes

FORMAT: Final = 1
#: Of a `.lost` file that tells how far its folds had read: a daemon that does not know of that
#: would bring segments back that were deleted.
LOST_FORMAT_READ: Final = 2
#: Of a `.lost` file, encoded in one go.
LOST_RECORDS_AT_ONCE: Final = 256
_LOST_MAGIC: Final = b"RLML"
_CRC_BYTES: Final = 4
#: What MessagePack's shortest head of an array can say; array 16 and array 32 come behind it.
_FIXARRAY_MAX: Final = 15


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """The log that this state directory belongs to, fixed at first contact."""

    format: int = FORMAT
    cluster_id: str | None
    #: Kafka's text form.
    topic_id: str
    partition_count: int
    partitioner: int


class AnnouncedPartition(msgspec.Struct, frozen=True, array_like=True):
    """One user partition of the last announcement."""

    topic_id: str
    topic: str
    partition: int
    leader: bool


class Announced(msgspec.Struct, frozen=True, kw_only=True):
    """The persisted announcement: it only decides what to warm after a restart."""

    format: int = FORMAT
    partitions: list[AnnouncedPartition]


class Position(msgspec.Struct, frozen=True, array_like=True):
    """How far a metadata partition was read: the next offset, and the last batch's epoch.

    Older daemons write two fields, and read no more than them.
    """

    next_offset: int
    leader_epoch: int
    #: Nothing was acknowledged beyond it: written by a clean stop, and gone before the next life
    #: appends anything.
    exact: bool = False


class Positions(msgspec.Struct, frozen=True, kw_only=True):
    """The furthest that each metadata partition was ever read, in one lineage of the log."""

    format: int = FORMAT
    topic_id: str
    #: JSON keys are text, so the partition number is too.
    partitions: dict[str, Position]
    #: Metadata partition -> where its log started when the loss of its head was accepted.
    accepted_starts: dict[str, int] = {}

    def numbered(self) -> Mapping[int, Position]:
        """Return the positions by metadata partition."""
        return {int(number): position for number, position in self.partitions.items()}


class AcceptedFile(msgspec.Struct, frozen=True, kw_only=True):
    """Gaps of one log whose loss was accepted; kept in the bucket marker, too, where there is one.

    So a start that does not reach the bucket does not raise them again.
    """

    format: int = FORMAT
    topic_id: str
    #: Metadata partition -> ranges of offsets, each [start, end).
    gaps: dict[str, list[tuple[int, int]]]


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """Topic ids that the brokers of a cluster were heard to know, in Kafka's text form."""

    format: int = FORMAT
    cluster_id: str
    seen: list[str]
    #: Unknown for long, but over the hourly cap: only a person marks them.
    for_purge: list[str] = []


class PausedTopic(msgspec.Struct, frozen=True, array_like=True):
    """A topic of which no copy begins."""

    topic: str
    since_ms: int


class Paused(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator paused, until the same is resumed."""

    format: int = FORMAT
    topics: list[PausedTopic]


class Lost(msgspec.Struct, frozen=True, kw_only=True):
    """The live finished segments of a fold that had to be dropped, as key 0 records."""

    format: int = FORMAT
    metadata_partition: int
    #: Why the fold was dropped, the latest last.
    reasons: list[str]
    #: How far of this very log dropped folds had read: what had been finished in there, and is not
    #: among the records, had been deleted. Empty: that can't be told, or an older daemon's.
    read: list[Position] = []
    #: Up to which offset dropped folds of another log, which this one stands for, had read that.
    read_elsewhere: int = 0
    #: The last field: they are written behind the rest, some at a time.
    records: list[bytes]


JsonFile = TypeVar("JsonFile", Identity, Announced, Positions, AcceptedFile, Observed, Paused)


class _Format(msgspec.Struct):
    format: int = 0


def to_json(content: Identity | Announced | Positions | AcceptedFile | Observed | Paused) -> bytes:
    """Return a file's bytes, indented, ending in its checksum and a newline."""
    return sealed(msgspec.json.encode(content))


def announced_rows(rows: Sequence[AnnouncedPartition]) -> bytes:
    """Return some rows as they stand in the file of `Announced`."""
    return msgspec.json.format(msgspec.json.encode(rows), indent=1)[1:-2]


def announced_json(encoded: Iterable[bytes]) -> list[bytes]:
    """Return the file of `Announced` in pieces, whose rows were encoded some at a time.

    It is some megabytes for 50,000 of them, which nobody joins in one step.
    """
    pieces = [msgspec.json.encode({"format": FORMAT})[:-1] + b',\n"partitions": [']
    for rows in filter(None, encoded):
        pieces += [rows, b","]
    return [*(pieces[:-1] if len(pieces) > 1 else pieces), b"\n]}\n"]


class _Sealed(msgspec.Struct, forbid_unknown_fields=True):
    crc32c: int
    marker: msgspec.Raw


def marker_json(marker: bytes) -> bytes:
    """Return the file of a copied marker: one that is damaged must not be held against a good one.

    What is JSON yet after a flipped bit would be believed for ever.
    """
    content = marker.strip()
    return b'{"crc32c": %d,\n"marker": %b}\n' % (crc32c(content), content)


def marker_from(data: bytes, name: str) -> bytes:
    """Return the marker in its copy; older daemons wrote it bare.

    Raises:
        Malformed: its checksum does not hold.
    """
    try:
        sealed = msgspec.json.decode(data, type=_Sealed)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return data
    if crc32c(bytes(sealed.marker)) != sealed.crc32c:
        raise Malformed(f"{name} is damaged: its checksum does not hold")
    return bytes(sealed.marker)


def from_json(data: bytes, kind: type[JsonFile], name: str) -> JsonFile:
    """Return what a JSON file holds.

    Raises:
        Malformed: damaged, or not that kind of file.
        UnsupportedProtocol: written by a newer daemon.
    """
    try:
        data, _ = unsealed(data)
        if msgspec.json.decode(data, type=_Format).format > FORMAT:
            raise UnsupportedProtocol(f"{name} was written by a newer daemon; it is left untouched")
        content = msgspec.json.decode(data, type=kind)
        _check_names(content)
    except (msgspec.DecodeError, ValueError, RecursionError, InvalidArgument) as error:
        raise Malformed(f"{name} is damaged: {error}") from error
    return content


def _check_names(content: object) -> None:
    """Raise for a log or a metadata partition that has no name that can be one: the JSON holds.

    Raises:
        InvalidArgument, ValueError: one is.
    """
    if isinstance(content, Identity | Positions | AcceptedFile):
        uuid_bytes(content.topic_id)
    if isinstance(content, Positions):
        numbers = [*content.partitions, *content.accepted_starts]
    else:
        numbers = [*content.gaps] if isinstance(content, AcceptedFile) else []
    for number in numbers:
        if not number.isascii() or not number.isdecimal():
            raise ValueError(f"{number!r} is no metadata partition")


def lost_pieces(lost: Lost, records: Iterable[bytes], count: int) -> Iterator[bytes]:
    """Yield what a `.lost` file of `count` records holds behind its head: so many at a time.

    They are given apart: a list of all of them would be made at once.
    """
    assert not lost.records
    yield msgspec.msgpack.encode(lost)[:-1] + _array_head(count)  # it ends in an array of nothing
    left = iter(records)
    while some := list(islice(left, LOST_RECORDS_AT_ONCE)):
        count -= len(some)
        yield msgspec.msgpack.encode(some)[len(_array_head(len(some))) :]
    assert count == 0, "as many as were promised"


def lost_head(crc: int) -> bytes:
    """Return the head of a `.lost` file: magic, CRC-32C of all behind it."""
    return _LOST_MAGIC + crc.to_bytes(_CRC_BYTES, "big")


def _array_head(count: int) -> bytes:
    if count <= _FIXARRAY_MAX:
        return bytes([0x90 | count])
    if count < 1 << 16:
        return b"\xdc" + count.to_bytes(2, "big")
    return b"\xdd" + count.to_bytes(4, "big")


def lost_from(data: bytes, name: str) -> Lost:
    """Return what a `.lost` file holds.

    Raises:
        ChecksumMismatch, Malformed: damaged; it must not be removed, since it names lost segments.
        UnsupportedProtocol: written by a newer daemon.
    """
    head = len(_LOST_MAGIC) + _CRC_BYTES
    body = data[head:]
    if not data.startswith(_LOST_MAGIC) or len(data) < head:
        raise Malformed(f"{name} is not a list of lost segments")
    if crc32c(body) != int.from_bytes(data[len(_LOST_MAGIC) : head], "big"):
        raise ChecksumMismatch(f"{name} is damaged: its checksum does not hold")
    try:
        if msgspec.msgpack.decode(body, type=_Format).format > LOST_FORMAT_READ:
            raise UnsupportedProtocol(f"{name} was written by a newer daemon; it is left untouched")
        return msgspec.msgpack.decode(body, type=Lost)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(f"{name} is damaged: {error}") from error
