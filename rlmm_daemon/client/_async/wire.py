"""Unix socket of the async client: every wait ends at a deadline of the event loop's clock."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self, cast

from rlmm_daemon.client import _common as common
from rlmm_daemon.domain.errors import DaemonUnreachable

sleep = asyncio.sleep


def now() -> float:
    """Return the seconds of the clock that deadlines are told by."""
    return asyncio.get_running_loop().time()


def until(deadline: float) -> asyncio.Timeout:
    """Return a context that ends with TimeoutError at a deadline."""
    return asyncio.timeout_at(None if deadline == common.FOREVER else deadline)


class AsyncWire:
    """Bytes in and out, read by one task at a time; a lost connection is an OSError."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.socket = common.unix_socket()
        self.socket.settimeout(0)
        self.close = self.socket.close

    async def connect(self, path: str, deadline: float) -> None:
        """Connect."""
        async with until(deadline):
            await self._loop.sock_connect(self.socket, path)

    async def send(self, data: bytes, deadline: float) -> None:
        """Send all."""
        async with until(deadline):
            await self._loop.sock_sendall(self.socket, data)

    async def receive(self, size: int, deadline: float) -> bytes:
        """Return what is there, at most `size` bytes; none at the connection's end."""
        async with until(deadline):
            return await self._loop.sock_recv(self.socket, size)

    async def receive_into(self, target: memoryview, deadline: float) -> int:
        """Fill a buffer as far as bytes are there; 0 at the connection's end."""
        async with until(deadline):
            return await self._loop.sock_recv_into(self.socket, cast("bytearray", target))


class AsyncTurn:
    """One task connects while the others that want to wait for it; in one event loop at a time."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def is_elsewhere(self) -> bool:
        """Whether this is another event loop than before: nobody reads what comes in that one.

        Raises:
            RuntimeError: that one is not closed.
        """
        if self._loop is (loop := asyncio.get_running_loop()):
            return False
        if self._loop is not None and not self._loop.is_closed():
            raise RuntimeError("this client is in use in another event loop")
        self._loop, self._lock = loop, asyncio.Lock()
        return True

    @asynccontextmanager
    async def before(self, deadline: float) -> AsyncIterator[None]:
        """Wait for the turn.

        Raises:
            DaemonUnreachable: it did not come in time.
        """
        try:
            async with until(deadline):
                await self._lock.acquire()
        except TimeoutError as error:
            raise DaemonUnreachable("another call still connects to the daemon") from error
        try:
            yield
        finally:
            self._lock.release()


class AsyncRaw(ABC):
    """`io.RawIOBase` for coroutines, as much of it as a reader of bytes needs."""

    closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close; idempotent."""
        self.closed = True

    async def read(self) -> bytes:
        """Return all bytes that were not read yet."""
        return await self.readall()

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield what is left in chunks."""
        return self.chunks()

    @abstractmethod
    async def readall(self) -> bytes:
        """Return all bytes that were not read yet."""

    @abstractmethod
    def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield what is left in chunks."""
