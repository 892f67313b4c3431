"""Ranges of segments that are not local files: from cached chunks, else from shared downloads.

A reader that leaves takes nothing away from others; a reader that sleeps holds no connection, as a
chunk is downloaded into memory and then onto the disk at the storage's pace, not at the reader's.
How far ahead is read follows what is asked: to the end of a range whose end was named, and
further with each chunk that a segment's readers walk on.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass

from cachetools import LRUCache

from rlmm_daemon.daemon.chunk_cache import ChunkCache, ChunkKey, ObjectId
from rlmm_daemon.daemon.chunk_fill import ChunkFill, FillOptions, RemoteLog
from rlmm_daemon.daemon.deleted_segments import DeletedSegments
from rlmm_daemon.daemon.retry import Retry
from rlmm_daemon.daemon.services import FileSlice
from rlmm_daemon.daemon.single_flight import Hold, SingleFlight, Spawn
from rlmm_daemon.domain.errors import ChecksumMismatch, Overloaded, StorageUnavailable
from rlmm_daemon.domain.ids import SegmentId
from rlmm_daemon.observability.metrics import ReadMetrics

#: Where a download inside a chunk begins: close readers then share it.
ALIGNED_BYTES = 64 * 1024
#: Segments whose readers' habits are remembered.
HABITS_MAX = 4_096
#: Readers that wait for memory or bytes.
FLIGHTS_MAX = 4_096
#: Downloads of one chunk that may end without a byte for a reader, dropped or stored and evicted.
VAIN_MAX = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """How reads share memory and connections."""

    chunk_bytes: int = 4 * 1024 * 1024
    #: Chunks of one reader on their way at once, beside the one it reads.
    ahead_chunks_max: int = 4
    #: Chunks in memory, of all readers.
    buffered_bytes_max: int = 64 * 1024 * 1024
    idle_seconds: float = 30.0
    silence_seconds: float = 30.0


@dataclass(slots=True)
class _Habit:
    """How the last reader of a segment went."""

    start: int
    at: int
    depth: int


class Reads:
    """All ranges being read. Without a cache, or while it refuses, memory alone is shared."""

    def __init__(
        self,
        options: ReadOptions,
        deleted: DeletedSegments,
        *,
        spawn: Spawn,
        new_retry: Callable[[], Retry],
        metrics: ReadMetrics,
    ) -> None:
        self._options, self._deleted = options, deleted
        self._cache: ChunkCache | None = None
        self._metrics = metrics
        self._slots_max = max(1, options.buffered_bytes_max // options.chunk_bytes)
        self._fills = FillOptions(
            chunk_bytes=options.chunk_bytes,
            slots=asyncio.Semaphore(self._slots_max),
            silence_seconds=options.silence_seconds,
            idle_seconds=options.idle_seconds,
            cache=None,
            new_retry=new_retry,
            metrics=metrics,
        )
        self._flights: SingleFlight[ChunkKey, ChunkFill] = SingleFlight(
            spawn, "read.chunk", flights_max=FLIGHTS_MAX, goes_on=ChunkFill.worth_finishing
        )
        self._habits: LRUCache[ObjectId, _Habit] = LRUCache(HABITS_MAX)
        self._logs: LRUCache[ObjectId, RemoteLog] = LRUCache(HABITS_MAX)
        deleted.listen(self.forget)

    def use(self, cache: ChunkCache) -> None:
        """Keep chunks in this cache from now on."""
        self._cache = self._fills.cache = cache

    @property
    def buffered_bytes(self) -> int:
        """Bytes of chunks in memory now."""
        return self._fills.buffered

    @property
    def buffered_bytes_most(self) -> int:
        """The most there ever were."""
        return self._fills.buffered_most

    @property
    def in_flight(self) -> int:
        """Chunks being downloaded, stored or held in memory."""
        return len(self._flights)

    def forget(self, segment_id: SegmentId) -> None:
        """Stop every download of a segment; its readers get SegmentNotFound."""
        self._flights.cancel(lambda key: key.object.segment_id == segment_id)

    async def read(
        self, log: RemoteLog, start: int, end: int, *, bounded: bool
    ) -> AsyncGenerator[bytes | FileSlice, None]:
        """Yield [start, end), in order, as it comes; `bounded` says that the caller named the end.

        Raises:
            SegmentNotFound: the segment's deletion began.
            ObjectMissing: certainly absent.
            ChecksumMismatch: the object is shorter than recorded, or was replaced meanwhile.
            StorageUnavailable: not for a long time.
        """
        log = self._logs.setdefault(log.id, log)
        reader = _Reader(self, log, start, end, bounded=bounded)
        try:
            while reader.at < end:
                async with aclosing(reader.pieces()) as pieces:
                    async for piece in pieces:
                        yield piece
        finally:
            reader.close()

    # For readers.

    def key(self, log: RemoteLog, index: int) -> ChunkKey:
        """Return the name of a chunk."""
        return ChunkKey(log.id, index)

    def span(self, log: RemoteLog, index: int) -> tuple[int, int]:
        """Return where a chunk begins and ends."""
        size = self._options.chunk_bytes
        return index * size, min((index + 1) * size, log.size)

    def index(self, at: int) -> int:
        """Return the chunk of a position."""
        return at // self._options.chunk_bytes

    @property
    def keeps(self) -> bool:
        """Whether what is downloaded now will be in the cache."""
        return self._cache is not None and self._cache.writable

    @property
    def ahead_max(self) -> int:
        """Chunks that one reader may have on their way."""
        return self._options.ahead_chunks_max

    @contextmanager
    def opened(self, piece: FileSlice) -> Iterator[FileSlice]:
        """Close a slice's descriptor at the end."""
        try:
            yield piece
        finally:
            os.close(piece.descriptor)

    async def cached(self, log: RemoteLog, at: int) -> FileSlice | None:
        """Return the cached bytes from `at` to the end of its chunk."""
        if self._cache is None:
            return None
        return await self._cache.open(self.key(log, self.index(at)), at)

    def join(self, log: RemoteLog, at: int, end: int) -> Hold[ChunkFill]:
        """Share or begin the download of what is wanted of one chunk.

        Only what is wanted where nothing is kept; else to the chunk's end.

        Raises:
            SegmentNotFound, Overloaded: as they say.
        """
        self._deleted.check(log.id.segment_id)
        index = self.index(at)
        first, last = self.span(log, index)
        begin = max(first, at - at % ALIGNED_BYTES)
        if not self.keeps:
            begin, last = at, min(last, end)
        key = self.key(log, index)
        shared = self._flights.find(key)
        outcome = "joined" if shared is not None and shared.covers(at) else "miss"
        self._metrics.lookups.count("chunk", outcome)
        return self._flights.join(
            key,
            lambda: ChunkFill(log, key, begin, last, self._fills),
            fits=lambda fill: fill.covers(at),
        )

    def join_ahead(self, log: RemoteLog, index: int, end: int) -> Hold[ChunkFill] | None:
        """Begin a chunk that will be wanted, unless it is there or memory is short."""
        first, last = self.span(log, index)
        key = self.key(log, index)
        if self._cache is not None and self._cache.has(key):
            return None
        # Half of the memory is for those who wait.
        if self._flights.find(key) is None and 2 * len(self._flights) >= self._slots_max:
            return None
        if not self.keeps:
            last = min(last, end)
        return self._flights.join(key, lambda: ChunkFill(log, key, first, last, self._fills))

    def hit(self) -> None:
        """Count a chunk that was cached."""
        self._metrics.lookups.count("chunk", "hit")

    def begin(self, log: RemoteLog, start: int) -> int:
        """Return how many chunks ahead a reader from `start` begins with: 0 for a stranger."""
        habit = self._habits.get(log.id)
        # The last reader was sent more than it took: buffers were on the way.
        if habit is None or not habit.start < start <= habit.at + self._options.chunk_bytes:
            return 0
        if self.index(start) == self.index(habit.start):
            return habit.depth
        return min(self.ahead_max, max(1, 2 * habit.depth))

    def note(self, log: RemoteLog, start: int, at: int, depth: int) -> None:
        """Remember how a reader went."""
        self._habits[log.id] = _Habit(start, at, depth)


class _Reader:
    """One range on its way to one caller."""

    def __init__(
        self, reads: Reads, log: RemoteLog, start: int, end: int, *, bounded: bool
    ) -> None:
        self.at = start
        self._reads, self._log, self._start, self._end = reads, log, start, end
        #: The last chunk that is wanted for certain.
        self._sure = reads.index(end - 1) if bounded else reads.index(start)
        self._depth = reads.begin(log, start)
        self._index = reads.index(start)
        self._ahead: dict[int, Hold[ChunkFill]] = {}
        #: The tag of the downloaded bytes given out; "" while unknown.
        self._etag = ""
        self._vain = 0

    async def pieces(self) -> AsyncGenerator[bytes | FileSlice, None]:
        """Yield what one chunk has for us, from the cache or a download."""
        reads = self._reads
        self._walk()
        found = await reads.cached(self._log, self.at)
        if found is not None:
            reads.hit()
            self._look_ahead()
            with reads.opened(found):
                length = min(found.length, self._end - self.at)
                self.at += length
                yield FileSlice(found.descriptor, found.start, length)
            return
        with reads.join(self._log, self.at, self._end) as hold:
            self._look_ahead()
            fill, before = hold.work, self.at
            while self.at < min(fill.end, self._end):
                piece = fill.take(self.at)
                if piece is not None:
                    self._same_version(fill)
                    piece = piece[: self._end - self.at]
                    self.at += len(piece)
                    yield piece
                elif fill.over or fill.at > self.at:
                    break  # stored, dropped or failed
                else:
                    await fill.moved.wait()
            self._judge(fill, before)

    def close(self) -> None:
        """Let go of everything."""
        for hold in self._ahead.values():
            hold.release()
        self._ahead.clear()
        self._reads.note(self._log, self._start, self.at, self._depth)

    def _judge(self, fill: ChunkFill, before: int) -> None:
        if self.at >= min(fill.end, self._end):
            return
        if fill.error is not None:
            raise fill.error
        self._vain = 0 if self.at > before else self._vain + 1
        if self._vain > VAIN_MAX:
            raise StorageUnavailable("memory and disk are too short to hand over a chunk")

    def _same_version(self, fill: ChunkFill) -> None:
        """Never let one answer hold bytes of two objects."""
        etag = fill.version.etag
        if self._etag not in ("", etag):
            raise ChecksumMismatch(f"{self._log.key} was replaced while it was read")
        self._etag = etag

    def _walk(self) -> None:
        """Reach further with each chunk that a reader walks on."""
        index = self._reads.index(self.at)
        if index != self._index:
            self._index = index
            self._depth = min(self._reads.ahead_max, max(1, 2 * self._depth))

    def _look_ahead(self) -> None:
        """Have the next chunks on their way, and no others."""
        reads, most = self._reads, self._reads.ahead_max
        last = max(min(self._sure, self._index + most), self._index + self._depth)
        # What is beyond the range is of use only if it is kept.
        last = min(last, reads.index((self._log.size if reads.keeps else self._end) - 1))
        for index in [each for each in self._ahead if not self._index < each <= last]:
            self._ahead.pop(index).release()
        for index in range(self._index + 1, last + 1):
            if index in self._ahead:
                continue
            try:
                hold = reads.join_ahead(self._log, index, self._end)
            except Overloaded:
                return
            if hold is not None:
                self._ahead[index] = hold
