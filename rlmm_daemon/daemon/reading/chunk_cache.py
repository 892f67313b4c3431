"""Chunks of segments in files of this daemon's own: what was fetched once is sent by `sendfile`.

A chunk is what one download brought, from wherever it began. No two overlap, and what they are good
for is asked by position. Their names (`chunk_files`) say all that is known of them, so a restart
costs one listing; a lock in the directory is held while a daemon runs. Nothing is synced: a file
that a crash left short or wrong fails its CRC-32C and is fetched again. A disk that is full or
fails switches the writing off for a while; reads then go to the storage.

There can be many chunks: whoever looks at each of them pauses after a few. What was taken up of the
directory is served while the rest is still looked through; nothing is written before the end.
"""

import asyncio
import errno
import os
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from heapq import heappop, heappush
from typing import Final

import msgspec
import structlog

from rlmm_daemon.daemon.base.broadcast import Broadcast
from rlmm_daemon.daemon.base.deleted_segments import DeletedSegments
from rlmm_daemon.daemon.base.fair_scheduler import FairScheduler
from rlmm_daemon.daemon.base.services import FileSlice
from rlmm_daemon.daemon.reading.chunk_files import (
    TEMPORARY,
    close_unwanted,
    is_ours,
    named,
    open_sound,
    parsed,
    verify,
)
from rlmm_daemon.daemon.reading.chunk_index import Chunk, ChunkIndex, ObjectId
from rlmm_daemon.daemon.reading.chunk_proofs import RecordedObject, holds
from rlmm_daemon.domain.ids import SegmentId, uuid_text
from rlmm_daemon.observability.read_metrics import ReadMetrics
from rlmm_daemon.ports.disk import DiskLock, ScratchDisk

#: Files that may be kept for each chunk of full size that there is room for: a start and a delete
#: look at every one of them.
FILES_PER_CHUNK: Final = 16
#: Files that are looked at in one turn of the loop.
STEP_FILES: Final = 16
WRITES_MAX: Final = 2
#: How long nothing is written after a failure; doubled with each further one.
PAUSE_SECONDS: Final = 5.0
PAUSE_SECONDS_MAX: Final = 300.0

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})

log = structlog.get_logger(__name__)


class ChunkCacheOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Where, how much, in pieces of at most what size."""

    directory: str
    bytes_max: int
    chunk_bytes: int = 4 * 1024 * 1024
    #: Never taken from the disk, which may be the one of the daemon's own state.
    free_bytes_min: int = 0
    pause_seconds: float = PAUSE_SECONDS


class ChunkCache:
    """Looked up in the event loop; files are written, opened and removed in threads."""

    def __init__(
        self,
        options: ChunkCacheOptions,
        disk: ScratchDisk,
        deleted: DeletedSegments,
        *,
        metrics: ReadMetrics,
        monotonic: Callable[[], float],
        turns: FairScheduler | None = None,
    ) -> None:
        self._options, self._disk, self._metrics = options, disk, metrics
        self._deleted, self._turns = deleted, turns or FairScheduler()
        self._files_max = max(1, FILES_PER_CHUNK * options.bytes_max // options.chunk_bytes)
        self._monotonic = monotonic
        self._index = ChunkIndex()
        #: Files looked at since the start.
        self._steps = 0
        #: While the directory is looked through: forgotten copies, of which more may be found.
        self._replaced: set[ObjectId] | None = None
        self._sequence = 0
        self._lock: DiskLock | None = None
        self._writes = asyncio.Semaphore(WRITES_MAX)
        #: Files about to come.
        self._coming_bytes = 0
        self._paused_until = 0.0
        self._pause = options.pause_seconds
        self._failures = 0
        self._litter: deque[str] = deque()
        self._sweeping = asyncio.Lock()
        self._littered = Broadcast()
        deleted.listen(self.forget)

    @property
    def size_bytes(self) -> int:
        """Bytes of all cached chunks."""
        return self._index.size_bytes

    @property
    def writable(self) -> bool:
        """Whether a chunk that is put now has a chance to be kept."""
        return self._lock is not None and self._monotonic() >= self._paused_until

    async def run(self) -> None:
        """Open the directory as soon as it can be, then remove what was dropped, for ever."""
        try:
            while self._lock is None:
                try:
                    await self._open()
                except OSError as error:
                    self._failed("the chunk cache is not opened", error)
                    await asyncio.sleep(self._pause)
            while True:
                while self._index.forgotten or self._litter:
                    await self._let_go()
                    await self._sweep()
                await self._littered.wait()
        finally:
            await self.close()

    async def close(self) -> None:
        """Let go of the directory; idempotent. Files stay for the next start."""
        lock, self._lock = self._lock, None
        if lock is not None:
            await lock.release()

    def lacks_from(self, object_id: ObjectId, at: int, end: int) -> int:
        """Return the first position in [at, end) that is not cached, else one at or behind `end`.

        It does not count as a use.
        """
        while at < end and (chunk := self._index.covering(object_id, at)) is not None:
            at = chunk.end
        return at

    def end_of(self, object_id: ObjectId, at: int) -> int | None:
        """Return where the chunk with this position ends; None if it is not cached."""
        chunk = self._index.covering(object_id, at)
        return None if chunk is None else chunk.end

    def begin_of(self, object_id: ObjectId, at: int) -> int | None:
        """Return where the chunk with this position begins; None if it is not cached."""
        chunk = self._index.covering(object_id, at)
        return None if chunk is None else chunk.start

    async def open(self, object_id: ObjectId, at: int) -> FileSlice | None:
        """Return the bytes from `at` to their chunk's end as an open file, or None if not cached.

        The checksum is verified at the first use since the start, when the file was touched, and
        whenever the bytes come from the disk rather than the page cache; a wrong one is a miss.
        """
        chunk = self._index.covering(object_id, at)
        if chunk is None:
            return None
        self._index.use(chunk)
        found = await self._open_sound(chunk, at)
        if found is None and await self._verified(chunk):
            found = await self._open_sound(chunk, at, fresh=True)
        return found

    async def put(
        self, object_id: ObjectId, start: int, pieces: Sequence[bytes], crc32c: int
    ) -> bool:
        """Keep bytes from `start` on; False if they are not kept. What overlaps them goes.

        An error of the disk is never the reader's: it pauses the cache.
        """
        length = sum(map(len, pieces))
        if self.lacks_from(object_id, start, start + length) >= start + length:
            return True
        if not self.writable or not 0 < length <= self._options.bytes_max:
            return False
        self._sequence += 1
        chunk = named(
            object_id, start, crc32c,
            length=length, sequence=self._sequence, size=self._options.chunk_bytes,
        )  # fmt: skip
        async with self._writes:
            self._coming_bytes += length
            try:
                if not await self._room(length):
                    return False
                await self._write(chunk, pieces)
            except OSError as error:
                self._metrics.write_errors.inc()
                self._failed("a chunk is not kept", error)
                if error.errno in _FULL:
                    await self._give_way()
                return False
            finally:
                self._coming_bytes -= length
        # No await since the rename: a segment that was forgotten meanwhile cancelled us.
        self._insert(chunk)
        return True

    def crc32c_of(self, object_id: ObjectId, start: int, length: int) -> int | None:
        """Return the checksum of exactly these bytes; None if they are no whole chunk."""
        chunk = self._index.covering(object_id, start)
        whole = chunk is not None and (chunk.start, chunk.length) == (start, length)
        return chunk.crc32c if chunk is not None and whole else None

    async def prove(self, object_id: ObjectId, recorded: RecordedObject) -> None:
        """Hold the chunks of an object against what was recorded, once they cover all of it.

        Where they differ nobody knows which one is wrong: none is served any more. O(1) while they
        do not cover it, and again when they were found right.
        """
        row = self._index.row(object_id)
        if row is None or row.proven or row.size_bytes != recorded.size:
            return
        chunks = list(row.chunks)
        right = await holds(chunks, recorded, self._turns)
        if self._index.row(object_id) is not row or row.chunks != chunks:
            return  # whoever changed it looks again
        row.proven = right
        if not right:
            self._metrics.mismatches.labels("chunks").inc()
            log.warning(
                "cached chunks are not what was copied", segment_id=uuid_text(object_id.segment_id)
            )
            self.forget_object(object_id, "mismatch")

    def forget(self, segment_id: SegmentId) -> None:
        """Serve no chunk of a segment any more; files being sent stay readable to the end."""
        self._index.forget(segment_id, "deleted")
        self._littered.ring()

    def forget_object(self, object_id: ObjectId, cause: str = "replaced") -> None:
        """Serve no chunk of one copy any more, whose object turned out to be another one."""
        self._index.forget_object(object_id, cause)
        if self._replaced is not None:
            self._replaced.add(object_id)
        self._littered.ring()

    # Opening.

    async def _open(self) -> None:
        directory = self._options.directory
        await self._disk.make_directory(directory)
        lock = await self._disk.lock(f"{directory}/lock")
        self._replaced = set()
        try:
            await self._take_up(await self._disk.list(directory))
        except BaseException:
            await lock.release()
            raise
        finally:
            self._replaced = None
        self._lock, self._pause = lock, self._options.pause_seconds
        self._paused_until = 0.0
        self._metrics.writable.set(1)
        log.info("chunk cache opened", chunks=len(self._index), bytes=self.size_bytes)

    async def _take_up(self, names: Sequence[str]) -> None:
        """Enter what was found, the oldest first; what is of no use is thrown away."""
        #: A heap, as to sort them all at once would take long.
        found: list[tuple[int, str, Chunk]] = []
        for name in names:
            await self._step()
            known = parsed(name, self._options.chunk_bytes)
            if known is not None:
                heappush(found, known)
            elif is_ours(name):
                self._throw_away(name)
        while found:
            await self._step()
            self._sequence, name, chunk = heappop(found)
            if chunk.length > self._options.bytes_max or self._is_gone(chunk.object):
                self._throw_away(name)
            else:
                self._insert(chunk)

    def _is_gone(self, object_id: ObjectId) -> bool:
        """Whether it was forgotten before all of its chunks were found."""
        assert self._replaced is not None, "the directory is being looked through"
        return object_id.segment_id in self._deleted or object_id in self._replaced

    # Reading.

    async def _open_sound(self, chunk: Chunk, at: int, *, fresh: bool = False) -> FileSlice | None:
        """Return the open file if its bytes are known to be right; `fresh` was just verified.

        In a thread: a disk that hangs would hold up look-ups and writes as well.
        """
        if chunk not in self._index or chunk.verified is None:
            return None
        position = at - chunk.start
        part = None if fresh else (position, chunk.length)
        descriptor = await self._disk.acquire(
            partial(open_sound, self._path(chunk.name), chunk.verified, part), close_unwanted
        )
        if descriptor is None:
            return None
        if chunk not in self._index:  # it was forgotten meanwhile
            os.close(descriptor)
            return None
        return FileSlice(descriptor, position, chunk.length - position)

    async def _verified(self, chunk: Chunk) -> bool:
        path = self._path(chunk.name)
        stamp = await self._disk.compute(partial(verify, path, chunk.length, chunk.crc32c))
        if chunk not in self._index:
            return False
        chunk.verified = stamp
        if stamp is None:
            log.warning("a cached chunk is damaged", name=chunk.name)
            self._drop(chunk, "corrupt")
        return stamp is not None

    # Writing.

    async def _write(self, chunk: Chunk, pieces: Sequence[bytes]) -> None:
        """Write under a temporary name and rename."""
        failures = self._failures
        await self._disk.write_scratch(self._path(chunk.name), pieces, suffix=TEMPORARY)
        if failures == self._failures:
            self._resumed()

    async def _room(self, length: int) -> bool:
        """Evict until the file fits, into our own share and onto the disk."""
        if not self.writable:
            return False  # while we waited for our turn
        while self._index and self.size_bytes + self._coming_bytes > self._options.bytes_max:
            self._drop_one("size")
            await self._step()
        await self._sweep()
        if self.size_bytes + self._coming_bytes > self._options.bytes_max:
            return False  # other files are coming that fill it
        wanted = length + self._options.free_bytes_min
        while (free := await self._disk.free_bytes(self._options.directory)) < wanted:
            if not self._index:
                raise OSError(errno.ENOSPC, f"{free} bytes are free, {wanted} are wanted")
            goal = self.size_bytes - (wanted - free)
            while self._index and self.size_bytes > goal:
                self._drop_one("disk_full")
                await self._step()
            await self._sweep()
        return True

    async def _give_way(self) -> None:
        """Free an eighth of our share: whoever filled the disk needs it more than a cache."""
        goal = self.size_bytes - self.size_bytes // 8
        while self._index and self.size_bytes > goal:
            self._drop_one("disk_full")
            await self._step()
        await self._sweep()

    def _failed(self, what: str, error: OSError) -> None:
        log.warning(what, error=error.strerror, pause_seconds=self._pause)
        self._failures += 1
        self._metrics.writable.set(0)
        self._paused_until = self._monotonic() + self._pause
        self._pause = min(2 * self._pause, PAUSE_SECONDS_MAX)

    def _resumed(self) -> None:
        if self._paused_until:
            self._paused_until, self._pause = 0.0, self._options.pause_seconds
            self._metrics.writable.set(1)
            log.info("the chunk cache is written again")

    # The index.

    def _insert(self, chunk: Chunk) -> None:
        index = self._index
        while (present := index.last_before(chunk.object, chunk.end)) is not None:
            if present.end <= chunk.start:
                break
            self._drop(present, "replaced")
        while index and (
            self.size_bytes + chunk.length > self._options.bytes_max
            or len(index) >= self._files_max
        ):
            self._drop_one("size")
        index.add(chunk)
        self._metrics.cached.labels("chunk").set(self.size_bytes)

    def _drop_one(self, cause: str) -> None:
        self._dropped(*self._index.take(cause))

    def _drop(self, chunk: Chunk, cause: str) -> None:
        self._index.remove(chunk)
        self._dropped(chunk, cause)

    async def _let_go(self) -> None:
        """Drop what was forgotten."""
        while (taken := self._index.take_forgotten()) is not None:
            self._dropped(*taken)
            await self._step()

    def _dropped(self, chunk: Chunk, cause: str) -> None:
        self._throw_away(chunk.name)
        self._metrics.evictions.labels("chunk", cause).inc()
        self._metrics.cached.labels("chunk").set(self.size_bytes)

    async def _step(self) -> None:
        """Count a file that was looked at; let others have their turn after some."""
        self._steps += 1
        if not self._steps % STEP_FILES:
            await self._turns.wait()

    # Removing files.

    def _throw_away(self, *names: str) -> None:
        self._litter += names
        self._littered.ring()

    async def _sweep(self) -> None:
        """Remove dropped files; one that cannot be removed is found again at the next start."""
        async with self._sweeping:
            while self._litter:
                with suppress(OSError):
                    await self._disk.remove(self._path(self._litter.popleft()))

    def _path(self, name: str) -> str:
        return f"{self._options.directory}/{name}"
