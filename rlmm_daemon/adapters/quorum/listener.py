"""The listener of a quorum: accepts replicas and operators, and answers one request at a time each.

A connection that sends nonsense, or nothing for too long, ends; no other one notices. Newcomers are
counted apart from those whose first request came, so that nobody who only connects can keep
replicas out: where too many are there, the oldest newcomer makes room, or whoever is idle longest.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeAlias

import msgspec
import structlog

from rlmm_daemon.adapters.quorum.handshake import Acceptor, Stream
from rlmm_daemon.adapters.quorum.rare_log import RareLog
from rlmm_daemon.codec.kraft import apis, headers
from rlmm_daemon.codec.kraft.headers import RequestHead, Unspoken
from rlmm_daemon.codec.kraft.schema import Message
from rlmm_daemon.core.raft.inputs import Peer
from rlmm_daemon.core.raft.messages import Code
from rlmm_daemon.domain.errors import Malformed, RlmmError

_BACKLOG: Final = 128
#: Where no connection can be taken (no file descriptors are left), it is tried again.
_PAUSE_SECONDS: Final = 0.1

_SUBMIT: Final = apis.SUBMIT.key.to_bytes(2, "big")

#: What answers a request.
Handle: TypeAlias = Callable[[RequestHead, Peer], Awaitable[Message]]

_log = structlog.get_logger(__name__)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Of one listener."""

    #: Connections whose first request came.
    connections: int = 256
    #: Connections whose first request did not come yet.
    newcomers: int = 128
    #: From its start to its first request, with its handshake.
    first_request_seconds: float = 10.0
    #: Between an answer and the next request.
    idle_seconds: float = 600.0
    #: From a request's first byte to its last one.
    request_seconds: float = 30.0
    #: Until an answer is read.
    answer_seconds: float = 30.0
    #: Of one request that is no Submit.
    request_bytes: int = 1 << 16
    #: Of one Submit, which only a replica may send.
    submit_bytes: int = headers.FRAME_BYTES_MAX
    #: Of all Submits that are on their way.
    submits_bytes: int = 8 * headers.FRAME_BYTES_MAX


class Listener:
    """One listening socket."""

    def __init__(self, acceptor: Acceptor, limits: Limits = Limits()) -> None:  # noqa: B008 - frozen
        self._acceptor = acceptor
        self._limits = limits
        self._handle: Handle | None = None
        self._socket: socket.socket | None = None
        #: It is tried again then.
        self._paused: asyncio.TimerHandle | None = None
        #: All of them.
        self._connections: set[asyncio.Task[None]] = set()
        #: Those without a first request, and those without a request now; the oldest first.
        self._newcomers: dict[asyncio.Task[None], None] = {}
        self._idle: dict[asyncio.Task[None], None] = {}
        #: Of the Submits that are on their way.
        self._large_bytes = 0
        self._refusals = RareLog(_log)

    def bind(self, host: str, port: int) -> int:
        """Take the address; return the port, which 0 leaves to the kernel.

        Raises:
            ConfigError: nobody would prove there who they are.
            OSError: it can't be had.
        """
        self._acceptor.check(host)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        self._socket.setblocking(False)  # noqa: FBT003 - its only form
        bound: int = self._socket.getsockname()[1]
        return bound

    async def serve(self, handle: Handle) -> None:
        """Accept and answer from now on."""
        self._handle = handle
        self._accept_again()

    async def close(self) -> None:
        """Accept no more, and end what is connected."""
        self._stop_accepting()
        if self._paused is not None:
            self._paused.cancel()
        for task in self._connections:
            task.cancel()
        if self._connections:
            await asyncio.wait(self._connections)
        if self._socket is not None:
            self._socket.close()

    def _accept_again(self) -> None:
        assert self._socket is not None, "an address is taken first"
        self._paused = None
        asyncio.get_running_loop().add_reader(self._socket, self._accept, self._socket)

    def _stop_accepting(self) -> None:
        if self._socket is not None and self._handle is not None:
            asyncio.get_running_loop().remove_reader(self._socket)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_BACKLOG):
            try:
                connection, _ = listening.accept()
            except BlockingIOError:
                return
            except OSError as error:
                self._refusals.warning("a quorum's listener can't accept", error=str(error))
                self._stop_accepting()
                loop = asyncio.get_running_loop()
                self._paused = loop.call_later(_PAUSE_SECONDS, self._accept_again)
                return
            self._take(connection)

    def _take(self, connection: socket.socket) -> None:
        connection.setblocking(False)  # noqa: FBT003 - its only form
        if len(self._newcomers) >= self._limits.newcomers:
            self._end_oldest(self._newcomers)
        task = asyncio.get_running_loop().create_task(self._connected(connection))
        self._connections.add(task)
        self._newcomers[task] = None
        task.add_done_callback(partial(self._ended, connection))

    def _ended(self, connection: socket.socket, task: asyncio.Task[None]) -> None:
        """Forget a connection, also one that was cancelled before its first step."""
        self._connections.discard(task)
        self._newcomers.pop(task, None)
        self._idle.pop(task, None)
        connection.close()

    def _end_oldest(self, tasks: dict[asyncio.Task[None], None]) -> None:
        oldest = next(iter(tasks))
        del tasks[oldest]
        oldest.cancel()

    async def _connected(self, connection: socket.socket) -> None:
        task = asyncio.current_task()
        assert task is not None
        peer = _name(connection)
        stream = None
        try:
            async with asyncio.timeout(self._limits.first_request_seconds):
                stream = await self._acceptor.accept(connection)
                frame = await stream.frame(self._limits.request_bytes)
            del self._newcomers[task]
            if self._has_room():
                await self._serve(task, stream, frame)
        except (ssl.SSLError, RlmmError) as error:
            self._refusals.warning("a quorum connection is closed", peer=peer, error=_said(error))
        except (OSError, EOFError, TimeoutError):
            pass  # it left, or is silent
        except asyncio.CancelledError:
            pass  # it is this listener's own end, or somebody else takes its place
        except Exception:  # noqa: BLE001 - nobody else is to notice
            _log.exception("a quorum connection met a defect, and is closed", peer=peer)
        finally:
            if stream is not None:
                stream.abort()

    def _has_room(self) -> bool:
        """Whether one more may be served; whoever is idle longest goes for it."""
        if len(self._connections) - len(self._newcomers) <= self._limits.connections:
            return True
        if not self._idle:
            return False
        self._end_oldest(self._idle)
        return True

    async def _serve(self, task: asyncio.Task[None], stream: Stream, frame: bytes) -> None:
        while True:
            await self._answer(stream, frame)
            if (patience := self._patience(stream)) <= 0:
                return  # who it is has to be proven anew
            self._idle[task] = None
            async with asyncio.timeout(patience):
                size = await stream.size()
            self._idle.pop(task, None)
            async with asyncio.timeout(self._limits.request_seconds):
                frame = await self._request(stream, size)

    def _patience(self, stream: Stream) -> float:
        """Return for how long the next request may be waited for: no longer than the proof."""
        if stream.until is None:
            return self._limits.idle_seconds
        rest = stream.until - asyncio.get_running_loop().time()
        return min(self._limits.idle_seconds, rest)

    async def _request(self, stream: Stream, size: int) -> bytes:
        """Return a request behind its size; a large one only as far as there is memory for it."""
        limits = self._limits
        if size <= limits.request_bytes:
            return await stream.rest(size, limits.request_bytes)
        key = await stream.reader.readexactly(len(_SUBMIT))
        if key != _SUBMIT or not stream.peer.may_vote:
            raise Malformed(f"a frame of {size} bytes: {limits.request_bytes} are the most")
        if self._large_bytes + size > limits.submits_bytes:
            raise Malformed(f"{self._large_bytes} bytes of other Submits are on their way")
        self._large_bytes += size
        try:
            return key + await stream.rest(size - len(key), limits.submit_bytes - len(key))
        finally:
            self._large_bytes -= size

    async def _answer(self, stream: Stream, frame: bytes) -> None:
        try:
            head = headers.read_request(frame)
        except Unspoken as unspoken:
            if unspoken.key != apis.API_VERSIONS.key:
                raise
            # Everybody can read the oldest form of this answer, and begins anew with it.
            refusal = spoken_here() | {"ErrorCode": Code.UNSUPPORTED_VERSION}
            body = apis.API_VERSIONS.pack_answer(0, refusal)
            packed = headers.pack_answer(apis.API_VERSIONS, 0, unspoken.correlation, body)
        else:
            assert self._handle is not None, "nobody is connected before it serves"
            message = await self._handle(head, stream.peer)
            body = head.api.pack_answer(head.version, message)
            packed = headers.pack_answer(head.api, head.version, head.correlation, body)
        stream.writer.write(packed)
        async with asyncio.timeout(self._limits.answer_seconds):
            await stream.writer.drain()


def spoken_here() -> Message:
    """Return what ApiVersions answers."""
    return {
        "ApiKeys": tuple(
            {"ApiKey": each.key, "MinVersion": each.first, "MaxVersion": each.last}
            for each in apis.APIS.values()
        ),
        "SupportedFeatures": ({"Name": "kraft.version", "MinVersion": 0, "MaxVersion": 1},),
    }


def _name(connection: socket.socket) -> str:
    with contextlib.suppress(OSError, IndexError, TypeError):
        host, port = connection.getpeername()[:2]
        return f"{host}:{port}"
    return "?"


def _said(error: Exception) -> str:
    if isinstance(error, RlmmError):
        return error.message
    return str(error)
