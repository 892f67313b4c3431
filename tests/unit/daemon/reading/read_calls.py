"""A storage by script, and the read path over it."""

import asyncio
import os
import random
from collections import deque
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from rlmm_daemon.adapters.os.disk import LocalDisk
from rlmm_daemon.daemon.base.retry import Retry
from rlmm_daemon.daemon.base.services import FileSlice
from rlmm_daemon.daemon.reading.chunk_cache import ChunkCacheOptions
from rlmm_daemon.daemon.reading.chunk_fill import RemoteLog
from rlmm_daemon.daemon.reading.chunk_index import ObjectId
from rlmm_daemon.daemon.reading.read_ahead import ReadOptions
from rlmm_daemon.daemon.reading.read_caches import ReadCacheOptions, ReadCaches
from rlmm_daemon.domain.errors import ChecksumMismatch, ObjectMissing
from rlmm_daemon.domain.ids import SegmentId
from rlmm_daemon.observability.metrics import Metrics
from rlmm_daemon.ports.storage import Version
from tests.unit.daemon.segments import PARTITION, FakeLog

CHUNK = 64 * 1024
SIZE = 10 * CHUNK + 777
BODY = random.Random(5).randbytes(SIZE)


def segment_id(number: int) -> SegmentId:
    return SegmentId(number.to_bytes(16, "big"))


class ScriptedStorage:
    """Objects in memory. `script` holds what the next fetches do; then all goes well.

    An entry is an error to raise, or (bytes to give first, error to raise or None for the end).
    """

    def __init__(self, objects: dict[str, bytes], *, piece_bytes: int = 10_000) -> None:
        self.objects = objects
        self.etags: dict[str, str] = {}
        self.script: deque[Any] = deque()
        self.fetched: list[tuple[str, int, int]] = []
        self.open_now = 0
        self.open_most = 0
        self.piece_bytes = piece_bytes
        #: Cleared: every fetch waits before its next piece.
        self.flows = asyncio.Event()
        self.flows.set()

    async def fetch(self, key: str, start: int, end: int):
        self.fetched.append((key, start, end))
        step = self.script.popleft() if self.script else None
        if isinstance(step, Exception):
            raise step
        stop, error = step or (end, None)
        self.open_now += 1
        self.open_most = max(self.open_most, self.open_now)
        try:
            body = self.objects.get(key)
            if body is None:
                raise ObjectMissing(key)
            last = min(end, len(body), start + stop if step else end)
            for at in range(start, last, self.piece_bytes):
                await self.flows.wait()
                await asyncio.sleep(0)
                yield body[at : min(at + self.piece_bytes, last)]
            if error is not None:
                raise error
        finally:
            self.open_now -= 1

    async def fetch_version(self, key: str, start: int, end: int, version: Version):
        etag = self.etags.get(key, "first")
        if version.etag not in ("", etag):
            raise ChecksumMismatch("another version")
        async for piece in self.fetch(key, start, end):
            version.etag = etag
            yield piece


class ReadWorld:
    def __init__(self, directory, *, storage=None, disk=None, clock=None, **options) -> None:
        self.storage = storage or ScriptedStorage({str(n): BODY for n in range(60)})
        #: What the log says of every object.
        self.recorded: int | None = None
        self.local_disk = LocalDisk()
        self.metrics = Metrics()
        self.log = FakeLog()
        self.directory = directory
        loop = asyncio.get_running_loop()
        rng = random.Random(1)
        cache_bytes = options.pop("cache_bytes", 100 * CHUNK)
        free_bytes_min = options.pop("free_bytes_min", 0)
        given = {"chunk_bytes": CHUNK, "ahead_chunks_max": 0, "buffered_bytes_max": 64 * CHUNK}
        self.options = ReadOptions(**{**given, **options})
        self.tasks: set[asyncio.Task[None]] = set()

        def spawn(work, name):
            task = loop.create_task(work, name=name)
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)
            return task

        self.caches = ReadCaches(
            ReadCacheOptions(
                reads=self.options,
                chunks=ChunkCacheOptions(
                    directory=str(directory),
                    bytes_max=cache_bytes,
                    chunk_bytes=self.options.chunk_bytes,
                    free_bytes_min=free_bytes_min,
                    pause_seconds=5.0,
                ),
                index_bytes_max=4096,
            ),
            self.log,
            disk=disk(self.local_disk) if disk else self.local_disk,
            spawn=spawn,
            rng=rng,
            metrics=self.metrics.reads,
            monotonic=clock or loop.time,
            new_retry=lambda: Retry(rng, first_seconds=0.0001, stall_seconds_max=0.01),
        )
        self.reads = self.caches.reads
        self.chunks = self.caches.chunks

    def replace(self) -> None:
        """Put another object of the same size in the first one's place."""
        self.storage.etags["0"], self.storage.objects["0"] = "second", bytes(len(BODY))

    def remote(self, number: int = 0, *, tag: str = "aa") -> RemoteLog:
        key = str(number)
        size = len(BODY)
        return RemoteLog(
            ObjectId(segment_id(number), tag),
            key,
            size,
            self.storage,  # type: ignore[arg-type] # reads ask no more
            self.recorded,
        )

    def range(self, start=0, end=SIZE, *, number=0, bounded=False, tag="aa"):
        return self.reads.read(self.remote(number, tag=tag), start, end, bounded=bounded)

    async def read(self, start=0, end=SIZE, **named) -> bytes:
        return b"".join([content(piece) async for piece in self.range(start, end, **named)])

    async def settle(self) -> None:
        """Return when every download is over."""
        while self.tasks:
            await asyncio.wait(self.tasks)

    def delete(self, number: int = 0) -> None:
        for told in self.log.on_delete_started:
            told(PARTITION, segment_id(number))

    def files(self) -> list[str]:
        return sorted(path.name for path in Path(self.directory).iterdir() if path.name != "lock")

    def remove_files(self) -> None:
        for name in self.files() if self.chunks else ():
            Path(self.directory, name).unlink(missing_ok=True)

    def is_writable(self) -> bool:
        return self.chunks is not None and self.chunks.writable

    def sample(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0

    def evicted(self, cause: str, cache: str = "chunk") -> float:
        return self.sample("rlmm_read_cache_evictions_total", cache=cache, cause=cause)

    def lookups(self, outcome: str, cache: str = "chunk") -> int:
        return self.metrics.reads.lookups.value(cache, outcome)


def content(piece) -> bytes:
    if isinstance(piece, FileSlice):
        found = os.pread(piece.descriptor, piece.length, piece.start)
        assert len(found) == piece.length
        return found
    return bytes(piece)


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def until(condition) -> None:
    while not condition():  # noqa: ASYNC110 - what is waited for rings no bell
        await asyncio.sleep(0.001)


@asynccontextmanager
async def reading(directory, **options):
    """Serve reads; at the end nothing may be left: no download, no memory, no descriptor."""
    before = descriptors()
    world = ReadWorld(directory, **options)
    keeper = asyncio.get_running_loop().create_task(world.caches.run())
    try:
        if world.chunks is not None and options.get("disk") is None:
            await until(world.is_writable)
        yield world
    finally:
        for task in [*world.tasks, keeper]:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await keeper
        await world.settle()
        world.local_disk.close()
    assert world.reads.buffered_bytes == 0
    assert world.reads.in_flight == 0
    assert world.storage.open_now == 0
    # A thread whose caller was cancelled may still be closing its file.
    await until(lambda: descriptors() <= before)
