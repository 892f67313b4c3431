"""Ranges of remote segments over the real socket: a slow storage once, then the cache's files."""

import asyncio
import os
import random
from contextlib import asynccontextmanager, suppress

import pytest
from msgspec.structs import replace

from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.adapters.os.disk import LocalDisk
from rlmm_daemon.client import AsyncClient
from rlmm_daemon.core.storage.layout import Layout
from rlmm_daemon.daemon.bucket.bucket import Bucket
from rlmm_daemon.daemon.reading.chunk_cache import ChunkCacheOptions
from rlmm_daemon.daemon.reading.fetcher import Fetcher
from rlmm_daemon.daemon.reading.read_ahead import ReadOptions
from rlmm_daemon.daemon.reading.read_caches import ReadCacheOptions, ReadCaches
from rlmm_daemon.domain.errors import ObjectMissing, SegmentNotFound, StorageUnavailable
from rlmm_daemon.domain.ids import SegmentId
from rlmm_daemon.domain.segment import SegmentState
from rlmm_daemon.observability.metrics import Metrics
from rlmm_daemon.ports.storage import ObjectKind
from tests.support.memory_storage import MemoryBucket, MemoryStorage, _Stored
from tests.unit.daemon.segments import IDENTITY, FakeLog, metadata
from tests.unit.daemon.socket.fakes import daemon, until

SIZE = 9_000_000
BODY = random.Random(3).randbytes(SIZE)
CHUNK = 1024 * 1024


class SlowStorage(MemoryStorage):
    """Waits before each piece while the gate is closed, and counts."""

    def __init__(self) -> None:
        super().__init__(MemoryBucket(), clock=SystemClock())
        self.gets: list[int] = []
        self.open_now = 0
        self.flows = asyncio.Event()
        self.flows.set()
        self.faults = 0

    async def fetch(self, key, start, end):
        self.gets.append(start)
        self.open_now += 1
        try:
            async for piece in super().fetch(key, start, end):
                await self.flows.wait()
                await asyncio.sleep(0)
                if self.faults:
                    self.faults -= 1
                    raise StorageUnavailable("a passing fault")
                yield piece
        finally:
            self.open_now -= 1


class Remote:
    def __init__(self, server, storage, log, metrics, caches) -> None:
        self.server, self.storage, self.log, self.metrics, self.caches = (
            server,
            storage,
            log,
            metrics,
            caches,
        )
        self.segment = metadata(segment_size_bytes=SIZE, state=SegmentState.COPY_SEGMENT_FINISHED)


@asynccontextmanager
async def serving(path, directory):
    storage, log, metrics, disk = SlowStorage(), FakeLog(), Metrics(), LocalDisk()
    rng, loop = random.Random(1), asyncio.get_running_loop()
    bucket = Bucket(storage, layout=Layout(), rng=rng)
    await bucket.open(IDENTITY)
    async with daemon(path) as it, asyncio.TaskGroup() as jobs:
        caches = ReadCaches(
            ReadCacheOptions(
                reads=ReadOptions(chunk_bytes=CHUNK),
                chunks=ChunkCacheOptions(
                    directory=str(directory), bytes_max=64 * CHUNK, chunk_bytes=CHUNK
                ),
            ),
            log,
            disk=disk,
            spawn=lambda work, name: jobs.create_task(work, name=name),
            rng=rng,
            metrics=metrics.reads,
            monotonic=loop.time,
        )
        fetcher = Fetcher(bucket, log, rng=rng, caches=caches, metrics=metrics)
        it.fetcher.fetch_log_segment = fetcher.fetch_log_segment  # type: ignore[method-assign] # the real one
        it.fetcher.fetch_index = fetcher.fetch_index  # type: ignore[method-assign] # likewise
        remote = Remote(it.server, storage, log, metrics, caches)
        await log.put(remote.segment)
        keys = (await bucket.places(remote.segment))[0].keys
        storage.bucket.objects[keys[ObjectKind.LOG]] = _Stored(BODY, 1)
        storage.bucket.objects[keys[ObjectKind.OFFSET]] = _Stored(b"index", 1)
        keeper = jobs.create_task(caches.run())
        chunks = caches.chunks
        assert chunks is not None
        await until(lambda: chunks.writable)
        try:
            yield remote
        finally:
            keeper.cancel()
            with suppress(asyncio.CancelledError):
                await keeper
    disk.close()


async def test_a_range_is_fetched_once_and_then_sent_from_the_cache(path, tmp_path):
    async with serving(path, tmp_path / "cache") as remote, AsyncClient(path) as client:
        remote.storage.faults = 2
        for start, end in ((0, None), (0, None), (123, 5_000_000), (8_999_999, None)):
            async with await client.fetch_log_segment(remote.segment, start, end) as reader:
                assert await reader.read() == BODY[start : None if end is None else end + 1]
            await until(lambda: remote.caches.reads.in_flight == 0)
        assert len(remote.storage.gets) == 9 + 2
        for _ in range(2):
            async with await client.fetch_index(remote.segment, "OFFSET") as reader:
                assert await reader.read() == b"index"
        gets = remote.metrics.registry.get_sample_value(
            "rlmm_storage_gets_total", {"kind": "index"}
        )
        assert gets == 1
        text = remote.metrics.text().decode()
        assert 'rlmm_fetches_total{kind="log",outcome="ok"} 4.0' in text
        assert 'rlmm_read_first_byte_duration_seconds_count{source="cache"} 3.0' in text


async def test_what_lies_in_the_cache_goes_out_in_the_kernel(path, tmp_path, monkeypatch):
    """Read into Python and written again it would take the loop's time, and nothing would show."""
    sent, real = [0], os.sendfile

    def sendfile(*where: int) -> int:
        count = real(*where)
        sent[0] += count
        return count

    monkeypatch.setattr(os, "sendfile", sendfile)
    async with serving(path, tmp_path / "cache") as remote, AsyncClient(path) as client:
        for cached, start, end in ((False, 0, SIZE - 1), (True, 0, SIZE - 1), (True, 9, 5_000_000)):
            before = sent[0]
            async with await client.fetch_log_segment(remote.segment, start, end) as reader:
                assert await reader.read() == BODY[start : end + 1]
            await until(lambda: remote.caches.reads.in_flight == 0)
            assert not cached or sent[0] - before == end + 1 - start


async def test_a_stalled_client_holds_no_connection_to_the_storage_and_no_memory(path, tmp_path):
    async with serving(path, tmp_path / "cache") as remote, AsyncClient(path) as client:
        reader = await client.fetch_log_segment(remote.segment, 0, SIZE - 1)
        # Not a byte is taken, and yet what was begun comes to its end.
        await until(lambda: remote.storage.open_now == 0 and remote.caches.reads.in_flight == 0)
        assert remote.caches.reads.buffered_bytes == 0
        async with reader:
            assert await reader.read() == BODY


async def test_a_client_that_leaves_frees_everything(path, tmp_path):
    async with serving(path, tmp_path / "cache") as remote, AsyncClient(path) as client:
        remote.storage.flows.clear()
        asking = asyncio.get_running_loop().create_task(client.fetch_log_segment(remote.segment))
        await until(lambda: remote.storage.open_now == 1)
        asking.cancel()
        await asyncio.wait([asking])
        # While nothing comes: the download alone goes on, for who asks next.
        await until(lambda: remote.server.stats.requests_now == 0)
        remote.storage.flows.set()
        await until(lambda: remote.caches.reads.in_flight == 0)
        assert remote.storage.open_now == 0


async def test_what_is_missing_or_deleted_is_told_as_an_error_and_not_by_a_cut(path, tmp_path):
    async with serving(path, tmp_path / "cache") as remote, AsyncClient(path) as client:
        async with await client.fetch_log_segment(remote.segment, 0, 99) as reader:
            assert await reader.read() == BODY[:100]
        await remote.log.put(replace(remote.segment, state=SegmentState.DELETE_SEGMENT_STARTED))
        with pytest.raises(SegmentNotFound):
            await client.fetch_log_segment(remote.segment, 0, 99)
        directory = tmp_path / "cache"
        await until(lambda: [each.name for each in directory.iterdir()] == ["lock"])
        gone = replace(remote.segment, segment_id=SegmentId(bytes(16)))
        await remote.log.put(gone)
        with pytest.raises(ObjectMissing):
            await client.fetch_log_segment(gone, 0, 99)
