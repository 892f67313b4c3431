"""A connection of role bulk: a request, a header, raw bytes, the next request.

It is a plain non-blocking socket and never a transport, because `os.sendfile` straight from the
page cache is several times faster than any copy through Python. A range that is not in the page
cache is read by a thread first, so that the disk never stalls the event loop.
"""

import asyncio
import functools
import os
import socket
from collections.abc import Awaitable
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

import msgspec
import structlog

from rlmm_daemon.codec import api, frames
from rlmm_daemon.daemon.base.crash_guard import blamed
from rlmm_daemon.daemon.base.page_cache import is_cached
from rlmm_daemon.daemon.base.services import BulkAnswer, FileSlice
from rlmm_daemon.daemon.socket import handlers
from rlmm_daemon.daemon.socket.admission import Shared, decode_params
from rlmm_daemon.daemon.socket.greeting import Introduction, verify
from rlmm_daemon.daemon.socket.peer_watch import while_wanted
from rlmm_daemon.domain.errors import (
    CorruptError,
    InvalidArgument,
    Malformed,
    RlmmError,
    StorageUnavailable,
    TimedOut,
)
from rlmm_daemon.ports.disk_threads import Hangs

#: What is known to be in the page cache before it is sent; one `sendfile` never reads more.
WINDOW_BYTES: Final = 1024 * 1024
READ_BYTES: Final = 64 * 1024
#: Room in the kernel, so that a fast reader finds more each time it looks.
SEND_BUFFER_BYTES: Final = 1024 * 1024
#: How long a peer may take nothing once the daemon drains: it may be one that reads on later, if
#: at all, and a stop must not wait for it.
DRAINING_PATIENCE_SECONDS: Final = 1.0

T = TypeVar("T")

_log = structlog.get_logger(__name__)


class _Stalled(Exception):
    """The peer takes nothing."""


class BulkSession:
    """Serves one bulk connection, one request at a time, until the peer leaves."""

    def __init__(
        self,
        shared: Shared,
        connection: socket.socket,
        introduction: Introduction,
        rights: frozenset[api.Right],
        *,
        rest: bytes,
    ) -> None:
        self._shared = shared
        self._socket = connection
        self._introduction = introduction
        self._rights = rights
        self._loop = asyncio.get_running_loop()
        self._splitter = frames.Splitter(shared.options.frame_bytes_max)
        self._splitter.feed(rest)
        self._patience = shared.options.slow_reader_seconds

    async def run(self) -> None:
        """Serve until the peer leaves, breaks the framing, or an answer breaks after its header."""
        connection = self._socket
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        try:
            while (body := await self._next()) is not None:
                if not await self._serve(body):
                    return
        except Malformed as error:
            if "limit" in error.fields:
                self._shared.stats.frames_too_long += 1
            else:
                self._shared.stats.frames_malformed += 1
            with suppress(OSError, _Stalled):
                await self._send(frames.error_frame(frames.CONNECTION_ID, error))
        except _Stalled:
            self._shared.stats.slow_readers_closed += 1
        except ConnectionError:
            pass  # the peer left; nobody is left to be told

    async def _next(self) -> bytes | None:
        while (body := self._splitter.next()) is None:
            chunk = await self._loop.sock_recv(self._socket, READ_BYTES)
            if not chunk:
                return None
            self._splitter.feed(chunk)
        return body

    async def _serve(self, body: bytes) -> bool:
        """Answer one request; False when the connection cannot go on."""
        request_id, method, raw = frames.decode_request(body)
        self._shared.stats.requests += 1
        try:
            self._shared.begin_request(0)
        except RlmmError as error:
            await self._send(frames.error_frame(request_id, error))
            return True
        try:
            return await self._answer(request_id, method, raw)
        finally:
            self._shared.end_request()

    async def _answer(self, request_id: int, method: str, raw: msgspec.Raw) -> bool:
        try:
            answer = await self._while_wanted(self._open(method, raw))
        except ConnectionError:
            raise
        except RlmmError as error:
            await self._send(frames.error_frame(request_id, error))
            return True
        except Exception as error:
            answered = self._shared.bugs.error_for(method, error)
            await self._send(frames.error_frame(request_id, answered))
            if blamed(error):
                raise
            return True
        try:
            header = frames.BulkHeader(answer.length, answer.crc32c, answer.named)
            await self._send(frames.result_frame(request_id, header))
            return await self._send_answer(method, answer)
        finally:
            await answer.aclose()

    async def _open(self, method: str, raw: msgspec.Raw) -> BulkAnswer:
        verify(self._introduction, self._shared.identity)  # the cluster may be known only by now
        row = self._shared.admit(method, self._rights)
        if row.shape is not api.Shape.BULK:
            raise InvalidArgument(f"{method} is not for a connection of role bulk")
        params = decode_params(row, raw)
        deadline = asyncio.timeout(self._shared.seconds_for(method, params))
        try:
            async with deadline:
                await self._shared.services.opened()
                return await handlers.BULKS[method](self._shared.services, params)
        except TimeoutError as error:
            if not deadline.expired():
                raise
            self._shared.stats.requests_timed_out += 1
            raise TimedOut(self._shared.with_cause(TimedOut().message)) from error

    async def _while_wanted(self, work: Awaitable[T]) -> T:
        return await while_wanted(work, self._socket, self._splitter)

    async def _send_answer(self, method: str, answer: BulkAnswer) -> bool:
        """Send the announced bytes; False when they ended early, which only closing can tell."""
        self._shared.stats.bulk_answers += 1
        try:
            if answer.file is not None:
                sent = await self._send_file(*answer.file, answer.length)
            else:
                sent = await self._send_chunks(answer)
        except ConnectionError:
            raise
        except (RlmmError, OSError) as error:
            self._shared.stats.bulk_answers_broken += 1
            _log.warning("bulk.broken", method=method, error=str(error))
            return False
        except _Stalled:
            raise
        except Exception as bug:
            self._shared.stats.bulk_answers_broken += 1
            self._shared.bugs.met(method, bug)
            if blamed(bug):
                raise
            return False
        if sent != answer.length:
            self._shared.stats.bulk_answers_broken += 1
            _log.warning("bulk.broken", method=method, length=answer.length, sent=sent)
            return False
        return True

    async def _send_chunks(self, answer: BulkAnswer) -> int:
        sent, chunks = 0, answer.chunks()
        while (chunk := await self._while_wanted(anext(chunks, None))) is not None:
            length = chunk.length if isinstance(chunk, FileSlice) else len(chunk)
            if sent + length > answer.length:
                raise CorruptError("the storage gave more bytes than were announced")
            if isinstance(chunk, FileSlice):
                poured = await self._send_file(chunk.descriptor, chunk.start, length)
                sent += poured
                if poured < length:
                    break
                continue
            await self._send(chunk)
            sent += len(chunk)
            self._shared.stats.bulk_bytes += len(chunk)
        return sent

    async def _send_file(self, file: int, start: int, length: int) -> int:
        """Return the bytes that were sent: fewer than asked when the file ends before."""
        at, end = start, start + length
        warm_until = start
        while at < end:
            if at >= warm_until:
                warm_until = min(at + WINDOW_BYTES, end)
                if not is_cached(file, at, warm_until):
                    # Watched: a mount that hangs would keep the place of a peer that left.
                    await self._while_wanted(self._read_through(file, at, warm_until))
            sent = await self._pour(file, at, warm_until)
            at += sent
            self._shared.stats.bulk_bytes += sent
            if at < warm_until:
                break
        return at - start

    async def _read_through(self, file: int, start: int, end: int) -> None:
        """Have a thread bring in what is on the disk alone.

        Raises:
            StorageUnavailable: an earlier read of the file was left, and hangs.
        """
        read, name = functools.partial(_read_through, file, start, end), _name_of(file)
        try:
            await self._shared.reads.run(read, about=name)
        except Hangs as error:
            raise StorageUnavailable(f"read of {name}: its disk or mount hangs") from error

    async def _pour(self, file: int, at: int, end: int) -> int:
        """Send [at, end) of a file as the socket takes it; returns fewer bytes at the file's end.

        One writer callback does it all: a future and a timer for each bit that fits into the
        socket would cost more than the sending.
        """
        pouring = _Pouring(self._loop.create_future(), self._socket.fileno(), file, at, end)
        pouring.step()
        if not pouring.done.done():
            self._loop.add_writer(self._socket.fileno(), pouring.step)
            try:
                await self._until_poured(pouring)
            finally:
                self._loop.remove_writer(self._socket.fileno())
        pouring.done.result()
        return pouring.at - at

    async def _until_poured(self, pouring: "_Pouring") -> None:
        before, since = pouring.at, self._loop.time()
        while not await self._comes(pouring.done):
            if pouring.at != before:
                before, since = pouring.at, self._loop.time()
            else:
                self._require_patience(since)

    async def _comes(self, what: asyncio.Future[None]) -> bool:
        """Wait for a second at most."""
        await asyncio.wait([what], timeout=min(self._patience, DRAINING_PATIENCE_SECONDS))
        return what.done()

    def _require_patience(self, since: float) -> None:
        """_Stalled if the peer has taken nothing for too long."""
        patience = self._patience
        if self._shared.draining:
            patience = min(patience, DRAINING_PATIENCE_SECONDS)
        if self._loop.time() - since >= patience:
            raise _Stalled

    async def _send(self, chunk: bytes) -> None:
        """Send all of it.

        Raises:
            _Stalled: the peer took nothing for too long.
        """
        view = memoryview(chunk)
        while view:
            try:
                view = view[self._socket.send(view) :]
            except BlockingIOError:
                await self._until_writable()

    async def _until_writable(self) -> None:
        ready = self._loop.create_future()
        descriptor = self._socket.fileno()
        self._loop.add_writer(descriptor, _set, ready)
        try:
            since = self._loop.time()
            while not await self._comes(ready):
                self._require_patience(since)
        finally:
            self._loop.remove_writer(descriptor)


class _Pouring(msgspec.Struct):
    """A piece of a file on its way into a socket."""

    done: asyncio.Future[None]
    socket: int
    file: int
    at: int
    end: int

    def step(self) -> None:
        """Send what fits."""
        if self.done.done():
            return
        try:
            while self.at < self.end:
                sent = os.sendfile(self.socket, self.file, self.at, self.end - self.at)
                if not sent:
                    break
                self.at += sent
        except BlockingIOError:
            return
        except OSError as error:
            self.done.set_exception(error)
            return
        self.done.set_result(None)


def _set(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


def _name_of(file: int) -> str:
    """Return an open file's path as the kernel has it, which asks no disk."""
    return str(Path(f"/proc/self/fd/{file}").readlink())


def _read_through(file: int, start: int, end: int) -> None:
    os.pread(file, end - start, start)
