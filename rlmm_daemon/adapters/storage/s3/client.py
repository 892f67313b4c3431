"""The aiobotocore client as we want it: one request per call, no surprise, every call bounded.

Traps of this stack, each closed here or at the rim (`retries`):
* `Expect: 100-continue` is waited for without any timeout: the header is dropped, and every attempt
  has a deadline of its own.
* aiohttp repeats an idempotent request by itself once: switched off, it would hide what happened.
* Payloads are hashed with SHA-256 over plain HTTP: switched off, each body has its CRC-32C instead.
* A 200 whose body is empty, or another one's page, is read as an empty listing and as a delete
  without failures: the body has to be what was asked for.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeVar
from urllib.parse import urlencode

import aiohttp
from aiobotocore.config import AioConfig
from aiobotocore.httpsession import AIOHTTPSession
from botocore.httpsession import get_cert_path

from rlmm_daemon import __version__
from rlmm_daemon.adapters.storage.s3.credentials import ReloadableCredentials, session_with
from rlmm_daemon.adapters.storage.s3.late_deletes import LateDeletes
from rlmm_daemon.adapters.storage.s3.options import S3Options
from rlmm_daemon.adapters.storage.s3.retries import Gate, Rim, S3Call
from rlmm_daemon.domain.errors import StorageUnavailable

#: S3 signs for a region even where there is none.
REGION_DEFAULT: Final = "us-east-1"
#: Operation -> what its answer's body is. Where these say nothing, all is well or nothing is there.
_ROOTS: Final = MappingProxyType(
    {
        "DeleteObjects": b"DeleteResult",
        "ListMultipartUploads": b"ListMultipartUploadsResult",
        "ListObjectsV2": b"ListBucketResult",
        "ListParts": b"ListPartsResult",
    }
)
#: Of a body, to find its root in: an XML declaration comes first.
_ROOT_WITHIN: Final = 512
_OK: Final = 200
_SERVER_ERROR: Final = 500
_NOT_IMPLEMENTED: Final = 501

T = TypeVar("T")


class OneRequestSession(AIOHTTPSession):  # type: ignore[misc]  # aiobotocore is not typed
    """aiobotocore's session over an aiohttp that never repeats a request by itself."""

    async def _get_session(self, proxy_url: str | None) -> aiohttp.ClientSession:
        session: aiohttp.ClientSession = await super()._get_session(proxy_url)
        assert hasattr(session, "_retry_connection"), "aiohttp has another switch by now"
        session._retry_connection = False  # noqa: SLF001 - aiohttp's own test tools set it too
        return session

    @property
    def authorities(self) -> str:
        """The file of those who are trusted: ours, the environment's, or the SDK's own."""
        file: str = get_cert_path(self._verify)
        return file

    def proxy_for(self, url: str) -> str | None:
        """Return the proxy through which an address is asked, the environment's perhaps."""
        proxy: str | None = self._proxy_config.proxy_url_for(url)
        return proxy


class Client:
    """One bucket's client: the calls, their gates, their common parameters."""

    def __init__(self, options: S3Options, rng: random.Random) -> None:
        self.options = options
        self.credentials = ReloadableCredentials(options)
        self.rim = Rim(
            bucket=options.bucket, rng=rng, credentials=self.credentials, now=time.monotonic
        )
        #: Apart, so that reads never stand behind copies.
        self.writes = Gate(options.writes_max)
        self.reads = Gate(options.reads_max)
        #: Answers that are being read: their calls have left the gate, their connections stay.
        self.streams = asyncio.Semaphore(options.reads_max)
        self.late_deletes = LateDeletes(time.monotonic)
        self._stack = contextlib.AsyncExitStack()
        self._lock = asyncio.Lock()
        self._s3: Any = None
        self._closed = False

    @property
    def s3(self) -> Any:
        """The botocore client, for `work` given to `call`."""
        assert self._s3 is not None, "connected by `call`"
        return self._s3

    @property
    def http(self) -> OneRequestSession:
        """What the botocore client asks through."""
        session = self.s3._endpoint.http_session  # noqa: SLF001 - nothing else tells
        assert isinstance(session, OneRequestSession), "we gave it the class"
        return session

    async def call(
        self,
        name: str,
        work: Callable[[], Awaitable[T]],
        *,
        gate: Gate | None = None,
        key: str = "",
        size: int = 0,
        attempts_max: int | None = None,
        on_uncertain: Callable[[], None] = lambda: None,
        on_attempt: Callable[[asyncio.Timeout], None] = lambda _: None,
    ) -> T:
        """Run `work` at the rim; `size` are the bytes it moves. Through `reads` unless told else.

        Raises:
            RlmmError: as `errors.judge` says.
        """
        await self._connected()
        call = S3Call(
            name=name,
            key=key,
            seconds=self.options.call_seconds(size),
            attempts_max=attempts_max or self.options.attempts_max,
            heavy=size > 0,
            on_uncertain=on_uncertain,
            on_attempt=on_attempt,
        )
        return await self.rim.run(call, gate or self.reads, work)

    def where(self, key: str | None = None) -> dict[str, Any]:
        """Return the parameters of every operation: bucket, owner, and the key if there is one."""
        found: dict[str, Any] = {"Bucket": self.options.bucket}
        if self.options.expected_bucket_owner:
            found["ExpectedBucketOwner"] = self.options.expected_bucket_owner
        if key is not None:
            found["Key"] = key
        return found

    def as_written(self) -> dict[str, Any]:
        """Return the parameters of every new object: encryption, class, tags."""
        options = self.options
        wanted = {
            "ServerSideEncryption": options.sse,
            "SSEKMSKeyId": options.sse_kms_key_id,
            "StorageClass": options.storage_class,
            "Tagging": _tagging(options.tags),
        }
        return {name: value for name, value in wanted.items() if value}

    async def close(self) -> None:
        """Close all connections; idempotent. Calls in flight fail."""
        self._closed = True
        async with self._lock:
            await self._stack.aclose()
            self._s3 = None

    async def _connected(self) -> None:
        if self._s3 is not None:
            return
        async with self._lock:
            if self._closed:
                raise StorageUnavailable("the storage is closed", reason="closed")
            if self._s3 is None:
                self._s3 = await self._stack.enter_async_context(self._new())

    def _new(self) -> Any:
        options = self.options
        config = AioConfig(
            connect_timeout=options.connect_timeout,
            read_timeout=options.read_timeout,
            max_pool_connections=options.writes_max + 2 * options.reads_max,
            retries={"total_max_attempts": 1, "mode": "standard"},
            # Building the usual one, and checking parameters that are our own, would be a third of
            # what a call costs.
            user_agent=f"rlmm-daemon/{__version__}",
            parameter_validation=False,
            disable_request_compression=True,
            # Computed by us: botocore's CRC-32C would need awscrt.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            s3={"payload_signing_enabled": False, "addressing_style": options.addressing},
            proxies={"http": options.proxy, "https": options.proxy} if options.proxy else None,
            http_session_cls=OneRequestSession,
            # Parsing S3's description would stop the loop for a quarter of a second.
            warm_up_loader_caches=True,
        )
        context = session_with(self.credentials).create_client(
            "s3",
            region_name=options.region or REGION_DEFAULT,
            endpoint_url=options.endpoint,
            verify=options.ca_file,
            config=config,
        )
        return _Hooked(context)


class _Hooked:
    """The client's context manager, with our handlers registered once it is there."""

    def __init__(self, context: Any) -> None:
        self._context = context

    async def __aenter__(self) -> Any:
        s3 = await self._context.__aenter__()
        s3.meta.events.register_last("before-call.s3", _drop_expect)
        for operation in _ROOTS:
            s3.meta.events.register(f"before-parse.s3.{operation}", _require_root)
        return s3

    async def __aexit__(self, *failure: object) -> None:
        await self._context.__aexit__(*failure)


def _drop_expect(params: dict[str, Any], **_: Any) -> None:
    params["headers"].pop("Expect", None)


def _require_root(operation_model: Any, response_dict: dict[str, Any], **_: Any) -> None:
    """Count a 200 with somebody else's body, or none, as the server's fault: it is tried again.

    Some servers have no word for a delete without failures: those are asked for each key alone.
    """
    name, body = operation_model.name, response_dict["body"] or b""
    if response_dict["status_code"] == _OK and _ROOTS[name] not in body[:_ROOT_WITHIN]:
        silent = name == "DeleteObjects" and not body
        response_dict["status_code"] = _NOT_IMPLEMENTED if silent else _SERVER_ERROR
        response_dict["body"] = b""


def _tagging(tags: Mapping[str, str]) -> str:
    return urlencode(dict(tags))
