"""The custom metadata of a finished segment: where its objects lie, their sizes and checksums.

    offset  bytes  field                                  all big-endian, 32 bytes in all
    0       1      magic 0xB7
    1       1      format version (1)
    2       1      flags: bit 0 = only if COPY_SEGMENT_STARTED (see `ONLY_IF_STARTED`)
    3       1      objects: bit i = the i-th of SIZED exists; the .log always does
    4       2      layout number in the bucket marker's table; 0 if no object is named
    6       4      CRC-32C of the .log
    10      20     sizes of the five small objects in the order of SIZED, unsigned
    30      2      check: low half of the CRC-32C of bytes 0..29

The .log's size is the metadata's own `segment_size_bytes`. Magic, length and check together tell
our bytes from another plugin's, which are passed on untouched and never interpreted.
"""

import struct
from collections.abc import Mapping
from typing import Final

import msgspec
from crc32c import crc32c

from rlmm_daemon.domain.errors import InvalidArgument, Malformed
from rlmm_daemon.domain.segment import CustomMetadata

CUSTOM_METADATA_BYTES: Final = 32
FORMAT_VERSION: Final = 1
#: The order of bits and sizes. Appending is not possible within version 1.
SIZED: Final = (".index", ".timeindex", ".txnindex", ".snapshot", ".leader_epoch_checkpoint")
#: Of a DELETE_SEGMENT_STARTED that ends a stuck copy: it may follow COPY_SEGMENT_STARTED only.
FLAG_ONLY_IF_STARTED: Final = 0x01
FLAGS_KNOWN: Final = FLAG_ONLY_IF_STARTED

_MAGIC: Final = 0xB7
_BODY: Final = struct.Struct(">BBBBHI5I")
_CHECK: Final = struct.Struct(">H")
_FLAGS_AT: Final = 2
_U32_MAX: Final = 0xFFFF_FFFF
_U16_MAX: Final = 0xFFFF
_LOW_HALF: Final = 0xFFFF
assert _BODY.size + _CHECK.size == CUSTOM_METADATA_BYTES


class StoredFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What was stored for one segment."""

    #: 1 or more: the number of a row in the bucket marker.
    layout_number: int
    log_crc32c: int
    #: Suffix -> bytes, for each of SIZED that exists.
    sizes: Mapping[str, int]
    flags: int = msgspec.field(default=0)


def encode(facts: StoredFacts) -> CustomMetadata:
    """Return the 32 bytes.

    Raises:
        InvalidArgument: a number or size that has no room.
    """
    if not 0 < facts.layout_number <= _U16_MAX:
        raise InvalidArgument(f"layout number {facts.layout_number} is not within 1..{_U16_MAX}")
    if facts.sizes.keys() - set(SIZED) or max(facts.sizes.values(), default=0) > _U32_MAX:
        raise InvalidArgument(f"object sizes {dict(facts.sizes)} cannot be recorded")
    mask = sum(1 << bit for bit, suffix in enumerate(SIZED) if suffix in facts.sizes)
    sizes = (facts.sizes.get(suffix, 0) for suffix in SIZED)
    body = _BODY.pack(
        _MAGIC,
        FORMAT_VERSION,
        facts.flags,
        mask,
        facts.layout_number,
        facts.log_crc32c,
        *sizes,
    )
    return CustomMetadata(body + _check(body))


def decode(custom: bytes | None) -> StoredFacts | None:
    """Return the facts, or None if there are none or they are another plugin's.

    None too for `ONLY_IF_STARTED`, which names no object: they are looked for in every layout.

    Raises:
        Malformed: ours, but of a version or with a flag that this program does not know: guessing
            would look for objects in the wrong place.
    """
    if custom is None or not _ours(custom):
        return None
    _, version, flags, mask, layout_number, log_crc32c, *sizes = _BODY.unpack_from(custom)
    if version != FORMAT_VERSION or flags & ~FLAGS_KNOWN:
        raise Malformed(
            f"custom metadata of version {version} with flags {flags:#04x} is newer than this "
            f"program (version {FORMAT_VERSION})"
        )
    if flags & FLAG_ONLY_IF_STARTED and not layout_number:
        return None
    return StoredFacts(
        layout_number=layout_number,
        log_crc32c=log_crc32c,
        sizes={
            s: size for i, (s, size) in enumerate(zip(SIZED, sizes, strict=True)) if mask >> i & 1
        },
        flags=flags,
    )


def is_foreign(custom: bytes | None) -> bool:
    """Return whether another plugin wrote this: only that one finds the objects."""
    return custom is not None and not _ours(custom)


def is_only_if_started(custom: bytes | None) -> bool:
    """Return whether this says "only if the segment is COPY_SEGMENT_STARTED"."""
    return (
        custom is not None
        and len(custom) == CUSTOM_METADATA_BYTES
        and bool(custom[_FLAGS_AT] & FLAG_ONLY_IF_STARTED)
        and _ours(custom)
    )


def _ours(custom: bytes) -> bool:
    body, check = custom[: _BODY.size], custom[_BODY.size :]
    return len(custom) == CUSTOM_METADATA_BYTES and body[0] == _MAGIC and check == _check(body)


def _check(body: bytes) -> bytes:
    return _CHECK.pack(crc32c(body) & _LOW_HALF)


def _only_if_started() -> CustomMetadata:
    body = _BODY.pack(_MAGIC, FORMAT_VERSION, FLAG_ONLY_IF_STARTED, 0, 0, 0, *([0] * len(SIZED)))
    return CustomMetadata(body + _check(body))


#: What the DELETE_SEGMENT_STARTED of a stuck copy carries. A fold that sees it replace
#: COPY_SEGMENT_FINISHED holds the segment: its objects are needed.
ONLY_IF_STARTED: Final = _only_if_started()
