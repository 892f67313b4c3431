"""`make bench-latency`: look-ups at a fixed rate while the daemon works, phase by phase.

The asker and what keeps the daemon busy are processes of their own. A look-up that had to wait for
the one before counts from when it was due.
"""

import argparse
import itertools
import multiprocessing
import os
import random
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Final, Protocol

from msgspec.structs import replace
from rich.console import Console

from rlmm_daemon.client import Client, ClientOptions
from rlmm_daemon.codec import api, frames, records
from rlmm_daemon.core.partitioner import metadata_partition
from rlmm_daemon.domain.ids import SegmentId, TopicId
from rlmm_daemon.domain.ids import TopicIdPartition as Partition
from rlmm_daemon.observability import logging
from tests.benchmarks import daemon, held
from tests.benchmarks.copy import cp
from tests.benchmarks.rows import Row, table
from tests.benchmarks.run import RESULTS, keep
from tests.benchmarks.stolen import Calm
from tests.support import kafka_segments
from tests.support.daemon_process import REPOSITORY, DaemonProcess

PER_SECOND: Final = 500
COPY_BYTES: Final = 1024 * 1024 * 1024
#: In another metadata partition than the one that is asked about.
REPLAYED: Final = Partition(TopicId(bytes([4] * 16)), "orders", 3)


class Stop(Protocol):
    """An order to stop, as an event of another process is."""

    def is_set(self) -> bool: ...


#: Not the daemon copies, but another process.
BESIDE: Final = "another process copies"

#: Keeps a daemon busy. What it prepares comes before its first look whether to stop.
Busy = Callable[[str, Path, Stop], None]
BEGUN_SECONDS: Final = 120.0


def _client(path: str) -> Client:
    return Client(path, ClientOptions(timeout_seconds=120.0))


def replaying(path: str, _log_dir: Path, stop: Stop) -> None:
    """Drop the fold of another metadata partition and replay it, again and again."""
    number = metadata_partition(REPLAYED.topic_id, REPLAYED.partition, daemon.PARTITION_COUNT)
    with _client(path) as client:
        while not stop.is_set():
            client.partition_rebuild(number)
            while not stop.is_set():
                rows = {row["metadata_partition"]: row for row in client.partitions()}
                if rows[number]["state"] == "ready":
                    break
                time.sleep(0.02)


def snapshotting(path: str, _log_dir: Path, stop: Stop) -> None:
    with _client(path) as client:
        while not stop.is_set():
            client.snapshot_now()


def mutating(path: str, _log_dir: Path, stop: Stop) -> None:
    """Add segments to the partition that is asked about and finish them."""
    with closing(daemon.broker(path)) as peer:
        # Behind what another phase added, which was fewer than one in each microsecond.
        for number in itertools.count(10_000_000 + time.monotonic_ns() // 1_000):
            if stop.is_set():
                return
            started = daemon.segment(daemon.LARGE, number)
            for method, event in (
                ("add_remote_log_segment_metadata", started),
                ("update_remote_log_segment_metadata", daemon.finished(started)),
            ):
                said = daemon.ask(peer, method, api.RecordParams(records.encode(event)))
                assert said.error is None, said.error


def listing(path: str, _log_dir: Path, stop: Stop) -> None:
    """List the partition that is asked about and ask for its size, as retention does."""
    params = api.EpochParams(api.Partition.of(daemon.LARGE), daemon.EPOCH)
    with closing(daemon.broker(path)) as peer:
        while not stop.is_set():
            peer.sendall(frames.request_frame(1, "list_remote_log_segments", params))
            assert daemon.read_pages(peer), "all that is there"
            assert daemon.ask(peer, "remote_log_size", params).error is None


def _big_segment(log_dir: Path) -> kafka_segments.KafkaSegment:
    """Return a segment that is on the disk, so that writing it back is no part of what follows."""
    placed = kafka_segments.place(log_dir)
    pattern = placed[next(iter(placed))][-1]
    big = kafka_segments.enlarge(pattern, SegmentId(bytes([9] * 16)), COPY_BYTES)
    os.sync()
    return big


def copying(path: str, log_dir: Path, stop: Stop) -> None:
    big = _big_segment(log_dir)
    with _client(path) as client:
        for number in itertools.count():
            if stop.is_set():
                return
            fresh = SegmentId(number.to_bytes(16, "big"))
            stored = client.copy_segment(replace(big.metadata, segment_id=fresh), big.files)
            client.delete_segment(stored.partition, stored.segment_id)


def copying_beside(_path: str, log_dir: Path, stop: Stop) -> None:
    """Copy as much without the daemon: what the machine leaves for one that does nothing else."""
    big = _big_segment(log_dir)
    while not stop.is_set():
        cp(f"{big.stem}.log", log_dir / "copied-beside")


PHASES: Final[dict[str, Busy | None]] = {
    "idle": None,
    "replaying": replaying,
    "snapshotting": snapshotting,
    "mutating": mutating,
    "listing": listing,
    "copying": copying,
    BESIDE: copying_beside,
}
#: The last phase: all that the daemon does, at once.
ALL: Final = "all of it"


class _Order:
    """Says on the first look at it that a load has begun."""

    def __init__(self, stop: Stop, begun: Event) -> None:
        self._stop, self._begun = stop, begun

    def is_set(self) -> bool:
        self._begun.set()
        return self._stop.is_set()


def _loaded(busy: Busy, path: str, log_dir: Path, stop: Stop, begun: Event) -> None:
    busy(path, log_dir, _Order(stop, begun))


def ask(path: str, segments: int, seconds: float) -> list[float]:
    """Return the look-ups' latencies in ms, ascending."""
    luck = random.Random(1)
    taken: list[float] = []
    with closing(daemon.broker(path)) as peer:
        begun = free = time.perf_counter()
        for number in range(int(seconds * PER_SECOND)):
            due = begun + number / PER_SECOND
            question = daemon.lookup_frame(daemon.LARGE, luck.randrange(segments))
            while (now := time.perf_counter()) < due:
                time.sleep(due - now)
            peer.sendall(question)
            peer.recv(65_536)
            answered = time.perf_counter()
            taken.append((answered - (due if free > due else now)) * 1000)
            free = answered
    return sorted(taken)


def phase(process: DaemonProcess, name: str, segments: int, seconds: float) -> list[float]:
    spawning = multiprocessing.get_context("spawn")
    stop = spawning.Event()
    path = process.socket_path
    at_once = [busy for each, busy in PHASES.items() if each != BESIDE]
    loads = at_once if name == ALL else [PHASES[name]]
    workers = []
    try:
        for busy in filter(None, loads):
            # One after the other: what one prepares must not be measured, nor what it holds up.
            begun = spawning.Event()
            arguments = (busy, path, process.log_dir, stop, begun)
            workers.append(spawning.Process(target=_loaded, args=arguments))
            workers[-1].start()
            if not begun.wait(BEGUN_SECONDS):
                raise RuntimeError(f"while {name}: what keeps the daemon busy did not begin")
        taken = ask(path, segments, seconds)
    finally:
        stop.set()
        for worker in workers:
            worker.join(60)
            worker.terminate()
    # A load that died at its first step would leave an idle daemon, and a row that is met.
    if ended := [worker.exitcode for worker in workers if worker.exitcode != 0]:
        raise RuntimeError(f"while {name}: what kept the daemon busy ended with {ended}")
    return taken


def rows_of(name: str, taken: list[float], idle: list[float], stolen: float) -> list[Row]:
    def at(share: float, values: list[float]) -> float:
        return values[min(len(values) - 1, int(share * len(values)))]

    p99, idle_p99 = at(0.99, taken), at(0.99, idle)
    row = Row(
        group="latency",
        what=f"look-up p99 while {name}" if name != "idle" else "look-up p99, idle",
        value=p99,
        unit="ms",
        peer="idle",
        peer_value=idle_p99,
        ratio=p99 / idle_p99,
        limit=None if name == BESIDE else 2.0,
        note=f"p50 {at(0.5, taken):.3f}, p99.9 {at(0.999, taken):.2f}, max {taken[-1]:.1f} ms",
        stolen=stolen,
    )
    if name != "copying":
        return [row]
    return [row, replace(row, what="the same beside idle", limit=None, at_most=2.0, note="")]


def measure(
    directory: Path, segments: int, seconds: float, phases: Sequence[str], *, hold: bool = False
) -> list[Row]:
    settings = {"event_log.partition_count": daemon.PARTITION_COUNT}
    process = DaemonProcess(directory, settings, spawn=held.spawn if hold else None)
    counts = {daemon.LARGE: segments, REPLAYED: segments}
    daemon.fill(directory / "var" / "state" / "log", counts)
    with process:
        daemon.until_ready(process.socket_path, [daemon.LARGE])
        with process.client() as client:
            client.snapshot_now()
        idle: list[float] = []
        rows: list[Row] = []
        for name in phases:
            if hold:
                held.ask(process)
            calm = Calm()
            taken = calm.measure(partial(phase, process, name, segments, seconds))
            idle = idle or taken
            if hold:
                rows.append(held.row(name, held.ask(process)))
            else:
                rows += rows_of(name, taken, idle, calm.share)
    return rows


def main() -> int:
    options = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.latency", description=__doc__
    )
    options.add_argument("--segments", type=int, default=100_000)
    options.add_argument("--seconds", type=float, default=12.0, help="for each phase")
    options.add_argument(
        "--phases", nargs="+", choices=[*PHASES, ALL], help="idle and these; else all there are"
    )
    options.add_argument(
        "--held",
        action="store_true",
        help="what holds the loop, in processor time",
    )
    chosen = options.parse_args()
    logging.configure(level="warning", style="console")
    work = RESULTS / "latency"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        names = chosen.phases or [*PHASES, ALL]
        phases = ["idle", *(name for name in names if name != "idle")]
        rows = measure(work, chosen.segments, chosen.seconds, phases, hold=chosen.held)
    finally:
        shutil.rmtree(work)
    console = Console(width=None if sys.stdout.isatty() else 150)
    console.print(table(rows))
    console.print(f"kept in {keep(rows, RESULTS).relative_to(REPOSITORY)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
