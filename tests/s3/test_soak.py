"""The long tests: another server's opinion, and minutes of copies and reads under random faults."""

import asyncio
import contextlib
import hashlib
import os
import random
from collections.abc import Iterator
from typing import Any

import pytest
from crc32c import crc32c

from deploy.dev.stack.fault_proxy import Fault, Kind
from deploy.dev.stack.s3 import S3Server, running_versitygw, versitygw_binary
from rlmm_daemon.adapters.storage.s3 import S3Storage
from rlmm_daemon.domain.errors import RlmmError
from rlmm_daemon.ports.storage import ObjectKind, Progress
from tests.contract.storage import Buffer, StorageContract, read
from tests.support.s3_world import (
    MIB,
    S3World,
    keys_of,
    needs_s3,
    open_descriptors,
    s3_server,
    until,
)

pytestmark = [*needs_s3, pytest.mark.slow]
__all__ = ["s3_server"]
SECONDS = float(os.environ.get("RLMM_SOAK_SECONDS", "60"))
WRITERS = 3
#: Each is met by some call sooner or later; bounded, so that things go on.
FAULTS: list[dict[str, Any]] = [
    {"kind": Kind.RESET},
    {"kind": Kind.LATENCY, "seconds": 0.2},
    {"kind": Kind.CUT_REQUEST, "operation": "UploadPart|PutObject", "after": MIB},
    {"kind": Kind.CUT_ANSWER, "operation": "GetObject", "after": MIB},
    {"kind": Kind.SHORT_ANSWER, "operation": "GetObject", "after": 7},
    {"kind": Kind.LOSE_ANSWER},
    {"kind": Kind.DAMAGE_REQUEST, "operation": "UploadPart"},
    {"kind": Kind.WRONG_CHECKSUM, "operation": "HeadObject"},
    {"kind": Kind.OTHER_ETAG, "operation": "GetObject"},
    {"kind": Kind.ANSWER, "status": 500, "code": "InternalError"},
    {"kind": Kind.ANSWER, "status": 503, "code": "SlowDown"},
    {"kind": Kind.ANSWER, "status": 403, "code": "AccessDenied"},
    {"kind": Kind.ANSWER, "status": 200, "code": "InternalError", "operation": ".*Upload|.*Part"},
    {"kind": Kind.ANSWER, "status": 404, "code": "NoSuchUpload", "operation": "Complete.*"},
]


class VersityWorld(S3World):
    """versitygw knows the admin alone."""

    async def new(self, owner: str = "1", **options: Any) -> S3Storage:
        return await super().new(owner, **({"static_keys": lambda: keys_of("admin")} | options))


@pytest.fixture(scope="session")
def versitygw() -> Iterator[S3Server]:
    with running_versitygw() as server:
        yield server


@pytest.mark.skipif(versitygw_binary() is None, reason="no `versitygw`: see make soak-s3")
@pytest.mark.timeout(300)
class TestVersityGateway(StorageContract):
    @pytest.fixture
    async def harness(self, versitygw):
        world = VersityWorld(versitygw)
        yield world
        await world.aclose()


class Soak:
    """Writers copy and cancel, readers check whatever was called finished."""

    def __init__(self, world: S3World, storage: S3Storage) -> None:
        self.world, self.storage = world, storage
        self.luck = random.Random(11)
        #: Key of each `.log` whose copy was called finished -> its bytes.
        self.finished: dict[str, bytes] = {}
        self.failed: dict[str, int] = {}
        self.over = False

    async def trouble(self) -> None:
        assert self.world.proxy is not None
        while not self.over:
            await asyncio.sleep(self.luck.uniform(0.01, 0.3))
            chosen = self.luck.choice(FAULTS)
            self.world.proxy.plant(Fault(**chosen, times=1, skip=self.luck.randrange(3)))
            if self.luck.random() < 0.1:
                self.world.proxy.lift()

    async def write(self, writer: int) -> None:
        number = 0
        while not self.over:
            number += 1
            size = self.luck.choice([0, 1, 70_000, MIB, 6 * MIB, 11 * MIB])
            body = hashlib.shake_128(f"{writer} {number}".encode()).digest(size)
            prefix = f"soak-{writer}-AAAAAAAAAAAAAAAAAAAAAQ/{number:020d}-AAAAAAAAAAAAAAAAAAAAAg"
            rows = [
                (ObjectKind.OFFSET, f"{prefix}.index", Buffer(body[:100])),
                (ObjectKind.LOG, f"{prefix}.log", Buffer(body)),
            ]
            try:
                async with asyncio.timeout(self.luck.choice([0.3, 30, 30, 30])):
                    stored = await self.storage.put_segment(rows, progress=Progress())
            except (RlmmError, TimeoutError) as error:
                self.count(error)
            else:
                assert stored[-1].crc32c == crc32c(body)
                self.finished[f"{prefix}.log"] = body

    async def read(self) -> None:
        while not self.over:
            await asyncio.sleep(0.01)
            if not self.finished:
                continue
            key = self.luck.choice(list(self.finished))
            body = self.finished[key]
            start = self.luck.randrange(len(body) + 1)
            try:
                got = await read(self.storage, key, start, start + self.luck.randrange(4 * MIB))
            except RlmmError as error:
                self.count(error)
            else:
                assert body.startswith(got, start), key

    def count(self, error: BaseException) -> None:
        name = error.wire_name() if isinstance(error, RlmmError) else "cancelled"
        self.failed[name] = self.failed.get(name, 0) + 1


@pytest.mark.timeout(SECONDS + 240)
async def test_under_random_faults_what_is_called_finished_is_there_and_nothing_is_left(s3_server):
    world = S3World(s3_server)
    storage = await world.open(attempts_max=3)
    soak = Soak(world, storage)
    loop = asyncio.get_running_loop()
    descriptors = open_descriptors()
    async with asyncio.TaskGroup() as group:
        group.create_task(soak.trouble())
        group.create_task(soak.read())
        for writer in range(WRITERS):
            group.create_task(soak.write(writer))
        loop.call_later(SECONDS, lambda: setattr(soak, "over", True))
    assert world.proxy is not None
    world.proxy.lift()
    while storage.suspects:  # aborts what could not be aborted before, or arrives late
        with contextlib.suppress(RlmmError):
            await storage.open()
        await asyncio.sleep(0.2)
    await until(lambda: world.quiet(storage))
    for key, body in soak.finished.items():
        assert await read(storage, key) == body, key
    assert world.uploads_left() == []
    assert open_descriptors() <= descriptors + 2 * (16 + 2 * 32), "bounded by both ends' pools"
    calls = sum(world.proxy.calls.values())
    print(f"{len(soak.finished)} copies finished, {soak.failed} failed, {calls} calls")  # noqa: T201 - for the soak's reader
    assert soak.finished
    await world.aclose()
