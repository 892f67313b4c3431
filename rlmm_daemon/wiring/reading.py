"""Reads of segments put together: the fetcher, and the caches before a remote storage."""

import asyncio
import random

from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.adapters.os.disk import LocalDisk
from rlmm_daemon.adapters.os.mounts import is_of_this_host
from rlmm_daemon.config import Config
from rlmm_daemon.config import S3Storage as S3StorageConfig
from rlmm_daemon.daemon.bucket.bucket import Bucket
from rlmm_daemon.daemon.metadata.manager import Manager
from rlmm_daemon.daemon.reading.fetcher import Fetcher
from rlmm_daemon.daemon.reading.read_caches import ReadCaches
from rlmm_daemon.observability.metrics import Metrics
from rlmm_daemon.wiring.options import read_cache_options_of


def fetcher_of(
    manager: Manager,
    bucket: Bucket | None,
    caches: ReadCaches | None,
    *,
    rng: random.Random,
    metrics: Metrics,
) -> Fetcher | None:
    """Return the fetcher; None without a storage."""
    if bucket is None:
        return None
    return Fetcher(
        bucket,
        manager.events,
        rng=rng,
        caches=caches,
        metrics=metrics,
        may_name=is_of_this_host,
    )


def read_caches_of(
    config: Config,
    manager: Manager,
    jobs: asyncio.TaskGroup,
    *,
    disk: LocalDisk,
    clock: SystemClock,
    rng: random.Random,
    metrics: Metrics,
) -> ReadCaches | None:
    """Return what remote reads need; local files are sent as they are."""
    if not isinstance(config.storage, S3StorageConfig):
        return None
    return ReadCaches(
        read_cache_options_of(config),
        manager.events,
        disk=disk,
        spawn=lambda work, name: jobs.create_task(work, name=name),
        rng=rng,
        metrics=metrics.reads,
        monotonic=clock.monotonic,
        turns=manager.turns,
        bugs=manager.bugs,
    )
