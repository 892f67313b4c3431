"""Kafka's checkpoint files of a few lines: a version, how many lines follow, and their fields.

They have no checksum, so whoever reads one compares it with what it speaks of. Source:
CheckpointFile, LeaderEpochCheckpointFile, OffsetCheckpointFile.
"""

from collections.abc import Iterable
from typing import Final

from rlmm_daemon.domain.errors import Malformed

_VERSION: Final = "0"


def encode(rows: Iterable[tuple[object, ...]]) -> bytes:
    """Return the file's text, one line for each row."""
    lines = [" ".join(map(str, row)) for row in rows]
    return "\n".join([_VERSION, str(len(lines)), *lines, ""]).encode("ascii")


def decode(data: bytes, *, fields: int) -> list[list[str]]:
    """Return the rows, each of so many fields.

    Raises:
        Malformed: it is cut short, or none of these files.
    """
    try:
        version, count, *lines = data.decode("ascii").splitlines()
    except ValueError as error:
        raise Malformed(f"no checkpoint: {error}") from error
    rows = [line.split() for line in lines]
    if version != _VERSION or count != str(len(rows)) or not data.endswith(b"\n"):
        raise Malformed(f"no checkpoint of version {_VERSION}, or not {count} lines")
    if any(len(row) != fields for row in rows):
        raise Malformed(f"not {fields} fields in each line")
    return rows


def numbers(row: Iterable[str]) -> tuple[int, ...]:
    """Return a row's fields, all of them numbers.

    Raises:
        Malformed: one is none.
    """
    fields = tuple(row)
    for field in fields:
        if not (field.isascii() and field.isdecimal()):
            raise Malformed(f"{field!r} is no number")
    return tuple(map(int, fields))
