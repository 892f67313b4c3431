"""A whole daemon restarted on a large snapshot: from its start to the first answer to a broker.

What a process that only imports takes has a row of its own, and is taken off the others.
"""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from rlmm_daemon.codec import api, frames
from rlmm_daemon.core.fold import Fold
from rlmm_daemon.domain.ids import MetadataPartition, TopicId, uuid_bytes
from tests.benchmarks import daemon, wire
from tests.benchmarks.rows import Row, median
from tests.benchmarks.scale_events import fold_events, log_batches, partition_of, write_snapshot
from tests.support.daemon_process import REPOSITORY, DaemonProcess, environment

ROUNDS: Final = 5
#: Segments in the log, whose end is where the snapshot stands.
FEW: Final = 5
LIMIT_MS: Final = 60.0
IMPORTS: Final = "import rlmm_daemon.cli.run, rlmm_daemon.wiring.daemon; print('done', flush=True)"


def measure(work: Path, segments: int, shapes: Sequence[int]) -> list[Row]:
    """Return rows for a snapshot of so many segments, with so many in each user partition."""
    processes = {each: stocked(work / str(each), segments, each) for each in sorted(shapes)}
    imports, ours = list[float](), {each: list[float]() for each in processes}
    for _ in range(ROUNDS):  # interleaved, so that other load meets all
        imports.append(_imports())
        for each, process in processes.items():
            ours[each].append(first_answer(process) - imports[-1])
    rows = [Row(group="restart", what="interpreter and imports", value=median(imports), unit="ms")]
    taken = {each: median(found) for each, found in ours.items()}
    rows += [
        Row(
            group="restart",
            what=f"daemon to first answer, {segments:,} segments, {each:,} a partition",
            value=value, unit="ms", limit=LIMIT_MS, note="imports taken off",
        )
        for each, value in taken.items()
    ]  # fmt: skip
    if len(taken) > 1:
        slow, fast = max(taken.values()), min(taken.values())
        rows.append(
            Row(
                group="restart", what=f"the same, {segments:,} segments, slowest shape", value=slow,
                unit="ms", peer="fastest shape", peer_value=fast, ratio=slow / fast, at_most=1.5,
            )
        )  # fmt: skip
    return rows


def stocked(directory: Path, segments: int, each: int) -> DaemonProcess:
    """Return a daemon that does not run, with such a snapshot."""
    process = DaemonProcess(directory, {"event_log.partition_count": 1})
    state = directory / "var" / "state"
    daemon.fill(state / "log", {partition_of(0): FEW}, 1)
    stock(state, segments, each)
    return process


def first_answer(process: DaemonProcess) -> float:
    """Return the milliseconds from a process's start to a look-up that is a hit; it is stopped."""
    begun = time.perf_counter()
    process.start()
    _find(process.socket_path)
    taken = (time.perf_counter() - begun) * 1000
    process.stop()
    return taken


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


def _imports() -> float:
    begun = time.perf_counter()
    command = [sys.executable, "-c", IMPORTS]
    with subprocess.Popen(
        command, cwd=REPOSITORY, env=environment(), stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"done\n"
        return (time.perf_counter() - begun) * 1000  # not its end, which a start does not wait for
