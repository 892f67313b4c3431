"""A checksum as the last field of a small JSON file: a flipped bit leaves most numbers numbers."""

from typing import Final

from crc32c import crc32c

#: Of all the bytes before it. Earlier versions wrote none.
_CHECKSUM: Final = b',"crc32c":'


def with_checksum(content: bytes) -> bytes:
    """Return a JSON object with its checksum in it."""
    body = content.removesuffix(b"}")
    return body + _CHECKSUM + b"%d}" % crc32c(body)


def checked(content: bytes) -> bytes:
    """Return a file's bytes.

    Raises:
        ValueError: they are not what was written.
    """
    body, begun, checksum = content.rpartition(_CHECKSUM)
    if begun and checksum.rstrip() != b"%d}" % crc32c(body):
        raise ValueError("its checksum does not hold")
    return content
