"""Disks of a daemon: what hangs on one holds up nothing of another."""

import asyncio
from pathlib import Path

from rlmm_daemon.adapters.event_log.memory import MemoryEventLog, MemoryLogStore
from rlmm_daemon.config import load
from rlmm_daemon.domain.ids import TopicId
from rlmm_daemon.wiring.daemon import Daemon
from rlmm_daemon.wiring.reading import read_caches_of

CONFIG = """
[daemon]
broker_id = 1
cluster_id = "ours"
state_dir = "{home}/state"
log_dirs = ["{home}/logs"]
[event_log]
kind = "embedded"
single_broker = true
[storage]
kind = "s3"
bucket = "tiered"
region = "eu-central-1"
"""


async def test_the_read_cache_takes_no_thread_from_the_event_log(tmp_path: Path):
    """Its directory may lie on a disk of its own, which hangs: every write waited for it."""
    file = tmp_path / "rlmm.toml"
    file.write_text(CONFIG.format(home=tmp_path))
    config = load(str(file), ())
    daemon = Daemon(config, lambda: config)
    async with asyncio.TaskGroup() as jobs:
        store = MemoryLogStore(topic_id=TopicId(bytes(16)), partition_count=1)
        manager = daemon._manager(MemoryEventLog(store))
        caches = read_caches_of(
            config,
            manager,
            jobs,
            disk=daemon.cache_disk,
            clock=daemon._clock,
            rng=daemon._rng,
            metrics=daemon._metrics,
        )
        assert caches is not None
        assert caches.chunks is not None
        assert caches.chunks._disk is daemon.cache_disk
        assert daemon.cache_disk is not manager.state.disk
        assert daemon.cache_disk._threads is not daemon.disk._threads
    daemon.cache_disk.close()
    daemon.disk.close()
