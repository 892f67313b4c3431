"""An HTTP proxy in front of an S3 server that fails on purpose, call by call.

It forwards the path and the Host header as they are, because both are signed; so it also serves as
a forward proxy, and with a certificate as a TLS endpoint. A `Fault` says which
operation it meets, how often, and what happens; faults are planted and lifted while it runs.
"""  # noqa: INP001 - a script's part, no package

import asyncio
import collections
import contextlib
import enum
import re
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

import aiohttp
from aiohttp import web
from yarl import URL

CHUNK_BYTES: Final = 64 * 1024
SEEN_MAX: Final = 1_000
#: Headers of one connection only, or that aiohttp makes anew.
_OWN_HEADERS: Final = frozenset({"connection", "keep-alive", "transfer-encoding", "expect"})
_ERROR_BODY: Final = (
    '<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code>'
    "<Message>planted</Message><Resource>/</Resource><RequestId>0</RequestId></Error>"
)


class Kind(enum.Enum):
    """What happens to a call."""

    #: Answer `status` with `code`, unless `status` is 200: then only the body is an error. Or with
    #: `body`.
    ANSWER = enum.auto()
    #: Forward after `seconds`.
    LATENCY = enum.auto()
    #: At most `rate` bytes per second in each direction.
    BANDWIDTH = enum.auto()
    #: Reset the connection without reading on.
    RESET = enum.auto()
    #: Take the request and say nothing, until lifted.
    BLACK_HOLE = enum.auto()
    #: Reset after `after` bytes of the request's body.
    CUT_REQUEST = enum.auto()
    #: Reset after `after` bytes of the answer's body.
    CUT_ANSWER = enum.auto()
    #: Close in order after `after` bytes, though the length said more.
    SHORT_ANSWER = enum.auto()
    #: Forward, and reset in place of the answer.
    LOSE_ANSWER = enum.auto()
    #: Change one byte of the request's body on its way.
    DAMAGE_REQUEST = enum.auto()
    #: Change the first byte of the answer's body on its way.
    DAMAGE_ANSWER = enum.auto()
    #: Report another checksum than the object's.
    WRONG_CHECKSUM = enum.auto()
    #: Report another ETag than the object's.
    OTHER_ETAG = enum.auto()
    #: Send the answer's body in pieces of `after` (1024) bytes with `seconds` between.
    TRICKLE = enum.auto()
    #: Send the answer in chunks, without its length.
    NO_LENGTH = enum.auto()


@dataclass(slots=True, kw_only=True)
class Fault:
    """One planted fault. `times` None: until it is lifted."""

    kind: Kind
    #: S3's name of the operation, a regular expression.
    operation: str = ".*"
    #: Of the key, a regular expression that is searched for.
    key: str = ""
    times: int | None = None
    #: Calls that pass before the first is met.
    skip: int = 0
    status: int = 500
    code: str = "InternalError"
    body: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    rate: int = 0
    after: int = 0
    hits: int = 0

    def meets(self, operation: str, path: str) -> bool:
        """Return whether this call is met, and count it."""
        if self.times == 0 or not re.fullmatch(self.operation, operation):
            return False
        if not re.search(self.key, path):
            return False
        if self.skip:
            self.skip -= 1
            return False
        if self.times is not None:
            self.times -= 1
        self.hits += 1
        return True


class FaultProxy:
    """Listens on the loopback while it is entered, on a free port where none is given."""

    def __init__(
        self, target_port: int, *, port: int = 0, tls: ssl.SSLContext | None = None
    ) -> None:
        self._target = f"http://127.0.0.1:{target_port}"
        self._tls = tls
        self.faults: list[Fault] = []
        #: Operation and headers of the newest calls.
        self.seen: collections.deque[tuple[str, Mapping[str, str]]] = collections.deque(
            maxlen=SEEN_MAX
        )
        #: Operation -> calls that came in.
        self.calls: collections.Counter[str] = collections.Counter()
        #: Calls whose body waits for `100 Continue`.
        self.hesitant = 0
        self.open_requests = 0
        self.port = port
        self._lifted = asyncio.Event()
        self._stack = contextlib.AsyncExitStack()
        self._session: aiohttp.ClientSession | None = None

    @property
    def endpoint(self) -> str:
        """Its URL."""
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    def plant(self, fault: Fault) -> Fault:
        """Let a fault meet what comes from now on; the first planted wins."""
        self.faults.append(fault)
        return fault

    def lift(self) -> None:
        """Remove all faults and let go what a black hole holds."""
        self.faults.clear()
        self._lifted.set()
        self._lifted = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._session = await self._stack.enter_async_context(
            aiohttp.ClientSession(
                auto_decompress=False,
                timeout=aiohttp.ClientTimeout(total=None),
                skip_auto_headers=("Content-Type", "User-Agent", "Accept", "Accept-Encoding"),
            )
        )
        runner = web.ServerRunner(
            web.Server(self._handle, access_log=None), handler_cancellation=True, shutdown_timeout=1
        )
        await runner.setup()
        self._stack.push_async_callback(runner.cleanup)
        # A port that was given may be held by a socket that does not listen, and is so kept for us.
        site = web.TCPSite(
            runner,
            "127.0.0.1",
            self.port,
            ssl_context=self._tls,
            reuse_port=True if self.port else None,
        )
        await site.start()
        self.port = runner.addresses[0][1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.lift()
        await self._stack.aclose()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        operation = operation_of(request)
        self.calls[operation] += 1
        self.seen.append((operation, request.headers))
        self.hesitant += "Expect" in request.headers
        self.open_requests += 1
        try:
            fault = next(
                (each for each in self.faults if each.meets(operation, request.path)), None
            )
            if fault is None:
                return await self._forward(request, None)
            return await self._fail(request, fault)
        except ConnectionResetError:
            return web.Response()  # the client has left
        finally:
            self.open_requests -= 1

    async def _fail(self, request: web.BaseRequest, fault: Fault) -> web.StreamResponse:
        match fault.kind:
            case Kind.ANSWER:
                async for _ in request.content.iter_chunked(CHUNK_BYTES):
                    pass  # read() would refuse what is large
                return web.Response(
                    status=fault.status,
                    headers=fault.headers,
                    body=b"" if request.method == "HEAD" else _body_of(fault),
                    content_type="application/xml",
                )
            case Kind.RESET:
                return _reset(request)
            case Kind.BLACK_HOLE:
                await self._lifted.wait()
                return _reset(request)
            case Kind.LATENCY:
                await asyncio.sleep(fault.seconds)
                return await self._forward(request, None)
            case _:
                return await self._forward(request, fault)

    async def _forward(self, request: web.BaseRequest, fault: Fault | None) -> web.StreamResponse:
        assert self._session is not None, "entered"
        kind = fault.kind if fault else None
        headers = {
            name: value
            for name, value in request.headers.items()
            if name.lower() not in _OWN_HEADERS
        }
        async with contextlib.AsyncExitStack() as stack:
            try:
                answer = await stack.enter_async_context(
                    self._session.request(
                        request.method,
                        URL(self._target + _path_of(request), encoded=True),
                        headers=headers,
                        data=_body(request, fault) if request.can_read_body else None,
                        allow_redirects=False,
                    )
                )
            except (aiohttp.ClientError, _CutError, OSError):
                return _reset(request)
            if kind is Kind.LOSE_ANSWER:
                await answer.read()
                return _reset(request)
            return await _answer(request, answer, fault)


class _CutError(Exception):
    """The request's body ends here."""


def _path_of(request: web.BaseRequest) -> str:
    """Return path and query as sent; what asks us as its proxy puts the host in front."""
    return re.sub(r"^https?://[^/]+", "", request.raw_path)


def operation_of(request: web.BaseRequest) -> str:  # noqa: PLR0911 - a table
    """Return S3's name of the operation, from method and query."""
    query = request.query
    match request.method:
        case "HEAD":
            return "HeadObject"
        case "PUT":
            return "UploadPart" if "partNumber" in query else "PutObject"
        case "POST" if "uploads" in query:
            return "CreateMultipartUpload"
        case "POST" if "uploadId" in query:
            return "CompleteMultipartUpload"
        case "POST":
            return "DeleteObjects"
        case "DELETE":
            return "AbortMultipartUpload" if "uploadId" in query else "DeleteObject"
        case _ if "list-type" in query:
            return "ListObjectsV2"
        case _ if "uploads" in query:
            return "ListMultipartUploads"
        case _ if "uploadId" in query:
            return "ListParts"
        case _:
            return "GetObject"


def _body_of(fault: Fault) -> bytes:
    return _ERROR_BODY.format(code=fault.code).encode() if fault.body is None else fault.body


def _reset(request: web.BaseRequest) -> web.StreamResponse:
    """Answer with a TCP reset."""
    transport = request.transport
    if transport is not None:
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()
    return web.Response()


async def _body(request: web.BaseRequest, fault: Fault | None) -> AsyncIterator[bytes]:
    sent = 0
    async for chunk in request.content.iter_chunked(CHUNK_BYTES):
        if fault and fault.kind is Kind.CUT_REQUEST and sent + len(chunk) > fault.after:
            raise _CutError
        if fault and fault.kind is Kind.DAMAGE_REQUEST and not sent:
            chunk = _damaged(chunk)  # noqa: PLW2901 - this is the damage
        if fault and fault.kind is Kind.BANDWIDTH:
            await asyncio.sleep(len(chunk) / fault.rate)
        sent += len(chunk)
        yield chunk


def _damaged(chunk: bytes) -> bytes:
    return bytes([chunk[0] ^ 1]) + chunk[1:]


def _head(answer: aiohttp.ClientResponse, kind: Kind | None) -> web.StreamResponse:
    response = web.StreamResponse(status=answer.status, reason=answer.reason)
    for name, value in answer.headers.items():
        if name.lower() not in _OWN_HEADERS:
            response.headers.add(name, value)
    if kind is Kind.WRONG_CHECKSUM and "x-amz-checksum-crc32c" in answer.headers:
        response.headers["x-amz-checksum-crc32c"] = "AAAAAA=="
    if kind is Kind.NO_LENGTH:
        response.headers.pop("Content-Length", None)
    if kind is Kind.OTHER_ETAG:
        response.headers["ETag"] = '"0123456789abcdef0123456789abcdef"'
    return response


async def _answer(
    request: web.BaseRequest, answer: aiohttp.ClientResponse, fault: Fault | None
) -> web.StreamResponse:
    kind = fault.kind if fault else None
    response = _head(answer, kind)
    await response.prepare(request)
    sent = 0
    size = fault.after or 1024 if fault and kind is Kind.TRICKLE else CHUNK_BYTES
    async for chunk in answer.content.iter_chunked(size):
        if fault is not None and kind in {Kind.CUT_ANSWER, Kind.SHORT_ANSWER}:
            await response.write(chunk[: fault.after - sent])
            if sent + len(chunk) >= fault.after:
                return _close(request, response, kind)
        else:
            if fault is not None and kind is Kind.TRICKLE:
                await asyncio.sleep(fault.seconds)
            if fault is not None and kind is Kind.BANDWIDTH:
                await asyncio.sleep(len(chunk) / fault.rate)
            damage = kind is Kind.DAMAGE_ANSWER and not sent
            await response.write(_damaged(chunk) if damage else chunk)
        sent += len(chunk)
    await response.write_eof()
    return response


def _close(
    request: web.BaseRequest, response: web.StreamResponse, kind: Kind
) -> web.StreamResponse:
    if kind is Kind.CUT_ANSWER:
        return _reset(request)
    if request.transport is not None:
        request.transport.close()
    return response
