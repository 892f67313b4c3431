"""`make demo`: the daemon's main job on real Kafka segments, a SIGKILL in the middle included.

Everything happens in a directory of its own, which is removed at the end. Each step checks what it
did; the first check that fails ends the demo with exit code 1 and the daemon's last words.
"""  # noqa: INP001 - a script, no package

import argparse
import hashlib
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from rlmm_daemon.client import Client
from rlmm_daemon.domain.errors import IndexNotFound, OutcomeUnknown, RlmmError
from rlmm_daemon.domain.ids import SegmentId, TopicIdPartition, uuid_text
from rlmm_daemon.domain.segment import SegmentMetadata, SegmentState
from tests.support import kafka_segments, quorum_daemons
from tests.support.daemon_process import DaemonProcess
from tests.support.kafka_segments import INDEX_SUFFIXES, KafkaSegment

MIB = 1024 * 1024
#: Large enough that a kill at a third of it is the middle on any disk.
BIG_BYTES = 256 * MIB
RANGES_PER_SEGMENT = 5
DELETED_PER_PARTITION = 3
COPY_SECONDS = 120
READY_SECONDS = 10


class CheckFailed(Exception):
    """Something is not as it was promised."""


def check(holds: object, what: str) -> None:
    """Go on only if it holds."""
    if not holds:
        raise CheckFailed(what)


@dataclass(slots=True)
class Step:
    """A row of the closing table."""

    what: str
    count: int = 0
    size_bytes: int = 0
    seconds: float = 0.0
    note: str = ""


@dataclass(slots=True)
class Demo:
    """What the steps share."""

    daemon: DaemonProcess
    console: Console
    placed: dict[TopicIdPartition, list[KafkaSegment]] = field(default_factory=dict)
    finished: dict[SegmentId, SegmentMetadata] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    luck: random.Random = field(default_factory=lambda: random.Random(7))  # noqa: S311 - ranges

    @property
    def segments(self) -> list[KafkaSegment]:
        """Return the recorded segments of both partitions."""
        return [segment for several in self.placed.values() for segment in several]

    def objects_of(self, segment_id: SegmentId) -> Sequence[object]:
        """Return what the storage holds of a segment, looked at past the daemon."""
        return list(self.daemon.remote.rglob(f"*{uuid_text(segment_id)}*"))

    @contextmanager
    def step(self, what: str) -> Iterator[Step]:
        """Time a step and say how it went."""
        step = Step(what)
        begun = time.perf_counter()
        yield step
        step.seconds = step.seconds or time.perf_counter() - begun
        self.steps.append(step)
        self.console.print(
            f"[green]✓[/] {what:48} {step.seconds:8.3f} s  [dim]{step.note}[/]", soft_wrap=True
        )


def start(demo: Demo) -> None:
    """Start the daemon as `rlmm run --config config/rlmm.toml` does."""
    with demo.step("start the daemon") as step:
        demo.daemon.start()
        step.seconds, step.note = demo.daemon.started_seconds, "until its socket answers"


def announce(demo: Demo, client: Client) -> None:
    """Tell the daemon which partitions its broker leads."""
    demo.placed = kafka_segments.place(demo.daemon.log_dir)
    with demo.step("announce partitions, until they are ready") as step:
        client.replace_assignment(leaders=demo.placed, followers=[])
        until_ready(demo, client)
        step.count, step.note = len(demo.placed), ", ".join(map(name, demo.placed))


def until_ready(demo: Demo, client: Client) -> None:
    """Return when look-ups of both partitions are answered: a look-up waits for it.

    What the bucket says of an earlier life is checked when it comes, and for that moment a
    partition that was ready is not.
    """
    for partition in demo.placed:
        until = time.monotonic() + READY_SECONDS
        client.list_remote_log_segments(partition)
        while not client.is_ready(partition) and time.monotonic() < until:
            client.list_remote_log_segments(partition)
        check(client.is_ready(partition), f"{partition} is ready")


def copy(demo: Demo, client: Client) -> None:
    """Copy every recorded segment, six files each (five where no transaction was aborted)."""
    with demo.step("copy segments of a real Kafka") as step:
        for segment in demo.segments:
            done = client.copy_segment(segment.metadata, segment.files)
            check(done.state is SegmentState.COPY_SEGMENT_FINISHED, f"{done} is finished")
            demo.finished[done.segment_id] = done
            step.size_bytes += done.segment_size_bytes
        step.count = len(demo.segments)
        files = sum(1 + len(segment.indexes) for segment in demo.segments)
        step.note = f"{files} files, every batch's CRC checked"


def look_up(demo: Demo, client: Client) -> None:
    """Ask what Kafka's own metadata manager was asked, and compare with what it answered."""
    partitions = {partition.partition: partition for partition in demo.placed}
    epochs: set[int] = set()
    with demo.step("look offsets up across leader epochs") as step:
        for row in kafka_segments.lookups():
            answer = ask(client, partitions[row["partition"]], row)
            check(answer == row["result"], f"{row} was answered {answer}")
            epochs.add(row["epoch"])
            step.count += 1
        step.note = f"epochs {sorted(epochs)}; each answer is Kafka's"


def ask(client: Client, partition: TopicIdPartition, row: dict[str, Any]) -> Any:
    """Return our answer to a recorded question, in its form."""
    epoch = row["epoch"]
    match row["call"]:
        case "highestOffsetForEpoch":
            return client.highest_offset_for_epoch(partition, epoch)
        case "listRemoteLogSegments":
            listed = client.list_remote_log_segments(partition, epoch)
            return [uuid_text(segment.segment_id) for segment in listed]
        case "remoteLogSegmentMetadata":
            found = client.remote_log_segment_metadata(partition, epoch, row["offset"])
        case "nextSegmentWithTxnIndex":
            found = client.next_segment_with_txn_index(partition, epoch, row["offset"])
        case unknown:
            raise CheckFailed(f"no such call: {unknown}")
    return None if found is None else uuid_text(found.segment_id)


def fetch_ranges(demo: Demo, client: Client) -> None:
    """Fetch each log whole and in ranges, and compare them with the broker's file."""
    with demo.step("fetch logs and ranges of them") as step:
        for segment in demo.segments:
            stored, local = demo.finished[segment.metadata.segment_id], Path(f"{segment.stem}.log")
            whole = local.read_bytes()
            ranges = [(0, len(whole) - 1), (0, 0), (len(whole) - 1, len(whole) - 1)]
            for _ in range(RANGES_PER_SEGMENT):
                first, last = sorted(demo.luck.randrange(len(whole)) for _ in range(2))
                ranges.append((first, last))
            for first, last in ranges:
                with client.fetch_log_segment(stored, first, last) as log:
                    got = log.readall()
                check(sha256(got) == sha256(whole[first : last + 1]), f"{local} {first} to {last}")
                step.size_bytes += len(got)
            step.count += len(ranges)
        step.note = "SHA-256 equal"


def fetch_indexes(demo: Demo, client: Client) -> None:
    """Fetch every index, and see that an index that never was is told from one that is lost."""
    with demo.step("fetch every index") as step:
        for segment in demo.segments:
            stored = demo.finished[segment.metadata.segment_id]
            for index in segment.indexes:
                with client.fetch_index(stored, index) as reader:
                    got = reader.readall()
                expected = segment.sha256[INDEX_SUFFIXES[index]]
                check(sha256(got) == expected, f"{index} of {segment.stem}")
                step.size_bytes += len(got)
                step.count += 1
            if "TRANSACTION" not in segment.indexes:
                refused_transaction_index(client, stored)
        step.note = "SHA-256 equal"


def refused_transaction_index(client: Client, segment: SegmentMetadata) -> None:
    """See a transaction index that never was answered as such, not as one that is lost."""
    try:
        client.fetch_index(segment, "TRANSACTION").close()
    except IndexNotFound:
        return
    raise CheckFailed("a transaction index that never was is not index_not_found")


def kill_in_the_middle(demo: Demo, client: Client) -> KafkaSegment:
    """Begin a large copy and SIGKILL the daemon when a third of it is done."""
    pattern = demo.segments[-1]
    big = kafka_segments.enlarge(pattern, SegmentId(demo.luck.randbytes(16)), BIG_BYTES)
    with demo.step("SIGKILL in the middle of a copy") as step, ThreadPoolExecutor(1) as threads:
        copying = threads.submit(copy_alone, demo.daemon, big)
        done = until_a_third(client, copying)
        demo.daemon.kill()
        step.size_bytes = done
        lost = copying.exception(COPY_SECONDS)
        check(isinstance(lost, OutcomeUnknown), f"the copy ended otherwise: {lost!r}")
        share = done * 100 // big.metadata.segment_size_bytes
        step.note = f"{share} % done; its caller hears outcome_unknown"
    return big


def copy_alone(daemon: DaemonProcess, segment: KafkaSegment) -> SegmentMetadata:
    """Copy a segment over a connection of its own."""
    with daemon.client() as client:
        return client.copy_segment(segment.metadata, segment.files, timeout_seconds=COPY_SECONDS)


def until_a_third(client: Client, copying: Future[SegmentMetadata]) -> int:
    """Return how many bytes are copied, once that is a third."""
    while not copying.done():
        for job in client.status()["copies"]:
            if job["bytes_done"] > job["bytes_total"] // 3:
                done: int = job["bytes_done"]
                return done
    raise CheckFailed(f"the copy ended too soon: {copying}")


def restart(demo: Demo, big: KafkaSegment) -> None:
    """Start again and see that everything acknowledged is there, and the torn copy too."""
    with demo.step("restart, until look-ups are answered") as step:
        demo.daemon.start()
        begun = time.perf_counter()
        with demo.daemon.client() as client:
            client.replace_assignment(leaders=demo.placed, followers=[])
            until_ready(demo, client)
        answered = time.perf_counter() - begun
        step.seconds = demo.daemon.started_seconds + answered
        step.note = f"of it {answered * 1000:.0f} ms after the socket answered"
    with (
        demo.step("compare with what had been acknowledged") as step,
        demo.daemon.client() as client,
    ):
        found = {segment.segment_id: segment for segment in listed(demo, client)}
        torn = found.pop(big.metadata.segment_id, None)
        check(found == demo.finished, "every acknowledged segment is there, and none beside them")
        check(torn is not None, "the interrupted copy is visible")
        assert torn is not None
        check(torn.state is SegmentState.COPY_SEGMENT_STARTED, f"{torn.state.name} after the kill")
        step.count = len(found)
        step.note = f"nothing lost; the interrupted copy is {torn.state.name}"
    explain(demo, name(torn.partition))


def explain(demo: Demo, selector: str) -> None:
    """Show what an operator would be told."""
    told = demo.daemon.rlmm("explain", selector)
    demo.console.print(f"[dim]$ rlmm explain {selector}[/]")
    for line in told.stdout.rstrip().splitlines():
        demo.console.print(f"  {line}", markup=False, style="dim", soft_wrap=True)
    check("being copied" in told.stdout or "COPY_SEGMENT_STARTED" in told.stdout, told.stdout)


def listed(demo: Demo, client: Client) -> Iterable[SegmentMetadata]:
    """Return the segments of both partitions as the daemon knows them."""
    for partition in demo.placed:
        yield from client.list_remote_log_segments(partition)


def clean_up(demo: Demo, client: Client, big: KafkaSegment) -> None:
    """Delete the interrupted copy, and do it again under another id."""
    with demo.step("delete the interrupted copy") as step:
        client.delete_segment(big.metadata.partition, big.metadata.segment_id)
        check(not demo.objects_of(big.metadata.segment_id), "no object of it is left")
        step.count, step.note = 1, "no object of it is left"
    again = kafka_segments.enlarge(demo.segments[-1], SegmentId(demo.luck.randbytes(16)), BIG_BYTES)
    with demo.step("copy it again, under another id") as step:
        done = client.copy_segment(again.metadata, again.files)
        step.count, step.size_bytes = 1, done.segment_size_bytes
    with demo.step("fetch it") as step, client.fetch_log_segment(done) as log:
        digest = hashlib.sha256()
        for chunk in log.chunks(MIB):
            digest.update(chunk)
        check(digest.hexdigest() == again.sha256[".log"], "the large segment comes back whole")
        step.count, step.size_bytes, step.note = 1, log.length, "SHA-256 equal"
    demo.finished[done.segment_id] = done


def delete(demo: Demo, client: Client) -> None:
    """Delete the oldest segments of each partition, as retention does."""
    with demo.step("delete the oldest segments") as step:
        for segments in demo.placed.values():
            for segment in segments[:DELETED_PER_PARTITION]:
                gone = segment.metadata
                client.delete_segment(gone.partition, gone.segment_id)
                epoch, offset = next(iter(gone.segment_leader_epochs.items()))
                found = client.remote_log_segment_metadata(gone.partition, epoch, offset)
                check(found is None, f"{gone.segment_id!r} is still found")
                check(not demo.objects_of(gone.segment_id), "its objects are gone")
                del demo.finished[gone.segment_id]
                step.count += 1
                step.size_bytes += gone.segment_size_bytes
        left = {segment.segment_id for segment in listed(demo, client)}
        check(left == demo.finished.keys(), "the others are untouched")
        step.note = f"not found any more, no object left; {len(left)} segments stay"


def stop(demo: Demo) -> None:
    """Drain with SIGTERM."""
    with demo.step("stop with SIGTERM") as step:
        code = demo.daemon.stop()
        check(code == 0, f"the exit code is {code}")
        step.note = "drained, final snapshots written, exit code 0"


def run(demo: Demo) -> None:
    """Do everything, in order."""
    start(demo)
    with demo.daemon.client() as client:
        announce(demo, client)
        copy(demo, client)
        look_up(demo, client)
        fetch_ranges(demo, client)
        fetch_indexes(demo, client)
        big = kill_in_the_middle(demo, client)
    restart(demo, big)
    with demo.daemon.client() as client:
        clean_up(demo, client, big)
        delete(demo, client)
    stop(demo)


def show(demo: Demo, seconds: float) -> None:
    """Print the closing table."""
    table = Table(title="What was done", title_justify="left")
    table.add_column("step", no_wrap=True)
    for heading in ("count", "size", "seconds"):
        table.add_column(heading, justify="right", no_wrap=True)
    for step in demo.steps:
        count = str(step.count) if step.count else ""
        table.add_row(step.what, count, sized(step.size_bytes), f"{step.seconds:.3f}")
    table.add_section()
    table.add_row("everything", "", "", f"{seconds:.1f}")
    demo.console.print(table)


def sized(count: int) -> str:
    """Return a size for people; nothing for zero."""
    if count >= MIB:
        return f"{count / MIB:.1f} MiB"
    return f"{count / 1024:.1f} KiB" if count else ""


def name(partition: TopicIdPartition) -> str:
    """Return `topic-partition`."""
    return f"{partition.topic}-{partition.partition}"


def sha256(content: bytes) -> str:
    """Return a digest as the manifest writes it."""
    return hashlib.sha256(content).hexdigest()


def main() -> int:
    """Return the exit code."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--keep", action="store_true", help="leave the directory behind")
    options.add_argument(
        "--log", choices=["embedded", "quorum"], default="embedded", help="what keeps the events"
    )
    chosen = options.parse_args()
    keep = chosen.keep
    directory = Path(tempfile.mkdtemp(prefix="rlmm-demo-"))
    settings = quorum_daemons.of_one(directory) if chosen.log == "quorum" else None
    demo = Demo(DaemonProcess(directory, settings), Console(highlight=False))
    begun = time.perf_counter()
    try:
        run(demo)
    except (CheckFailed, RlmmError, RuntimeError) as error:
        keep = True
        demo.console.print(f"[bold red]✗ {type(error).__name__}[/]: {error}", markup=True)
        demo.console.print("The daemon's last words:", demo.daemon.last_words(), markup=False)
        return 1
    else:
        show(demo, time.perf_counter() - begun)
        return 0
    finally:
        demo.daemon.kill()
        if keep:
            demo.console.print(f"Everything is left in {directory}")
        else:
            shutil.rmtree(directory)


if __name__ == "__main__":
    sys.exit(main())
