"""Async connections: one pipelined protocol for calls, raw sockets for streams and bulk answers."""

import asyncio
import random
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self, cast

from crc32c import crc32c

from rlmm_daemon.client import _common as common
from rlmm_daemon.codec import api, frames
from rlmm_daemon.domain.errors import (
    ChecksumMismatch,
    DaemonUnreachable,
    Malformed,
    ProtocolViolation,
    RlmmError,
    TimedOut,
)

_READ_BYTES: Final = 64 * 1024
_CHUNK_BYTES: Final = 256 * 1024


class RawConnection:
    """A connection that is read by one task at a time; closing it cancels what it carries."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._loop = asyncio.get_running_loop()
        self._splitter = frames.Splitter(common.ANSWER_BYTES_MAX)
        self._ids = common.HELLO_ID

    @classmethod
    async def open(cls, path: str, hello: bytes) -> tuple["RawConnection", api.HelloResult]:
        """Return a connection that has said hello.

        Raises:
            OSError: nobody answers.
            RlmmError: the daemon's refusal.
        """
        connection = common.unix_socket()
        connection.settimeout(0)
        opened = cls(connection)
        try:
            await opened._loop.sock_connect(connection, path)
            with suppress(OSError):  # a refusal may have been said already: read it
                await opened._loop.sock_sendall(connection, hello)
            body = await opened.receive()
            return opened, common.result_of(body, common.HELLO_ID, api.HelloResult)
        except BaseException:
            opened.close()
            raise

    def close(self) -> None:
        """Close; idempotent."""
        self._socket.close()

    def detach(self) -> tuple[socket.socket, bytes]:
        """Return the socket and what was read of it beyond the last frame."""
        return self._socket, self._splitter.take_rest()

    async def send(self, method: str, params: Any) -> int:
        """Send a request, return its id."""
        self._ids += 1
        frame = frames.request_frame(self._ids, method, params)
        await self._loop.sock_sendall(self._socket, frame)
        return self._ids

    async def receive(self) -> bytes:
        """Return the body of the next frame.

        Raises:
            OSError: the connection is lost.
            ProtocolViolation: the daemon broke the framing.
        """
        try:
            while (body := self._splitter.next()) is None:
                chunk = await self._loop.sock_recv(self._socket, _READ_BYTES)
                if not chunk:
                    raise ConnectionResetError("the daemon closed the connection")
                self._splitter.feed(chunk)
        except Malformed as error:
            raise ProtocolViolation(error.message) from error
        return body

    async def receive_into(self, target: memoryview) -> int:
        """Fill a buffer with raw bytes as far as they are there; 0 at the connection's end."""
        held = len(self._splitter)
        if held:
            rest = self._splitter.take_rest()
            size = min(len(target), held)
            target[:size] = rest[:size]
            self._splitter.feed(rest[size:])
            return size
        return await self._loop.sock_recv_into(self._socket, cast("bytearray", target))


class AsyncBulkReader:
    """The raw bytes of one answer; fewer than announced is an error, never an end.

    `length` and `crc32c` are known from the start. When all bytes were read and the daemon gave a
    checksum, the last read raises ChecksumMismatch unless it holds.
    """

    def __init__(
        self,
        connection: RawConnection,
        header: frames.BulkHeader,
        deadline: float,
        done: Callable[[RawConnection], None],
    ) -> None:
        self.length = header.length
        self.crc32c = header.crc32c
        self._connection = connection
        self._left = header.length
        self._sum = 0
        self._deadline = deadline
        self._done = done
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def readinto(self, buffer: Any) -> int:
        """Fill a buffer as far as bytes are there; 0 only after the last of them.

        Raises:
            ProtocolViolation: the daemon ended the answer early.
            ChecksumMismatch: all bytes came, and they are not those that were stored.
            TimedOut: the call's deadline passed.
        """
        if self._closed:
            raise ValueError("I/O operation on a closed reader")
        target = memoryview(buffer).cast("B")[: self._left]
        if not target:
            return 0
        try:
            async with asyncio.timeout_at(common.loop_time(self._deadline)):
                size = await self._connection.receive_into(target)
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

    async def read(self) -> bytes:
        """Return all bytes that were not read yet."""
        whole = bytearray(self._left)
        view = memoryview(whole)
        while view:
            view = view[await self.readinto(view) :]
        return bytes(whole)

    async def __aiter__(self) -> AsyncGenerator[bytes, None]:
        """Yield what is left in chunks."""
        buffer = memoryview(bytearray(_CHUNK_BYTES))
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
        if self._closed:
            return
        self._closed = True
        if self._left:
            self._connection.close()
        else:
            self._done(self._connection)


class _Pending:
    """A call that waits: its type, its pages so far, its future."""

    __slots__ = ("future", "pages", "row")

    def __init__(self, row: api.Method, future: asyncio.Future[Any]) -> None:
        self.row = row
        self.future = future
        self.pages: list[Any] = []

    def answered(self, response: frames.Response) -> bool:
        """Take one response; True when it was the last."""
        if self.future.done():
            return True
        try:
            if response.error is not None:
                raise response.error.to_error()
            result = common.decoded(response.result, self.row.result)
        except RlmmError as error:
            self.future.set_exception(error)
            return True
        if self.row.shape is not api.Shape.STREAM:
            self.future.set_result(result)
            return True
        self.pages.append(result)
        if result.more:
            return False
        self.future.set_result(self.pages)
        return True


class Pipeline(asyncio.Protocol):
    """The connection that calls share; answers come in any order."""

    def __init__(self, welcome: api.HelloResult, rest: bytes) -> None:
        self.welcome = welcome
        self.lost = False
        self._rest = rest
        self._splitter = frames.Splitter(common.ANSWER_BYTES_MAX)
        self._pending: dict[int, _Pending] = {}
        self._ids = common.HELLO_ID
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast("asyncio.Transport", transport)
        if self._rest:
            self.data_received(self._rest)

    def data_received(self, data: bytes) -> None:
        """Complete the calls whose answers are here."""
        self._splitter.feed(data)
        try:
            while (body := self._splitter.next()) is not None:
                self._take(common.response_of(body))
        except (Malformed, ProtocolViolation) as error:
            self._fail(ProtocolViolation(error.message))
            self._transport.abort()

    def _take(self, response: frames.Response) -> None:
        if response.id == frames.CONNECTION_ID and response.error is not None:
            self._fail(response.error.to_error())
            return
        pending = self._pending.get(response.id)
        if pending is not None and pending.answered(response):
            del self._pending[response.id]

    def connection_lost(self, _error: Exception | None) -> None:
        """Tell every call that waits."""
        self._fail(None)

    def _fail(self, error: RlmmError | None) -> None:
        self.lost = True
        for pending in self._pending.values():
            if not pending.future.done():
                pending.future.set_exception(error or common.lost(pending.row.name))
        self._pending.clear()

    async def call(self, row: api.Method, params: Any) -> Any:
        """Return a method's result; cancelling tells the daemon."""
        self._ids += 1
        request_id = self._ids
        pending = _Pending(row, asyncio.get_running_loop().create_future())
        self._pending[request_id] = pending
        self._transport.write(frames.request_frame(request_id, row.name, params))
        try:
            return await pending.future
        except asyncio.CancelledError:
            if self._pending.pop(request_id, None) is not None:
                self._transport.write(frames.notification_frame(frames.CANCEL, [request_id]))
            raise

    def close(self) -> None:
        """Close."""
        self.lost = True
        self._transport.close()


class AsyncCaller:
    """Calls by name and parameters, with their wire results; `AsyncClient` types them.

    Calls share one pipelined connection, in one event loop: in another one once that is closed, or
    after `aclose`. A stream and a bulk answer have connections of their own.
    """

    def __init__(
        self, path: str | None = None, options: common.ClientOptions | None = None
    ) -> None:
        self._path = common.socket_path(path)
        self._options = options or common.ClientOptions()
        self._main: Pipeline | None = None
        self._bulk: RawConnection | None = None
        self._was_connected = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connecting = asyncio.Lock()
        self._luck: random.Random = random.SystemRandom()

    async def __aenter__(self) -> Self:
        """Connect, so that a missing daemon shows here."""
        await self.hello()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close every connection that is not lent out; idempotent."""
        self._take_up_loop()
        main, bulk, self._main, self._bulk, self._loop = self._main, self._bulk, None, None, None
        if main is not None:
            main.close()
        if bulk is not None:
            bulk.close()

    async def hello(self) -> api.HelloResult:
        """Return what the daemon said of itself; connects if needed."""
        try:
            async with asyncio.timeout(self._options.timeout_seconds):
                return (await self._connected()).welcome
        except TimeoutError as error:
            raise DaemonUnreachable(f"no daemon answers on {self._path}") from error

    async def call(self, method: str, params: Any, seconds: float | None = None) -> Any:
        """Return a method's result in its wire type, for streams the list of all pages.

        Raises:
            RlmmError: what the daemon answered; DaemonUnreachable, TimedOut or OutcomeUnknown
                when it did not.
        """
        row = api.METHODS[method]
        pauses = common.retries(self._luck)
        try:
            async with asyncio.timeout_at(common.loop_time(self._end(seconds))):
                while True:
                    pipeline = await self._connected()
                    try:
                        return await pipeline.call(row, params)
                    except DaemonUnreachable:
                        if not common.repeatable(method):
                            raise
                    await asyncio.sleep(next(pauses))
        except TimeoutError as error:
            raise common.silent(method) from error

    async def stream(
        self, method: str, params: Any, seconds: float | None = None
    ) -> AsyncGenerator[Any, None]:
        """Yield the pages of a streamed answer; closing the generator cancels it."""
        row = api.METHODS[method]
        deadline = common.loop_time(self._end(seconds))
        async with asyncio.timeout_at(deadline):
            connection, _ = await self._open(self._options.hello())
        try:
            async with asyncio.timeout_at(deadline):
                request_id = await connection.send(method, params)
            more = True
            while more:
                async with asyncio.timeout_at(deadline):
                    body = await connection.receive()
                page = common.result_of(body, request_id, row.result)
                more = page.more
                yield page
        except TimeoutError as error:
            raise common.silent(method) from error
        except OSError as error:
            raise common.lost(method) from error
        finally:
            connection.close()

    async def open_bulk(
        self, method: str, params: Any, seconds: float | None = None
    ) -> AsyncBulkReader:
        """Return a reader of a bulk answer whose header has come."""
        deadline = self._end(seconds)
        try:
            async with asyncio.timeout_at(common.loop_time(deadline)):
                return await self._open_bulk(method, params, deadline)
        except TimeoutError as error:
            raise common.silent(method) from error

    async def _open_bulk(self, method: str, params: Any, deadline: float) -> AsyncBulkReader:
        pauses = common.retries(self._luck)
        self._take_up_loop()
        while True:
            connection, self._bulk = self._bulk, None
            if connection is None:
                connection, _ = await self._open(self._options.hello("bulk"))
            try:
                request_id = await connection.send(method, params)
                body = await connection.receive()
            except OSError:
                connection.close()
                await asyncio.sleep(next(pauses))
                continue
            except BaseException:
                connection.close()
                raise
            try:
                header = common.result_of(body, request_id, frames.BulkHeader)
            except ProtocolViolation:
                connection.close()
                raise
            except RlmmError:
                self._give_back(connection)
                raise
            return AsyncBulkReader(connection, header, deadline, self._give_back)

    def _give_back(self, connection: RawConnection) -> None:
        if self._bulk is None:
            self._bulk = connection
        else:
            connection.close()

    def _deadline(
        self, seconds: float | None, default: float | None = None
    ) -> tuple[float, int | None]:
        return self._options.deadline(seconds, default)

    def _end(self, seconds: float | None) -> float:
        chosen, _ = self._deadline(seconds)
        return asyncio.get_running_loop().time() + chosen + common.GRACE_SECONDS

    def _take_up_loop(self) -> None:
        """Forget the connections of a loop that is closed: nobody reads what comes there."""
        if self._loop is not (loop := asyncio.get_running_loop()):
            common.require_closed(self._loop)
            self._main, self._bulk, self._loop, self._connecting = None, None, loop, asyncio.Lock()

    async def _connected(self) -> Pipeline:
        self._take_up_loop()
        async with self._connecting:
            if self._main is None or self._main.lost:
                raw, welcome = await self._open(self._options.hello())
                connection, rest = raw.detach()
                loop = asyncio.get_running_loop()
                _, self._main = await loop.create_unix_connection(
                    lambda: Pipeline(welcome, rest), sock=connection
                )
            return self._main

    async def _open(self, hello: bytes) -> tuple[RawConnection, api.HelloResult]:
        """Connect; a client that was connected before tries again for a while."""
        loop = asyncio.get_running_loop()
        pauses = common.back_off(self._luck)
        give_up = loop.time() + self._options.reconnect_seconds
        while True:
            try:
                opened = await RawConnection.open(self._path, hello)
            except OSError as error:
                pause = next(pauses)
                if not self._was_connected or loop.time() + pause >= give_up:
                    raise DaemonUnreachable(
                        f"no daemon answers on {self._path}: {error.strerror or error}"
                    ) from error
                await asyncio.sleep(pause)
            else:
                self._was_connected = True
                return opened
