"""A durable write through the socket beside one fdatasync, SQLite and LMDB on the same disk."""

import itertools
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Final

import lmdb

from rlmm_daemon.codec import batches, records
from tests.benchmarks import daemon, wire
from tests.benchmarks.rows import Row, Scale, median
from tests.support.daemon_process import DaemonProcess

GROUP: Final = "durable write"
#: Makes one write durable; the numbers only ascend.
Write = Callable[[int], None]
_PREALLOCATED: Final = 64 * 1024 * 1024


def run(process: DaemonProcess, scale: Scale) -> list[Row]:
    """Return serial p50 beside three peers, and the rates with 64 in flight."""
    numbers = itertools.count()
    with ExitStack() as held:
        ours = held.enter_context(closing(daemon.broker(process.socket_path)))

        def frames(count: int) -> list[bytes]:
            return [daemon.add_frame(daemon.WRITTEN, next(numbers)) for _ in range(count)]

        peers: dict[str, Write] = {
            "fdatasync": held.enter_context(_fdatasync(process.directory)),
            "SQLite WAL FULL": held.enter_context(_sqlite(process.directory)),
            "LMDB sync": held.enter_context(_lmdb(process.directory)),
        }
        serial: dict[str, list[float]] = {name: [] for name in ("rlmm", *peers)}
        for _ in range(scale.rounds):
            serial["rlmm"].append(
                wire.serial_p50_us(ours, frames(scale.writes), wire.ACKNOWLEDGEMENT_BYTES_MAX)
            )
            for name, write in peers.items():
                serial[name].append(_p50_us(write, scale.writes))
        in_flight = [
            wire.sliding_per_second(ours, frames(scale.writes_in_flight // scale.rounds))
            for _ in range(scale.rounds)
        ]
    return _rows({name: median(values) for name, values in serial.items()}, median(in_flight))


def _rows(p50_us: dict[str, float], in_flight: float) -> list[Row]:
    ours = p50_us.pop("rlmm")
    rows = [
        Row(
            group=GROUP,
            what="durable write, serial p50",
            value=ours,
            unit="us",
            peer=name,
            peer_value=value,
            ratio=ours / value,
            at_most=2.0 if name == "fdatasync" else None,
        )
        for name, value in p50_us.items()
    ]
    serial = 1e6 / ours
    return [
        *rows,
        Row(
            group=GROUP,
            what="durable writes, 64 in flight",
            value=in_flight,
            unit="1/s",
            peer="serial",
            peer_value=serial,
            ratio=in_flight / serial,
            at_least=20.0,
        ),
    ]


def _p50_us(write: Write, count: int) -> float:
    taken = []
    for number in range(count):
        begun = time.perf_counter_ns()
        write(number)
        taken.append((time.perf_counter_ns() - begun) / 1000)
    return median(taken)


def _record() -> bytes:
    return records.encode(daemon.segment(daemon.WRITTEN, 0))


@contextmanager
def _fdatasync(directory: Path) -> Iterator[Write]:
    """One write of the very batch that the daemon writes, over zeros, and one fdatasync."""
    batch = batches.build([_record()], base_offset=0, leader_epoch=0, timestamp_ms=0)
    descriptor = os.open(directory / "peer.log", os.O_RDWR | os.O_CREAT, 0o644)
    os.pwrite(descriptor, bytes(_PREALLOCATED), 0)
    os.fsync(descriptor)
    ends = itertools.count(0, len(batch))

    def write(_: int) -> None:
        os.pwrite(descriptor, batch, next(ends))
        os.fdatasync(descriptor)

    yield write
    os.close(descriptor)


@contextmanager
def _sqlite(directory: Path) -> Iterator[Write]:
    value = _record()
    with closing(sqlite3.connect(directory / "peer.sqlite", isolation_level=None)) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        database.execute("CREATE TABLE event (id INTEGER PRIMARY KEY, value BLOB)")

        def write(_: int) -> None:
            database.execute("INSERT INTO event (value) VALUES (?)", (value,))

        yield write


@contextmanager
def _lmdb(directory: Path) -> Iterator[Write]:
    value, keys = _record(), itertools.count()
    with lmdb.open(str(directory / "peer.lmdb"), map_size=1 << 30) as database:

        def write(_: int) -> None:
            with database.begin(write=True) as transaction:
                transaction.put(next(keys).to_bytes(8, "big"), value, append=True)

        yield write
