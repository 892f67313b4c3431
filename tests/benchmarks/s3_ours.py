"""One measured piece of our work on S3, in a process of its own; the same form as `s3_peer`.

The upload is `put_segment`; the download and the ranges are the daemon's read path, chunk cache on
the disk included where the job says so.
"""

import asyncio
import json
import os
import random
import resource
import sys
import time
from contextlib import aclosing, nullcontext
from pathlib import Path
from typing import Any, Final

import uvloop

from rlmm_daemon.adapters.os.disk import LocalDisk
from rlmm_daemon.adapters.storage.s3 import S3Options, S3Storage, StaticKeys
from rlmm_daemon.daemon.base.services import FileSlice
from rlmm_daemon.daemon.reading.chunk_cache import ChunkCacheOptions
from rlmm_daemon.daemon.reading.chunk_fill import RemoteLog
from rlmm_daemon.daemon.reading.chunk_index import ObjectId
from rlmm_daemon.daemon.reading.read_ahead import ReadOptions, Reads
from rlmm_daemon.daemon.reading.read_caches import ReadCacheOptions, ReadCaches
from rlmm_daemon.domain.ids import SegmentId
from rlmm_daemon.domain.secret import Secret
from rlmm_daemon.observability import logging
from rlmm_daemon.observability.metrics import Metrics
from rlmm_daemon.ports.sources import FileSource
from rlmm_daemon.ports.storage import ObjectKind, Progress
from tests.benchmarks.sampling import Sampler

MIB: Final = 1024 * 1024
#: Segments copied at once, as `copy.parallelism`.
AT_ONCE: Final = 4
Job = dict[str, Any]


def storage_of(job: Job) -> S3Storage:
    keys = StaticKeys(access_key_id=Secret(job["key"]), secret_access_key=Secret(job["secret"]))
    options = S3Options(
        bucket=job["bucket"],
        endpoint=job["endpoint"],
        addressing="path",
        static_keys=lambda: keys,
        transport=job.get("transport", "obstore"),
    )
    # No daemon's start: what earlier runs left is nobody's business here.
    return S3Storage(options, owner="bench", rng=random.Random(1), sweeps=False)


async def upload(storage: S3Storage, job: Job) -> None:
    turns = asyncio.Semaphore(AT_ONCE)

    async def one(path: str, key: str) -> None:
        async with turns:
            source = FileSource(os.open(path, os.O_RDONLY), path)
            try:
                await storage.put_segment([(ObjectKind.LOG, key, source)], progress=Progress())
            finally:
                source.close()

    async with asyncio.TaskGroup() as group:
        for path, key in job["files"]:
            group.create_task(one(path, key))


class NoLog:
    """What the caches need of a manager: somebody to be told of deletes by."""

    def __init__(self) -> None:
        self.on_delete_started: list[Any] = []


def caches_of(job: Job, group: asyncio.TaskGroup) -> ReadCaches:
    directory = job.get("cache")
    chunks = None
    if directory:
        chunks = ChunkCacheOptions(directory=directory, bytes_max=4096 * MIB)
    return ReadCaches(
        ReadCacheOptions(reads=ReadOptions(), chunks=chunks),
        NoLog(),  # type: ignore[arg-type]  # no more is asked of it
        disk=LocalDisk(),
        spawn=lambda work, name: group.create_task(work, name=name),
        rng=random.Random(1),
        metrics=Metrics().reads,
        monotonic=time.monotonic,
    )


def remote(storage: S3Storage, key: str, size: int) -> RemoteLog:
    segment_id = SegmentId(key.encode()[-16:].rjust(16, b"\0"))
    return RemoteLog(ObjectId(segment_id, "aa"), key, size, storage)


async def pour(reads: Reads, log: RemoteLog, start: int, end: int, file: int) -> int:
    """Write a range to a file, where the broker would have a socket."""
    got = 0
    async with aclosing(reads.read(log, start, end, bounded=True)) as pieces:
        async for piece in pieces:
            if isinstance(piece, FileSlice):
                got += os.sendfile(file, piece.descriptor, piece.start, piece.length)
            else:
                got += os.write(file, piece)
    return got


async def download(storage: S3Storage, job: Job, caches: ReadCaches) -> None:
    turns = asyncio.Semaphore(AT_ONCE)

    async def one(path: str, key: str, like: str) -> None:
        async with turns:
            size = os.stat(like).st_size  # noqa: PTH116 - one call
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            try:
                assert await pour(caches.reads, remote(storage, key, size), 0, size, file) == size
            finally:
                os.close(file)

    async with asyncio.TaskGroup() as group:
        for row in job["files"]:
            group.create_task(one(*row))


async def ranges(storage: S3Storage, job: Job, caches: ReadCaches) -> float:
    """Return the p50; the same ranges first when the job says `warm`."""
    log = remote(storage, job["object"], job["size"])
    p50 = 0.0
    for _ in range(2 if job.get("warm") else 1):
        taken = []
        for start in job["starts"]:
            begun = time.perf_counter()
            async with aclosing(caches.reads.read(log, start, start + MIB, bounded=True)) as found:
                pieces = [
                    os.pread(piece.descriptor, piece.length, piece.start)
                    if isinstance(piece, FileSlice)
                    else piece
                    async for piece in found
                ]
            assert len(b"".join(pieces)) == MIB
            taken.append(time.perf_counter() - begun)
        p50 = sorted(taken)[len(taken) // 2]
        while caches.reads.in_flight:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
    return p50


def forget_peak() -> float:
    """Begin a new peak of resident memory; return what is resident, in MiB."""
    with Path("/proc/self/clear_refs").open("w") as file:
        file.write("5")
    return _status("VmRSS")


def peak_mib() -> float:
    return _status("VmHWM")


def _status(name: str) -> float:
    with Path("/proc/self/status").open() as file:
        rows = dict(line.split(":", 1) for line in file)
    return int(rows[name].split()[0]) / 1024


def sampled(job: Job) -> Sampler | nullcontext[None]:
    """Sample this thread if the job says so."""
    return Sampler() if job.get("profile") else nullcontext()


def samples(sampler: Sampler | None) -> dict[str, Any]:
    """Return what is told of a sampled run beside its figures."""
    if sampler is None:
        return {}
    return {
        "loop": sampler.seconds, "sampler": sampler.own_seconds, "samples": sampler.by_function(),
    }  # fmt: skip


async def connect(storage: S3Storage, job: Job) -> None:
    """Have the client of reads made before the work is measured, as the peers have theirs."""
    match job["work"]:
        case "upload":
            return
        case "download":
            key = job["files"][0][1]
        case _:
            key = job["object"]
    async with aclosing(storage.fetch(key, 0, 1)) as pieces:
        assert [piece async for piece in pieces]


async def work(job: Job) -> dict[str, Any]:
    storage = storage_of(job)
    await storage.open()
    await connect(storage, job)
    async with asyncio.TaskGroup() as group:
        caches = caches_of(job, group)
        keeping = group.create_task(caches.run())
        if caches.chunks is not None:
            while not caches.chunks.writable:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.01)
        resident = forget_peak()
        before = resource.getrusage(resource.RUSAGE_SELF)
        begun, p50 = time.perf_counter(), None
        with sampled(job) as sampler:
            match job["work"]:
                case "upload":
                    await upload(storage, job)
                case "download":
                    await download(storage, job, caches)
                case _:
                    p50 = await ranges(storage, job, caches)
        seconds = time.perf_counter() - begun
        after = resource.getrusage(resource.RUSAGE_SELF)
        keeping.cancel()
    await storage.close()
    return {
        "seconds": seconds,
        "cpu": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "system": after.ru_stime - before.ru_stime,
        "extra_mib": peak_mib() - resident,
        "p50": p50,
    } | samples(sampler)


def main() -> None:
    logging.configure(level="warning", style="json")
    sys.stdout.write(json.dumps(uvloop.run(work(json.loads(sys.argv[1])))))


if __name__ == "__main__":
    main()
