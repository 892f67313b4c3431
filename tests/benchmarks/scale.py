"""`make bench-scale`: restart, snapshot, memory and replay as the number of segments grows.

Every point is measured in a process of its own, so that memory is its own too. The peers hold the
same records under the same keys. Figures are kept as JSON and drawn as curves below `var/bench/`.
"""

import argparse
import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import lmdb
from rich.console import Console

from rlmm_daemon.adapters.disk import _map
from rlmm_daemon.adapters.event_log.embedded import scan
from rlmm_daemon.adapters.event_log.embedded.records import records_of
from rlmm_daemon.core import sealing, unsealing
from rlmm_daemon.core.fold import Fold
from rlmm_daemon.daemon.memory import _resident
from rlmm_daemon.domain.ids import LeaderEpoch, MetadataPartition, Offset, TopicId
from tests.benchmarks.curves import draw
from tests.benchmarks.rows import Row, table
from tests.benchmarks.run import RESULTS, keep
from tests.benchmarks.scale_events import EPOCH, OFFSETS_PER_SEGMENT, log_batches, partition_of
from tests.support.daemon_process import REPOSITORY

Facts = dict[str, float]
LOOKUPS: Final = 20_000
#: One in so many segments has changed since the snapshot.
CHANGED: Final = 20
#: Brokers of a cluster whose partitions are spread evenly: each uses so small a part of them.
BROKERS: Final = 30
SNAPSHOT: Final = "0.snapshot"


def resident() -> tuple[int, int]:
    private, mapped = _resident()
    assert private is not None, "the kernel counts resident memory"
    return private, mapped or 0


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


def replay(directory: Path, segments: int, per_partition: int) -> Facts:
    fold, before = Fold(MetadataPartition(0), 1), resident()[0]
    events, seconds = fold_events(fold, log_batches(segments, per_partition))
    plain = resident()[0] - before
    written, size = write_snapshot(fold, directory / SNAPSHOT)
    return {
        "events_per_second": events / seconds,
        "plain_bytes": plain / segments,
        "snapshot_seconds": written,
        "snapshot_bytes": size / segments,
    }


def write_snapshot(fold: Fold, path: Path) -> tuple[float, int]:
    header = sealing.header_of(
        fold, cluster_id="bench", topic_id=TopicId(bytes(16)), created_at_ms=1
    )
    begun = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for piece in sealing.write_chunks(fold, header):
            file.write(piece)
        os.fdatasync(file.fileno())
    return time.perf_counter() - begun, path.stat().st_size


def restart(directory: Path, segments: int, per_partition: int) -> Facts:
    numbers = _numbers(segments, per_partition)
    before = resident()[0]
    begun = time.perf_counter()
    _, fold = unsealing.in_place(_map(str(directory / SNAPSHOT)))
    first = _find(fold, *numbers[0])
    answered = time.perf_counter() - begun
    assert first is not None, "the first answer is a hit"
    asleep = resident()[0] - before
    for at in range(0, max(1, segments // per_partition), BROKERS):
        cache = fold.partitions.get(partition_of(at))
        assert cache is not None, "the snapshot has it"
        assert cache.list_epoch(EPOCH)  # every page of it
    shared = resident()[0] - before
    caches = list(fold.partitions.values())
    begun = time.perf_counter()
    for at, number in numbers:
        assert _find(fold, at, number) is not None
    looked = time.perf_counter() - begun
    for cache in caches:
        assert cache.list_epoch(EPOCH)  # every page of it
    private, mapped = resident()
    untouched = private - before + (directory / SNAPSHOT).stat().st_size
    changes = max(1, segments // CHANGED)
    partitions = max(1, segments // per_partition)
    tail, seconds = fold_events(
        fold,
        log_batches(changes, max(1, changes // partitions), first=per_partition,
                    base_offset=fold.position),
    )  # fmt: skip
    changed = resident()[0] - before + (directory / SNAPSHOT).stat().st_size
    written, _ = write_snapshot(fold, directory / "1.snapshot")
    return {
        "restart_ms": answered * 1000,
        "asleep_bytes": asleep / segments,
        "shared_bytes": shared / segments,
        "untouched_bytes": untouched / segments,
        "changed_bytes": changed / segments,
        "tail_per_second": tail / seconds,
        "lookup_us": looked / len(numbers) * 1e6,
        "merge_seconds": written,
        "process_mapped_bytes": mapped / segments,
    }


def sqlite(directory: Path, segments: int, per_partition: int) -> Facts:
    path = directory / "peer.sqlite"
    base = sqlite3.connect(path)
    base.execute("PRAGMA journal_mode=WAL")
    base.execute("PRAGMA synchronous=FULL")
    base.execute("CREATE TABLE s (k BLOB PRIMARY KEY, v BLOB) WITHOUT ROWID")
    begun = time.perf_counter()
    base.executemany("INSERT INTO s VALUES (?, ?)", _rows(segments, per_partition))
    base.commit()
    written = time.perf_counter() - begun
    base.close()
    begun = time.perf_counter()
    base = sqlite3.connect(path)
    ask = "SELECT v FROM s WHERE k <= ? ORDER BY k DESC LIMIT 1"

    def look(key: bytes) -> object:
        return base.execute(ask, (key,)).fetchone()

    return _peer(look, begun, segments, per_partition) | {
        "snapshot_seconds": written,
        "snapshot_bytes": path.stat().st_size / segments,
    }


def lmdb_(directory: Path, segments: int, per_partition: int) -> Facts:
    path = directory / "peer.lmdb"
    size = 1024 * segments + (1 << 26)
    begun = time.perf_counter()
    with lmdb.open(str(path), map_size=size) as base, base.begin(write=True) as change:
        for key, value in _rows(segments, per_partition):
            change.put(key, value)
    written = time.perf_counter() - begun
    begun = time.perf_counter()
    base = lmdb.open(str(path), map_size=size, readonly=True)
    reading = base.begin(buffers=False)
    cursor = reading.cursor()

    def look(key: bytes) -> object:
        return cursor.value() if cursor.set_range(key) else None

    return _peer(look, begun, segments, per_partition) | {
        "snapshot_seconds": written,
        "snapshot_bytes": (path / "data.mdb").stat().st_blocks * 512 / segments,
    }


def _peer(look: Callable[[bytes], object], begun: float, segments: int, each: int) -> Facts:
    numbers = _numbers(segments, each)
    assert look(_key(*numbers[0])), "the first answer is a hit"
    answered = time.perf_counter() - begun
    begun = time.perf_counter()
    for at, number in numbers:
        look(_key(at, number))
    looked = time.perf_counter() - begun
    return {"restart_ms": answered * 1000, "lookup_us": looked / len(numbers) * 1e6}


def _rows(segments: int, per_partition: int) -> Iterator[tuple[bytes, bytes]]:
    partitions = max(1, segments // per_partition)
    for number in range(segments):
        yield _key(number % partitions, number // partitions), os.urandom(16) + bytes(100)


def _key(partition: int, number: int) -> bytes:
    return partition.to_bytes(4, "big") + number.to_bytes(8, "big")


def _numbers(segments: int, per_partition: int) -> list[tuple[int, int]]:
    luck, partitions = random.Random(1), max(1, segments // per_partition)
    each = segments // partitions
    return [(luck.randrange(partitions), luck.randrange(each)) for _ in range(LOOKUPS)]


def _find(fold: Fold, partition: int, number: int) -> bytes | None:
    cache = fold.partitions.get(partition_of(partition))
    assert cache is not None, "the snapshot has it"
    return cache.lookup(LeaderEpoch(EPOCH), Offset(number * OFFSETS_PER_SEGMENT + 17))


CHILDREN: Final = {"replay": replay, "restart": restart, "SQLite": sqlite, "LMDB": lmdb_}


def point(work: Path, segments: int, per_partition: int, kinds: list[str]) -> dict[str, Facts]:
    """Return what each kind measured, each in a process of its own."""
    found: dict[str, Facts] = {}
    for kind in kinds:
        options = ["--child", kind, str(work), str(segments), str(per_partition)]
        command = [sys.executable, "-m", "tests.benchmarks.scale", *options]
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        found[kind] = json.loads(done.stdout)
    shutil.rmtree(work)
    work.mkdir()
    return found


def rows_of(segments: int, per_partition: int, found: dict[str, Facts]) -> list[Row]:
    ours, restarted = found["replay"], found["restart"]
    sized = f"{segments:,} segments, {per_partition:,} a partition"
    peer = found.get("LMDB", {})

    def row(what: str, value: float, unit: str, **more: float | str | None) -> Row:
        return Row(group=sized, what=f"{what}, {sized}", value=value, unit=unit, **more)  # type: ignore[arg-type]

    return [
        row("replay from local batches", ours["events_per_second"], "1/s", at_least=600_000),
        row("replay of a tail onto a snapshot", restarted["tail_per_second"], "1/s"),
        row("snapshot", ours["snapshot_seconds"], "s", peer="LMDB, one transaction",
            peer_value=peer.get("snapshot_seconds"), limit=0.6 * max(1.0, segments / 500_000)),
        row("snapshot, 5 % changed", restarted["merge_seconds"], "s"),
        row("snapshot, each segment", ours["snapshot_bytes"], "B", peer="LMDB",
            peer_value=peer.get("snapshot_bytes")),
        row("restart to first answer", restarted["restart_ms"], "ms", peer="LMDB",
            peer_value=peer.get("restart_ms"), limit=60),
        row("look-up in process", restarted["lookup_us"], "us", peer="LMDB",
            peer_value=peer.get("lookup_us")),
        row("memory replayed, no snapshot yet", ours["plain_bytes"], "B"),
        row("memory untouched, private and file", restarted["untouched_bytes"], "B", limit=130),
        row("memory 5 % changed, private and file", restarted["changed_bytes"], "B", limit=200),
        row("private memory unannounced", restarted["asleep_bytes"], "B", limit=10),
        row(f"private memory, one in {BROKERS} partitions in use", restarted["shared_bytes"], "B"),
    ]  # fmt: skip


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m tests.benchmarks.scale", description=__doc__)
    options.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    options.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    options.add_argument("--shapes", type=int, nargs="+", default=[1_000, 100_000])
    options.add_argument("--without-peers", action="store_true")
    chosen = options.parse_args()
    if chosen.child:
        kind, directory, segments, each = chosen.child
        print(json.dumps(CHILDREN[kind](Path(directory), int(segments), int(each))))  # noqa: T201
        return 0
    work = RESULTS / "scale"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    kinds = ["replay", "restart"] + ([] if chosen.without_peers else ["SQLite", "LMDB"])
    rows: list[Row] = []
    points: dict[tuple[int, int], dict[str, Facts]] = {}
    for each in chosen.shapes:
        for segments in chosen.sizes:
            if segments >= each:
                points[segments, each] = point(work, segments, each, kinds)
                rows += rows_of(segments, each, points[segments, each])
    shutil.rmtree(work)
    console = Console(width=None if sys.stdout.isatty() else 150)
    console.print(table(rows))
    kept = keep(rows, RESULTS)
    drawn = kept.with_suffix(".svg")
    drawn.write_text(draw(points))
    console.print(f"kept in {kept.relative_to(REPOSITORY)} and {drawn.relative_to(REPOSITORY)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
