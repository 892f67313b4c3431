"""How fast a partition goes: the cleaner beside the same server's bare DeleteObjects.

python -m tests.benchmarks.cleaner --segments 100000

Both delete the keys of six objects a segment from the same real S3 server (SeaweedFS), in turn; of
these the `.log` is there. The bare rate is taken over at most 10,000 segments, since
it is the same over any number. Look-ups of another partition go on at a fixed rate meanwhile.
"""

# ruff: noqa: T201  # a command line prints

import argparse
import asyncio
import gc
import hashlib
import hmac
import http.client
import os
import random
import resource
import statistics
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvloop

from deploy.dev.stack.s3 import IDENTITIES, S3Server, running
from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.adapters.passes.in_threads import InThreads
from rlmm_daemon.adapters.storage.s3 import S3Options, S3Storage, StaticKeys
from rlmm_daemon.codec import custom_metadata, records
from rlmm_daemon.core.partitioner import metadata_partition
from rlmm_daemon.core.storage.layout import SUFFIXES, Layout, object_key
from rlmm_daemon.daemon.base.caller import Caller
from rlmm_daemon.daemon.bucket.bucket import Bucket
from rlmm_daemon.daemon.bucket.live_marker import BucketIdentity
from rlmm_daemon.daemon.cleaner.cleaner import Cleaner
from rlmm_daemon.daemon.cleaner.options import CleanerOptions
from rlmm_daemon.daemon.cleaner.peers import NoPeers
from rlmm_daemon.daemon.cleaner.proof import AnnouncedProof
from rlmm_daemon.daemon.copying.copier import Copier
from rlmm_daemon.daemon.copying.copy_job import CopyOptions
from rlmm_daemon.daemon.metadata.manager import Manager
from rlmm_daemon.domain.ids import (
    BrokerId,
    LeaderEpoch,
    MetadataPartition,
    Offset,
    SegmentId,
    TopicId,
    TopicIdPartition,
)
from rlmm_daemon.domain.partition_delete import PartitionDelete, PartitionDeleteState
from rlmm_daemon.domain.secret import Secret
from rlmm_daemon.domain.segment import SegmentMetadata, SegmentState, SegmentUpdate
from rlmm_daemon.embed import open_manager

COUNT = 50
PUTS_AT_ONCE = 16
PRESENT = (".log",)
LOOKUPS_PER_SECOND = 500
#: Of the memory before, at most: it is flat.
FLAT = 1.1
BARE_MAX = 10_000
BROKER = BrokerId(1)
GONE = TopicIdPartition(TopicId(b"g" * 16), "gone", 0)
BARE = TopicIdPartition(TopicId(b"b" * 16), "bare", 0)
KEPT = next(
    tp
    for n in range(100)
    if metadata_partition(
        (tp := TopicIdPartition(TopicId(b"k" * 16), "kept", n)).topic_id, n, COUNT
    )
    != metadata_partition(GONE.topic_id, 0, COUNT)
)


def segment_of(partition: TopicIdPartition, number: int) -> SegmentMetadata:
    return SegmentMetadata(
        partition=partition,
        segment_id=SegmentId(number.to_bytes(16, "big")),
        start_offset=Offset(number * 100),
        end_offset=Offset(number * 100 + 99),
        broker_id=BROKER,
        max_timestamp_ms=1,
        event_timestamp_ms=1,
        segment_leader_epochs={LeaderEpoch(0): Offset(number * 100)},
        segment_size_bytes=1000,
    )


def keys_of(partition: TopicIdPartition, number: int, suffixes: Sequence[str]) -> list[str]:
    segment = segment_of(partition, number)
    return [
        object_key(Layout(), partition, segment.start_offset, segment.segment_id, suffix=suffix)
        for suffix in suffixes
    ]


async def put_all(server: S3Server, bucket: str, count: int) -> None:
    """Put small objects for both partitions."""
    counts = {GONE: count, BARE: min(count, BARE_MAX)}
    keys = iter(
        key for at, most in counts.items() for n in range(most) for key in keys_of(at, n, PRESENT)
    )
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(PUTS_AT_ONCE) as pool:
        jobs = [
            loop.run_in_executor(pool, _put, server, bucket, hand)
            for hand in _dealt(keys, PUTS_AT_ONCE)
        ]
        for job in jobs:
            await job


def _dealt(keys: Any, hands: int) -> list[list[str]]:
    dealt: list[list[str]] = [[] for _ in range(hands)]
    for index, key in enumerate(keys):
        dealt[index % hands].append(key)
    return dealt


def _put(server: S3Server, bucket: str, keys: list[str]) -> None:
    """Put tiny objects, signed by hand: an SDK would take longer than the server."""
    host = f"127.0.0.1:{server.port}"
    key_id, secret, _ = IDENTITIES["admin"]
    connection = http.client.HTTPConnection(host)
    for key in keys:
        path = f"/{bucket}/{urllib.parse.quote(key)}"
        connection.request("PUT", path, b"x", _signed(host, path, key_id, secret))
        answer = connection.getresponse()
        answer.read()
        assert answer.status == http.HTTPStatus.OK, answer.status
    connection.close()


def _signed(host: str, path: str, key_id: str, secret: str) -> dict[str, str]:
    """Return the headers of a PUT whose body is not signed (AWS Signature Version 4)."""
    at = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    scope = f"{at[:8]}/us-east-1/s3/aws4_request"
    headers = {"host": host, "x-amz-content-sha256": "UNSIGNED-PAYLOAD", "x-amz-date": at}
    names = ";".join(headers)
    lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
    request = f"PUT\n{path}\n\n{lines}\n{names}\nUNSIGNED-PAYLOAD"
    digest = hashlib.sha256(request.encode()).hexdigest()
    signing_key = f"AWS4{secret}".encode()
    for part in scope.split("/"):
        signing_key = hmac.digest(signing_key, part.encode(), "sha256")
    text = f"AWS4-HMAC-SHA256\n{at}\n{scope}\n{digest}"
    signature = hmac.digest(signing_key, text.encode(), "sha256").hex()
    credential = f"Credential={key_id}/{scope}, SignedHeaders={names}, Signature={signature}"
    return {**headers, "Authorization": f"AWS4-HMAC-SHA256 {credential}"}


async def bare_rate(storage: S3Storage, count: int, parallelism: int) -> float:
    """Return segments per second of nothing but DeleteObjects, as many at once as the cleaner."""
    numbers = iter(range(0, count, 200))

    async def work() -> None:
        for first in numbers:
            keys = [
                key
                for n in range(first, min(first + 200, count))
                for key in keys_of(BARE, n, SUFFIXES)
            ]
            assert not any((await storage.delete(keys)).values())

    begun = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(parallelism):
            tasks.create_task(work())
    return count / (time.perf_counter() - begun)


class Lookups:
    """Look-ups at a fixed rate; a late one counts from when it was due."""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        self.seconds: list[float] = []

    async def run(self) -> None:
        due = time.perf_counter()
        while True:
            due += 1 / LOOKUPS_PER_SECOND
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            found = self._manager.lookups.remote_log_segment_metadata(KEPT, 0, 50, Caller.OPERATOR)
            assert found is not None
            self.seconds.append(time.perf_counter() - due)

    def p99_ms(self) -> float:
        taken, self.seconds = self.seconds, []
        return 1000 * statistics.quantiles(taken, n=100)[98] if len(taken) > 100 else 0.0


async def stock(manager: Manager, partition: TopicIdPartition, count: int) -> None:
    custom = custom_metadata.encode(
        custom_metadata.StoredFacts(layout_number=1, log_crc32c=0, sizes={".index": 1})
    )

    async def one(number: int) -> None:
        segment = segment_of(partition, number)
        await manager.events.add(records.encode(segment), Caller.OPERATOR)
        update = SegmentUpdate(
            partition=partition,
            segment_id=segment.segment_id,
            broker_id=BROKER,
            event_timestamp_ms=1,
            custom_metadata=custom,
            state=SegmentState.COPY_SEGMENT_FINISHED,
        )
        await manager.events.update(records.encode(update), Caller.OPERATOR)

    for first in range(0, count, 1000):
        async with asyncio.TaskGroup() as tasks:
            for number in range(first, min(first + 1000, count)):
                tasks.create_task(one(number))


class Memory:
    """What is resident, before and at most: our own, and mapped files (libraries, snapshots)."""

    def __init__(self) -> None:
        self._before = self._most = self._now()

    def look(self) -> None:
        now = self._now()
        self._most = max(self._most[0], now[0]), max(self._most[1], now[1])

    def show(self) -> bool:
        """Print both; whether our own was flat. The kernel may take mapped pages back."""
        (own, mapped), (own_most, mapped_most) = self._before, self._most
        flat = own_most <= FLAT * own
        print(
            f"own memory           {own:10.0f} MiB before, {own_most:.0f} MiB at most   "
            f"{own_most / own:.2f} x before (budget <= {FLAT:.2f}){_verdict(flat)}"
        )
        print(f"mapped files         {mapped:10.0f} MiB before, {mapped_most:.0f} MiB at most")
        return flat

    @staticmethod
    def _now() -> tuple[float, float]:
        _, resident, shared = map(int, Path("/proc/self/statm").read_text().split()[:3])
        mib = resource.getpagesize() / 2**20
        return (resident - shared) * mib, shared * mib


@contextmanager
def log_directory() -> Iterator[str]:
    """A directory like a broker's own, without a partition."""
    with tempfile.TemporaryDirectory(prefix="rlmm-bench-") as home:
        Path(home, "meta.properties").write_text("version=1\n")
        yield home


def _verdict(met: bool) -> str:  # noqa: FBT001 - one thing to say
    return "" if met else ", missed"


async def measure(server: S3Server, count: int, parallelism: int, *, wait: bool) -> bool:
    admin = server.admin()
    bucket = f"b-{os.urandom(6).hex()}"
    admin.create_bucket(Bucket=bucket)
    begun = time.perf_counter()
    await put_all(server, bucket, count)
    print(f"put the objects in {time.perf_counter() - begun:.0f} s", flush=True)
    if wait:
        print("Enter goes on", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    key, secret, _ = IDENTITIES["daemon"]
    storage = S3Storage(
        S3Options(
            bucket=bucket,
            endpoint=f"http://127.0.0.1:{server.port}",
            addressing="path",
            static_keys=lambda: StaticKeys(
                access_key_id=Secret(key), secret_access_key=Secret(secret)
            ),
        ),
        owner="1",
        rng=random.Random(1),
    )
    with log_directory() as home:
        async with (
            open_manager(home, partition_count=COUNT) as opened,
            asyncio.TaskGroup() as group,
        ):
            manager = opened.manager
            await stock(manager, KEPT, 1)
            await stock(manager, GONE, count)
            chosen = Bucket(storage, layout=Layout(), rng=random.Random(1))
            await chosen.open(
                BucketIdentity(cluster_id="embedded", partition_count=COUNT, metadata_topic_id="m")
            )
            manager.replace_assignment([KEPT], [])
            await manager.lookups.until_readable(KEPT, Caller.OPERATOR, 30.0)
            gc.collect()
            gc.freeze()
            lookups = Lookups(manager)
            running_lookups = group.create_task(lookups.run())
            await asyncio.sleep(5)
            idle = lookups.p99_ms()
            bare = await bare_rate(storage, min(count, BARE_MAX), parallelism)
            bare_busy = lookups.p99_ms()
            copier = Copier(
                chosen,
                manager.events,
                group,
                options=CopyOptions(),
                log_dirs=[],
                broker_id=BROKER,
                now_ms=SystemClock().now_ms,
                passes=InThreads(),
            )
            cleaner = Cleaner(
                manager=manager,
                bucket=chosen,
                copier=copier,
                proof=AnnouncedProof(manager.assignment, manager.state.disk, [home]),
                peers=NoPeers(BROKER),
                owned=lambda: frozenset(map(MetadataPartition, range(COUNT))),
                options=CleanerOptions(parallelism=parallelism, jvm_peers=False),
                broker_id=BROKER,
                clock=SystemClock(),
                rng=random.Random(2),
            )
            cleaning = group.create_task(cleaner.run())
            mark = PartitionDelete(
                partition=GONE,
                broker_id=BROKER,
                event_timestamp_ms=1,
                state=PartitionDeleteState.DELETE_PARTITION_MARKED,
            )
            memory = Memory()
            begun = time.perf_counter()
            await manager.events.put_partition_delete(records.encode(mark), Caller.OPERATOR)
            while cleaner.notes.deleted["partition_removed"] < count:
                await asyncio.sleep(0.05)
                memory.look()
            rate = count / (time.perf_counter() - begun)
            busy = lookups.p99_ms()
            for task in (cleaning, running_lookups):
                task.cancel()
    await storage.close()
    left = admin.list_objects_v2(Bucket=bucket, Prefix="gone-").get("KeyCount", 0)
    assert not left, "objects are left"
    print(f"bare DeleteObjects   {bare:10,.0f} segments/s")
    fast, quick = rate >= 0.8 * bare, busy <= 2 * idle
    print(
        f"cleaner              {rate:10,.0f} segments/s   {rate / bare:.2f} of it (budget >= 0.80)"
        f"{_verdict(fast)}"
    )
    print(f"look-up p99 idle     {idle:10.2f} ms")
    print(f"look-up p99 bare     {bare_busy:10.2f} ms   {bare_busy / idle:.1f} x idle")
    print(
        f"look-up p99 cleaning {busy:10.2f} ms   {busy / idle:.1f} x idle (budget <= 2)"
        f"{_verdict(quick)}"
    )
    return memory.show() and fast and quick


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.cleaner")
    parser.add_argument("--segments", type=int, default=100_000)
    parser.add_argument("--parallelism", type=int, default=CleanerOptions().parallelism)
    parser.add_argument("--wait", action="store_true", help="for Enter, once all is stocked")
    chosen = parser.parse_args(arguments)
    with running() as server, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        met = runner.run(measure(server, chosen.segments, chosen.parallelism, wait=chosen.wait))
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
