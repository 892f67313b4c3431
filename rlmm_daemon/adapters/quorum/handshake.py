"""Handshake of a connection, on either side: the raw stream, and who is at its other end.

Without one, anybody who reaches the port may vote and acknowledge, so that the plain one is for
loopback only.
"""

import asyncio
from typing import Final, Protocol

import msgspec

from rlmm_daemon.codec.kraft.headers import SIZE
from rlmm_daemon.core.raft.inputs import Peer
from rlmm_daemon.core.raft.voters import Endpoint
from rlmm_daemon.domain.errors import ConfigError, Malformed

_LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})


class Stream(msgspec.Struct, frozen=True):
    """A connection whose other end has proved who it is."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    peer: Peer = Peer()

    async def frame(self, bytes_max: int) -> bytes:
        """Return the next frame without its size.

        Raises:
            EOFError: the other end left.
            Malformed: it is larger than that.
        """
        (size,) = SIZE.unpack(await self.reader.readexactly(SIZE.size))
        if not 0 <= size <= bytes_max:
            raise Malformed(f"a frame of {size} bytes: {bytes_max} are the most")
        return await self.reader.readexactly(size)


class Acceptor(Protocol):
    """The listener's side."""

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Stream:
        """Return the stream, once the other end has proved who it is.

        Raises:
            Malformed: it did not.
        """


class Dialer(Protocol):
    """The other side."""

    async def dial(self, endpoint: Endpoint) -> Stream:
        """Connect, and prove who this is.

        Raises:
            OSError: nobody is there.
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
        if not self._insecure and host not in _LOOPBACK:
            raise ConfigError(
                f"{host} is not on loopback, and nobody would prove who they are: "
                "set up TLS for the quorum, or say quorum.insecure = true"
            )

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Stream:
        """Take whoever came."""
        return Stream(reader, writer)

    async def dial(self, endpoint: Endpoint) -> Stream:
        """Connect."""
        self.check(endpoint.host)
        reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
        return Stream(reader, writer)
