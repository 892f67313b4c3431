"""The product's embedded log, with sizes so small that every path of it is walked in seconds."""

import random

from rlmm_daemon.adapters.event_log.embedded import EmbeddedLog, EmbeddedOptions
from rlmm_daemon.core.snapshots.compaction import When
from tests.simulation.event_log import EventLogScenario, Spawn
from tests.simulation.world import Life

DIRECTORY = "/var/lib/rlmm/log"


def _options(rng: random.Random) -> EmbeddedOptions:
    return EmbeddedOptions(
        segment_bytes=rng.choice([1024, 2048, 8192]),
        preallocate_bytes=rng.choice([256, 1024, 4096]),
        record_bytes_max=4096,
        batch_bytes_max=rng.choice([100, 1024, 4096]),
        pending_bytes_max=8192,
        pending_records_max=rng.choice([4, 64]),
        heartbeat_seconds=1.0,
        read_bytes=rng.choice([100, 700, 4096]),
        slice_bytes=rng.choice([100, 1024]),
        recent_bytes=rng.choice([0, 500, 4096]),
        probe_seconds=1.0,
        compaction=When(
            factor=rng.choice([0.5, 1.05, 2.0]),
            bytes_min=rng.choice([1, 1000]),
            share_max=rng.choice([0.9, 9.0]),
        ),
    )


def build(life: Life, spawn: Spawn) -> EmbeddedLog:
    """Return the log of one life; its sizes belong to the seed, its luck to the life."""
    return EmbeddedLog(
        disk=life.disk,
        clock=life.clock,
        spawn=spawn,
        luck=life.rng("log"),
        directory=DIRECTORY,
        partition_count=life.swarm.partitions,
        cluster_id="simulated",
        options=_options(random.Random(f"{life.seed}/options")),
    )


scenario = EventLogScenario.of(build)
