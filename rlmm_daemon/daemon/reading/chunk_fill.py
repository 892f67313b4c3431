"""A chunk on its way from the storage: read by many while it still comes."""

import asyncio
import contextlib
from bisect import bisect_right
from collections.abc import AsyncGenerator, Callable
from typing import Final

import msgspec
from crc32c import crc32c

from rlmm_daemon.daemon.base.broadcast import Broadcast
from rlmm_daemon.daemon.base.retry import Retry
from rlmm_daemon.daemon.reading.chunk_cache import ChunkCache
from rlmm_daemon.daemon.reading.chunk_index import ObjectId
from rlmm_daemon.daemon.reading.chunk_proofs import RecordedObject
from rlmm_daemon.domain.errors import (
    ChecksumMismatch,
    RlmmError,
    StorageUnavailable,
    UnavailableError,
)
from rlmm_daemon.observability.read_metrics import ReadMetrics
from rlmm_daemon.ports.storage import RemoteStorage, Version, VersionedStorage

#: Where what is kept begins and ends, but for the object's end: close readers then share it, and
#: chunks touch rather than overlap.
ALIGNED_BYTES: Final = 64 * 1024


class RemoteLog(msgspec.Struct, eq=False):
    """A finished segment's `.log` in the storage, as all its readers see it."""

    id: ObjectId
    key: str
    size: int
    storage: RemoteStorage
    #: Of the whole, as it was recorded; None where it was not.
    crc32c: int | None = None
    #: Replaced when the object turned out to be another one.
    version: Version = msgspec.field(default_factory=Version)

    @property
    def recorded(self) -> RecordedObject | None:
        """What its chunks are held against."""
        return None if self.crc32c is None else RecordedObject(self.size, self.crc32c)

    def fetch(self, start: int, end: int, version: Version) -> AsyncGenerator[bytes, None]:
        """Return a range of that version, where the storage can tell versions apart."""
        if isinstance(self.storage, VersionedStorage):
            return self.storage.fetch_version(self.key, start, end, version)
        return self.storage.fetch(self.key, start, end)


class FillOptions(msgspec.Struct, kw_only=True):
    """What all fills share: memory, patience, and where chunks are kept."""

    #: One for each chunk that may be in memory.
    slots: asyncio.Semaphore
    #: Without a byte for so long a range is asked for again.
    silence_seconds: float
    #: Bytes that nobody takes for so long are dropped.
    idle_seconds: float
    cache: ChunkCache | None
    new_retry: Callable[[], Retry]
    metrics: ReadMetrics
    #: Bytes in memory now, and at most so far.
    buffered: int = 0
    buffered_most: int = 0

    def buffer(self, size: int) -> None:
        """Count bytes that came, or, negative, went."""
        self.buffered += size
        self.buffered_most = max(self.buffered_most, self.buffered)
        self.metrics.buffered.set(self.buffered)


class ChunkFill:
    """`single_flight.Work`: downloads [start, end), has it kept, lets go of the memory."""

    def __init__(self, log: RemoteLog, start: int, end: int, options: FillOptions) -> None:
        self.holders = 0
        self.start = self.at = start
        self.end = end
        self.version = log.version
        self.error: RlmmError | None = None
        #: Nothing can be read here any more.
        self.over = False
        #: Rings when bytes came or it is over.
        self.moved = Broadcast()
        self._log, self._options = log, options
        self._pieces: list[bytes] = []
        self._starts: list[int] = []
        self._crc32c = 0
        self._working = False
        self._takes = 0

    def worth_finishing(self) -> bool:
        """Whether it goes on without holders: it is not stuck, and the cache will keep what comes.

        The caller of a read often gives up and asks again: the work is not thrown away.
        """
        return self._working and self._keeper() is not None

    def covers(self, at: int) -> bool:
        """Return whether a reader at `at` is served here, now or soon."""
        return not self.over and self.start <= at < self.end

    def take(self, at: int, end: int) -> bytes | None:
        """Return what came of [at, end) in one piece, or its rest; None: not yet, or not any more.

        A piece is cut once, as cutting copies.
        """
        if not self.start <= at < self.at or not self._pieces:
            return None
        self._takes += 1
        number = bisect_right(self._starts, at) - 1
        piece, start = self._pieces[number], self._starts[number]
        return piece[at - start : end - start]

    async def run(self) -> None:
        """Download and keep; an error is kept for the holders."""
        try:
            async with self._options.slots:
                try:
                    await self._fill()
                finally:
                    self._drop()
                    self.over = True
        except RlmmError as error:
            self.error = error

    def ended(self) -> None:
        """Wake the holders."""
        self.over = True
        self.moved.ring()

    async def _fill(self) -> None:
        self._working = True
        await self._download()
        cache = self._keeper()
        if cache is not None and await cache.put(
            self._log.id, self.start, self._pieces, self._crc32c
        ):
            if self._log.version is not self.version:  # somebody found out while it was written
                cache.forget_object(self._log.id)
            elif (recorded := self._log.recorded) is not None:
                await cache.prove(self._log.id, recorded)
            return
        self._working = False
        await self._linger()

    def _keeper(self) -> ChunkCache | None:
        """Return the cache if it would take this, which was then asked for to be kept."""
        cache = self._options.cache
        whole = self.end == self._log.size or not self.end % ALIGNED_BYTES
        aligned = whole and not self.start % ALIGNED_BYTES
        return cache if cache is not None and cache.writable and aligned else None

    async def _linger(self) -> None:
        """Return when nobody took anything for a while, or holds it: the latter cancels."""
        takes = -1
        while self.holders and self._takes != takes:
            takes = self._takes
            await asyncio.sleep(self._options.idle_seconds)

    async def _download(self) -> None:
        retry, again = self._options.new_retry(), False
        while self.at < self.end:
            before = self.at
            try:
                await self._range()
            except UnavailableError as error:
                if not self.holders:
                    raise
                if self.at > before:
                    retry.progressed()
                self._working = False
                await retry.pause(error)
                self._working = True
                continue
            except ChecksumMismatch:
                self._another_object()
                if again or self._takes:
                    raise
                again = True
                self._restart()
                continue
            if self.at < self.end:
                raise ChecksumMismatch(
                    f"{self._log.key} ends at {self.at}, before {self.end}", key=self._log.key
                )

    async def _range(self) -> None:
        """Read from where we are to the end, in one request."""
        metrics = self._options.metrics
        metrics.gets.labels("log").inc()
        before = self.at
        try:
            pieces = self._log.fetch(self.at, self.end, self.version)
            async with contextlib.aclosing(pieces):
                while self.at < self.end and (piece := await self._next(pieces)) is not None:
                    self._add(piece[: self.end - self.at])
        finally:
            metrics.got_bytes.labels("log").inc(self.at - before)

    async def _next(self, pieces: AsyncGenerator[bytes, None]) -> bytes | None:
        try:
            async with asyncio.timeout(self._options.silence_seconds):
                return await anext(pieces, None)
        except TimeoutError as error:
            seconds = self._options.silence_seconds
            raise StorageUnavailable(f"no byte came for {seconds:g} s", reason="silence") from error

    def _add(self, piece: bytes) -> None:
        if not piece:
            return
        self._pieces.append(piece)
        self._starts.append(self.at)
        self.at += len(piece)
        self._options.buffer(len(piece))
        if self._options.cache is not None:
            self._crc32c = crc32c(piece, self._crc32c)
        self.moved.ring()

    def _another_object(self) -> None:
        """Forget what was known of the object: its version, and its chunks in the cache."""
        if self._log.version is self.version:
            self._log.version = Version()
        if self._options.cache is not None:
            self._options.cache.forget_object(self._log.id)

    def _restart(self) -> None:
        self._drop()
        self.at, self._crc32c, self.version = self.start, 0, self._log.version

    def _drop(self) -> None:
        """Let go of the memory; a reader goes on in the cache, or asks again."""
        self._options.buffer(-sum(map(len, self._pieces)))
        self._pieces, self._starts = [], []
