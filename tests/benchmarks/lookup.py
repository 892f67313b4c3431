"""Look-ups through the socket beside Redis GET, same client technique, same run.

The daemon here is a dictionary behind the real server: what is measured is the socket alone. Redis
is skipped where it is not installed.
"""

import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from rlmm_daemon.client import Client
from rlmm_daemon.codec import api, frames
from rlmm_daemon.domain.ids import TopicId, TopicIdPartition

KEYS = 1_000
VALUE = b"v" * 300
ORDERS = TopicIdPartition(TopicId(bytes(range(16))), "orders", 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    what: str
    value: float
    unit: str
    #: Against the peer of the same run; None where there is none.
    ratio: float | None = None


def run(rounds: int = 5, requests: int = 20_000) -> list[Row]:
    """Return p50 of serial look-ups, the rate of pipelined ones, and a range's bandwidth."""
    with tempfile.TemporaryDirectory() as directory:
        ours, theirs = f"{directory}/rlmm.sock", f"{directory}/redis.sock"
        servers = [_start_ours(ours, f"{directory}/segment.log")]
        redis = shutil.which("redis-server")
        if redis is not None:
            servers.append(_start_redis(redis, theirs))
        try:
            return _measure(ours, theirs if redis else None, rounds, requests)
        finally:
            for server in servers:
                server.terminate()
                server.wait()


def _measure(ours: str, theirs: str | None, rounds: int, requests: int) -> list[Row]:
    asked = {"rlmm": (_say_hello(_wait(ours)), [_lookup(n) for n in range(KEYS)])}
    if theirs is not None:
        asked["redis"] = (_fill(_wait(theirs)), [_get(n) for n in range(KEYS)])
    serial: dict[str, list[float]] = {name: [] for name in asked}
    rates: dict[str, list[float]] = {name: [] for name in asked}
    for _ in range(rounds):  # interleaved, so that other load meets both
        for name, (peer, questions) in asked.items():
            serial[name].append(_serial(peer, questions, requests))
            rates[name].append(_pipelined(peer, questions, requests))
    rows = []
    for name in asked:
        p50, rate = statistics.median(serial[name]), statistics.median(rates[name])
        beside = name == "rlmm" and theirs is not None
        p50_ratio = p50 / statistics.median(serial["redis"]) if beside else None
        rate_ratio = rate / statistics.median(rates["redis"]) if beside else None
        rows.append(Row(what=f"{name} look-up, serial p50", value=p50, unit="us", ratio=p50_ratio))
        rows.append(Row(what=f"{name} look-up x64", value=rate, unit="1/s", ratio=rate_ratio))
    return [*rows, Row(what="16 MiB range", value=_bandwidth(ours, rounds), unit="GB/s")]


def _serial(peer: socket.socket, questions: list[bytes], requests: int) -> float:
    taken = []
    for number in range(requests):
        question = questions[number * 7 % KEYS]
        begun = time.perf_counter_ns()
        peer.send(question)
        peer.recv(65_536)
        taken.append(time.perf_counter_ns() - begun)
    return statistics.median(taken) / 1000


def _pipelined(peer: socket.socket, questions: list[bytes], requests: int) -> float:
    batch = b"".join(questions[:64])
    peer.send(questions[0])
    answer = len(peer.recv(65_536))
    begun = time.perf_counter()
    for _ in range(requests // 64):
        peer.sendall(batch)
        left = 64 * answer
        while left > 0:
            left -= len(peer.recv(262_144))
    return (requests // 64) * 64 / (time.perf_counter() - begun)


def _bandwidth(path: str, rounds: int) -> float:
    best = 0.0
    into = memoryview(bytearray(16 * 1024 * 1024))
    with Client(path) as client:
        for _ in range(rounds + 1):
            begun = time.perf_counter()
            reader = client.open_bulk(
                "fetch_log_segment", api.FetchParams(b"r", 4096, 4096 + len(into) - 1), 30
            )
            left = into
            while left:
                left = left[reader.readinto(left) :]
            reader.close()
            best = max(best, len(into) / (time.perf_counter() - begun) / 1e9)
    return best


def _lookup(number: int) -> bytes:
    params = api.EpochOffsetParams(api.Partition.of(ORDERS), 5, number)
    return frames.request_frame(100, "remote_log_segment_metadata", params)


def _get(number: int) -> bytes:
    key = b"k%03d" % number
    return b"*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n" % (len(key), key)


def _say_hello(peer: socket.socket) -> socket.socket:
    peer.sendall(frames.request_frame(1, "hello", api.HelloParams(1, "bench", "operator")))
    peer.recv(65_536)
    return peer


def _fill(peer: socket.socket) -> socket.socket:
    for number in range(KEYS):
        key = b"k%03d" % number
        peer.sendall(b"*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$300\r\n%s\r\n" % (len(key), key, VALUE))
        peer.recv(64)
    return peer


def _wait(path: str) -> socket.socket:
    until = time.monotonic() + 20
    while True:
        peer = socket.socket(socket.AF_UNIX)
        try:
            peer.connect(path)
        except OSError:
            peer.close()
            if time.monotonic() > until:
                raise
            time.sleep(0.02)
        else:
            return peer


def _start_redis(binary: str, path: str) -> subprocess.Popen[bytes]:
    options = ["--port", "0", "--unixsocket", path, "--save", "", "--appendonly", "no"]
    return subprocess.Popen([binary, *options], stdout=subprocess.DEVNULL)


def _start_ours(path: str, log: str) -> subprocess.Popen[bytes]:
    Path(log).write_bytes(os.urandom(32 * 1024 * 1024))
    return subprocess.Popen(
        [sys.executable, "-m", "tests.benchmarks.lookup", "serve", path, log],
        stdout=subprocess.DEVNULL,
    )


async def _serve(path: str, log: str) -> None:
    from tests.unit.socket.fakes import FakeBulk, daemon  # noqa: PLC0415 - the serving side only

    values = {(5, number): VALUE for number in range(KEYS)}
    by_partition = {ORDERS: values}
    async with daemon(path) as it:
        manager = it.manager

        def look(tp, epoch, offset, _caller):
            return by_partition[tp].get((epoch, offset))

        manager.remote_log_segment_metadata = look  # type: ignore[method-assign]  # a plain dict
        it.fetcher.make = lambda start, end: FakeBulk(
            length=end + 1 - start, file=(os.open(log, os.O_RDONLY), start)
        )
        await it.serving


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        import uvloop

        uvloop.run(_serve(*sys.argv[2:]))
    else:
        for row in run():
            sys.stdout.write(f"{row.what:32} {row.value:12.2f} {row.unit:5} {row.ratio or ''}\n")
