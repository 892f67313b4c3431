"""Cached chunks held against the one checksum that the log records: the whole `.log`'s CRC-32C.

Where the chunks of an object cover it without a gap, their own CRC-32Cs are joined. Chunks of an
object that was only read in parts can't be checked so.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from rlmm_daemon.core.storage.crc_joining import joined
from rlmm_daemon.daemon.base.fair_scheduler import FairScheduler
from rlmm_daemon.daemon.reading.chunk_index import Chunk

#: Checksums that are joined before others get a turn.
JOINS_AT_ONCE: Final = 64


class Recorded(NamedTuple):
    """What the log says of a whole object."""

    size: int
    crc32c: int


async def holds(chunks: Sequence[Chunk], recorded: Recorded, turns: FairScheduler) -> bool:
    """Return whether chunks that cover the whole object are what was recorded of it."""
    whole = 0
    for number, chunk in enumerate(chunks, start=1):
        whole = joined(whole, chunk.crc32c, chunk.length)
        if not number % JOINS_AT_ONCE:
            await turns.wait()
    return whole == recorded.crc32c
