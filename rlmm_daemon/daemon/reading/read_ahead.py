"""Ranges of segments that are not local files: from cached chunks, else from shared downloads.

A reader that leaves takes nothing away from others; a reader that sleeps holds no connection, as a
chunk is downloaded into memory and then onto the disk at the storage's pace, not at the reader's.
How much is downloaded follows what is asked. Who names an end and is not known to read on gets what
was asked for and little more: a broker that looks at one place waits for no bytes but its own. Who
reads on gets whole chunks, further ahead with each that a segment's readers walk on.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import NamedTuple

import msgspec
import structlog
from cachetools import LRUCache

from rlmm_daemon.daemon.base.bugs import Bugs
from rlmm_daemon.daemon.base.deleted_segments import DeletedSegments
from rlmm_daemon.daemon.base.retry import Retry
from rlmm_daemon.daemon.base.services import FileSlice
from rlmm_daemon.daemon.reading.chunk_cache import ChunkCache
from rlmm_daemon.daemon.reading.chunk_fill import ALIGNED_BYTES, ChunkFill, FillOptions, RemoteLog
from rlmm_daemon.daemon.reading.chunk_index import ObjectId
from rlmm_daemon.daemon.reading.chunk_proofs import WholeRead
from rlmm_daemon.daemon.reading.habits import HABITS_MAX, Habit, Habits
from rlmm_daemon.daemon.reading.single_flight import Share, SingleFlight, Spawn
from rlmm_daemon.domain.errors import ChecksumMismatch, Overloaded, StorageUnavailable
from rlmm_daemon.domain.ids import SegmentId
from rlmm_daemon.observability.read_metrics import ReadMetrics
from rlmm_daemon.ports.storage import Version

#: Readers that wait for memory or bytes.
FLIGHTS_MAX = 4_096
#: Downloads that may end without a byte for their reader, dropped or stored and evicted.
VAIN_MAX = 16

logger = structlog.get_logger(__name__)


class ReadOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How reads share memory and connections."""

    #: The most that one download brings. Who reads on has one end where a multiple of it does.
    chunk_bytes: int = 4 * 1024 * 1024
    #: Chunks of one reader on their way at once, beside the one it reads.
    ahead_chunks_max: int = 4
    #: Chunks in memory, of all readers.
    buffered_bytes_max: int = 64 * 1024 * 1024
    idle_seconds: float = 30.0
    silence_seconds: float = 30.0


class _Place(NamedTuple):
    """Where a download begins: in which aligned chunk of which object."""

    object: ObjectId
    number: int

    @property
    def segment_id(self) -> SegmentId:
        """Return whose deletion ends it."""
        return self.object.segment_id


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
        bugs: Bugs | None = None,
    ) -> None:
        self._options, self._deleted = options, deleted
        self._cache: ChunkCache | None = None
        self._metrics = metrics
        self._slots_max = max(1, options.buffered_bytes_max // options.chunk_bytes)
        self._fills = FillOptions(
            slots=asyncio.Semaphore(self._slots_max),
            silence_seconds=options.silence_seconds,
            idle_seconds=options.idle_seconds,
            cache=None,
            new_retry=new_retry,
            metrics=metrics,
        )
        self._flights: SingleFlight[_Place, ChunkFill] = SingleFlight(
            spawn,
            "read.chunk",
            flights_max=FLIGHTS_MAX,
            goes_on=ChunkFill.worth_finishing,
            bugs=bugs,
        )
        self.habits = Habits()
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
        self._flights.cancel(segment_id)

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
        if self._cache is not None and log.recorded is not None:
            await self._cache.prove(log.id, log.recorded)  # of an earlier life perhaps
        reader = _Reader(self, log, start, end, bounded=bounded)
        whole = (
            WholeRead(log.size, log.crc32c)
            if log.recorded and (start, end) == (0, log.size)
            else None
        )
        try:
            while reader.at < end:
                async with aclosing(reader.pieces()) as pieces:
                    async for piece in pieces:
                        if whole is not None:
                            self._take(log, whole, piece)
                        yield piece
        finally:
            reader.close()

    def _take(self, log: RemoteLog, whole: WholeRead, piece: bytes | FileSlice) -> None:
        """Let nobody have the last of bytes that are not what was copied.

        Raises:
            ChecksumMismatch: they are not, and none of the object is cached any more.
        """
        if isinstance(piece, bytes):
            whole.take_bytes(piece)
        else:
            assert self._cache is not None, "it has the file"
            known = self._cache.crc32c_of(log.id, whole.at, piece.length)
            whole.take_chunk(piece.length, known)
        if not whole.wrong:
            return
        self._metrics.mismatches.labels("read").inc()
        logger.warning("a whole read is not what was copied", key=log.key)
        log.version = Version()  # so that what is still on its way is not kept either
        if self._cache is not None:
            self._cache.forget_object(log.id, "mismatch")
        raise ChecksumMismatch(f"{log.key} is not what was copied; ask again", key=log.key)

    # For readers.

    def index(self, at: int) -> int:
        """Return the aligned chunk of a position."""
        return at // self._options.chunk_bytes

    def end_of(self, index: int) -> int:
        """Return where an aligned chunk ends."""
        return (index + 1) * self._options.chunk_bytes

    def walked(self, start: int, at: int) -> bool:
        """Return whether that was a whole chunk's way."""
        return at - start >= self._options.chunk_bytes

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
        """Return cached bytes from `at` on."""
        return None if self._cache is None else await self._cache.open(log.id, at)

    def join(self, log: RemoteLog, at: int, end: int) -> Share[ChunkFill]:
        """Share or begin the download that brings `at`, and no more than is wanted: to `end`.

        Raises:
            SegmentNotFound, Overloaded: as they say.
        """
        self._deleted.check(log.id.segment_id)
        shared = self._coming(log, at)
        self._metrics.lookups.count("chunk", "miss" if shared is None else "joined")
        return self._share(log, at, end)

    def join_ahead(self, log: RemoteLog, at: int, end: int) -> Share[ChunkFill] | None:
        """Share or begin the download of `at` before anybody waits, unless memory is short.

        It brings no more than to `end` or its aligned chunk's end.

        Raises:
            Overloaded: too many wait already.
        """
        # Half of the memory is for those who wait.
        if self._coming(log, at) is None and 2 * len(self._flights) >= self._slots_max:
            return None
        return self._share(log, at, min(end, self.end_of(self.index(at))))

    def lacks_from(self, log: RemoteLog, at: int, end: int) -> int:
        """Return the first position in [at, end) that is not cached, else one not before `end`."""
        return at if self._cache is None else self._cache.lacks_from(log.id, at, end)

    def _share(self, log: RemoteLog, at: int, end: int) -> Share[ChunkFill]:
        coming = self._coming(log, at)
        if coming is not None:
            return self._flights.hold(coming)
        start, end = self._span(log, at, end)
        return self._flights.begin(
            _Place(log.id, self.index(start)), ChunkFill(log, start, end, self._fills)
        )

    def _span(self, log: RemoteLog, at: int, end: int) -> tuple[int, int]:
        """Return what a download for [at, end) brings: aligned if it is kept, a chunk at most."""
        start = at
        if self.keeps:
            start, end = at - at % ALIGNED_BYTES, min(end + -end % ALIGNED_BYTES, log.size)
        if self.walked(start, end):
            end = self.end_of(self.index(at))
        # What is there already or on its way is not asked for again.
        while (there := self._begin_of(log, end - 1)) is not None and there > at:
            end = there
        return start, end

    def _begin_of(self, log: RemoteLog, at: int) -> int | None:
        """Return where the chunk begins that holds this position, cached or coming."""
        coming = self._coming(log, at)
        if coming is not None:
            return coming.start
        return None if self._cache is None else self._cache.begin_of(log.id, at)

    def _coming(self, log: RemoteLog, at: int) -> ChunkFill | None:
        index = self.index(at)
        # None brings more than a chunk's size, or more than to the next chunk's end.
        for place in (_Place(log.id, index), _Place(log.id, index - 1)):
            found = self._flights.find(place, fits=lambda fill: fill.covers(at))
            if found is not None:
                return found
        return None

    def hit(self) -> None:
        """Count a chunk that was cached."""
        self._metrics.lookups.count("chunk", "hit")

    def goes_on(self, log: RemoteLog, start: int, end: int) -> bool:
        """Whether [start, end) leads on from a kept download's end: not all habits are known."""
        there = None if self._cache is None else self._cache.end_of(log.id, start - 1)
        return there is not None and there - start < ALIGNED_BYTES and there < end


class _Reader:
    """One range on its way to one caller."""

    def __init__(
        self, reads: Reads, log: RemoteLog, start: int, end: int, *, bounded: bool
    ) -> None:
        self.at = start
        self._reads, self._log, self._start, self._end = reads, log, start, end
        #: The last chunk that is wanted for certain.
        self._sure = reads.index(end - 1) if bounded else reads.index(start)
        self._before = before = reads.habits.before(log.id, start)
        #: Whether what follows the range will be wanted, as far as one can tell.
        known = not start or before is not None or reads.goes_on(log, start, end)
        self._reads_on = not bounded or known
        #: How many chunks ahead.
        self._depth = 0
        if before is not None:
            self._depth = before.depth
            if reads.index(start) != reads.index(before.start):
                self._reach_further()
        self._index = reads.index(start)
        #: What is on its way for us, and up to where we had a look.
        self._ahead: list[Share[ChunkFill]] = []
        self._looked = start
        #: Of the object whose bytes were given out.
        self._version: Version | None = None
        self._vain = 0

    async def pieces(self) -> AsyncGenerator[bytes | FileSlice, None]:
        """Yield what one chunk has for us, from the cache or a download."""
        reads = self._reads
        self._walk()
        found = await reads.cached(self._log, self.at)
        if found is not None:
            reads.hit()
            self._look_ahead(self.at + found.length)
            with reads.opened(found):
                self._require_same(self._log.version)
                length = min(found.length, self._end - self.at)
                self.at += length
                yield FileSlice(found.descriptor, found.start, length)
            return
        with reads.join(self._log, self.at, self._wanted) as hold:
            self._look_ahead(hold.work.end)
            fill, before = hold.work, self.at
            while self.at < min(fill.end, self._end):
                piece = fill.take(self.at, self._end)
                if piece is not None:
                    self._require_same(fill.version)
                    self.at += len(piece)
                    yield piece
                elif fill.over or fill.at > self.at:
                    break  # stored, dropped or failed
                else:
                    await fill.moved.wait()
            self._judge(fill, before)

    def close(self) -> None:
        """Let go of everything."""
        while self._ahead:
            self._ahead.pop().release()
        self._reads.habits.note(
            self._log.id, Habit(self._start, self.at, self._depth), self._before
        )

    @property
    def _wanted(self) -> int:
        """Where the end is of what should be downloaded: nobody keeps what is beyond the range."""
        return self._log.size if self._reads_on and self._reads.keeps else self._end

    def _judge(self, fill: ChunkFill, before: int) -> None:
        if self.at >= min(fill.end, self._end):
            return
        if fill.error is not None:
            raise fill.error
        self._vain = 0 if self.at > before else self._vain + 1
        if self._vain > VAIN_MAX:
            raise StorageUnavailable("memory and disk are too short to hand over a chunk")

    def _require_same(self, version: Version) -> None:
        """Never let one answer hold bytes of two objects, cached or downloaded."""
        before = self._version = self._version or version
        if version is not before and version.etag != before.etag:
            raise ChecksumMismatch(f"{self._log.key} was replaced while it was read")

    def _walk(self) -> None:
        """Reach further with each chunk that a reader walks on."""
        index = self._reads.index(self.at)
        if index != self._index:
            self._index = index
            if self._reads_on or self._reads.walked(self._start, self.at):
                self._reach_further()

    def _reach_further(self) -> None:
        self._depth = min(self._reads.ahead_max, max(1, 2 * self._depth))

    def _look_ahead(self, at: int) -> None:
        """Have all that is lacking from `at` to where we look on its way, and nothing else.

        However often others have been here: it can be cached in many places between.
        """
        reads, end = self._reads, self._ahead_end
        held, self._ahead = self._ahead, []
        for each in held:
            if each.work.start < end and at < each.work.end:
                self._ahead.append(each)
            else:
                each.release()
        at = max(at, min(self._looked, end))
        while (at := reads.lacks_from(self._log, at, end)) < end:
            try:
                hold = reads.join_ahead(self._log, at, end)
            except Overloaded:
                break
            if hold is None:
                break
            self._ahead.append(hold)
            at = hold.work.end
        self._looked = at

    @property
    def _ahead_end(self) -> int:
        """Where the last chunk ends that we look ahead to."""
        last = max(min(self._sure, self._index + self._reads.ahead_max), self._index + self._depth)
        return min(self._reads.end_of(last), self._wanted)
