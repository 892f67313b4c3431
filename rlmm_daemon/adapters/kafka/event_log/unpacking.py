"""Record batches without their compression, unpacked within a bound.

A few kilobytes may hold gigabytes. aiokafka's parser would unpack them whole, in the loop, so it is
only given batches that are unpacked here: into room of a fixed size, which a batch that holds more
does not fit.
"""

import struct
import zlib
from collections.abc import Callable
from typing import Final

import cramjam

#: Up to so many bytes are unpacked in the loop, which takes some tens of microseconds.
INLINE_BYTES: Final = 64 * 1024
#: Header of a batch: base offset, length; then epoch, magic, CRC; then the attributes.
_HEADER_BYTES: Final = 61
_LENGTH_AT: Final = 8
_LENGTH_END: Final = 12
_ATTRIBUTES_AT: Final = 21
_CODEC_MASK: Final = 0x07
_GZIP_WINDOW: Final = 16 + zlib.MAX_WBITS
#: What the Java library for Snappy puts before blocks: magic, version, compatible version.
_XERIAL_HEAD: Final = b"\x82SNAPPY\x00"
_XERIAL_BYTES: Final = 16
_BLOCK: Final = struct.Struct(">i")
_TOO_SMALL: Final = "whole buffer"


class TooLarge(Exception):
    """The records take more room than they may."""


def codec_of(attributes: int) -> int:
    """Return the number of a batch's codec; 0: its records are not compressed."""
    return attributes & _CODEC_MASK


def unpacked(batch: bytes, attributes: int, bytes_max: int) -> bytes:
    """Return a compressed batch as it were without compression; its checksum is not made anew.

    Raises:
        TooLarge: its records take more than `bytes_max`.
        ValueError: they can't be unpacked, or by no codec that is known.
    """
    unpack = _CODECS.get(codec_of(attributes))
    if unpack is None:
        raise ValueError(f"no codec has the number {codec_of(attributes)}")
    records = unpack(batch[_HEADER_BYTES:], bytes_max)
    head = bytearray(batch[:_HEADER_BYTES])
    length = _HEADER_BYTES - _LENGTH_END + len(records)
    head[_LENGTH_AT:_LENGTH_END] = _BLOCK.pack(length)
    plain = attributes & ~_CODEC_MASK
    head[_ATTRIBUTES_AT : _ATTRIBUTES_AT + 2] = struct.pack(">h", plain)
    return bytes(head) + records


def _gzip(data: bytes, bytes_max: int) -> bytes:
    """Unpack one member after the other, as they may be joined."""
    pieces, left = list[bytes](), bytes_max
    while data:
        member = zlib.decompressobj(_GZIP_WINDOW)
        try:
            piece = member.decompress(data, left + 1)
        except zlib.error as error:
            raise ValueError(str(error)) from error
        if len(piece) > left:
            raise TooLarge
        if not member.eof:
            raise ValueError("gzip: it ends too early")
        pieces.append(piece)
        left -= len(piece)
        data = member.unused_data
    return b"".join(pieces)


def _into(
    unpack: Callable[[bytes, bytearray], int],
) -> Callable[[bytes, int], bytes]:
    """Return a function that unpacks into room of a fixed size."""

    def bounded(data: bytes, bytes_max: int) -> bytes:
        room = bytearray(bytes_max)
        try:
            size = unpack(data, room)
        except cramjam.DecompressionError as error:
            if _TOO_SMALL in str(error):
                raise TooLarge from error
            raise ValueError(str(error)) from error
        return bytes(memoryview(room)[:size])

    return bounded


def _snappy(data: bytes, bytes_max: int) -> bytes:
    if not data.startswith(_XERIAL_HEAD):
        return _snappy_block(data, bytes_max)
    pieces, left, at = list[bytes](), bytes_max, _XERIAL_BYTES
    while at < len(data):
        if len(data) - at < _BLOCK.size:
            raise ValueError("snappy: it ends too early")
        (size,) = _BLOCK.unpack_from(data, at)
        at += _BLOCK.size
        if not 0 <= size <= len(data) - at:
            raise ValueError(f"snappy: a block claims {size} bytes")
        piece = _snappy_block(data[at : at + size], left)
        pieces.append(piece)
        left -= len(piece)
        at += size
    return b"".join(pieces)


def _snappy_block(data: bytes, bytes_max: int) -> bytes:
    try:
        if cramjam.snappy.decompress_raw_len(data) > bytes_max:
            raise TooLarge
        return bytes(cramjam.snappy.decompress_raw(data))
    except cramjam.DecompressionError as error:
        raise ValueError(str(error)) from error


_CODECS: Final[dict[int, Callable[[bytes, int], bytes]]] = {
    1: _gzip,
    2: _snappy,
    3: _into(cramjam.lz4.decompress_into),
    4: _into(cramjam.zstd.decompress_into),
}
