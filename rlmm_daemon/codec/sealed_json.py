"""Checksums at the end of JSON files that people read, in the state directory and in the bucket.

A flipped bit leaves most names names and most numbers numbers.
"""

from typing import Final

import msgspec
from crc32c import crc32c

#: The last key: the CRC-32C of all before it.
_CHECKSUM: Final = b',\n "crc32c": '


def sealed(content: bytes) -> bytes:
    """Return a JSON object as a file's bytes: indented, ending in its checksum and a newline."""
    body = msgspec.json.format(content, indent=1).removesuffix(b"\n}")
    return body + _CHECKSUM + b"%d\n}\n" % crc32c(body)


def unsealed(data: bytes) -> tuple[bytes, bool]:
    """Return the JSON without its checksum, and whether there was one: older versions wrote none.

    Raises:
        ValueError: it does not hold.
    """
    body, begun, checksum = data.rpartition(_CHECKSUM)
    if not begun:
        return data, False
    if checksum.rstrip() != b"%d\n}" % crc32c(body):
        raise ValueError("its checksum does not hold")
    return body + b"\n}", True
