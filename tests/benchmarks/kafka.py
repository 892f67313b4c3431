"""`make bench-kafka`: the manager on a Kafka log, then Kafka's own manager, on one broker.

Both are asked in their own process, without a socket: what is compared is the metadata manager. The
topic is filled once with the same events for both; the last user partition of it is announced only
later. Each figure stands beside its peer's of the same run: the machine is part of both.
"""

import argparse
import asyncio
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop
from msgspec.structs import replace
from rich.console import Console

from deploy.dev.stack.kafka.cluster import FAST, Cluster
from rlmm_daemon import config
from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.adapters.os.disk import LocalDisk
from rlmm_daemon.codec import records
from rlmm_daemon.core.partitioner import metadata_partition
from rlmm_daemon.daemon.base.caller import Caller
from rlmm_daemon.daemon.metadata.manager import Manager, ManagerOptions
from rlmm_daemon.domain.errors import RlmmError
from rlmm_daemon.domain.ids import (
    BrokerId,
    LeaderEpoch,
    Offset,
    SegmentId,
    TopicId,
    TopicIdPartition,
)
from rlmm_daemon.domain.segment import SegmentMetadata
from rlmm_daemon.wiring import adapters
from tests.benchmarks.curves import Line, sheet
from tests.benchmarks.rows import Row, table
from tests.benchmarks.run import RESULTS, keep
from tests.kafka.probe import java_of_ours
from tests.support.daemon_process import REPOSITORY

METADATA_PARTITIONS = 50
#: As in Bench.java: announced at first, and with those that are announced later, one by one.
FIRST_PARTITIONS = 100
USER_PARTITIONS = 106
BROKER = Caller.BROKER


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    events: int = 1_000_000
    writes: int = 200
    in_flight: int = 64


def user(number: int) -> TopicIdPartition:
    """Return a user partition, numbered as in Bench.java."""
    topic = number // 10
    topic_id = ((0x0102030405060708 + topic) << 64) + 0x090A0B0C0D0E0F10
    return TopicIdPartition(TopicId(topic_id.to_bytes(16, "big")), f"topic-{topic}", number % 10)


def started(partition: TopicIdPartition, segment: int) -> bytes:
    """Return a COPY_SEGMENT_STARTED that nobody has written yet."""
    return records.encode(
        SegmentMetadata(
            partition=partition,
            segment_id=SegmentId((segment + 10**12).to_bytes(16, "big")),
            start_offset=Offset(segment * 1000),
            end_offset=Offset(segment * 1000 + 999),
            broker_id=BrokerId(2),
            max_timestamp_ms=1_700_000_000_000,
            event_timestamp_ms=1_700_000_000_000,
            segment_leader_epochs={LeaderEpoch(0): Offset(segment * 1000)},
            segment_size_bytes=1 << 30,
        )
    )


@asynccontextmanager
async def manager_on(cluster: Cluster, directory: Path) -> AsyncIterator[Manager]:
    """A manager with an empty state directory."""
    text = f"""
[daemon]
broker_id = 2
[event_log]
kind = "kafka"
[event_log.kafka]
bootstrap = ["{cluster.bootstrap()}"]
"""
    disk = LocalDisk()
    async with asyncio.TaskGroup() as group:
        log = adapters.event_log_of(
            config.parse(text),
            disk,
            SystemClock(),
            random.Random(1),
            spawn=lambda work, name: group.create_task(work, name=name),
        )
        manager = Manager(
            log=log,
            disk=disk,
            clock=SystemClock(),
            rng=random.Random(2),
            options=ManagerOptions(state_dir=str(directory)),
        )
        task = group.create_task(manager.run())
        try:
            yield manager
        finally:
            task.cancel()
            await asyncio.wait({task})
            await log.close()
    disk.close()


async def measure(cluster: Cluster, directory: Path, scale: Scale) -> dict[str, float]:
    """Return our figures under the names of Bench.java."""
    partitions = [user(number) for number in range(FIRST_PARTITIONS)]
    found: dict[str, float] = {}
    begun = time.perf_counter()
    async with manager_on(cluster, directory) as manager:
        manager.replace_assignment(partitions, [])
        while not all(manager.lookups.is_ready(tp) for tp in partitions):  # noqa: ASYNC110 - as the peer
            await asyncio.sleep(0.001)
        found["cold_start_seconds"] = time.perf_counter() - begun
        took = []
        for at in range(scale.writes):
            value = started(partitions[at % 100], 4_000_000 + at)
            begun = time.perf_counter()
            await manager.events.add(value, BROKER)
            took.append(time.perf_counter() - begun)
        found["write_p50_seconds"] = statistics.median(took)
        found["write_p99_seconds"] = statistics.quantiles(took, n=100)[98]
        found["writes_64_per_second"] = await in_flight(manager, partitions, scale)
        each = [await one_more(manager, *pair) for pair in later()]
        found |= {name: statistics.median(one[name] for one in each) for name in each[0]}
    return found


async def in_flight(manager: Manager, partitions: list[TopicIdPartition], scale: Scale) -> float:
    """Return the writes per second of 64 writers."""
    count = scale.writes * 20
    values = [started(partitions[at % 100], 5_000_000 + at) for at in range(count)]
    left = iter(values)

    async def writer() -> None:
        for value in left:
            await manager.events.add(value, BROKER)

    begun = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(scale.in_flight):
            group.create_task(writer())
    return count / (time.perf_counter() - begun)


def later() -> Iterator[tuple[int, TopicIdPartition]]:
    """Yield each partition that is announced later, if it has one, with a neighbour."""

    def home(number: int) -> int:
        tp = user(number)
        return metadata_partition(tp.topic_id, tp.partition, METADATA_PARTITIONS)

    beside = {home(number): user(number) for number in range(FIRST_PARTITIONS)}
    for number in range(FIRST_PARTITIONS, USER_PARTITIONS):
        if home(number) in beside:
            yield number, beside[home(number)]


async def one_more(manager: Manager, which: int, neighbour: TopicIdPartition) -> dict[str, float]:
    """Announce a partition whose events are in the fold already; a neighbour writes on."""
    more = user(which)
    found: dict[str, float] = {}
    begun = time.perf_counter()
    manager.on_partition_leadership_changes([more], [])
    async with asyncio.TaskGroup() as group:
        write = group.create_task(manager.events.add(started(neighbour, 6_000_000 + which), BROKER))
        write.add_done_callback(
            lambda _: found.update(neighbour_write_seconds=time.perf_counter() - begun)
        )
        while True:
            try:
                if manager.lookups.remote_log_segment_metadata(more, 0, 500, BROKER) is not None:
                    break
            except RlmmError:
                await asyncio.sleep(0)
        found["one_more_hit_seconds"] = time.perf_counter() - begun
        while not manager.lookups.is_ready(more):  # noqa: ASYNC110 - as the peer
            await asyncio.sleep(0)
        found["one_more_ready_seconds"] = time.perf_counter() - begun
    return found


def peer(main: str, *arguments: str) -> str:
    """Run a part of Bench.java in a JVM of its own."""
    command = [*java_of_ours("-Xmx3g", *FAST), "Bench", main, *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
    return done.stdout.strip().splitlines()[-1]


def compared(ours: dict[str, float], theirs: dict[str, Any], events: int) -> list[Row]:
    """Return the figures side by side with their budgets."""
    kafka = "TBRLMM 4.3.1"

    def faster(what: str, name: str, unit: str, times: float, by: float | None) -> Row:
        mine, other = ours[name], float(theirs[name])
        return Row(
            group="kafka",
            what=what,
            value=mine * times,
            unit=unit,
            peer=kafka,
            peer_value=other * times,
            ratio=other / mine,
            at_least=by,
        )

    rate, their_rate = (each["cold_start_seconds"] for each in (ours, theirs))
    return [
        Row(
            group="kafka",
            what="cold start, 100 partitions ready",
            value=events / rate,
            unit="events/s",
            peer=kafka,
            peer_value=events / their_rate,
            ratio=their_rate / rate,
            at_least=2,
        ),
        faster("sequential write p50", "write_p50_seconds", "ms", 1e3, 10),
        faster("sequential write p99", "write_p99_seconds", "ms", 1e3, None),
        Row(
            group="kafka",
            what="writes, 64 in flight",
            value=ours["writes_64_per_second"],
            unit="/s",
            peer=kafka,
            peer_value=theirs["writes_64_per_second"],
            ratio=ours["writes_64_per_second"] / theirs["writes_64_per_second"],
            at_least=5,
        ),
        faster("one more user partition, first hit", "one_more_hit_seconds", "ms", 1e3, 1000),
        faster("one more user partition, is_ready", "one_more_ready_seconds", "ms", 1e3, 100),
        faster("a neighbour's write meanwhile", "neighbour_write_seconds", "ms", 1e3, None),
    ]


def curves(rows: Mapping[int, Sequence[Row]]) -> str:
    """Return a chart for each row over the number of events, both managers in it."""
    charts: list[tuple[str, Mapping[str, Line]]] = []
    for at, row in enumerate(next(iter(rows.values()))):
        ours = [(float(events), found[at].value or 0.0) for events, found in rows.items()]
        theirs = [(float(events), found[at].peer_value or 0.0) for events, found in rows.items()]
        charts.append((f"{row.what}, {row.unit}", {"rlmm": ours, row.peer: theirs}))
    return sheet(charts)


def one(scale: Scale, console: Console) -> tuple[int, list[Row]]:
    """Return how many events a topic has, and what both managers made of it."""
    directory = Path(tempfile.mkdtemp(prefix="rlmm-bench-kafka-"))
    cluster = Cluster(directory=directory / "kafka", count=1, heap="768m", java_options=FAST)
    try:
        cluster.start()
        events = int(peer("fill", cluster.bootstrap(), str(scale.events)))
        console.print(f"{events:,} events of {USER_PARTITIONS} user partitions")
        theirs = json.loads(peer("run", cluster.bootstrap(), str(scale.writes)))
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            ours = runner.run(measure(cluster, directory / "state", scale))
        return events, compared(ours, theirs, events)
    finally:
        cluster.stop()
        shutil.rmtree(directory, ignore_errors=True)


def main() -> int:
    """Return the exit code."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument(
        "--events", type=int, nargs="+", default=[1_000_000], help="several draw curves"
    )
    options.add_argument("--writes", type=int, default=200)
    chosen = options.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 140)
    found: dict[int, list[Row]] = {}
    for wanted in chosen.events:
        events, rows = one(Scale(events=wanted, writes=chosen.writes), console)
        found[events] = rows
        console.print(table(rows))
    named = [
        replace(row, what=f"{row.what}, {events:,} events")
        for events, rows in found.items()
        for row in rows
    ]
    kept = keep(named, RESULTS)
    kept.with_suffix(".svg").write_text(curves(found))
    console.print(f"kept in {kept.relative_to(REPOSITORY)}, and as curves in .svg beside it")
    return 0 if all(row.met is not False for row in named) else 1


if __name__ == "__main__":
    sys.exit(main())
