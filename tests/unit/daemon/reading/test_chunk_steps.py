"""A cache of very many files: opened and forgotten in short steps, with reads right in between."""

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from rlmm_daemon.adapters.os.disk import LocalDisk
from rlmm_daemon.daemon.base.deleted_segments import DeletedSegments
from rlmm_daemon.daemon.reading.chunk_cache import STEP_FILES, ChunkCache, ChunkCacheOptions
from rlmm_daemon.daemon.reading.chunk_index import ObjectId
from rlmm_daemon.domain.ids import TopicIdPartition
from rlmm_daemon.observability.metrics import Metrics
from tests.unit.daemon.reading.read_calls import segment_id, until
from tests.unit.daemon.segments import PARTITION

CHUNK = 4096
FILES = 10 * STEP_FILES
ONE, OTHER_COPY = ObjectId(segment_id(1), "aa"), ObjectId(segment_id(1), "bb")
TWO = ObjectId(segment_id(2), "aa")
OBJECTS = (ONE, OTHER_COPY, TWO)


def fill(directory: Path) -> None:
    """Leave what an earlier run would have: FILES chunks of one byte of each object."""
    for number in range(FILES):
        for object_id in OBJECTS:
            name = f"{object_id.segment_id.hex()}-{object_id.tag}-{number}-1-00000000"
            (directory / f"{name}-{number + 1}.{CHUNK}.chunk").touch()


def files_of(directory: Path, object_id: ObjectId) -> int:
    return len(list(directory.glob(f"{object_id.segment_id.hex()}-{object_id.tag}-*")))


class Watched:
    """A cache whose size is noted in every turn of the loop."""

    def __init__(self, directory: Path, disk: LocalDisk, *, bytes_max: int = 100 * FILES) -> None:
        self.deleted, self.metrics = DeletedSegments(), Metrics()
        self.cache = ChunkCache(
            ChunkCacheOptions(directory=str(directory), bytes_max=bytes_max, chunk_bytes=CHUNK),
            disk, self.deleted,
            metrics=self.metrics.reads, monotonic=asyncio.get_running_loop().time,
        )  # fmt: skip
        self.cache._files_max = 100 * FILES
        self.sizes: list[int] = []
        #: Done in each turn.
        self.looks = list[Any]()

    async def watch(self) -> None:
        while True:
            self.sizes.append(self.cache.size_bytes)
            for look in list(self.looks):
                look()
            await asyncio.sleep(0)

    def found(self, object_id: ObjectId) -> int:
        return sum(self.cache.begin_of(object_id, at) is not None for at in range(FILES))

    def longest_step(self) -> int:
        steps = zip(self.sizes, self.sizes[1:], strict=False)
        return max(abs(after - before) for before, after in steps)

    def evicted(self, cause: str) -> float:
        labels = {"cache": "chunk", "cause": cause}
        name = "rlmm_read_cache_evictions_total"
        return self.metrics.registry.get_sample_value(name, labels) or 0.0

    def delete(self, object_id: ObjectId, partition: TopicIdPartition = PARTITION) -> None:
        self.deleted.started(partition, object_id.segment_id)


@asynccontextmanager
async def watching(directory: Path, **options):
    disk = LocalDisk()
    watched = Watched(directory, disk, **options)
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(watched.watch()), loop.create_task(watched.cache.run())]
    try:
        yield watched
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        disk.close()
    assert tasks[0].cancelled(), tasks[0].exception()


async def test_a_directory_is_opened_in_short_steps_and_counted_once(tmp_path):
    fill(tmp_path)
    async with watching(tmp_path) as watched:
        cache, refused = watched.cache, list[bool]()

        def half_seen() -> None:
            if 0 < cache.size_bytes < FILES:
                refused.append(not cache.writable)
                # The oldest come first, and what was seen is there.
                assert cache.begin_of(ONE, 0) == 0
                assert cache.begin_of(ONE, FILES - 1) is None

        watched.looks.append(half_seen)
        await until(lambda: cache.writable)
        assert refused
        assert all(refused), "nothing is written that might be found again"
        assert watched.longest_step() <= STEP_FILES
        assert cache.size_bytes == sum(map(watched.found, OBJECTS)) == 3 * FILES
        assert await cache.put(TWO, 0, [b"x"], 0), "it is there"
        assert cache.size_bytes == 3 * FILES


async def test_a_segment_is_forgotten_at_once_and_let_go_of_in_short_steps(tmp_path):
    fill(tmp_path)
    async with watching(tmp_path) as watched:
        cache = watched.cache
        await until(lambda: cache.writable)
        watched.sizes.clear()
        watched.delete(ONE)

        def forgotten() -> None:
            assert watched.found(ONE) == watched.found(OTHER_COPY) == 0
            assert cache.lacks_from(ONE, 0, FILES) == 0

        forgotten()
        assert await cache.open(ONE, 0) is None
        assert cache.size_bytes > FILES, "files that are still there count"
        watched.looks.append(forgotten)
        await until(lambda: cache.size_bytes == FILES)
        assert watched.longest_step() <= STEP_FILES
        assert watched.found(TWO) == FILES
        assert watched.evicted("deleted") == 2 * FILES
        await until(lambda: not files_of(tmp_path, ONE) and not files_of(tmp_path, OTHER_COPY))
        assert files_of(tmp_path, TWO) == FILES


async def test_what_is_put_anew_while_its_forerunner_is_let_go_of_stays(tmp_path):
    fill(tmp_path)
    async with watching(tmp_path) as watched:
        cache = watched.cache
        await until(lambda: cache.writable)
        cache.forget_object(ONE)
        assert await cache.put(ONE, 0, [b"new"], 0)
        assert watched.found(ONE) == 3
        await until(lambda: not cache._index.forgotten)
        assert watched.found(ONE) == 3
        assert cache.size_bytes == 2 * FILES + 3
        assert watched.evicted("replaced") == FILES
        await until(lambda: files_of(tmp_path, ONE) == 1)


async def test_what_was_forgotten_goes_before_what_is_still_of_use(tmp_path):
    fill(tmp_path)
    async with watching(tmp_path, bytes_max=3 * FILES) as watched:
        cache = watched.cache
        await until(lambda: cache.writable)
        cache.forget_object(TWO)
        assert await cache.put(TWO, 0, [b"new"], 0)
        assert watched.found(ONE) == watched.found(OTHER_COPY) == FILES
        assert watched.evicted("size") == 0


@pytest.mark.parametrize("replaced", [False, True])
async def test_what_is_forgotten_while_the_directory_is_opened_is_never_served(tmp_path, replaced):
    fill(tmp_path)
    async with watching(tmp_path) as watched:
        cache = watched.cache

        def forget() -> None:
            if cache.size_bytes > FILES:
                cache.forget_object(ONE) if replaced else watched.delete(ONE)
                watched.looks[:] = [forgotten]

        def forgotten() -> None:
            assert watched.found(ONE) == 0
            assert not watched.found(OTHER_COPY) or replaced

        watched.looks.append(forget)
        await until(lambda: cache.writable)
        assert watched.looks == [forgotten]
        left = FILES if replaced else 0
        await until(lambda: (files_of(tmp_path, ONE), files_of(tmp_path, OTHER_COPY)) == (0, left))
        assert cache.size_bytes == left + FILES
        assert (watched.found(OTHER_COPY), watched.found(TWO)) == (left, FILES)
