"""Chunks of segments in files of this daemon's own: what was fetched once is sent by `sendfile`.

    lock                                       held while a daemon runs
    ID-TAG-START-LENGTH-CRC-SEQUENCE.SIZE.chunk  bytes START to START+LENGTH of one segment's `.log`

A chunk is what one download brought: at most SIZE bytes, from wherever it began. No two overlap,
and what they are good for is asked by position. Its name says all that is known of a chunk, so a
restart costs one listing. Nothing is synced: a file that a crash left
short or wrong fails its CRC-32C and is fetched again. A disk that is full or fails switches the
writing off for a while; reads then go to the storage.
"""

import asyncio
import errno
import os
import re
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import structlog
from cachetools import Cache, LRUCache
from crc32c import crc32c

from rlmm_daemon.daemon.bell import Bell
from rlmm_daemon.daemon.deleted_segments import DeletedSegments
from rlmm_daemon.daemon.page_cache import comes_from_disk
from rlmm_daemon.daemon.services import FileSlice
from rlmm_daemon.domain.ids import SegmentId
from rlmm_daemon.observability.metrics import ReadMetrics
from rlmm_daemon.ports.disk import Disk, DiskLock

READ_BYTES: Final = 256 * 1024
#: Files that may be kept for each chunk of full size that there is room for: a start and a delete
#: look at every one of them.
FILES_PER_CHUNK: Final = 16
#: One write call; pieces of the network are smaller.
WRITE_BYTES: Final = 1024 * 1024
WRITES_MAX: Final = 2
#: How long nothing is written after a failure; doubled with each further one.
PAUSE_SECONDS: Final = 5.0
PAUSE_SECONDS_MAX: Final = 300.0

_NAME: Final = re.compile(
    r"(?P<id>[0-9a-f]{32})-(?P<tag>[0-9a-f]{1,32})-(?P<start>\d+)-(?P<length>\d+)"
    r"-(?P<crc>[0-9a-f]{8})-(?P<sequence>\d+)\.(?P<size>\d+)\.chunk"
)
_TEMPORARY: Final = ".partial"
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})

log = structlog.get_logger(__name__)


class ObjectId(NamedTuple):
    """One copy of one segment's `.log`."""

    segment_id: SegmentId
    #: Lower-case hex: tells two copies of one segment id apart, by key, size and checksum.
    tag: str


class _Key(NamedTuple):
    """One chunk; sorted, those of one object stand together and in order."""

    object: ObjectId
    start: int


#: What changes when somebody writes to a file: inode, size, mtime.
_Stamp = tuple[int, int, int]


@dataclass(slots=True, eq=False)
class _Entry:
    key: _Key
    length: int
    crc32c: int
    name: str
    #: The file as its checksum was last found right; None since the start.
    verified: _Stamp | None = field(default=None)

    @property
    def start(self) -> int:
        return self.key.start

    @property
    def end(self) -> int:
        return self.key.start + self.length


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkCacheOptions:
    """Where, how much, in pieces of at most what size."""

    directory: str
    bytes_max: int
    chunk_bytes: int = 4 * 1024 * 1024
    #: Never taken from the disk, which may be the one of the daemon's own state.
    free_bytes_min: int = 0
    pause_seconds: float = PAUSE_SECONDS


class ChunkCache:
    """Looked up in the event loop; files are written, verified and removed in threads."""

    def __init__(
        self,
        options: ChunkCacheOptions,
        disk: Disk,
        deleted: DeletedSegments,
        *,
        metrics: ReadMetrics,
        monotonic: Callable[[], float],
    ) -> None:
        self._options, self._disk, self._metrics = options, disk, metrics
        self._files_max = max(1, FILES_PER_CHUNK * options.bytes_max // options.chunk_bytes)
        self._monotonic = monotonic
        self._entries: LRUCache[_Key, _Entry] = LRUCache(
            options.bytes_max, getsizeof=lambda entry: entry.length
        )
        #: Sorted.
        self._by_segment: dict[SegmentId, list[_Key]] = {}
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
        self._littered = Bell()
        deleted.listen(self.forget)

    @property
    def size_bytes(self) -> int:
        """Bytes of all cached chunks."""
        return int(self._entries.currsize)

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
        while at < end and (entry := self._covering(object_id, at)) is not None:
            at = entry.end
        return at

    def end_of(self, object_id: ObjectId, at: int) -> int | None:
        """Return where the chunk with this position ends; None if it is not cached."""
        entry = self._covering(object_id, at)
        return None if entry is None else entry.end

    def begin_of(self, object_id: ObjectId, at: int) -> int | None:
        """Return where the chunk with this position begins; None if it is not cached."""
        entry = self._covering(object_id, at)
        return None if entry is None else entry.start

    async def open(self, object_id: ObjectId, at: int) -> FileSlice | None:
        """Return the bytes from `at` to their chunk's end as an open file, or None if not cached.

        The checksum is verified at the first use since the start, when the file was touched, and
        whenever the bytes come from the disk rather than the page cache; a wrong one is a miss.
        """
        entry = self._covering(object_id, at)
        if entry is None:
            return None
        self._entries.get(entry.key)  # it was used
        found = self._open_sound(entry, at)
        if found is None and await self._verified(entry):
            found = self._open_sound(entry, at, fresh=True)
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
        entry = self._named(_Key(object_id, start), length, crc32c)
        async with self._writes:
            self._coming_bytes += length
            try:
                if not await self._room(length):
                    return False
                await self._write(entry, pieces)
            except OSError as error:
                self._metrics.write_errors.inc()
                self._failed("a chunk is not kept", error)
                if error.errno in _FULL:
                    await self._give_way()
                return False
            finally:
                self._coming_bytes -= length
        # No await since the rename: a segment that was forgotten meanwhile cancelled us.
        self._insert(entry)
        return True

    def forget(self, segment_id: SegmentId) -> None:
        """Drop all chunks of a segment; files that are being sent stay readable to the end."""
        for key in list(self._by_segment.get(segment_id, ())):
            self._drop(self._entries[key], "deleted")

    def forget_object(self, object_id: ObjectId) -> None:
        """Drop all chunks of one copy whose object turned out to be another one."""
        for key in list(self._by_segment.get(object_id.segment_id, ())):
            if key.object == object_id:
                self._drop(self._entries[key], "replaced")

    # Opening.

    async def _open(self) -> None:
        directory = self._options.directory
        await self._disk.make_directory(directory)
        lock = await self._disk.lock(f"{directory}/lock")
        try:
            names = await self._disk.list(directory)
        except BaseException:
            await lock.release()
            raise
        found = [entry for entry in map(self._parsed, names) if entry is not None]
        for _, entry in sorted(found, key=lambda pair: pair[0]):
            if entry.length <= self._options.bytes_max:
                self._insert(entry)
        kept = {entry.name for entry in self._entries.values()}
        self._litter += [name for name in names if name not in kept and _is_ours(name)]
        self._sequence = max((sequence for sequence, _ in found), default=0)
        self._lock, self._pause = lock, self._options.pause_seconds
        self._paused_until = 0.0
        self._metrics.writable.set(1)
        log.info("chunk cache opened", chunks=len(kept), bytes=self.size_bytes)

    def _parsed(self, name: str) -> tuple[int, _Entry] | None:
        """Return the sequence number and entry of a file's name; None for another chunk size."""
        match = _NAME.fullmatch(name)
        if match is None or int(match["size"]) != self._options.chunk_bytes:
            return None
        start, length = int(match["start"]), int(match["length"])
        if not 0 < length <= self._options.chunk_bytes:
            return None
        object_id = ObjectId(SegmentId(bytes.fromhex(match["id"])), match["tag"])
        entry = _Entry(_Key(object_id, start), length, int(match["crc"], 16), name)
        return int(match["sequence"]), entry

    def _named(self, key: _Key, length: int, crc32c: int) -> _Entry:
        self._sequence += 1
        name = (
            f"{key.object.segment_id.hex()}-{key.object.tag}-{key.start}-{length}-{crc32c:08x}"
            f"-{self._sequence}.{self._options.chunk_bytes}.chunk"
        )
        return _Entry(key, length, crc32c, name)

    # Reading.

    def _open_sound(self, entry: _Entry, at: int, *, fresh: bool = False) -> FileSlice | None:
        """Return the open file if its bytes are known to be right; `fresh` was just verified.

        On the loop: short calls, and a descriptor opened in a thread leaks if we are cancelled.
        """
        if self._peek(entry.key) is not entry:
            return None
        try:
            descriptor = os.open(self._path(entry.name), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return None
        position = at - entry.start
        sound = entry.verified == _stamp(descriptor) and (
            fresh or not comes_from_disk(descriptor, position, entry.length)
        )
        if not sound:
            os.close(descriptor)
            return None
        return FileSlice(descriptor, position, entry.length - position)

    async def _verified(self, entry: _Entry) -> bool:
        path = self._path(entry.name)
        stamp = await asyncio.to_thread(_verify, path, entry.length, entry.crc32c)
        if self._peek(entry.key) is not entry:
            return False
        entry.verified = stamp
        if stamp is None:
            log.warning("a cached chunk is damaged", name=entry.name)
            self._drop(entry, "corrupt")
        return stamp is not None

    # Writing.

    async def _write(self, entry: _Entry, pieces: Sequence[bytes]) -> None:
        """Write under a temporary name and rename; leaves litter for the sweep if it ends early."""
        temporary = f"{entry.name}{_TEMPORARY}"
        whole, failures = False, self._failures
        try:
            file = await self._disk.open(self._path(temporary), write=True, create=True)
            try:
                at = 0
                for block in _blocks(pieces):
                    rest = memoryview(block)
                    while rest:
                        taken = await file.pwrite(at, rest)
                        rest, at = rest[taken:], at + taken
            finally:
                # A close that is cancelled before its thread began would leak the descriptor.
                await asyncio.shield(file.close())
            await self._disk.rename(self._path(temporary), self._path(entry.name))
            whole = True
        finally:
            if not whole:
                self._throw_away(temporary, entry.name)
        if failures == self._failures:
            self._resumed()

    async def _room(self, length: int) -> bool:
        """Evict until the file fits, into our own share and onto the disk."""
        if not self.writable:
            return False  # while we waited for our turn
        while self._entries and self.size_bytes + self._coming_bytes > self._options.bytes_max:
            self._drop_oldest("size")
        await self._sweep()
        if self.size_bytes + self._coming_bytes > self._options.bytes_max:
            return False  # other files are coming that fill it
        wanted = length + self._options.free_bytes_min
        while (free := await self._disk.free_bytes(self._options.directory)) < wanted:
            if not self._entries:
                raise OSError(errno.ENOSPC, f"{free} bytes are free, {wanted} are wanted")
            goal = self.size_bytes - (wanted - free)
            while self._entries and self.size_bytes > goal:
                self._drop_oldest("disk_full")
            await self._sweep()
        return True

    async def _give_way(self) -> None:
        """Free an eighth of our share: whoever filled the disk needs it more than a cache."""
        goal = self.size_bytes - self.size_bytes // 8
        while self._entries and self.size_bytes > goal:
            self._drop_oldest("disk_full")
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

    def _peek(self, key: _Key) -> _Entry | None:
        """Return an entry without making it the most recently used."""
        if key not in self._entries:
            return None
        return Cache.__getitem__(self._entries, key)

    def _covering(self, object_id: ObjectId, at: int) -> _Entry | None:
        """Return the chunk that holds this position; O(log n), as no two overlap."""
        entry = self._last_before(object_id, at + 1)
        return entry if entry is not None and at < entry.end else None

    def _last_before(self, object_id: ObjectId, end: int) -> _Entry | None:
        """Return the last chunk of an object that begins before `end`."""
        keys = self._by_segment.get(object_id.segment_id, [])
        number = bisect_left(keys, _Key(object_id, end)) - 1
        if number < 0 or keys[number].object != object_id:
            return None
        return self._peek(keys[number])

    def _insert(self, entry: _Entry) -> None:
        while (present := self._last_before(entry.key.object, entry.end)) is not None:
            if present.end <= entry.start:
                break
            self._drop(present, "replaced")
        while self._entries and (
            self.size_bytes + entry.length > self._options.bytes_max
            or len(self._entries) >= self._files_max
        ):
            self._drop_oldest("size")
        self._entries[entry.key] = entry
        insort(self._by_segment.setdefault(entry.key.object.segment_id, []), entry.key)
        self._metrics.cached.labels("chunk").set(self.size_bytes)

    def _drop_oldest(self, cause: str) -> None:
        _, entry = self._entries.popitem()
        self._dropped(entry, cause)

    def _drop(self, entry: _Entry, cause: str) -> None:
        del self._entries[entry.key]
        self._dropped(entry, cause)

    def _dropped(self, entry: _Entry, cause: str) -> None:
        segment_id = entry.key.object.segment_id
        keys = self._by_segment[segment_id]
        del keys[bisect_left(keys, entry.key)]
        if not keys:
            del self._by_segment[segment_id]
        self._throw_away(entry.name)
        self._metrics.evictions.labels("chunk", cause).inc()
        self._metrics.cached.labels("chunk").set(self.size_bytes)

    # Removing files.

    def _throw_away(self, *names: str) -> None:
        self._litter += names
        self._littered.ring()

    async def _sweep(self) -> None:
        """Remove dropped files; one that cannot be removed is found again at the next start.

        In order and one by one: once a temporary file is gone, a rename that a cancelled write
        left in its thread either has happened or cannot happen any more.
        """
        async with self._sweeping:
            while self._litter:
                with suppress(OSError):
                    await self._disk.remove(self._path(self._litter.popleft()))

    def _path(self, name: str) -> str:
        return f"{self._options.directory}/{name}"


def _is_ours(name: str) -> bool:
    return _NAME.fullmatch(name.removesuffix(_TEMPORARY)) is not None


def _blocks(pieces: Sequence[bytes]) -> Iterator[bytes]:
    """Yield the pieces joined to larger ones, each for one call."""
    block: list[bytes] = []
    size = 0
    for piece in pieces:
        if block and size + len(piece) > WRITE_BYTES:
            yield b"".join(block)
            block, size = [], 0
        block.append(piece)
        size += len(piece)
    yield b"".join(block)


def _stamp(descriptor: int) -> _Stamp:
    status = os.fstat(descriptor)
    return status.st_ino, status.st_size, status.st_mtime_ns


def _verify(path: str, length: int, expected: int) -> _Stamp | None:
    """Return the file's stamp if its bytes are right; blocking."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        stamp = _stamp(descriptor)
        found, at = 0, 0
        while block := os.pread(descriptor, READ_BYTES, at):
            found = crc32c(block, found)
            at += len(block)
        return stamp if (at, found) == (length, expected) and stamp == _stamp(descriptor) else None
    except OSError:
        return None
    finally:
        os.close(descriptor)
