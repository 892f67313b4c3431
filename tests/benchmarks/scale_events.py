"""Events of many segments, made fast: one encoded event is the mould for all of a partition.

One epoch, no custom metadata: the common shape. Custom metadata adds its own length to each.
"""

import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace

from rlmm_daemon.adapters.event_log.embedded.records import compiled, records_of
from rlmm_daemon.codec import batches, records, scan
from rlmm_daemon.codec import record_suffix as tails
from rlmm_daemon.core.fold.fold import Fold
from rlmm_daemon.core.snapshots import sealing
from rlmm_daemon.domain.ids import TopicId
from rlmm_daemon.domain.ids import TopicIdPartition as Partition
from tests.benchmarks.daemon import EPOCH, OFFSETS_PER_SEGMENT, finished, segment

_SPAN = struct.Struct(">qq")
_FIRST = struct.Struct(">q")
BATCH_EVENTS = 500
compiled.load()  # a daemon's thread does that while it replays
NOBODYS = TopicId(bytes(16))


def partition_of(number: int) -> Partition:
    return Partition(TopicId(number.to_bytes(16, "big")), "orders", number % 64)


class Mould:
    """The two events of each segment of one user partition."""

    def __init__(self, partition: Partition) -> None:
        one = segment(partition, 0)
        self._head = tails.ENVELOPE + tails.prefix_of(partition)
        self._update_head = b"\x01\x01\x00" + self._head[3:]
        self._tail = records.encode(one)[len(self._head) + 16 :]
        update = replace(finished(one), custom_metadata=None)
        self._update = records.encode(update)[len(self._head) + 16 :]

    def events(self, number: int) -> tuple[bytes, bytes]:
        start = number * OFFSETS_PER_SEGMENT
        tail, first_at = self._tail, tails.EPOCHS_AT + 5
        segment_id = os.urandom(16)
        made = b"".join((
            self._head, segment_id, tail[: tails.START_AT],
            _SPAN.pack(start, start + OFFSETS_PER_SEGMENT - 1),
            tail[tails.BROKER_AT : first_at], _FIRST.pack(start), tail[first_at + 8 :],
        ))  # fmt: skip
        return made, self._update_head + segment_id + self._update


def log_batches(
    segments: int, per_partition: int, *, first: int = 0, base_offset: int = 0
) -> Iterator[bytes]:
    """Yield record batches of the events of so many segments; partitions take turns."""
    partitions = max(1, segments // per_partition)
    moulds = [Mould(partition_of(number)) for number in range(partitions)]
    values: list[bytes] = []
    for number in range(segments):
        values += moulds[number % partitions].events(first + number // partitions)
        if len(values) >= BATCH_EVENTS or number == segments - 1:
            yield batches.build(values, base_offset=base_offset, leader_epoch=1, timestamp_ms=1)
            base_offset += len(values)
            values = []


def fold_events(fold: Fold, encoded: Iterator[bytes]) -> tuple[int, float]:
    """Return how many events, and the seconds that splitting and applying them took."""
    events, seconds = 0, 0.0
    for one in encoded:
        begun = time.perf_counter()
        for found in scan.walk(one, fold.position).found:
            rows, at = records_of(one, found, position=0), 0
            while (at := fold.apply_run(rows, at, len(rows))) < len(rows):
                fold.apply(*rows[at])  # as a follower does
                at += 1
            events += len(rows)
        seconds += time.perf_counter() - begun
    return events, seconds


def write_snapshot(
    fold: Fold, path: Path, *, cluster_id: str = "bench", topic_id: TopicId = NOBODYS
) -> tuple[float, int]:
    """Return the seconds that it took, synced, and its bytes."""
    header = sealing.header_of(fold, cluster_id=cluster_id, topic_id=topic_id, created_at_ms=1)
    begun = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for piece in sealing.write_chunks(fold, header):
            file.write(piece)
        os.fdatasync(file.fileno())
    return time.perf_counter() - begun, path.stat().st_size


__all__ = [
    "EPOCH",
    "OFFSETS_PER_SEGMENT",
    "fold_events",
    "log_batches",
    "partition_of",
    "write_snapshot",
]
