"""The embedded log's sizes and times, and the ports that all its parts share."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from rlmm_daemon.core.snapshots.compaction import When
from rlmm_daemon.ports.clock import Clock
from rlmm_daemon.ports.disk import Disk

#: Starts a named task in the daemon's task group. Raises RuntimeError once the group is ending.
Spawn = Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]]

KIB = 1024
MIB = 1024 * KIB


class EmbeddedOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Every bound of the embedded log; the defaults suit fifty partitions on one broker."""

    #: A file is closed and a new one begun before a batch would pass this size.
    segment_bytes: int = 16 * MIB
    #: How far zeros are written ahead of the end, so that a sync changes no file size.
    preallocate_bytes: int = 1 * MIB
    #: The largest record; Kafka's `max.message.bytes` is about as much.
    record_bytes_max: int = 1 * MIB
    #: Values that one batch (one fdatasync) takes at most; one record always fits. A batch is
    #: decoded in one go, so this bounds how long a follower keeps the loop.
    batch_bytes_max: int = 128 * KIB
    #: Values that wait for a sync, per partition; beyond it `append` is refused.
    pending_bytes_max: int = 16 * MIB
    pending_records_max: int = 16_384
    #: A follower hears at least this often that the log still answers.
    heartbeat_seconds: float = 1.0
    #: One read of a follower that catches up.
    read_bytes: int = 1 * MIB
    #: Encoded batches that become one `LogBatch`: decoding them must not stall the loop.
    slice_bytes: int = 64 * KIB
    #: The newest synced values that each partition keeps in memory for followers at the end.
    recent_bytes: int = 128 * KIB
    #: How long new writes are refused untried after a write failed.
    probe_seconds: float = 1.0
    #: When a partition is compacted; None: never.
    compaction: When | None = msgspec.field(default_factory=When)


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """What a partition needs of the world around it."""

    disk: Disk
    clock: Clock
    spawn: Spawn
    options: EmbeddedOptions
    #: Hears of each batch that was written and synced: seconds, records.
    on_sync: Callable[[float, int], None] = lambda _seconds, _records: None
