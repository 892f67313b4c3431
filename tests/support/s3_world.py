"""Real S3 for tests: one server per run, a bucket per test, the fault proxy in front of it."""

import asyncio
import contextlib
import functools
import importlib
import os
import random
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.dev.stack.fault_proxy import Fault, FaultProxy, Kind
from deploy.dev.stack.s3 import IDENTITIES, S3Server, running, weed_binary
from rlmm_daemon.adapters.storage.s3 import S3Options, S3Storage, StaticKeys
from rlmm_daemon.domain.secret import Secret

MIB = 1024 * 1024


def keys_of(identity: str) -> StaticKeys:
    key, secret, _ = IDENTITIES[identity]
    return StaticKeys(access_key_id=Secret(key), secret_access_key=Secret(secret))


#: For tests of reads: once through each; their `transport` fixture hands it to the world.
through_each = pytest.mark.parametrize("transport", ["aiobotocore", "obstore"], indirect=True)
#: Asked for by RLMM_TEST_S3=1 (`make test-s3`) they fail without a server; otherwise skipped.
needs_s3 = [
    pytest.mark.s3,
    # The first test of a run waits for the server too, perhaps on a busy machine.
    pytest.mark.timeout(240),
    pytest.mark.skipif(
        weed_binary() is None and not os.environ.get("RLMM_TEST_S3"),
        reason="no `weed` for this platform",
    ),
]


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    with running() as server:
        yield server


@pytest.fixture
def transport(request: pytest.FixtureRequest) -> str:
    """Return who makes the GETs: the default, unless the test is marked `through_each`."""
    chosen: str = getattr(request, "param", "obstore")
    if chosen == "obstore":
        _start_obstore()
    return chosen


@functools.cache
def _start_obstore() -> None:
    """Let its threads open the descriptors that the process then keeps."""
    obstore = importlib.import_module("obstore")
    store = importlib.import_module("obstore.store").MemoryStore()
    obstore.put(store, "a", b"1")


@functools.cache
def _admin(server: S3Server) -> Any:
    """Return one client for the whole run: making one takes a while."""
    return server.admin()


class S3World:
    """A bucket, and storages that reach it through the proxy."""

    def __init__(self, server: S3Server, *, transport: str = "obstore") -> None:
        self.server, self.transport = server, transport
        self.bucket = f"t-{uuid.uuid4().hex[:16]}"
        self.admin = _admin(server)
        self.admin.create_bucket(Bucket=self.bucket)
        self.proxy: FaultProxy | None = None
        self._stack = contextlib.AsyncExitStack()

    async def start_proxy(self) -> FaultProxy:
        if self.proxy is None:
            self.proxy = await self._stack.enter_async_context(FaultProxy(self.server.port))
        return self.proxy

    async def new(self, owner: str = "1", **options: Any) -> S3Storage:
        """Return a storage that was not opened."""
        proxy = await self.start_proxy()
        defaults: dict[str, Any] = {
            "bucket": self.bucket,
            "endpoint": proxy.endpoint,
            "addressing": "path",
            "transport": self.transport,
            "static_keys": lambda: keys_of("daemon"),
            "multipart_threshold_bytes": MIB,
            "part_size_bytes": 5 * MIB,
            "parts_in_flight_max": 2,
            "connect_timeout": 2.0,
            "read_timeout": 10.0,
            "call_timeout": 20.0,
        }
        storage = S3Storage(S3Options(**(defaults | options)), owner=owner, rng=random.Random(7))
        self._stack.push_async_callback(storage.close)
        return storage

    def quiet(self, storage: S3Storage) -> bool:
        """Return whether nothing of this storage is under way."""
        client = storage._client
        assert self.proxy is not None
        return not (client.writes.inside or client.reads.inside or self.proxy.open_requests)

    async def open(self, owner: str = "1", **options: Any) -> S3Storage:
        storage = await self.new(owner, **options)
        await storage.open()
        return storage

    def lose_the_root(self) -> None:
        for row in self.admin.list_objects_v2(Bucket=self.bucket).get("Contents", []):
            self.admin.delete_object(Bucket=self.bucket, Key=row["Key"])
        self.admin.delete_bucket(Bucket=self.bucket)

    def fill_up(self) -> None:
        assert self.proxy is not None
        writes = "PutObject|UploadPart|CreateMultipartUpload"
        self.proxy.plant(
            Fault(kind=Kind.ANSWER, operation=writes, status=507, code="InsufficientStorage")
        )

    def break_the_last_step(self) -> None:
        """Let no `.log` be described: what was stored can't be verified."""
        assert self.proxy is not None
        head = Fault(
            kind=Kind.ANSWER, operation="HeadObject", key=r"\.log$", status=503, code="SlowDown"
        )
        self.proxy.plant(head)

    def uploads_left(self) -> list[str]:
        """Return the keys of incomplete uploads, asked of the server itself."""
        answer = self.admin.list_multipart_uploads(Bucket=self.bucket)
        return [row["Key"] for row in answer.get("Uploads", [])]

    def keys_there(self) -> set[str]:
        """Return the keys of the bucket, asked of the server itself."""
        answer = self.admin.list_objects_v2(Bucket=self.bucket)
        return {row["Key"] for row in answer.get("Contents", [])}

    async def aclose(self) -> None:
        await self._stack.aclose()


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def until(condition: Any, *, seconds: float | None = None) -> None:
    """Wait for a condition; pytest's own timeout bounds it, if nothing else does."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - what is waited for tells nobody
            await asyncio.sleep(0.01)
