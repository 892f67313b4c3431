"""The peers of `scale`: the same records under the same keys in SQLite, LMDB and Redis."""

import os
import random
import shutil
import socket
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import lmdb

from tests.benchmarks import wire

Facts = dict[str, float]
LOOKUPS: Final = 20_000
REDIS_SECONDS: Final = 120.0
REDIS: Final = "Redis"
_AT_ONCE: Final = 500


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

    return _asked(look, begun, segments, per_partition) | {
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

    return _asked(look, begun, segments, per_partition) | {
        "snapshot_seconds": written,
        "snapshot_bytes": (path / "data.mdb").stat().st_blocks * 512 / segments,
    }


def redis(directory: Path, segments: int, per_partition: int) -> Facts:
    """Plain keys: what it would cost at least, as nothing finds the one below an offset."""
    with _redis(directory) as peer:
        before = _used(peer)
        rows = _rows(segments, per_partition)
        _commands(peer, (_command(b"SET", key, value) for key, value in rows))
        used = _used(peer) - before
        begun = time.perf_counter()
        assert _ask(peer, b"SAVE") == b"+OK\r\n", "written and synced"
        written = time.perf_counter() - begun
    numbers = numbers_of(segments, per_partition)
    begun = time.perf_counter()
    with _redis(directory) as peer:
        while not _ask(peer, b"GET", _key(*numbers[0])).startswith(b"$"):
            time.sleep(0.001)  # it says that it is loading
        answered = time.perf_counter() - begun
    return {
        "restart_ms": answered * 1000,
        "snapshot_seconds": written,
        "snapshot_bytes": (directory / "dump.rdb").stat().st_size / segments,
        "memory_bytes": used / segments,
    }


def numbers_of(segments: int, per_partition: int) -> list[tuple[int, int]]:
    """Return (partition, segment's number) of what is looked up."""
    luck, partitions = random.Random(1), max(1, segments // per_partition)
    each = segments // partitions
    return [(luck.randrange(partitions), luck.randrange(each)) for _ in range(LOOKUPS)]


def _asked(look: Callable[[bytes], object], begun: float, segments: int, each: int) -> Facts:
    numbers = numbers_of(segments, each)
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


@contextmanager
def _redis(directory: Path) -> Iterator[socket.socket]:
    """Run a server of its own on a Unix socket; what it saved there it loads."""
    binary = shutil.which("redis-server")
    assert binary is not None, "redis-server is not installed: apt-get install redis-server"
    path = str(directory / "redis.sock")
    options = ["--port", "0", "--unixsocket", path, "--dir", str(directory), "--save", ""]
    server = subprocess.Popen([binary, *options], stdout=subprocess.DEVNULL)
    try:
        with _connected(path) as peer:
            yield peer
    finally:
        server.kill()
        server.wait()
        Path(path).unlink(missing_ok=True)


def _connected(path: str) -> socket.socket:
    until = time.monotonic() + REDIS_SECONDS
    while True:
        try:
            return wire.connect(path)
        except OSError:
            assert time.monotonic() < until, "redis-server does not answer"
            time.sleep(0.001)


def _command(*words: bytes) -> bytes:
    parts = [b"*%d\r\n" % len(words)]
    parts += [b"$%d\r\n%b\r\n" % (len(word), word) for word in words]
    return b"".join(parts)


def _ask(peer: socket.socket, *words: bytes) -> bytes:
    peer.sendall(_command(*words))
    return peer.recv(65_536)


def _commands(peer: socket.socket, commands: Iterable[bytes]) -> None:
    waiting = list[bytes]()

    def flush() -> None:
        peer.sendall(b"".join(waiting))
        left = len(waiting) * len(b"+OK\r\n")
        while left > 0:
            left -= len(peer.recv(left))
        waiting.clear()

    for command in commands:
        waiting.append(command)
        if len(waiting) == _AT_ONCE:
            flush()
    flush()


def _used(peer: socket.socket) -> int:
    answer = _ask(peer, b"INFO", b"memory")
    return int(answer.partition(b"used_memory:")[2].partition(b"\r\n")[0])
