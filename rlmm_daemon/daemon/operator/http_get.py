"""A small HTTP server for GET and HEAD: one request a connection, everything bounded.

Whoever says half a request, reads half an answer or opens too many connections costs a few bytes
for a few seconds.
"""

import asyncio
import ipaddress
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from http import HTTPStatus
from typing import Any, Final, cast
from urllib.parse import parse_qsl

import msgspec

#: Request line and headers; a scraper sends a few hundred bytes.
HEAD_BYTES_MAX: Final = 16 * 1024
HEAD_SECONDS: Final = 5.0
#: From the answer's first byte to its last.
ANSWER_SECONDS: Final = 30.0
CONNECTIONS_MAX: Final = 64
#: Answers that take turns of the loop; more of them wait.
SLOW_AT_ONCE: Final = 4
FIELDS_MAX: Final = 8
_END: Final = b"\r\n\r\n"
#: A page runs its own scripts and no others, asks nobody else, and lies in no other's frame.
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_GUARDS: Final = (
    f"Content-Security-Policy: {_POLICY}\r\n"
    "X-Content-Type-Options: nosniff\r\n"
    "Referrer-Policy: no-referrer\r\n"
    "Cross-Origin-Resource-Policy: same-origin\r\n"
    "Cross-Origin-Opener-Policy: same-origin\r\n"
    "Cache-Control: no-store\r\n"
)

#: What follows a question mark.
Query = Mapping[str, str]
Spawn = Callable[[Coroutine[Any, Any, None], str], "asyncio.Task[None]"]


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """One answer."""

    body: bytes
    content_type: str
    status: int = 200


class HttpGet(msgspec.Struct):
    """Makes the protocols of all connections; `pages` says what each path answers."""

    pages: Mapping[str, Callable[[], Page]]
    #: Told of an exception in one of them.
    on_bug: Callable[[Exception], object]
    head_seconds: float = HEAD_SECONDS
    answer_seconds: float = ANSWER_SECONDS
    connections_max: int = CONNECTIONS_MAX
    open: "set[_Connection]" = msgspec.field(default_factory=set)
    #: Paths whose answers take turns. They are for a browser: only under a name that is known.
    slow: Mapping[str, Callable[[Query], Awaitable[Page]]] = {}
    #: Host names under which those are asked for, besides addresses.
    names: frozenset[str] = frozenset()
    #: Starts a task; without it there are no slow answers.
    spawn: Spawn | None = None
    turns: asyncio.Semaphore = msgspec.field(
        default_factory=lambda: asyncio.Semaphore(SLOW_AT_ONCE)
    )

    def __call__(self) -> "_Connection":
        """Return the protocol of one more connection."""
        return _Connection(self)

    def close(self) -> None:
        """End every connection, answered or not."""
        for connection in tuple(self.open):
            connection.abort()

    def answer(self, head: bytes) -> bytes:
        """Return the whole answer to a request."""
        method, path = _request(head)
        if method not in ("GET", "HEAD"):
            return _framed(_plain(HTTPStatus.METHOD_NOT_ALLOWED if method else BAD), method)
        page = self.pages.get(path)
        if page is None:
            return _framed(_plain(HTTPStatus.NOT_FOUND), method)
        try:
            return _framed(page(), method)
        except Exception as bug:  # noqa: BLE001 - it ends this request, and nothing else
            self.on_bug(bug)
            return _framed(_plain(HTTPStatus.INTERNAL_SERVER_ERROR), method)

    def is_slow(self, head: bytes) -> bool:
        """Whether a request is to be answered by `answer_slowly`."""
        method, path = _request(head)
        return self.spawn is not None and method in ("GET", "HEAD") and path in self.slow

    async def answer_slowly(self, head: bytes) -> bytes:
        """Return the whole answer to a request, when others had theirs."""
        method, path = _request(head)
        if not is_known_host(_host(head), self.names):
            return _framed(_plain(HTTPStatus.MISDIRECTED_REQUEST), method)
        try:
            query = dict(parse_qsl(_query(head), max_num_fields=FIELDS_MAX))
        except ValueError:
            return _framed(_plain(BAD), method)
        try:
            async with self.turns:
                return _framed(await self.slow[path](query), method)
        except Exception as bug:  # noqa: BLE001 - it ends this request, and nothing else
            self.on_bug(bug)
            return _framed(_plain(HTTPStatus.INTERNAL_SERVER_ERROR), method)


def is_known_host(host: str | None, names: frozenset[str]) -> bool:
    """Whether a browser that sent this Host header asked for us, not for a name led to us.

    A foreign page can have its own name resolved to 127.0.0.1, and then is of "our" origin.
    """
    if host is None:
        return False
    name = host.rpartition("]")[0].lstrip("[") if host.startswith("[") else host.partition(":")[0]
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name.lower().rstrip(".") in names
    return True


BAD: Final = HTTPStatus.BAD_REQUEST


class _Connection(asyncio.Protocol):
    def __init__(self, server: HttpGet) -> None:
        self._server = server
        self._head = b""
        self._answered = False
        self._transport: asyncio.Transport
        self._patience: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if len(self._server.open) >= self._server.connections_max:
            self._end(_framed(_plain(HTTPStatus.SERVICE_UNAVAILABLE), "GET"))
            return
        self._server.open.add(self)
        self._wait(self._server.head_seconds)

    def data_received(self, data: bytes) -> None:
        if self._answered:
            return  # a body, or one more request: the connection is closed after the first
        self._head += data
        if _END in self._head:
            if self._server.is_slow(self._head):
                self._begin(self._head)
            else:
                self._end(self._server.answer(self._head))
        elif len(self._head) > HEAD_BYTES_MAX:
            self._end(_framed(_plain(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE), "GET"))

    def connection_lost(self, _error: Exception | None) -> None:
        self._server.open.discard(self)
        if self._patience is not None:
            self._patience.cancel()
        if self._task is not None:
            self._task.cancel()

    def abort(self) -> None:
        self._transport.abort()

    def _begin(self, head: bytes) -> None:
        self._answered, self._head = True, b""
        self._wait(self._server.answer_seconds)
        assert self._server.spawn is not None, "else nothing is slow"
        work = self._reply(head)
        try:
            self._task = self._server.spawn(work, "admin answer")
        except RuntimeError:  # the task group is ending
            work.close()
            self._end(_framed(_plain(HTTPStatus.SERVICE_UNAVAILABLE), "GET"))

    async def _reply(self, head: bytes) -> None:
        self._end(await self._server.answer_slowly(head))

    def _end(self, answer: bytes) -> None:
        self._answered, self._head = True, b""
        self._wait(self._server.answer_seconds)
        self._transport.write(answer)
        self._transport.close()

    def _wait(self, seconds: float) -> None:
        if self._patience is not None:
            self._patience.cancel()
        self._patience = asyncio.get_running_loop().call_later(seconds, self.abort)


def _host(head: bytes) -> str | None:
    lines = head.partition(_END)[0].split(b"\r\n")[1:]
    found = [line[5:].strip() for line in lines if line[:5].lower() == b"host:"]
    return found[0].decode("latin-1") if len(found) == 1 else None


def _query(head: bytes) -> str:
    return head.split(b" ", 2)[1].partition(b"?")[2].decode("latin-1")


def _request(head: bytes) -> tuple[str, str]:
    """Return method and path; nothing for what is no request line."""
    words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
    if len(words) != len(("GET", "/", "HTTP/1.1")) or not words[2].startswith("HTTP/1."):
        return "", ""
    return words[0], words[1].partition("?")[0]


def _plain(status: HTTPStatus) -> Page:
    return Page(body=f"{status.phrase}\n".encode(), content_type="text/plain", status=status)


def _framed(page: Page, method: str) -> bytes:
    head = (
        f"HTTP/1.1 {page.status} {HTTPStatus(page.status).phrase}\r\n"
        f"Content-Type: {page.content_type}\r\n"
        f"Content-Length: {len(page.body)}\r\n"
        f"{_GUARDS}"
        "Connection: close\r\n\r\n"
    ).encode("latin-1")
    return head if method == "HEAD" else head + page.body
