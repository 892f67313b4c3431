"""The daemon that is measured: a real one, its log filled before it starts."""

import asyncio
import random
import socket
from collections.abc import Coroutine, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from rlmm_daemon.adapters.event_log.embedded import EmbeddedLog, EmbeddedOptions
from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.adapters.os.disk import LocalDisk
from rlmm_daemon.codec import api, frames, records
from rlmm_daemon.core.partitioner import metadata_partition
from rlmm_daemon.domain.ids import BrokerId, LeaderEpoch, Offset, SegmentId, TopicId
from rlmm_daemon.domain.ids import TopicIdPartition as Partition
from rlmm_daemon.domain.segment import (
    CustomMetadata,
    SegmentMetadata,
    SegmentState,
    SegmentUpdate,
)
from tests.benchmarks import wire

CLUSTER: Final = "rlmm-demo-cluster"
PARTITION_COUNT: Final = 50
SMALL: Final = Partition(TopicId(bytes([1] * 16)), "orders", 0)
LARGE: Final = Partition(TopicId(bytes([2] * 16)), "orders", 1)
WRITTEN: Final = Partition(TopicId(bytes([3] * 16)), "orders", 2)
OFFSETS_PER_SEGMENT: Final = 1_000
EPOCH: Final = LeaderEpoch(5)
_AT_ONCE: Final = 2_000


def segment(partition: Partition, number: int) -> SegmentMetadata:
    start = number * OFFSETS_PER_SEGMENT
    return SegmentMetadata(
        partition=partition,
        segment_id=SegmentId(partition.topic_id[:8] + number.to_bytes(8, "big")),
        start_offset=Offset(start),
        end_offset=Offset(start + OFFSETS_PER_SEGMENT - 1),
        broker_id=BrokerId(1),
        max_timestamp_ms=1_700_000_000_000 + number,
        event_timestamp_ms=1_700_000_000_000 + number,
        segment_leader_epochs={EPOCH: Offset(start)},
        segment_size_bytes=1024 * 1024 * 1024,
        txn_index_empty=True,
    )


def finished(started: SegmentMetadata) -> SegmentUpdate:
    return SegmentUpdate(
        partition=started.partition,
        segment_id=started.segment_id,
        broker_id=started.broker_id,
        event_timestamp_ms=started.event_timestamp_ms,
        custom_metadata=CustomMetadata(bytes(26)),
        state=SegmentState.COPY_SEGMENT_FINISHED,
    )


def fill(
    directory: Path, counts: dict[Partition, int], partition_count: int = PARTITION_COUNT
) -> None:
    """Write the log of these many finished segments; no daemon may run there."""
    asyncio.run(_fill(directory, counts, partition_count))


async def _fill(directory: Path, counts: dict[Partition, int], partition_count: int) -> None:
    disk = LocalDisk()
    await disk.make_directory(str(directory))
    async with asyncio.TaskGroup() as tasks:

        def spawn(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
            return tasks.create_task(work, name=name)

        log = EmbeddedLog(
            disk=disk,
            clock=SystemClock(),
            spawn=spawn,
            luck=random.Random(1),
            directory=str(directory),
            partition_count=partition_count,
            cluster_id=CLUSTER,
            options=EmbeddedOptions(),
        )
        await log.open(create=True)
        for partition, count in counts.items():
            where = metadata_partition(partition.topic_id, partition.partition, partition_count)
            for first in range(0, count, _AT_ONCE):
                async with asyncio.TaskGroup() as appends:
                    for value in _events(partition, first, min(first + _AT_ONCE, count)):
                        appends.create_task(log.append(where, value))
        await log.close()
    disk.close()


def _events(partition: Partition, first: int, last: int) -> Iterator[bytes]:
    for number in range(first, last):
        started = segment(partition, number)
        yield records.encode(started)
        yield records.encode(finished(started))


def broker(path: str) -> socket.socket:
    """Return a connection as a broker's metadata manager has it, its partitions announced."""
    peer = wire.connect(path)
    hello = api.HelloParams(1, "bench", "broker", "metadata", CLUSTER, 1, 1)
    announced = [api.Partition.of(each) for each in (SMALL, LARGE, WRITTEN)]
    ask(peer, "hello", hello)
    ask(peer, "replace_assignment", api.AssignmentParams(announced, []))
    return peer


def ask(peer: socket.socket, method: str, params: Any) -> frames.Response:
    """Ask one thing and return the answer; nothing else is in flight."""
    peer.sendall(frames.request_frame(1, method, params))
    splitter = frames.Splitter(1 << 20)
    while (body := splitter.next()) is None:
        splitter.feed(peer.recv(65_536))
    response = frames.decode_message(body)
    assert isinstance(response, frames.Response)
    return response


def read_pages(peer: socket.socket) -> int:
    """Read the pages of a listing to the last, and return how many records they hold."""
    splitter, count = frames.Splitter(1 << 20), 0
    while True:
        while (body := splitter.next()) is None:
            splitter.feed(peer.recv(65_536))
        response = frames.decode_message(body)
        assert isinstance(response, frames.Response)
        page = frames.decode_result(response.result, api.RecordPage)
        count += len(page.records)
        if not page.more:
            return count


def until_ready(path: str, partitions: list[Partition]) -> None:
    """Return when a broker's look-ups of these are answered."""
    with closing(broker(path)) as peer:
        for partition in partitions:
            while frames.decode_result(
                ask(peer, "is_ready", api.PartitionParams(api.Partition.of(partition))).result,
                bool,
            ) is not True:  # fmt: skip
                ask(
                    peer,
                    "highest_offset_for_epoch",
                    api.EpochParams(api.Partition.of(partition), EPOCH),
                )


def lookup_frame(partition: Partition, number: int) -> bytes:
    params = api.EpochOffsetParams(
        api.Partition.of(partition), EPOCH, number * OFFSETS_PER_SEGMENT + 17
    )
    return frames.request_frame(100, "remote_log_segment_metadata", params)


def add_frame(partition: Partition, number: int) -> bytes:
    params = api.RecordParams(records.encode(segment(partition, number)))
    return frames.request_frame(100 + number, "add_remote_log_segment_metadata", params)
