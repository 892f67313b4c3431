"""Look-ups through the socket beside Redis GET: same client, same key counts, same value sizes."""

import random
import shutil
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from tests.benchmarks import daemon, wire
from tests.benchmarks.rows import Row, Scale, median
from tests.support.daemon_process import DaemonProcess

GROUP: Final = "look-up"
MISSING: Final = "redis-server is not installed: apt-get install redis-server"
REDIS_SECONDS: Final = 20.0


@dataclass(slots=True)
class _Asked:
    peer: socket.socket
    questions: list[bytes]
    serial_us: list[float] = field(default_factory=list)
    per_second: list[float] = field(default_factory=list)

    def measure(self) -> None:
        self.serial_us.append(wire.serial_p50_us(self.peer, self.questions))
        self.per_second.append(wire.pipelined_per_second(self.peer, self.questions))


def run(process: DaemonProcess, scale: Scale) -> list[Row]:
    """Return rows for few and for many segments of one partition."""
    sizes = ((daemon.SMALL, scale.small_segments, 1.25), (daemon.LARGE, scale.large_segments, 1.5))
    redis = shutil.which("redis-server")
    rows = []
    with ExitStack() as held:
        theirs = held.enter_context(_Redis(redis, process.directory)) if redis else None
        ours = held.enter_context(closing(daemon.broker(process.socket_path)))
        for partition, count, budget in sizes:
            luck = random.Random(count)
            numbers = [luck.randrange(count) for _ in range(scale.lookups)]
            asked = {"rlmm": _Asked(ours, [daemon.lookup_frame(partition, n) for n in numbers])}
            if theirs is not None:
                value = bytes(_answer_size(ours, asked["rlmm"].questions[0]))
                theirs.fill(count, value)
                asked["redis"] = _Asked(theirs.peer, [_get(count, n) for n in numbers])
            for _ in range(scale.rounds):  # interleaved, so that other load meets both
                for each in asked.values():
                    each.measure()
            rows += _rows(count, budget, asked)
    return rows


def _rows(count: int, budget: float, asked: dict[str, _Asked]) -> list[Row]:
    ours, theirs = asked["rlmm"], asked.get("redis")
    p50, rate = median(ours.serial_us), median(ours.per_second)
    their_p50 = median(theirs.serial_us) if theirs else None
    their_rate = median(theirs.per_second) if theirs else None
    note = "" if theirs else MISSING
    return [
        Row(
            group=GROUP,
            what=f"look-up, {count:,} segments, serial p50",
            value=p50,
            unit="us",
            peer="Redis GET",
            peer_value=their_p50,
            ratio=p50 / their_p50 if their_p50 else None,
            at_most=budget,
            note=note,
        ),
        Row(
            group=GROUP,
            what=f"look-ups, {count:,} segments, x64",
            value=rate,
            unit="1/s",
            peer="Redis GET x64",
            peer_value=their_rate,
            ratio=rate / their_rate if their_rate else None,
            at_least=0.5,
            note=note,
        ),
    ]


def _answer_size(peer: socket.socket, question: bytes) -> int:
    peer.sendall(question)
    size = len(peer.recv(65_536))
    assert size > 100, "a look-up of the benchmark found nothing"
    return size


class _Redis:
    """A server of its own on a Unix socket, nothing persisted."""

    def __init__(self, binary: str, directory: Path) -> None:
        self._binary, self._path = binary, str(directory / "redis.sock")

    def __enter__(self) -> Self:
        options = ["--port", "0", "--unixsocket", self._path, "--save", "", "--appendonly", "no"]
        self._server = subprocess.Popen([self._binary, *options], stdout=subprocess.DEVNULL)
        until = time.monotonic() + REDIS_SECONDS
        while True:
            try:
                self.peer = wire.connect(self._path)
            except OSError:
                assert time.monotonic() < until, "redis-server does not answer"
                time.sleep(0.02)
            else:
                return self

    def __exit__(self, *_: object) -> None:
        self.peer.close()
        self._server.terminate()
        self._server.wait()

    def fill(self, count: int, value: bytes) -> None:
        """Make `count` keys the only ones."""
        self._commands([b"*1\r\n$8\r\nFLUSHALL\r\n"])
        for first in range(0, count, 500):
            last = min(first + 500, count)
            self._commands([_set(count, number, value) for number in range(first, last)])

    def _commands(self, commands: Sequence[bytes]) -> None:
        self.peer.sendall(b"".join(commands))
        left = len(commands) * len(b"+OK\r\n")
        while left > 0:
            left -= len(self.peer.recv(left))


def _get(count: int, number: int) -> bytes:
    key = _key(count, number)
    return b"*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n" % (len(key), key)


def _set(count: int, number: int, value: bytes) -> bytes:
    key = _key(count, number)
    return b"*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n" % (len(key), key, len(value), value)


def _key(count: int, number: int) -> bytes:
    return b"segment:%d:%08d" % (count, number)
