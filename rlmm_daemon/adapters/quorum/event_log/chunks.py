"""Stretches of a quorum's committed log, by metadata partition: indexed, kept while there is room.

What lies before the newest checkpoint's end stands in that, one stretch a batch; the rest stands in
the log. All partitions share both, and followers go through them side by side: what one of them has
read serves the others.
"""

import asyncio
from array import array
from bisect import bisect_right
from collections import OrderedDict, defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

import msgspec

from rlmm_daemon.codec import batches
from rlmm_daemon.codec.kraft import checkpoint_records
from rlmm_daemon.codec.kraft.checkpoint_records import Event, Starts
from rlmm_daemon.codec.kraft.record_key import read_key
from rlmm_daemon.core.raft.log_facts import LogPoint
from rlmm_daemon.domain.errors import LogCorrupt, RlmmError

#: By partition, offsets and values, ascending.
Rows: TypeAlias = dict[int, list[tuple[int, bytes | None]]]
#: Returns whole batches of the log between two offsets, at least one.
Read: TypeAlias = Callable[[int, int], Awaitable[bytes]]
#: Returns a checkpoint's size, and its bytes from a position on, so many at most.
ReadPiece: TypeAlias = Callable[[LogPoint, int, int], Awaitable[tuple[int, bytes]]]

#: What a value takes besides its bytes, about.
_AROUND: Final = 120


def _none() -> Rows:
    return defaultdict(list)


class Source(msgspec.Struct, eq=False):
    """A checkpoint that stretches stand in."""

    point: LogPoint
    #: By partition: before this offset some events were dropped.
    dropped_to: Sequence[int]


class Chunk(msgspec.Struct, eq=False):
    """The log from offset `base` to `end`, or a checkpoint from byte to byte."""

    base: int
    #: By partition, the least offset that its first event here or behind can have.
    starts: Sequence[int]
    end: int
    source: Source | None = None
    #: Where the next one starts; of the log's this is not asked.
    behind: Sequence[int] = ()
    #: Offsets of the log with records that have none in a partition.
    passed: list[int] = msgspec.field(default_factory=list)
    bytes: int = 0
    #: None: they have to be read again.
    rows: Rows | None = msgspec.field(default_factory=_none)

    def start(self, partition: int) -> int:
        """Return the least offset of a partition's first event here or behind."""
        return self.starts[partition] if partition < len(self.starts) else 0


class Stretch(NamedTuple):
    """Events of a partition that stand together."""

    rows: Sequence[tuple[int, bytes | None]]
    next_offset: int
    #: Before this offset some events were dropped.
    dropped_to: int


class Chunks:
    """All of them; the newest one grows."""

    def __init__(
        self, read: Read, read_piece: ReadPiece, *, chunk_bytes: int, cache_bytes: int
    ) -> None:
        self._read = read
        self._read_piece = read_piece
        self._chunk_bytes = chunk_bytes
        self._cache_bytes = cache_bytes
        self._chunks = [Chunk(0, (), 0)]
        #: Of the checkpoint that they stand on.
        self._dropped_to: Sequence[int] = ()
        #: Those whose rows are kept, but the newest; the one that was used last is the last.
        self._kept: OrderedDict[Chunk, None] = OrderedDict()
        self._kept_bytes = 0
        self._reading = asyncio.Lock()

    # It grows.

    def begin(self, base: int, ends: Sequence[int]) -> None:
        """Know where a batch of the log begins, and where partitions end before it."""
        if self._chunks[-1].bytes >= self._chunk_bytes:
            self._close(base, ends)

    def add(self, partition: int, offset: int, value: bytes | None) -> None:
        """Take a partition's next event."""
        newest = self._chunks[-1]
        assert newest.rows is not None, "the newest is never dropped"
        newest.rows[partition].append((offset, value))
        newest.bytes += len(value or b"") + _AROUND

    def skip(self, offset: int) -> None:
        """Know an offset of the log whose record is no event."""
        newest = self._chunks[-1]
        newest.passed.append(offset)
        newest.bytes += _AROUND

    def closed(self, base: int, ends: Sequence[int]) -> list[Chunk]:
        """Return all of them; what comes from now on begins at `base` of the log."""
        if self._chunks[-1].bytes:
            self._close(base, ends)
        return self._chunks[:-1]

    def stand_on(
        self, source: Source, chunks: Sequence[Chunk], ends: Sequence[int], *, applied: int
    ) -> None:
        """Have a checkpoint's chunks take the place of all that lies before its end.

        `ends` are the partitions' there; what lies before `applied` was taken.
        """
        point, self._dropped_to = source.point, source.dropped_to
        *closed, newest = self._chunks
        left = [each for each in closed if each.source is None and each.end > point.end]
        left.append(newest if applied > point.end else Chunk(point.end, (), point.end))
        for each in left:
            if each.base <= point.end:
                _trim(each, point.end, ends)
        self._chunks = [*chunks, *left]
        self._kept = OrderedDict((each, None) for each in self._kept if each in left)
        self._kept_bytes = sum(each.bytes for each in self._kept)

    def _close(self, base: int, ends: Sequence[int]) -> None:
        newest = self._chunks[-1]
        newest.end = base
        self._keep(newest)
        self._chunks.append(Chunk(base, array("q", ends), base))

    # It is read.

    async def stretch(self, partition: int, offset: int) -> Stretch:
        """Return a partition's events from an offset on, as far as they stand together.

        Raises:
            LogCorrupt, OSError: as the log's own reads.
        """
        while True:
            at = bisect_right(self._chunks, offset, key=lambda each: each.start(partition)) - 1
            if at < 0:  # all that stood there was dropped
                return Stretch((), self._chunks[0].start(partition), self._dropped_to[partition])
            chunk, newest = self._chunks[at], at == len(self._chunks) - 1
            behind = offset if newest else self._chunks[at + 1].start(partition)
            try:
                rows = (await self._rows(chunk))[partition]
            except (OSError, RlmmError):
                if chunk in self._chunks:
                    raise
                continue  # a checkpoint took its place
            first = bisect_right(rows, offset - 1, key=_offset_of)
            found = rows[first:]
            dropped = chunk.source.dropped_to[partition] if chunk.source else 0
            if newest and found:
                behind = found[-1][0] + 1
            return Stretch(found, behind, dropped if dropped > offset else 0)

    async def rows(self, chunk: Chunk) -> Rows:
        """Return a chunk's events; they are not kept for anybody else.

        Raises:
            LogCorrupt, OSError: as the log's own reads.
        """
        return chunk.rows if chunk.rows is not None else await self._read_again(chunk)

    async def _rows(self, chunk: Chunk) -> Rows:
        if chunk.rows is None:
            async with self._reading:
                if chunk.rows is None:
                    chunk.rows = await self._read_again(chunk)
                    if chunk in self._chunks:
                        self._keep(chunk)
        elif chunk in self._kept:
            self._kept.move_to_end(chunk)
        rows = chunk.rows
        assert rows is not None, "it was just read"
        return rows

    def _keep(self, chunk: Chunk) -> None:
        self._kept[chunk] = None
        self._kept_bytes += chunk.bytes
        while self._kept_bytes > self._cache_bytes and len(self._kept) > 1:
            oldest, _ = self._kept.popitem(last=False)
            self._kept_bytes -= oldest.bytes
            oldest.rows = None

    async def _read_again(self, chunk: Chunk) -> Rows:
        if chunk.source is not None:
            size = chunk.end - chunk.base
            _, data = await self._read_piece(chunk.source.point, chunk.base, size)
            return _of_checkpoint(data, chunk)
        rows = _none()
        at, passed = chunk.base, set(chunk.passed)
        while at < chunk.end:
            for offset, partition, value in _records(await self._read(at, chunk.end)):
                at = offset + 1
                if partition is not None and offset not in passed:
                    found = rows[partition]
                    found.append((chunk.start(partition) + len(found), value))
        return rows


def _offset_of(row: tuple[int, bytes | None]) -> int:
    return row[0]


def _trim(chunk: Chunk, base: int, ends: Sequence[int]) -> None:
    """Have a chunk of the log begin later, where partitions end so."""
    chunk.base, chunk.starts = base, array("q", ends)
    chunk.passed = [each for each in chunk.passed if each >= base]
    if chunk.rows is not None:
        for partition, rows in chunk.rows.items():
            del rows[: bisect_right(rows, ends[partition] - 1, key=_offset_of)]


def _records(data: bytes) -> Iterator[tuple[int, int | None, bytes | None]]:
    """Yield offset, partition and value of each record; no partition where there is no event."""
    for batch in batches.split(data):
        for offset, key, value in batches.keyed_records_of(batch):
            named = None if batch.is_control else read_key(key)
            yield offset, None if named is None else named.partition, value


def _of_checkpoint(data: bytes, chunk: Chunk) -> Rows:
    """Return the events of a checkpoint's batch.

    Raises:
        LogCorrupt: it is not what its checkpoint says.
    """
    assert chunk.source is not None, "it stands in one"
    found = [each for batch in batches.split(data) for each in batches.keyed_records_of(batch)]
    rows, reached = _none(), list(chunk.starts)
    begins = checkpoint_records.read(*found[0][1:]) if found else None
    _require(isinstance(begins, Starts) and list(begins.offsets) == reached, chunk)
    dropped_to = chunk.source.dropped_to
    for _, key, value in found[1:]:
        record = checkpoint_records.read(key, value)
        if not isinstance(record, Event) or not 0 <= record.partition < len(reached):
            raise _wrong(chunk)
        partition, offset = record.partition, record.offset
        _require(reached[partition] <= offset < chunk.behind[partition], chunk)
        _require(offset == reached[partition] or offset <= dropped_to[partition], chunk)
        reached[partition] = offset + 1
        rows[partition].append((offset, value))
    for partition, end in enumerate(chunk.behind):
        _require(end == reached[partition] or end <= dropped_to[partition], chunk)
    return rows


def _require(holds: bool, chunk: Chunk) -> None:  # noqa: FBT001 - it is what is required
    if not holds:
        raise _wrong(chunk)


def _wrong(chunk: Chunk) -> LogCorrupt:
    assert chunk.source is not None, "it stands in one"
    return LogCorrupt(
        f"the checkpoint {chunk.source.point} lacks events, or has others than it says, "
        f"at byte {chunk.base}"
    )
