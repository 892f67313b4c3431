"""Kafka's primitive encodings: varints, compact strings and bytes, tag sections; and CRC-32C.

`Cursor` reads one value front to back and refuses anything that does not fit before it allocates.
Source: ByteUtils, ByteBufferAccessor and the message generator's flexible versions (KIP-482).
"""

import struct
from collections.abc import Iterator
from typing import Final

from rlmm_daemon.domain.errors import Malformed
from rlmm_daemon.domain.ids import UUID_BYTES

INT8: Final = struct.Struct(">b")
INT32: Final = struct.Struct(">i")
INT64: Final = struct.Struct(">q")
INT32_MAX: Final = 2**31 - 1
#: Kafka's compact strings are no longer than this, in UTF-8 bytes.
STRING_BYTES_MAX: Final = 0x7FFF
#: Seven bits a byte: five bytes hold 32 bits, ten hold 64.
_VARINT_BYTES_MAX: Final = 5
_VARLONG_BYTES_MAX: Final = 10
_VARINT_TOP: Final = 0x80
_ONE_BYTE: Final = tuple(bytes((n,)) for n in range(0x80))


def uvarint(value: int) -> bytes:
    """Return the minimal unsigned LEB128 form of a number >= 0."""
    if value < len(_ONE_BYTE):
        return _ONE_BYTE[value]
    encoded = bytearray()
    while value > 0x7F:  # noqa: PLR2004  # seven bits a byte is the format itself
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def varint(value: int) -> bytes:
    """Return the zig-zag form of a signed 64-bit number, as record batches use it."""
    return uvarint(value << 1 ^ value >> 63)


def read_uvarint(
    buffer: bytes, position: int, *, what: str, bytes_max: int = _VARINT_BYTES_MAX
) -> tuple[int, int]:
    """Return (value, position behind it); forms that are not minimal are fine, as in Kafka.

    Raises:
        Malformed: it has no end within `bytes_max` bytes or within the buffer.
    """
    # Nearly every varint has one byte or two, so those two skip the loop.
    head = buffer[position : position + 2]
    if head and head[0] < _VARINT_TOP:
        return head[0], position + 1
    if len(head) > 1 and head[1] < _VARINT_TOP:
        return head[0] & 0x7F | head[1] << 7, position + 2
    value = 0
    for index, byte in enumerate(buffer[position : position + bytes_max]):
        value |= (byte & 0x7F) << 7 * index
        if not byte & 0x80:
            return value, position + index + 1
    reason = "is too long a varint" if position + bytes_max <= len(buffer) else "is cut short"
    raise Malformed(f"{what} at byte {position} {reason}", position=position)


def read_varint(buffer: bytes, position: int, *, what: str) -> tuple[int, int]:
    """Return (value, position behind it) of a zig-zag number of up to 64 bits.

    Raises:
        Malformed: as `read_uvarint`, or the value needs more than 64 bits.
    """
    raw, behind = read_uvarint(buffer, position, what=what, bytes_max=_VARLONG_BYTES_MAX)
    if raw >> 64:
        raise Malformed(f"{what} at byte {position} needs more than 64 bits", position=position)
    return raw >> 1 ^ -(raw & 1), behind


class Cursor:
    """Reads one value's fields in order; each reader names its field in the error it raises."""

    __slots__ = ("_buffer", "position")

    def __init__(self, buffer: bytes) -> None:
        self._buffer = buffer
        self.position = 0

    @property
    def remaining(self) -> int:
        """How many bytes are still unread."""
        return len(self._buffer) - self.position

    def fail(self, reason: str, at: int | None = None) -> Malformed:
        """Return the error that names `reason` and a position, the present one by default."""
        position = self.position if at is None else at
        return Malformed(f"{reason} (byte {position})", position=position)

    def take(self, size: int, what: str) -> bytes:
        """Return the next `size` bytes."""
        start = self.position
        if size > len(self._buffer) - start:
            raise self.fail(f"{what} wants {size} bytes but only {self.remaining} are left")
        self.position = start + size
        return self._buffer[start : self.position]

    def number(self, layout: struct.Struct, what: str) -> int:
        """Return the next fixed-width integer."""
        value: int = layout.unpack(self.take(layout.size, what))[0]
        return value

    def uvarint(self, what: str, maximum: int = INT32_MAX) -> int:
        """Return the next unsigned varint; more than `maximum` is refused, never wrapped."""
        value, behind = read_uvarint(self._buffer, self.position, what=what)
        if value > maximum:
            raise self.fail(f"{what} is {value}, more than {maximum}")
        self.position = behind
        return value

    def uuid(self, what: str) -> bytes:
        """Return the next 16 bytes."""
        return self.take(UUID_BYTES, what)

    def string(self, what: str) -> str:
        """Return the next compact string, which may not be null.

        Kafka reads malformed UTF-8 as U+FFFD; here it is refused, because such a name could not be
        written back.
        """
        size = self.uvarint(what) - 1
        if size < 0:
            raise self.fail(f"{what} is null")
        if size > STRING_BYTES_MAX:
            raise self.fail(f"{what} is {size} bytes long, more than {STRING_BYTES_MAX}")
        encoded = self.take(size, what)
        try:
            return encoded.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.fail(f"{what} is not UTF-8: {error.reason}") from error

    def nullable_bytes(self, what: str) -> bytes | None:
        """Return the next compact bytes: None for null, b"" for present but empty."""
        size = self.uvarint(what) - 1
        return None if size < 0 else self.take(size, what)

    def array_length(self, what: str, *, element_bytes_min: int) -> int:
        """Return the element count of a compact array that may not be null.

        A count that the remaining bytes cannot hold is refused before anything is read.
        """
        count = self.uvarint(what) - 1
        if count < 0:
            raise self.fail(f"{what} is null")
        if count * element_bytes_min > self.remaining:
            raise self.fail(f"{what} claims {count} elements in {self.remaining} bytes")
        return count

    def tags(self, what: str) -> Iterator[tuple[int, bytes]]:
        """Yield (tag, its bytes) of a tag section; exhaust it, or the section is not passed."""
        for _ in range(self.uvarint(f"{what}'s tag count")):
            tag = self.uvarint(f"{what}'s tag")
            size = self.uvarint(f"{what}'s tag {tag} size")
            yield tag, self.take(size, f"{what}'s tag {tag}")

    def skip_tags(self, what: str) -> None:
        """Pass a tag section in which every tag is unknown."""
        for _ in self.tags(what):
            pass

    def finish(self) -> None:
        """Refuse bytes behind the end."""
        if self.remaining:
            raise self.fail(f"{self.remaining} bytes of garbage behind the record")
