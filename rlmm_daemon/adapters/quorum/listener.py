"""The listener of a quorum: accepts replicas and operators, and answers one request at a time each.

A connection that sends nonsense, or nothing for too long, ends; no other one notices.
"""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

import structlog

from rlmm_daemon.adapters.quorum.handshake import Acceptor, Stream
from rlmm_daemon.codec.kraft import apis, headers
from rlmm_daemon.codec.kraft.headers import RequestHead, Unspoken
from rlmm_daemon.codec.kraft.schema import Message
from rlmm_daemon.core.raft.inputs import Peer
from rlmm_daemon.core.raft.messages import Code
from rlmm_daemon.domain.errors import Malformed

CONNECTIONS_MAX: Final = 256
_HANDSHAKE_SECONDS: Final = 10.0
_IDLE_SECONDS: Final = 600.0
#: Of requests: only a Submit is large.
_REQUEST_BYTES_MAX: Final = headers.FRAME_BYTES_MAX
_BUFFER_BYTES: Final = 1 << 20

#: What answers a request.
Handle: TypeAlias = Callable[[RequestHead, Peer], Awaitable[Message]]

_log = structlog.get_logger(__name__)


class Listener:
    """One listening socket."""

    def __init__(self, acceptor: Acceptor) -> None:
        self._acceptor = acceptor
        self._handle: Handle | None = None
        self._socket: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    def bind(self, host: str, port: int) -> int:
        """Take the address; return the port, which 0 leaves to the kernel.

        Raises:
            OSError: it can't be had.
        """
        self._socket = socket.create_server((host, port), backlog=CONNECTIONS_MAX)
        bound: int = self._socket.getsockname()[1]
        return bound

    async def serve(self, handle: Handle) -> None:
        """Accept and answer from now on."""
        assert self._socket is not None, "an address is taken first"
        self._handle = handle
        self._server = await asyncio.start_server(
            self._connected, sock=self._socket, limit=_BUFFER_BYTES
        )

    async def close(self) -> None:
        """Accept no more, and end what is connected."""
        if self._server is not None:
            self._server.close()
        elif self._socket is not None:
            self._socket.close()
        for task in self._connections:
            task.cancel()
        if self._connections:
            await asyncio.wait(self._connections)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            if len(self._connections) <= CONNECTIONS_MAX:
                await self._serve(reader, writer)
        except (OSError, EOFError, TimeoutError):
            pass  # it left, or is silent
        except Malformed as error:
            _log.warning("a quorum connection is closed", peer=_name(writer), error=error.message)
        except asyncio.CancelledError:
            pass  # it is this listener's own end
        except Exception:  # noqa: BLE001 - a bug ends its request, never the replica
            _log.exception("a quorum request ended by a bug", peer=_name(writer))
        finally:
            self._connections.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(_HANDSHAKE_SECONDS):
            stream = await self._acceptor.accept(reader, writer)
        while True:
            async with asyncio.timeout(_IDLE_SECONDS):
                frame = await stream.frame(_REQUEST_BYTES_MAX)
            await self._answer(stream, frame)

    async def _answer(self, stream: Stream, frame: bytes) -> None:
        try:
            head = headers.read_request(frame)
        except Unspoken as unspoken:
            if unspoken.key != apis.API_VERSIONS.key:
                raise
            # Everybody can read the oldest form of this answer, and begins anew with it.
            refusal = spoken_here() | {"ErrorCode": Code.UNSUPPORTED_VERSION}
            body = apis.API_VERSIONS.pack_answer(0, refusal)
            stream.writer.write(
                headers.pack_answer(apis.API_VERSIONS, 0, unspoken.correlation, body)
            )
        else:
            assert self._handle is not None, "nobody is connected before it serves"
            message = await self._handle(head, stream.peer)
            body = head.api.pack_answer(head.version, message)
            stream.writer.write(headers.pack_answer(head.api, head.version, head.correlation, body))
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


def _name(writer: asyncio.StreamWriter) -> str:
    with contextlib.suppress(OSError, IndexError, TypeError):
        host, port = writer.get_extra_info("peername")[:2]
        return f"{host}:{port}"
    return "?"
