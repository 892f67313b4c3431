"""Stretches of a quorum's committed log, by metadata partition: indexed, kept while there is room.

All partitions share one log, and followers go through it side by side: what one of them has read
serves the others.
"""

import asyncio
from array import array
from bisect import bisect_right
from collections import OrderedDict, defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final, TypeAlias

import msgspec

from rlmm_daemon.codec import batches
from rlmm_daemon.codec.kraft.record_key import read_key

Values: TypeAlias = dict[int, list[bytes | None]]
#: Returns whole batches of the log between two offsets, at least one.
Read: TypeAlias = Callable[[int, int], Awaitable[bytes]]

#: What a value takes besides its bytes, about.
_AROUND: Final = 64


def _none() -> Values:
    return defaultdict(list)


class Chunk(msgspec.Struct, eq=False):
    """The log from `base` on, up to the next chunk."""

    base: int
    #: By partition, the offset of its first event here or behind.
    starts: Sequence[int]
    end: int
    #: Offsets of the log with records that have none in a partition.
    passed: list[int] = msgspec.field(default_factory=list)
    bytes: int = 0
    #: None: they have to be read again.
    values: Values | None = msgspec.field(default_factory=_none)

    def start(self, partition: int) -> int:
        """Return the offset of a partition's first event here or behind."""
        return self.starts[partition] if partition < len(self.starts) else 0


class Chunks:
    """All of them; the newest one grows."""

    def __init__(self, read: Read, *, chunk_bytes: int, cache_bytes: int) -> None:
        self._read = read
        self._chunk_bytes = chunk_bytes
        self._cache_bytes = cache_bytes
        self._chunks = [Chunk(0, (), 0)]
        #: Those whose values are kept, but the newest; the one that was used last is the last.
        self._kept: OrderedDict[int, Chunk] = OrderedDict()
        self._kept_bytes = 0
        self._reading = asyncio.Lock()

    def begin(self, base: int, ends: Sequence[int]) -> None:
        """Know where a batch of the log begins, and where partitions end before it."""
        newest = self._chunks[-1]
        if newest.bytes < self._chunk_bytes:
            return
        newest.end = base
        self._keep(newest)
        self._chunks.append(Chunk(base, array("q", ends), base))

    def add(self, partition: int, value: bytes | None) -> None:
        """Take a partition's next event."""
        newest = self._chunks[-1]
        assert newest.values is not None, "the newest is never dropped"
        newest.values[partition].append(value)
        newest.bytes += len(value or b"") + _AROUND

    def skip(self, offset: int) -> None:
        """Know an offset of the log whose record is no event."""
        newest = self._chunks[-1]
        newest.passed.append(offset)
        newest.bytes += _AROUND

    async def values(self, partition: int, offset: int) -> Sequence[bytes | None]:
        """Return a partition's events from one that is there on, as far as they stand together.

        Raises:
            LogCorrupt, OSError: as the log's own reads.
        """
        at = bisect_right(self._chunks, offset, key=lambda each: each.start(partition)) - 1
        chunk = self._chunks[at]
        if chunk.values is None:
            async with self._reading:
                if chunk.values is None:
                    chunk.values = await self._read_again(chunk)
                    self._keep(chunk)
        elif chunk.base in self._kept:
            self._kept.move_to_end(chunk.base)
        values = chunk.values
        assert values is not None, "it was just read"
        return values[partition][offset - chunk.start(partition) :]

    def _keep(self, chunk: Chunk) -> None:
        self._kept[chunk.base] = chunk
        self._kept_bytes += chunk.bytes
        while self._kept_bytes > self._cache_bytes and len(self._kept) > 1:
            _, oldest = self._kept.popitem(last=False)
            self._kept_bytes -= oldest.bytes
            oldest.values = None

    async def _read_again(self, chunk: Chunk) -> Values:
        values = _none()
        at, passed = chunk.base, set(chunk.passed)
        while at < chunk.end:
            for offset, key, value in _records(await self._read(at, chunk.end)):
                at = offset + 1
                if key is not None and offset not in passed:
                    values[key].append(value)
        return values


def _records(data: bytes) -> Iterator[tuple[int, int | None, bytes | None]]:
    """Yield offset, partition and value of each record; no partition where there is no event."""
    for batch in batches.split(data):
        for offset, key, value in batches.keyed_records_of(batch):
            named = None if batch.is_control else read_key(key)
            yield offset, None if named is None else named.partition, value
