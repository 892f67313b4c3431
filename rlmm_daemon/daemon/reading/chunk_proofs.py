"""Chunks and whole reads against the one checksum that the log records: a `.log`'s CRC-32C.

Where the chunks of an object cover it without a gap, their own CRC-32Cs are joined. Chunks of an
object that was only read in parts can't be checked so.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from crc32c import crc32c

from rlmm_daemon.core.storage.crc_joining import joined
from rlmm_daemon.daemon.base.fair_scheduler import FairScheduler
from rlmm_daemon.daemon.reading.chunk_index import Chunk

#: Checksums that are joined before others get a turn.
JOINS_AT_ONCE: Final = 64


class RecordedObject(NamedTuple):
    """What the log says of a whole object."""

    size: int
    crc32c: int


async def holds(chunks: Sequence[Chunk], recorded: RecordedObject, turns: FairScheduler) -> bool:
    """Return whether chunks that cover the whole object are what was recorded of it."""
    whole = 0
    for number, chunk in enumerate(chunks, start=1):
        whole = joined(whole, chunk.crc32c, chunk.length)
        if not number % JOINS_AT_ONCE:
            await turns.wait()
    return whole == recorded.crc32c


class WholeRead:
    """The checksum of a whole object on its way to one caller."""

    def __init__(self, size: int, recorded: int | None) -> None:
        """`recorded`: its checksum by the log."""
        self.at = 0
        self._size, self._recorded = size, recorded
        #: None from when on it is not known any more.
        self._crc32c: int | None = 0

    def take_bytes(self, piece: bytes) -> None:
        """Take in what comes next."""
        if self._crc32c is not None:
            self._crc32c = crc32c(piece, self._crc32c)
        self.at += len(piece)

    def take_chunk(self, length: int, known: int | None) -> None:
        """Take in what comes next from a file; of a part of a chunk no checksum is known."""
        if self._crc32c is not None:
            self._crc32c = None if known is None else joined(self._crc32c, known, length)
        self.at += length

    @property
    def wrong(self) -> bool:
        """Whether all of it came, and is not what was recorded."""
        ended = self.at == self._size
        return ended and self._crc32c is not None and self._crc32c != self._recorded
