"""Copies and deletes of segments of 48 KiB on local storage, beside the bare calls they come to.

The bare calls make the same files with the same syncs from a plain script: the objects to temporary
names, their names, and the log's batches. They check nothing, and nobody asks for them.
"""

import itertools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from rlmm_daemon.codec import batches, records
from rlmm_daemon.domain.ids import SegmentId
from tests.benchmarks.rows import Row, Scale, median
from tests.support import kafka_segments
from tests.support.daemon_process import DaemonProcess
from tests.support.kafka_segments import KafkaSegment

GROUP: Final = "small copies"
SIZE_BYTES: Final = 48 * 1024
AT_ONCE: Final = 8
#: Three times what the daemon reached when this was first measured, at 0.13 of the bare calls.
AT_ONCE_AT_LEAST: Final = 0.4
_PREALLOCATED: Final = 1024 * 1024
#: Linux's clock of another process's processor time, from its id (clock_getcpuclockid(3)).
_CPU_CLOCK: Final = 2

#: Does one copy, or one delete, of the segment of that lane.
Do = Callable[[int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Party:
    """Somebody who copies and deletes."""

    copy: Do
    delete: Do
    #: Of the process that works, in nanoseconds.
    cpu_ns: Callable[[], int]


@dataclass(slots=True)
class Spent:
    """What one copy, and one delete after it, took."""

    copy_cpu_ms: float
    copy_ms: float
    delete_cpu_ms: float
    delete_ms: float
    pairs_per_second: float


def run(process: DaemonProcess, scale: Scale) -> list[Row]:
    """Return processor time and time of one copy, and the rate with eight at once."""
    segments = lanes(process.log_dir, AT_ONCE)
    with bare(process.directory, segments) as theirs, daemon(process, segments) as ours:
        parties = {"ours": ours, "bare": theirs}
        spent: dict[str, list[Spent]] = {name: [] for name in parties}
        for party in parties.values():
            measure(party, max(1, scale.small_copies // 4))
        # One after the other, and again: what else the machine does falls on both.
        for _ in range(scale.rounds):
            for name, party in parties.items():
                spent[name].append(measure(party, scale.small_copies))
    return [
        _row("copy of 48 KiB, processor time", "ms", spent, lambda s: s.copy_cpu_ms, at_most=2),
        _row("copy of 48 KiB", "ms", spent, lambda s: s.copy_ms, at_most=2),
        _row("delete of it, processor time", "ms", spent, lambda s: s.delete_cpu_ms),
        _row("delete of it", "ms", spent, lambda s: s.delete_ms),
        _row(
            f"copies and deletes, {AT_ONCE} at once",
            "1/s",
            spent,
            lambda s: s.pairs_per_second,
            at_least=AT_ONCE_AT_LEAST,
        ),
    ]


def _row(
    what: str,
    unit: str,
    spent: dict[str, list[Spent]],
    of: Callable[[Spent], float],
    *,
    at_most: float | None = None,
    at_least: float | None = None,
) -> Row:
    ours, theirs = (list(map(of, spent[name])) for name in ("ours", "bare"))
    return Row(
        group=GROUP,
        what=what,
        value=median(ours),
        unit=unit,
        peer="the bare calls",
        peer_value=median(theirs),
        # Of each round, for what disturbed a round disturbed both.
        ratio=median([one / other for one, other in zip(ours, theirs, strict=True)]),
        at_most=at_most,
        at_least=at_least,
    )


def measure(party: Party, count: int) -> Spent:
    """Copy and delete so often, one after the other; then with eight at once."""
    cpu, taken = [0, 0], [0, 0]
    for _ in range(count):
        for step, do in enumerate((party.copy, party.delete)):
            used, begun = party.cpu_ns(), time.perf_counter_ns()
            do(0)
            taken[step] += time.perf_counter_ns() - begun
            cpu[step] += party.cpu_ns() - used

    def lane(number: int) -> None:
        for _ in range(count):
            party.copy(number)
            party.delete(number)

    with ThreadPoolExecutor(AT_ONCE) as threads:
        started = time.perf_counter()
        list(threads.map(lane, range(AT_ONCE)))
        seconds = time.perf_counter() - started
    copy_cpu_ms, delete_cpu_ms = (each / count / 1e6 for each in cpu)
    copy_ms, delete_ms = (each / count / 1e6 for each in taken)
    return Spent(copy_cpu_ms, copy_ms, delete_cpu_ms, delete_ms, AT_ONCE * count / seconds)


def lanes(log_dir: Path, count: int) -> list[KafkaSegment]:
    """Write so many segments, one behind the other, in the broker's log directory."""
    placed = kafka_segments.place(log_dir)
    found = [next(iter(placed.values()))[-1]]
    for number in range(count):
        fresh = SegmentId(bytes([0x5C, number] * 8))
        found.append(kafka_segments.enlarge(found[-1], fresh, SIZE_BYTES))
        assert found[-1].metadata.segment_size_bytes < 2 * SIZE_BYTES
    return found[1:]


@contextmanager
def daemon(process: DaemonProcess, segments: Sequence[KafkaSegment]) -> Iterator[Party]:
    """The daemon, a connection for each lane."""
    assert process.process is not None
    clock = (~process.process.pid << 3) | _CPU_CLOCK
    numbers = itertools.count(1)
    last = [segment.metadata for segment in segments]
    with ExitStack() as held:
        clients = [held.enter_context(process.client()) for _ in segments]

        def copy(lane: int) -> None:
            fresh = SegmentId(b"smallcpy" + next(numbers).to_bytes(8, "big"))
            last[lane] = replace(segments[lane].metadata, segment_id=fresh)
            clients[lane].copy_segment(last[lane], segments[lane].files)

        def delete(lane: int) -> None:
            clients[lane].delete_segment(last[lane].partition, last[lane].segment_id)

        yield Party(copy=copy, delete=delete, cpu_ns=lambda: time.clock_gettime_ns(clock))


@contextmanager
def bare(directory: Path, segments: Sequence[KafkaSegment]) -> Iterator[Party]:
    """The same files and syncs in this process."""
    home = directory / "bare"
    for name in ("remote", "temporary"):
        (home / name).mkdir(parents=True)
    remote, temporary = (os.open(home / name, os.O_RDONLY) for name in ("remote", "temporary"))
    record = records.encode(segments[0].metadata)
    batch = batches.build([record], base_offset=0, leader_epoch=0, timestamp_ms=0)
    log = os.open(home / "log", os.O_RDWR | os.O_CREAT, 0o644)
    os.pwrite(log, bytes(_PREALLOCATED), 0)
    os.fsync(log)
    ends = itertools.cycle(range(0, _PREALLOCATED - len(batch), len(batch)))

    def append() -> None:
        os.pwrite(log, batch, next(ends))
        os.fdatasync(log)

    def copy(lane: int) -> None:
        names = [f"{lane}{suffix}" for suffix in segments[lane].sha256]
        append()
        for name, suffix in zip(names, segments[lane].sha256, strict=True):
            _store(f"{segments[lane].stem}{suffix}", name, temporary)
        for name in names[1:]:
            os.rename(name, name, src_dir_fd=temporary, dst_dir_fd=remote)
        os.fsync(remote)
        os.rename(names[0], names[0], src_dir_fd=temporary, dst_dir_fd=remote)
        os.fsync(remote)
        append()

    def delete(lane: int) -> None:
        append()
        for suffix in segments[lane].sha256:
            os.unlink(f"{lane}{suffix}", dir_fd=remote)
        os.fsync(remote)
        append()

    for segment in segments:
        Path(f"{segment.stem}.leader_epoch_checkpoint").write_bytes(segment.checkpoint)
    yield Party(copy=copy, delete=delete, cpu_ns=time.process_time_ns)
    for descriptor in (log, remote, temporary):
        os.close(descriptor)


def _store(source: str, target: str, directory: int) -> None:
    read = os.open(source, os.O_RDONLY)
    written = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644, dir_fd=directory)
    os.copy_file_range(read, written, os.fstat(read).st_size)
    os.fdatasync(written)
    os.close(written)
    os.close(read)
