"""Checksums at the end of small JSON files, in the state directory, the log and the bucket.

A flipped bit leaves most names names and most numbers numbers.
"""

from typing import Final

import msgspec
from crc32c import crc32c

#: The last key: the CRC-32C of all bytes before the comma in front of it.
_KEY: Final = b'"crc32c":'


def sealed(content: bytes, *, indented: bool = True) -> bytes:
    """Return a JSON object as a file's bytes that end in its checksum.

    Those that people read are indented, and end in a newline.
    """
    if not indented:
        body = content.removesuffix(b"}")
        return b"%b,%b%d}" % (body, _KEY, crc32c(body))
    body = msgspec.json.format(content, indent=1).removesuffix(b"\n}")
    return b"%b,\n %b %d\n}\n" % (body, _KEY, crc32c(body))


def unsealed(data: bytes) -> tuple[bytes, bool]:
    """Return the JSON without its checksum, and whether there was one: older versions wrote none.

    Raises:
        ValueError: it does not hold.
    """
    before, begun, checksum = data.rpartition(_KEY)
    if not begun:
        return data, False
    body = before.rstrip().removesuffix(b",")
    if b"".join(checksum.split()) != b"%d}" % crc32c(body):
        raise ValueError("its checksum does not hold")
    return body + b"}", True
