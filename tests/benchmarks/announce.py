"""Announcing many user partitions at once, as a broker does that starts or gets its leaders back.

Their events are in folds that are followed already, so nothing is replayed: an announcement is an
insertion in memory and one question for the ends of the log.
"""

import socket
import time
from collections.abc import Sequence
from contextlib import closing
from typing import Final

from rlmm_daemon.codec import api, frames
from rlmm_daemon.domain.ids import TopicId
from rlmm_daemon.domain.ids import TopicIdPartition as Partition
from tests.benchmarks import daemon
from tests.benchmarks.rows import Row, Scale, median
from tests.support.daemon_process import DaemonProcess

GROUP: Final = "announce"
_SEGMENTS_EACH: Final = 2
_PARTITIONS_A_TOPIC: Final = 100
_READY_SECONDS: Final = 60.0


def run(process: DaemonProcess, scale: Scale) -> list[Row]:
    """Return how long announcements of many partitions take, on a daemon of their own."""
    partitions = [_user(number) for number in range(scale.announced)]
    home = process.directory / "announce"
    settings = {"event_log.partition_count": daemon.PARTITION_COUNT}
    other = DaemonProcess(home, settings)
    daemon.fill(home / "var" / "state" / "log", dict.fromkeys(partitions, _SEGMENTS_EACH))
    told: list[float] = []
    ready: list[float] = []
    with other, closing(daemon.broker(other.socket_path)) as peer:
        every = api.AssignmentParams([api.Partition.of(each) for each in partitions], [])
        daemon.ask(peer, "replace_assignment", every)
        _until_ready(peer, partitions)
        for _ in range(scale.rounds):
            daemon.ask(peer, "replace_assignment", api.AssignmentParams([], []))
            begun = time.perf_counter()
            daemon.ask(peer, "replace_assignment", every)
            told.append(time.perf_counter() - begun)
            _until_ready(peer, partitions[-1:])
            ready.append(time.perf_counter() - begun)
            _until_ready(peer, partitions)
    count = f"{scale.announced:,} partitions"
    return [
        Row(group=GROUP, what=f"announce {count}", value=median(told) * 1e3, unit="ms", limit=50),
        Row(
            group=GROUP,
            what=f"announce {count}, the last one is_ready",
            value=median(ready) * 1e3,
            unit="ms",
        ),
    ]


def _user(number: int) -> Partition:
    topic = 7 * 10**9 + number // _PARTITIONS_A_TOPIC
    return Partition(TopicId(topic.to_bytes(16, "big")), "many", number % _PARTITIONS_A_TOPIC)


def _until_ready(peer: socket.socket, partitions: Sequence[Partition]) -> None:
    over = time.monotonic() + _READY_SECONDS
    for partition in partitions:
        params = api.PartitionParams(api.Partition.of(partition))
        while not frames.decode_result(daemon.ask(peer, "is_ready", params).result, bool):
            assert time.monotonic() < over, f"{partition} is not ready"
