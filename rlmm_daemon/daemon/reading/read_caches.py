"""Caches before a storage whose objects are not local files, put together."""

import asyncio
import random
from collections.abc import Callable

import msgspec

from rlmm_daemon.daemon.base.bugs import Bugs
from rlmm_daemon.daemon.base.deleted_segments import DeletedSegments
from rlmm_daemon.daemon.base.fair_scheduler import FairScheduler
from rlmm_daemon.daemon.base.retry import Retry
from rlmm_daemon.daemon.base.segment_log import SegmentLog
from rlmm_daemon.daemon.reading.chunk_cache import ChunkCache, ChunkCacheOptions
from rlmm_daemon.daemon.reading.index_cache import IndexCache
from rlmm_daemon.daemon.reading.read_ahead import ReadOptions, Reads
from rlmm_daemon.daemon.reading.single_flight import Spawn
from rlmm_daemon.observability.read_metrics import ReadMetrics
from rlmm_daemon.ports.disk import ScratchDisk


class ReadCacheOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The caches' sizes; no `chunks`: nothing is cached on the disk."""

    reads: ReadOptions = msgspec.field(default_factory=ReadOptions)
    chunks: ChunkCacheOptions | None = None
    index_bytes_max: int = 32 * 1024 * 1024


class ReadCaches:
    """Chunks on the disk, indexes in memory, downloads shared: all told of deleted segments."""

    def __init__(
        self,
        options: ReadCacheOptions,
        log: SegmentLog,
        *,
        disk: ScratchDisk,
        spawn: Spawn,
        rng: random.Random,
        metrics: ReadMetrics,
        monotonic: Callable[[], float],
        new_retry: Callable[[], Retry] | None = None,
        turns: FairScheduler | None = None,
        bugs: Bugs | None = None,
    ) -> None:
        chunks = options.chunks
        assert chunks is None or chunks.chunk_bytes == options.reads.chunk_bytes, "one size"
        self.deleted = deleted = DeletedSegments()
        self.chunks: ChunkCache | None = None
        # Downloads are stopped first: what they would still keep is then not kept.
        self.reads = Reads(
            options.reads,
            deleted,
            spawn=spawn,
            new_retry=new_retry or (lambda: Retry(rng)),
            metrics=metrics,
            bugs=bugs,
        )
        if chunks is not None and chunks.bytes_max:
            self.chunks = ChunkCache(
                chunks, disk, deleted, metrics=metrics, monotonic=monotonic, turns=turns
            )
            self.reads.use(self.chunks)
        self.indexes = IndexCache(
            options.index_bytes_max, deleted, spawn=spawn, metrics=metrics, bugs=bugs
        )
        log.on_delete_started.append(deleted.started)

    async def run(self) -> None:
        """Keep the chunk cache, for ever; until its directory is opened reads do without."""
        if self.chunks is None:
            await asyncio.Event().wait()
        else:
            await self.chunks.run()
