"""A daemon process whose segments lie in a real S3, with the fault proxy in front of it."""

import asyncio
import threading
import uuid
from pathlib import Path
from typing import Any, Final, Self

from deploy.dev.stack.fault_proxy import Fault, FaultProxy
from deploy.dev.stack.s3 import IDENTITIES, S3Server
from rlmm_daemon.domain.ids import SegmentId, uuid_text

TEMPLATE: Final = """
[daemon]
broker_id = 1
cluster_id = "rlmm-demo-cluster"
state_dir = "var/state"
log_dirs = ["var/kafka-logs"]
[socket]
path = "var/rlmm.sock"
[event_log]
kind = "embedded"
single_broker = true
[storage]
kind = "s3"
bucket = "{bucket}"
prefix = "{prefix}"
endpoint = "{endpoint}"
addressing = "path"
access_key_id_file = "s3.key"
secret_access_key_file = "s3.secret"
{parts}
read_timeout_ms = 10000
[read]
cache_free_bytes_min = 0
[admin]
listen = "127.0.0.1:0"
"""
#: So that a test's segment has several.
SMALL_PARTS: Final = "multipart_threshold_bytes = 5242880\npart_size_bytes = 5242880"


class ProxyThread:
    """The fault proxy in an event loop of its own, for callers that block."""

    def __init__(self, server: S3Server) -> None:
        self._server = server
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self.proxy = FaultProxy(server.port)

    @property
    def endpoint(self) -> str:
        return self.proxy.endpoint

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(30), "the proxy did not come up"
        return self

    def __exit__(self, *_: object) -> None:
        assert self._loop is not None
        assert self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)

    def plant(self, fault: Fault) -> Fault:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self.proxy.plant, fault)
        return fault

    def lift(self) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self.proxy.lift)

    async def _run(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with self.proxy:
            self._ready.set()
            await self._stop.wait()


class Tier:
    """A bucket of its own, looked at past the daemon."""

    def __init__(self, server: S3Server) -> None:
        self.bucket = f"d-{uuid.uuid4().hex[:16]}"
        self.admin: Any = server.admin()
        self.admin.create_bucket(Bucket=self.bucket)

    def keys_there(self, segment_id: SegmentId | None = None) -> list[str]:
        """Return the keys that are there, of one segment or all."""
        pages = self.admin.get_paginator("list_objects_v2").paginate(Bucket=self.bucket)
        keys = [row["Key"] for page in pages for row in page.get("Contents", [])]
        wanted = "" if segment_id is None else uuid_text(segment_id)
        return [key for key in keys if wanted in key]

    def uploads(self) -> list[str]:
        """Return the keys of incomplete multipart uploads."""
        answer = self.admin.list_multipart_uploads(Bucket=self.bucket)
        return [row["Key"] for row in answer.get("Uploads", [])]


def configure(
    directory: Path, endpoint: str, bucket: str, prefix: str = "", *, parts: str = SMALL_PARTS
) -> Path:
    """Write a daemon's configuration and its keys; return the file."""
    key, secret, _ = IDENTITIES["daemon"]
    for name, value in (("s3.key", key), ("s3.secret", secret)):
        (directory / name).write_text(value)
    file = directory / "rlmm.toml"
    file.write_text(TEMPLATE.format(endpoint=endpoint, bucket=bucket, prefix=prefix, parts=parts))
    return file
