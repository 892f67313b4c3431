"""Look-ups while a segment is copied to S3 at full rate, beside look-ups without any copy."""

import socket
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from deploy.dev.demo_s3 import DaemonOnS3
from deploy.dev.s3 import S3Server
from rlmm_daemon.domain.ids import SegmentId
from tests.benchmarks import daemon
from tests.support import kafka_segments
from tests.support.s3_daemon import Tier, configure

SEGMENTS: Final = 1_000
LOOKUPS: Final = 5_000
COPY_BYTES: Final = 512 * 1024 * 1024


def p99_ms(server: S3Server, home: Path) -> tuple[float, float, float]:
    """Return the p99 without a copy and during one, and the copy's MB/s."""
    home.mkdir()
    process = DaemonOnS3(home)
    process.file = configure(home, server.endpoint, Tier(server).bucket)
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
        taken: list[float] = []
        busy: list[float] = []

        def copy() -> None:
            begun = time.perf_counter()
            with process.client() as client:
                client.copy_segment(big.metadata, big.files, timeout_seconds=300)
            taken.append(time.perf_counter() - begun)

        copying = threading.Thread(target=copy)
        copying.start()
        while copying.is_alive():
            busy += _asked(peer, questions[:500])
        copying.join()
        assert taken, "the copy failed"
    return _p99(idle), _p99(busy), big.metadata.segment_size_bytes / taken[0] / 1e6


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
