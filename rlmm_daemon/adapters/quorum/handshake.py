"""Handshake of a connection, on either side: the raw stream, and who is at its other end.

Without one, anybody who reaches the port may vote and acknowledge, so that the plain one is for
loopback only.
"""

import asyncio
import contextlib
import ipaddress
import socket
import ssl
from typing import Final, Protocol

import msgspec

from rlmm_daemon.codec.kraft.headers import SIZE
from rlmm_daemon.core.raft.inputs import Peer
from rlmm_daemon.core.raft.voters import Endpoint
from rlmm_daemon.domain.errors import ConfigError, Malformed

#: What a stream reads ahead.
_BUFFER_BYTES: Final = 1 << 18
_PORT_MAX: Final = 0xFFFF
_HANDSHAKE_SECONDS: Final = 10.0


class Unproven(Malformed):
    """The other end did not prove that it is the one it has to be."""


class Stream(msgspec.Struct, frozen=True):
    """A connection whose other end has proved who it is."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    peer: Peer = Peer()
    #: By the loop's clock: from then on the proof does not hold. None: for as long as it is open.
    until: float | None = None

    async def frame(self, bytes_max: int) -> bytes:
        """Return the next frame without its size.

        Raises:
            EOFError: the other end left.
            Malformed: it is larger than that.
        """
        return await self.rest(await self.size(), bytes_max)

    async def size(self) -> int:
        """Return the size of the next frame; EOFError: the other end left."""
        size: int = SIZE.unpack(await self.reader.readexactly(SIZE.size))[0]
        return size

    async def rest(self, size: int, bytes_max: int) -> bytes:
        """Return the frame behind its size; errors as of `frame`."""
        if not 0 <= size <= bytes_max:
            raise Malformed(f"a frame of {size} bytes: {bytes_max} are the most")
        return await self.reader.readexactly(size)

    def abort(self) -> None:
        """End it at once: nobody waits until the other end has read what it was sent."""
        self.writer.transport.abort()


class Acceptor(Protocol):
    """The listener's side."""

    def check(self, host: str) -> None:
        """Refuse an address at which nobody would prove who they are.

        Raises:
            ConfigError: others than this machine could reach it.
        """

    async def accept(self, connection: socket.socket) -> Stream:
        """Return the stream, once the other end has proved who it is; the caller closes both.

        Raises:
            Unproven: it did not.
            OSError, EOFError: it left, or does not speak this.
        """


class Dialer(Protocol):
    """The other side."""

    async def dial(self, endpoint: Endpoint, expected: int | None = None) -> Stream:
        """Connect, prove who this is, and have the other end prove who it is.

        `expected` is the id of the replica that is meant; None: any replica of this quorum.

        Raises:
            OSError: nobody is there, or it does not take this one for what it says.
            Unproven: another one is there.
            ConfigError: it may not be connected to so.
        """


class Plain:
    """Nobody proves anything: everybody may vote and change the voters."""

    def __init__(self, *, insecure: bool = False) -> None:
        """`insecure` allows it beyond loopback."""
        self._insecure = insecure

    def check(self, host: str) -> None:
        """Refuse what others than this machine could reach.

        Raises:
            ConfigError: it is not on loopback.
        """
        if not self._insecure and not _is_loopback(host):
            raise ConfigError(
                f"{host or 'every address'} is not on loopback, and nobody would prove who they "
                "are: set up TLS for the quorum, or say quorum.insecure = true"
            )

    async def accept(self, connection: socket.socket) -> Stream:
        """Take whoever came."""
        return await accepted(connection)

    async def dial(self, endpoint: Endpoint, expected: int | None = None) -> Stream:  # noqa: ARG002 - nobody proves it
        """Connect."""
        self.check(endpoint.host)
        return await dialed(endpoint)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def accepted(
    connection: socket.socket,
    tls: ssl.SSLContext | None = None,
    *,
    seconds: float = _HANDSHAKE_SECONDS,
) -> Stream:
    """Return the stream of a connection that a listener took; with `tls`, its server's end.

    The caller closes the connection afterwards, whatever came of it.
    """
    reader = asyncio.StreamReader(limit=_BUFFER_BYTES)
    protocol = asyncio.StreamReaderProtocol(reader)
    loop = asyncio.get_running_loop()
    # Over a stream that exists, start_tls() would lose what came before it.
    opening = loop.create_task(
        loop.connect_accepted_socket(
            lambda: protocol,
            connection,
            ssl=tls,
            ssl_handshake_timeout=None if tls is None else seconds,
        )
    )
    try:
        transport, _ = await asyncio.shield(opening)
    except asyncio.CancelledError:
        # Cancelled before its first word, asyncio would leave the transport open and unknown.
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        await asyncio.wait({opening})
        if opening.exception() is None:
            opening.result()[0].abort()
        raise
    return Stream(reader, _writer(transport, protocol, reader))


async def dialed(
    endpoint: Endpoint, tls: ssl.SSLContext | None = None, *, seconds: float = _HANDSHAKE_SECONDS
) -> Stream:
    """Return a connection to an address; with `tls`, the client's end.

    Raises:
        Malformed: it is none, whoever told it.
        OSError: nobody is there.
    """
    no_address = Malformed(f"{endpoint.host[:200]!r}, port {endpoint.port} is no address")
    # uvloop cuts a name at a zero byte, and a port to sixteen bits.
    if not endpoint.host or "\0" in endpoint.host or not 0 < endpoint.port <= _PORT_MAX:
        raise no_address
    try:
        reader, writer = await asyncio.open_connection(
            endpoint.host,
            endpoint.port,
            limit=_BUFFER_BYTES,
            ssl=tls,
            ssl_handshake_timeout=None if tls is None else seconds,
        )
    except (ValueError, OverflowError) as error:  # a name that no resolver takes
        raise no_address from error
    return Stream(reader, writer)


def _writer(
    transport: asyncio.Transport,
    protocol: asyncio.StreamReaderProtocol,
    reader: asyncio.StreamReader,
) -> asyncio.StreamWriter:
    # drain() waits until all is sent, so that a slow reader costs one answer.
    transport.set_write_buffer_limits(high=1, low=0)
    return asyncio.StreamWriter(transport, protocol, reader, asyncio.get_running_loop())
