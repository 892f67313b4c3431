"""Async connections: hello, one request, its answers, raw bytes; each under a deadline."""

from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import Any, Final, Self

from crc32c import crc32c

from rlmm_daemon.client import _common as common
from rlmm_daemon.client._async.wire import AsyncRaw, AsyncWire
from rlmm_daemon.codec import api, frames
from rlmm_daemon.domain.errors import (
    ChecksumMismatch,
    DaemonUnreachable,
    Malformed,
    ProtocolViolation,
    TimedOut,
)

_READ_BYTES: Final = 64 * 1024
_CHUNK_BYTES: Final = 256 * 1024


class AsyncConnection:
    """One connection; after any error but the daemon's own answer it must be closed."""

    welcome: api.HelloResult

    def __init__(self) -> None:
        self.wire = AsyncWire()
        self.splitter = frames.Splitter(common.ANSWER_BYTES_MAX)
        self._ids = common.HELLO_ID

    @classmethod
    async def open(cls, path: str, hello: bytes, deadline: float) -> Self:
        """Return a connection that has said hello.

        Raises:
            DaemonUnreachable: nobody answers.
            RlmmError: the daemon's refusal.
        """
        connection = cls()
        try:
            await connection.wire.connect(path, deadline)
            with suppress(OSError):  # a refusal may have been said already: read it
                await connection.wire.send(hello, deadline)
            body = await connection.receive(deadline)
            connection.welcome = common.result_of(body, common.HELLO_ID, api.HelloResult)
        except BaseException as error:
            connection.close()
            if isinstance(error, OSError):
                reason = error.strerror or error
                raise DaemonUnreachable(f"no daemon answers on {path}: {reason}") from error
            raise
        return connection

    def close(self) -> None:
        """Close; idempotent. Closing is also how a stream or a bulk answer is cancelled."""
        self.wire.close()

    async def send(self, method: str, params: Any, deadline: float) -> int:
        """Send a request, return its id.

        Raises:
            NotSent: the daemon is gone.
        """
        self._ids += 1
        frame = frames.request_frame(self._ids, method, params)
        try:
            await self.wire.send(frame, deadline)
        except OSError as error:
            raise common.NotSent from error
        return self._ids

    async def receive(self, deadline: float) -> bytes:
        """Return the body of the next frame.

        Raises:
            OSError: the connection is lost, or TimeoutError.
            ProtocolViolation: the daemon broke the framing.
        """
        try:
            while (body := self.splitter.next()) is None:
                chunk = await self.wire.receive(_READ_BYTES, deadline)
                if not chunk:
                    raise ConnectionResetError("the daemon closed the connection")
                self.splitter.feed(chunk)
        except Malformed as error:
            raise ProtocolViolation(error.message) from error
        return body

    async def receive_into(self, target: memoryview, deadline: float) -> int:
        """Fill a buffer with raw bytes as far as they are there; 0 at the connection's end."""
        held = len(self.splitter)
        if held:
            rest = self.splitter.take_rest()
            size = min(len(target), held)
            target[:size] = rest[:size]
            self.splitter.feed(rest[size:])
            return size
        return await self.wire.receive_into(target, deadline)


class AsyncBulkReader(AsyncRaw):
    """The raw bytes of one answer, file-like and iterable; fewer than announced is an error.

    `length` and `crc32c` are known from the start. When all bytes were read and the daemon gave a
    checksum, the last read raises ChecksumMismatch unless it holds. Not seekable.
    """

    def __init__(
        self,
        connection: AsyncConnection,
        header: frames.BulkHeader,
        deadline: float,
        done: Callable[[AsyncConnection], None],
    ) -> None:
        super().__init__()
        self.length = header.length
        self.crc32c = header.crc32c
        self._connection = connection
        self._left = header.length
        self._sum = 0
        self._deadline = deadline
        self._done = done

    async def readinto(self, buffer: Any) -> int:
        """Fill a buffer as far as bytes are there; 0 only after the last of them.

        Raises:
            ProtocolViolation: the daemon ended the answer early.
            ChecksumMismatch: all bytes came, and they are not those that were stored.
            TimedOut: the call's deadline passed.
        """
        if self.closed:
            raise ValueError("I/O operation on a closed reader")
        target = memoryview(buffer).cast("B")[: self._left]
        if not target:
            return 0
        try:
            size = await self._connection.receive_into(target, self._deadline)
        except TimeoutError as error:
            await self.aclose()
            raise TimedOut("the deadline passed within the answer") from error
        except OSError as error:
            raise await self._cut_short() from error
        if not size:
            raise await self._cut_short()
        self._left -= size
        if self.crc32c is not None:
            self._sum = crc32c(target[:size], self._sum)
            if not self._left and self._sum != self.crc32c:
                raise ChecksumMismatch(expected=self.crc32c, actual=self._sum)
        return size

    async def readall(self) -> bytes:
        """Return all bytes that were not read yet."""
        whole = bytearray(self._left)
        view = memoryview(whole)
        while view:
            view = view[await self.readinto(view) :]
        return bytes(whole)

    async def chunks(self, size: int = _CHUNK_BYTES) -> AsyncGenerator[bytes, None]:
        """Yield what is left in pieces of at most `size` bytes."""
        buffer = memoryview(bytearray(size))
        while count := await self.readinto(buffer):
            yield bytes(buffer[:count])

    async def _cut_short(self) -> ProtocolViolation:
        missing = self._left
        await self.aclose()
        return ProtocolViolation(
            f"the answer ended {missing} bytes short of {self.length}", missing=missing
        )

    async def aclose(self) -> None:
        """Give the connection back, or close it when bytes are left on it; idempotent."""
        if self.closed:
            return
        await super().aclose()
        if self._left:
            self._connection.close()
        else:
            self._done(self._connection)
