"""The quorum log's sizes and times, and how its tasks are started."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

#: Starts a named task in the daemon's task group. Raises RuntimeError once the group is ending.
Spawn = Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]]

KIB = 1024
MIB = 1024 * KIB


class QuorumLogOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Every bound of the quorum log; the defaults suit fifty partitions."""

    #: A record whose fate is not known after so long is given up as `outcome_unknown`.
    delivery_timeout_seconds: float = 120.0
    #: A leader, in this process too, has so long for one request.
    request_timeout_seconds: float = 5.0
    #: Between a request that failed and the next.
    retry_seconds: float = 0.05
    #: An open waits so long for a leader, and for this replica to have what is committed.
    open_seconds: float = 10.0
    #: An end that this replica does not have after so long is unknown.
    reach_seconds: float = 5.0
    #: A follower hears at least this often that the log still answers.
    heartbeat_seconds: float = 1.0
    #: A close waits so long for records that were taken.
    close_seconds: float = 5.0
    #: How long after its disk failed a replica is opened anew.
    probe_seconds: float = 1.0
    #: The largest record; Kafka's `max.message.bytes` is about as much.
    record_bytes_max: int = 1 * MIB
    #: Values of one submission; one record always fits.
    batch_bytes_max: int = 512 * KIB
    #: Records that wait, or are on their way; beyond it `append` is refused.
    pending_bytes_max: int = 16 * MIB
    pending_records_max: int = 16_384
    #: Values that followers are given at once, of all partitions together.
    chunk_bytes: int = 256 * KIB
    #: Values that are kept in memory for followers, of all partitions together.
    cache_bytes: int = 16 * MIB
    #: A checkpoint is made once there are more bytes of records since the last one than this,
    checkpoint_bytes_min: int = 20 * MIB
    #: and more than so many times the last one's size.
    checkpoint_factor: float = 1.0
    #: A partition is compacted once so many of its events may be looked through anew,
    compact_events_min: int = 10_000
    #: and so many times as many as the last time left.
    compact_factor: float = 0.5
    #: Of all partitions that one checkpoint compacts, if they are several.
    compact_events_max: int = 200_000
    #: How long after one that failed the next is made.
    checkpoint_again_seconds: float = 60.0
