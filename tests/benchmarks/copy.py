"""A copy of 1 GiB to local storage beside `cp` and fsync, and a range of it to a client."""

import os
import subprocess
import time
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from rlmm_daemon.domain.ids import SegmentId
from rlmm_daemon.domain.segment import SegmentMetadata
from tests.benchmarks.rows import Row, Scale, median
from tests.support import kafka_segments
from tests.support.daemon_process import DaemonProcess
from tests.support.kafka_segments import KafkaSegment

GROUP: Final = "segments"
RANGE_BYTES: Final = 16 * 1024 * 1024


def run(process: DaemonProcess, scale: Scale) -> list[Row]:
    """Return the copy's bandwidth and the range's."""
    placed = kafka_segments.place(process.log_dir)
    partition = next(iter(placed))
    big = kafka_segments.enlarge(
        placed[partition][-1], SegmentId(bytes([9] * 16)), scale.copy_bytes
    )
    size = big.metadata.segment_size_bytes
    ours, theirs = [], []
    stored = None
    with process.client() as client:
        for number in range(scale.copy_rounds):
            theirs.append(size / cp(f"{big.stem}.log", process.remote / "peer"))
            if stored is not None:
                client.delete_segment(partition, stored.segment_id)
            again = _renamed(big, number)
            begun = time.perf_counter()
            stored = client.copy_segment(again.metadata, again.files)
            ours.append(size / (time.perf_counter() - begun))
    assert stored is not None
    mib = size / (1024 * 1024)
    return [
        Row(
            group=GROUP,
            what=f"copy of {mib:,.0f} MiB, checked, fsynced",
            value=median(ours) / 1e9,
            unit="GB/s",
            peer="cp and fsync",
            peer_value=median(theirs) / 1e9,
            ratio=median(ours) / median(theirs),
            at_least=0.9,
        ),
        Row(
            group=GROUP,
            what="16 MiB range to a client, warm",
            value=_range_gb_per_second(process, stored, scale.ranges),
            unit="GB/s",
            at_least=2.0,
        ),
    ]


def _renamed(segment: KafkaSegment, number: int) -> KafkaSegment:
    fresh = SegmentId(bytes([10 + number] * 16))
    return replace(segment, metadata=replace(segment.metadata, segment_id=fresh))


def cp(source: str, target: Path) -> float:
    """Return the seconds of a copy that is on the disk: the file and its name."""
    begun = time.perf_counter()
    subprocess.run(["cp", source, str(target)], check=True)
    for path in (target, target.parent):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
    taken = time.perf_counter() - begun
    target.unlink()
    return taken


def _range_gb_per_second(process: DaemonProcess, stored: SegmentMetadata, count: int) -> float:
    into = memoryview(bytearray(min(RANGE_BYTES, stored.segment_size_bytes)))
    taken = []
    with process.client() as client:
        for number in range(count + 1):
            first = number * 4096
            begun = time.perf_counter()
            with client.fetch_log_segment(stored, first, first + len(into) - 1) as log:
                left = into
                while left:
                    left = left[log.readinto(left) :]
            taken.append(time.perf_counter() - begun)
    return len(into) / median(taken[1:]) / 1e9
