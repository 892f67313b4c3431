"""A whole daemon restarted on a large snapshot: from its start to the first answer to a broker.

The process says when it has imported what a daemon loads; what that took has a row of its own, and
the others begin there. What it loads later counts into them.
"""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

from rlmm_daemon.codec import api, frames
from rlmm_daemon.core.fold.fold import Fold
from rlmm_daemon.domain.ids import MetadataPartition, TopicId, uuid_bytes
from tests.benchmarks import daemon, wire
from tests.benchmarks.rows import Row, median
from tests.benchmarks.scale_events import fold_events, log_batches, partition_of, write_snapshot
from tests.support.daemon_process import DaemonProcess
from tests.support.fork_server import Launch

ROUNDS: Final = 5
#: Segments in the log, whose end is where the snapshot stands.
FEW: Final = 5
LIMIT_MS: Final = 60.0
#: `rlmm`, which leaves in its directory when it had imported everything: Linux has one such clock
#: for all processes.
TOLD: Final = "imported"
START: Final = f"""
import pathlib, time
import rlmm_daemon.cli.run, rlmm_daemon.wiring.daemon
pathlib.Path({TOLD!r}).write_text(str(time.clock_gettime(time.CLOCK_MONOTONIC)))
rlmm_daemon.cli.main(prog_name="rlmm")
"""
#: The libraries that a daemon cannot start without, and nothing of ours; structlog without rich, as
#: the daemon has it.
BARE: Final = """
import sys, time
sys.modules["rich"] = None
import asyncio, click, crc32c, msgspec, prometheus_client, structlog, uvloop
print(time.clock_gettime(time.CLOCK_MONOTONIC))
"""
#: 200 ms of a start that took 270, 2.4 times as long as these alone.
IMPORTS_AT_MOST: Final = 1.8


def measure(work: Path, segments: int, shapes: Sequence[int]) -> list[Row]:
    """Return rows for a snapshot of so many segments, with so many in each user partition."""
    processes = {each: stocked(work / str(each), segments, each) for each in sorted(shapes)}
    imports, ours = list[float](), {each: list[float]() for each in processes}
    bare = list[float]()
    for _ in range(ROUNDS):  # interleaved, so that other load meets all
        bare.append(libraries())
        for each, process in processes.items():
            taken = first_answer(process)
            imports.append(taken.imports)
            ours[each].append(taken.serving)
    rows = [
        Row(
            group="restart", what="interpreter and imports", value=median(imports), unit="ms",
            peer="its libraries alone", peer_value=median(bare),
            ratio=median(imports) / median(bare), at_most=IMPORTS_AT_MOST,
        )
    ]  # fmt: skip
    medians = {each: median(found) for each, found in ours.items()}
    rows += [
        Row(
            group="restart",
            what=f"daemon to first answer, {segments:,} segments, {each:,} a partition",
            value=value, unit="ms", limit=LIMIT_MS, note="imports not counted",
        )
        for each, value in medians.items()
    ]  # fmt: skip
    if len(medians) > 1:
        slow, fast = max(medians.values()), min(medians.values())
        rows.append(
            Row(
                group="restart", what=f"the same, {segments:,} segments, slowest shape", value=slow,
                unit="ms", peer="fastest shape", peer_value=fast, ratio=slow / fast, at_most=1.5,
            )
        )  # fmt: skip
    return rows


def libraries() -> float:
    """Return the milliseconds until a bare interpreter has imported them."""
    begun = time.clock_gettime(time.CLOCK_MONOTONIC)
    run = subprocess.run([sys.executable, "-c", BARE], capture_output=True, text=True, check=True)
    return (float(run.stdout) - begun) * 1000


def stocked(directory: Path, segments: int, each: int) -> DaemonProcess:
    """Return a daemon that does not run, with such a snapshot."""
    process = DaemonProcess(directory, {"event_log.partition_count": 1}, _spawn)
    state = directory / "var" / "state"
    daemon.fill(state / "log", {partition_of(0): FEW}, 1)
    stock(state, segments, each)
    return process


class Taken(NamedTuple):
    """Milliseconds of one start, up to a look-up that is a hit."""

    imports: float
    serving: float


def first_answer(process: DaemonProcess) -> Taken:
    """Start a daemon, ask, stop it, and return what each part took."""
    begun = time.clock_gettime(time.CLOCK_MONOTONIC)
    process.start()
    _find(process.socket_path)
    answered = time.clock_gettime(time.CLOCK_MONOTONIC)
    process.stop()
    imported = float((process.directory / TOLD).read_text())
    return Taken((imported - begun) * 1000, (answered - imported) * 1000)


def stock(state: Path, segments: int, each: int) -> None:
    """Leave a snapshot of so many segments that ends where the log does."""
    fold = Fold(MetadataPartition(0), 1)
    fold_events(fold, log_batches(segments, each))
    fold.position, fold.leader_epoch = 2 * FEW, 0
    identity = json.loads((state / "log" / "identity.json").read_text())
    (state / "snapshots").mkdir(parents=True)
    write_snapshot(
        fold,
        state / "snapshots" / "0-0000000001.snapshot",
        cluster_id=daemon.CLUSTER,
        topic_id=TopicId(uuid_bytes(identity["topic_id"])),
    )


def _find(path: str) -> None:
    partition = api.Partition.of(partition_of(0))
    with closing(wire.connect(path)) as peer:
        hello = api.HelloParams(1, "bench", "broker", "metadata", daemon.CLUSTER, 1, 1)
        daemon.ask(peer, "hello", hello)
        daemon.ask(peer, "replace_assignment", api.AssignmentParams([partition], []))
        offset = (FEW + 1) * daemon.OFFSETS_PER_SEGMENT  # which only the snapshot has
        question = api.EpochOffsetParams(partition, daemon.EPOCH, offset)
        while True:
            answer = daemon.ask(peer, "remote_log_segment_metadata", question)
            if answer.error is None:
                assert frames.decode_result(answer.result, bytes | None), "a hit"
                return


def _spawn(launch: Launch) -> subprocess.Popen[bytes]:
    with Path(launch.output).open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-c", START, *launch.arguments],
            cwd=launch.directory,
            env=launch.environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
