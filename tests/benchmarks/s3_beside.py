"""Look-ups while a segment is copied to S3 at full rate, beside look-ups without any copy.

And beside the same copy by a client in a process of its own, while the daemon does nothing else:
what is left of the machine then is no matter of the daemon's.
"""

import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deploy.dev.demos.s3 import DaemonOnS3
from deploy.dev.stack.s3 import S3Server
from rlmm_daemon.domain.ids import SegmentId
from tests.benchmarks import daemon
from tests.support import kafka_segments
from tests.support.s3_daemon import Tier, configure

SEGMENTS: Final = 1_000
LOOKUPS: Final = 5_000
COPY_BYTES: Final = 512 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The look-ups' p99 in milliseconds, and how fast the daemon's own copy was."""

    idle_ms: float
    copying_ms: float
    #: While another process copied.
    beside_ms: float
    copy_mb_per_second: float


def measured(server: S3Server, home: Path, other: Callable[[Path], None]) -> Found:
    """Return what look-ups took; `other` copies a file to S3, in a process of its own."""
    home.mkdir()
    process = DaemonOnS3(home)
    process.file = configure(home, server.endpoint, Tier(server).bucket, parts="")
    daemon.fill(home / "var" / "state" / "log", {daemon.SMALL: SEGMENTS})
    placed = kafka_segments.place(process.log_dir)
    big = kafka_segments.enlarge(
        next(iter(placed.values()))[-1], SegmentId(bytes([7] * 16)), COPY_BYTES
    )
    questions = [daemon.lookup_frame(daemon.SMALL, number % SEGMENTS) for number in range(LOOKUPS)]
    with process, closing(daemon.broker(process.socket_path)) as peer:
        daemon.until_ready(process.socket_path, [daemon.SMALL])
        _asked(peer, questions)  # warm
        idle = _asked(peer, questions)
        beside, _ = _asked_during(lambda: other(Path(big.files.log)), peer, questions)

        def copy() -> None:
            with process.client() as client:
                client.copy_segment(big.metadata, big.files, timeout_seconds=300)

        copying, seconds = _asked_during(copy, peer, questions)
    return Found(
        idle_ms=_p99(idle),
        copying_ms=_p99(copying),
        beside_ms=_p99(beside),
        copy_mb_per_second=big.metadata.segment_size_bytes / seconds / 1e6,
    )


def _asked_during(
    work: Callable[[], None], peer: socket.socket, questions: Sequence[bytes]
) -> tuple[list[float], float]:
    """Ask for as long as the work goes on; return what each answer took, and the work's seconds."""
    taken: list[float] = []

    def timed() -> None:
        begun = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begun)

    busy: list[float] = []
    working = threading.Thread(target=timed)
    working.start()
    while working.is_alive():
        busy += _asked(peer, questions[:500])
    working.join()
    assert taken, "the copy failed"
    return busy, taken[0]


def _asked(peer: socket.socket, questions: Sequence[bytes]) -> list[float]:
    found = []
    for question in questions:
        begun = time.perf_counter()
        peer.send(question)
        peer.recv(65_536)
        found.append(time.perf_counter() - begun)
    return found


def _p99(seconds: Sequence[float]) -> float:
    return sorted(seconds)[len(seconds) * 99 // 100] * 1000
