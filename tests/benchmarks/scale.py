"""`make bench-scale`: restart, snapshot, memory and replay as the number of segments grows.

Every point is measured in a process of its own, so that memory is its own too. The peers hold the
same records under the same keys. Figures are kept as JSON and drawn as curves below `var/bench/`.
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from rich.console import Console

from rlmm_daemon.adapters.os.disk import _map
from rlmm_daemon.core.fold.fold import Fold
from rlmm_daemon.core.fold.user_partitions import ASIDE_MAX
from rlmm_daemon.core.snapshots import unsealing
from rlmm_daemon.daemon.following.snapshotter import too_much_aside
from rlmm_daemon.daemon.operator.memory import _resident
from rlmm_daemon.domain.ids import LeaderEpoch, MetadataPartition, Offset
from tests.benchmarks import daemon_restart
from tests.benchmarks.curves import draw
from tests.benchmarks.rows import Row, table
from tests.benchmarks.run import RESULTS, keep
from tests.benchmarks.scale_events import (
    EPOCH,
    OFFSETS_PER_SEGMENT,
    fold_events,
    log_batches,
    partition_of,
    write_snapshot,
)
from tests.benchmarks.scale_peers import REDIS, Facts, lmdb_, numbers_of, redis, sqlite
from tests.support.daemon_process import REPOSITORY

#: One in so many segments has changed since the snapshot.
CHANGED: Final = 20
#: Brokers of a cluster whose partitions are spread evenly: each uses so small a part of them.
BROKERS: Final = 30
#: Budgets of memory are for a million segments; below this the interpreter's own pages count most.
JUDGED: Final = 500_000
SNAPSHOT: Final = "0.snapshot"


def resident() -> tuple[int, int]:
    private, mapped = _resident("self")
    assert private is not None, "the kernel counts resident memory"
    return private, mapped or 0


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


def restart(directory: Path, segments: int, per_partition: int) -> Facts:
    numbers = numbers_of(segments, per_partition)
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


def aside(directory: Path, segments: int, per_partition: int) -> Facts:
    """Let copies arrive that nobody asks for, until a partition wakes or a snapshot is due."""
    before = resident()[0]
    _, fold = unsealing.in_place(_map(str(directory / SNAPSHOT)))
    partitions = max(1, segments // per_partition)
    rounds = 0
    while rounds < ASIDE_MAX // 2 and not too_much_aside(fold):
        tail = log_batches(partitions, 1, first=per_partition + rounds, base_offset=fold.position)
        fold_events(fold, tail)
        rounds += 1
    assert fold.partitions.aside_bytes, "nobody asked"
    private = resident()[0] - before
    return {"most_aside_bytes": private / segments, "aside_share": rounds * partitions / segments}


def _find(fold: Fold, partition: int, number: int) -> bytes | None:
    cache = fold.partitions.get(partition_of(partition))
    assert cache is not None, "the snapshot has it"
    return cache.lookup(LeaderEpoch(EPOCH), Offset(number * OFFSETS_PER_SEGMENT + 17))


OURS: Final = {"replay": replay, "aside": aside, "restart": restart}
PEERS: Final = {"SQLite": sqlite, "LMDB": lmdb_, REDIS: redis}
CHILDREN: Final = OURS | PEERS


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
    peer, served, based = (found.get(name, {}) for name in ("LMDB", REDIS, "SQLite"))
    arrived = found["aside"]

    def row(what: str, value: float, unit: str, **more: float | str | None) -> Row:
        return Row(group=sized, what=f"{what}, {sized}", value=value, unit=unit, **more)  # type: ignore[arg-type] # of a row

    def beside(what: str, mine: Facts, measure: str, unit: str) -> Row:
        theirs = based.get(measure)
        return row(f"{what}, beside SQLite", mine[measure], unit, peer="SQLite", peer_value=theirs)

    return [
        row("replay from local batches", ours["events_per_second"], "1/s", at_least=600_000),
        row("replay of a tail onto a snapshot", restarted["tail_per_second"], "1/s"),
        row("snapshot", ours["snapshot_seconds"], "s", peer="LMDB, one transaction",
            peer_value=peer.get("snapshot_seconds"), limit=0.6 * max(1.0, segments / 500_000)),
        beside("snapshot", ours, "snapshot_seconds", "s"),
        row("snapshot, 5 % changed", restarted["merge_seconds"], "s"),
        row("snapshot, each segment", ours["snapshot_bytes"], "B", peer="LMDB",
            peer_value=peer.get("snapshot_bytes"), limit=110),
        beside("snapshot, each segment", ours, "snapshot_bytes", "B"),
        row("restart to first answer", restarted["restart_ms"], "ms", peer="LMDB",
            peer_value=peer.get("restart_ms"), limit=60),
        beside("restart to first answer", restarted, "restart_ms", "ms"),
        row("restart to first answer, beside Redis", restarted["restart_ms"], "ms",
            peer="Redis, its process too", peer_value=served.get("restart_ms")),
        row("look-up in process", restarted["lookup_us"], "us", peer="LMDB",
            peer_value=peer.get("lookup_us")),
        beside("look-up in process", restarted, "lookup_us", "us"),
        row("memory replayed, no snapshot yet", ours["plain_bytes"], "B", peer="Redis",
            peer_value=served.get("memory_bytes")),
        row("memory untouched, private and file", restarted["untouched_bytes"], "B", limit=130),
        row("memory 5 % changed, private and file", restarted["changed_bytes"], "B", limit=200),
        row("private memory unannounced", restarted["asleep_bytes"], "B", limit=10),
        row("private memory unannounced, most put aside", arrived["most_aside_bytes"], "B",
            limit=10 if segments >= JUDGED else None,
            note=f"{arrived['aside_share']:.1%} new since the snapshot"),
        row(f"private memory, one in {BROKERS} partitions in use", restarted["shared_bytes"], "B",
            limit=10 if segments >= JUDGED else None),
    ]  # fmt: skip


def flat(points: dict[tuple[int, int], dict[str, Facts]]) -> list[Row]:
    """Return how restarts of as many segments compare, in few and in many partitions."""
    found: dict[int, dict[int, float]] = {}
    for (segments, each), kinds in points.items():
        found.setdefault(segments, {})[each] = kinds["restart"]["restart_ms"]
    return [
        Row(
            group="restart", what=f"first look-up in process, {segments:,} segments, "
            f"{max(shapes):,} a partition", value=shapes[max(shapes)], unit="ms",
            peer=f"{min(shapes):,} a partition", peer_value=shapes[min(shapes)],
            ratio=shapes[max(shapes)] / shapes[min(shapes)],
            note="a table is read through once; judged for a whole daemon",
        )
        for segments, shapes in sorted(found.items()) if len(shapes) > 1
    ]  # fmt: skip


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m tests.benchmarks.scale", description=__doc__)
    options.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    options.add_argument(
        "--sizes", type=int, nargs="+", default=[10_000, 100_000, 500_000, 1_000_000]
    )
    options.add_argument("--shapes", type=int, nargs="+", default=[1_000, 100_000])
    options.add_argument("--peers-up-to", type=int, default=1_000_000, help="segments of the peers")
    options.add_argument(
        "--restart-segments", type=int, default=500_000, help="of a whole daemon; 0: not measured"
    )
    chosen = options.parse_args()
    if chosen.child:
        kind, directory, segments, each = chosen.child
        print(json.dumps(CHILDREN[kind](Path(directory), int(segments), int(each))))  # noqa: T201 - to its parent
        return 0
    work = RESULTS / "scale"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    peers = [each for each in PEERS if each != REDIS or shutil.which("redis-server")]
    rows: list[Row] = []
    points: dict[tuple[int, int], dict[str, Facts]] = {}
    console = Console(width=None if sys.stdout.isatty() else 150)

    def tell(found: list[Row]) -> None:
        """Print what is measured at once: a run that is ended later was not in vain."""
        rows.extend(found)
        if found:
            console.print(table(found))

    if chosen.restart_segments:
        tell(daemon_restart.measure(work, chosen.restart_segments, chosen.shapes))
    for segments in sorted(chosen.sizes):
        kinds = [*OURS, *(peers if segments <= chosen.peers_up_to else ())]
        for each in chosen.shapes:
            if segments >= each:
                points[segments, each] = point(work, segments, each, kinds)
                tell(rows_of(segments, each, points[segments, each]))
    tell(flat(points))
    shutil.rmtree(work)
    kept = keep(rows, RESULTS)
    drawn = kept.with_suffix(".svg")
    drawn.write_text(draw(points))
    console.print(f"kept in {kept.relative_to(REPOSITORY)} and {drawn.relative_to(REPOSITORY)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
