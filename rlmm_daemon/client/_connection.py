"""Blocking connections: connect, one request, its answers, raw bytes; each under a deadline."""

import contextlib
import io
import random
import time
from collections.abc import Callable, Generator, Iterator
from types import TracebackType
from typing import Any, Final, Self

from crc32c import crc32c

from rlmm_daemon.client import _common as common
from rlmm_daemon.codec import api, frames
from rlmm_daemon.domain.errors import (
    ChecksumMismatch,
    DaemonUnreachable,
    Malformed,
    ProtocolViolation,
    RlmmError,
)

_READ_BYTES: Final = 64 * 1024
_CHUNK_BYTES: Final = 256 * 1024


class NotSent(Exception):
    """The request did not leave whole, so it cannot have begun anything."""


class Connection:
    """One connection; after any error but the daemon's own answer it must be closed."""

    def __init__(self, path: str, hello: bytes, deadline: float) -> None:
        """Connect and say hello.

        Raises:
            DaemonUnreachable: nobody answers.
            RlmmError: the daemon's refusal.
        """
        self._splitter = frames.Splitter(common.ANSWER_BYTES_MAX)
        self._ids = common.HELLO_ID
        self._timeout: float | None = None
        self.socket = common.unix_socket()
        try:
            self._patience(deadline)
            self.socket.connect(path)
            with contextlib.suppress(OSError):  # a refusal may have been said already: read it
                self.socket.sendall(hello)
            self.welcome: api.HelloResult = common.result_of(
                self.receive(deadline), common.HELLO_ID, api.HelloResult
            )
        except OSError as error:
            self.close()
            raise DaemonUnreachable(
                f"no daemon answers on {path}: {error.strerror or error}"
            ) from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close; idempotent. Closing is also how a stream or a bulk answer is cancelled."""
        self.socket.close()

    def send(self, method: str, params: Any, deadline: float) -> int:
        """Send a request, return its id.

        Raises:
            NotSent: the daemon is gone.
        """
        self._ids += 1
        frame = frames.request_frame(self._ids, method, params)
        try:
            self._patience(deadline)
            self.socket.sendall(frame)
        except OSError as error:
            raise NotSent from error
        return self._ids

    def receive(self, deadline: float) -> bytes:
        """Return the body of the next frame.

        Raises:
            OSError: the connection is lost, or TimeoutError.
            ProtocolViolation: the daemon broke the framing.
        """
        try:
            while (body := self._splitter.next()) is None:
                self._patience(deadline)
                chunk = self.socket.recv(_READ_BYTES)
                if not chunk:
                    raise ConnectionResetError("the daemon closed the connection")
                self._splitter.feed(chunk)
        except Malformed as error:
            raise ProtocolViolation(error.message) from error
        return body

    def receive_into(self, target: memoryview, deadline: float) -> int:
        """Fill a buffer with raw bytes as far as they are there; 0 at the connection's end."""
        held = len(self._splitter)
        if held:
            rest = self._splitter.take_rest()
            size = min(len(target), held)
            target[:size] = rest[:size]
            self._splitter.feed(rest[size:])
            return size
        self._patience(deadline)
        return self.socket.recv_into(target)

    def _patience(self, deadline: float) -> None:
        if deadline == common.FOREVER:
            wanted = None
        else:
            wanted = deadline - time.monotonic()
            if wanted <= 0:
                raise TimeoutError("the deadline passed")
        self.socket.settimeout(wanted)


class BulkReader(io.RawIOBase):
    """The raw bytes of one answer, file-like and iterable; fewer than announced is an error.

    `length` and `crc32c` are known from the start. When all bytes were read and the daemon gave a
    checksum, the last read raises ChecksumMismatch unless it holds. Not seekable.
    """

    def __init__(
        self,
        connection: Connection,
        header: frames.BulkHeader,
        deadline: float,
        done: Callable[[Connection], None],
    ) -> None:
        super().__init__()
        self.length = header.length
        self.crc32c = header.crc32c
        self._connection = connection
        self._left = header.length
        self._sum = 0
        self._deadline = deadline
        self._done = done

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Fill a buffer as far as bytes are there; 0 only after the last of them.

        Raises:
            ProtocolViolation: the daemon ended the answer early.
            ChecksumMismatch: all bytes came, and they are not those that were stored.
            TimedOut: the call's deadline passed.
        """
        target = memoryview(buffer).cast("B")[: self._left]
        if not target:
            return 0
        try:
            size = self._connection.receive_into(target, self._deadline)
        except TimeoutError as error:
            self.close()
            raise common.silent("fetch_log_segment") from error
        except OSError as error:
            raise self._cut_short() from error
        if not size:
            raise self._cut_short()
        self._left -= size
        if self.crc32c is not None:
            self._sum = crc32c(target[:size], self._sum)
            if not self._left and self._sum != self.crc32c:
                raise ChecksumMismatch(expected=self.crc32c, actual=self._sum)
        return size

    def readall(self) -> bytes:
        """Return all bytes that were not read yet."""
        whole = bytearray(self._left)
        view = memoryview(whole)
        while view:
            view = view[self.readinto(view) :]
        return bytes(whole)

    def chunks(self, size: int = _CHUNK_BYTES) -> Generator[bytes, None, None]:
        """Yield what is left in pieces of at most `size` bytes."""
        buffer = memoryview(bytearray(size))
        while count := self.readinto(buffer):
            yield bytes(buffer[:count])

    def _cut_short(self) -> ProtocolViolation:
        missing = self._left
        self.close()
        return ProtocolViolation(
            f"the answer ended {missing} bytes short of {self.length}", missing=missing
        )

    def close(self) -> None:
        """Give the connection back, or close it when bytes are left on it."""
        if self.closed:
            return
        super().close()
        if self._left:
            self._connection.close()
        else:
            self._done(self._connection)


class Caller:
    """Calls by name and parameters, with their wire results; `Client` types them.

    Not for use by several threads at once. A stream and a bulk answer have connections of their
    own, so they may stay open while other calls are made.
    """

    def __init__(
        self, path: str | None = None, options: common.ClientOptions | None = None
    ) -> None:
        self._path = common.socket_path(path)
        self._options = options or common.ClientOptions()
        self._main: Connection | None = None
        self._bulk: Connection | None = None
        self._was_connected = False
        self._luck: random.Random = random.SystemRandom()

    def __enter__(self) -> Self:
        """Connect, so that a missing daemon shows here."""
        self.hello()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection that is not lent out; idempotent."""
        for connection in (self._main, self._bulk):
            if connection is not None:
                connection.close()
        self._main = self._bulk = None

    def hello(self) -> api.HelloResult:
        """Return what the daemon said of itself; connects if needed."""
        seconds, _ = self._deadline(None)
        return self._connected(time.monotonic() + seconds).welcome

    def call(self, method: str, params: Any, seconds: float | None = None) -> Any:
        """Return a method's result in its wire type, for streams the list of all pages.

        Raises:
            RlmmError: what the daemon answered; DaemonUnreachable, TimedOut or OutcomeUnknown
                when it did not.
        """
        row = api.METHODS[method]
        deadline = self._end(seconds)
        pauses = common.retries(self._luck)
        while True:
            connection = self._connected(deadline)
            try:
                request_id = connection.send(method, params, deadline)
                if row.shape is api.Shape.STREAM:
                    return list(_pages(connection, request_id, row, deadline))
                return common.result_of(connection.receive(deadline), request_id, row.result)
            except NotSent as error:
                self._drop_main()
                _pause(pauses, deadline, method, error)
            except TimeoutError as error:
                self._drop_main()
                raise common.silent(method) from error
            except OSError as error:
                self._drop_main()
                if not common.repeatable(method):
                    raise common.lost(method) from error
                _pause(pauses, deadline, method, error)
            except ProtocolViolation:
                self._drop_main()
                raise
            except RlmmError:
                raise  # the daemon's own word
            except BaseException:  # an interrupt: the next call must not read this one's answer
                self._drop_main()
                raise

    def stream(
        self, method: str, params: Any, seconds: float | None = None
    ) -> Generator[Any, None, None]:
        """Yield the pages of a streamed answer; closing the generator cancels it."""
        row = api.METHODS[method]
        deadline = self._end(seconds)
        connection = self._connect(self._options.hello(), deadline)
        try:
            yield from _pages(connection, connection.send(method, params, deadline), row, deadline)
        except (OSError, NotSent) as error:
            failure = common.silent if isinstance(error, TimeoutError) else common.lost
            raise failure(method) from error
        finally:
            connection.close()

    def open_bulk(self, method: str, params: Any, seconds: float | None = None) -> BulkReader:
        """Return a reader of a bulk answer whose header has come."""
        deadline = self._end(seconds)
        pauses = common.retries(self._luck)
        while True:
            connection, self._bulk = self._bulk, None
            if connection is None:
                connection = self._connect(self._options.hello("bulk"), deadline)
            try:
                request_id = connection.send(method, params, deadline)
                body = connection.receive(deadline)
            except TimeoutError as error:
                connection.close()
                raise common.silent(method) from error
            except (OSError, NotSent) as error:
                connection.close()
                _pause(pauses, deadline, method, error)
                continue
            return self._reader(connection, body, request_id, deadline)

    def _reader(
        self, connection: Connection, body: bytes, request_id: int, deadline: float
    ) -> BulkReader:
        try:
            header = common.result_of(body, request_id, frames.BulkHeader)
        except ProtocolViolation:
            connection.close()
            raise
        except Exception:
            self._give_back(connection)
            raise
        return BulkReader(connection, header, deadline, self._give_back)

    def _give_back(self, connection: Connection) -> None:
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
        return time.monotonic() + chosen + common.GRACE_SECONDS

    def _drop_main(self) -> None:
        if self._main is not None:
            self._main.close()
            self._main = None

    def _connected(self, deadline: float) -> Connection:
        if self._main is None:
            self._main = self._connect(self._options.hello(), deadline)
        return self._main

    def _connect(self, hello: bytes, deadline: float) -> Connection:
        """Connect; a client that was connected before tries again for a while."""
        pauses = common.back_off(self._luck)
        give_up = min(deadline, time.monotonic() + self._options.reconnect_seconds)
        while True:
            try:
                connection = Connection(self._path, hello, deadline)
            except DaemonUnreachable:
                pause = next(pauses)
                if not self._was_connected or time.monotonic() + pause >= give_up:
                    raise
                time.sleep(pause)
            else:
                self._was_connected = True
                return connection


def _pause(pauses: Iterator[float], deadline: float, method: str, error: Exception) -> None:
    """Sleep before a lost request, which cannot have changed anything, is sent again.

    Raises:
        DaemonUnreachable: the deadline would pass meanwhile.
    """
    pause = next(pauses)
    if time.monotonic() + pause >= deadline:
        raise DaemonUnreachable(f"the connection was lost again and again in {method}") from error
    time.sleep(pause)


def _pages(
    connection: Connection, request_id: int, row: api.Method, deadline: float
) -> Generator[Any, None, None]:
    more = True
    while more:
        page = common.result_of(connection.receive(deadline), request_id, row.result)
        more = page.more
        yield page
