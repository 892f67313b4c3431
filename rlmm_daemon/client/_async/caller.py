"""Async calls by name and parameters: connected when needed, made again where that is safe."""

import random
from collections.abc import AsyncGenerator, Iterator
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

from rlmm_daemon.client import _common as common
from rlmm_daemon.client._async.connection import AsyncBulkReader, AsyncConnection
from rlmm_daemon.client._async.exchange import AsyncExchange
from rlmm_daemon.client._async.wire import AsyncTurn, now, sleep
from rlmm_daemon.codec import api, frames
from rlmm_daemon.domain.errors import DaemonUnreachable, ProtocolViolation, RlmmError

P = TypeVar("P", bound=msgspec.Struct)


class AsyncCaller:
    """Calls by name and parameters, with their wire results; `AsyncClient` types them.

    Calls share one connection and may overlap. A stream and a bulk answer have connections of
    their own, so they may stay open while other calls are made.
    In another event loop only after `aclose`, or once the former one is closed.
    """

    def __init__(
        self, path: str | None = None, options: common.ClientOptions | None = None
    ) -> None:
        self._path = common.socket_path(path)
        self._options = options or common.ClientOptions()
        self._main: AsyncExchange | None = None
        self._bulk: AsyncConnection | None = None
        self._was_connected = False
        self._turn = AsyncTurn()
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
        self._take_up()
        for connection in (self._main, self._bulk):
            if connection is not None:
                connection.close()
        self._main, self._bulk, self._turn = None, None, AsyncTurn()

    async def hello(self) -> api.HelloResult:
        """Return what the daemon said of itself; connects if needed."""
        main = await self._connected(now() + self._options.deadline(None, None)[0], self._turn)
        return main.welcome

    def _within(
        self, params: P, seconds: float | None, default: float | None = None
    ) -> tuple[P, float]:
        """Return params that tell the daemon how long a call may take, and how long that is."""
        chosen, ms = self._options.deadline(seconds, default)
        return msgspec.structs.replace(params, timeout_ms=ms), chosen

    def _ask(
        self, method: str, params: P, seconds: float | None, default: float | None = None
    ) -> Any:
        return self.call(method, *self._within(params, seconds, default))

    def _pages(
        self, method: str, params: P, seconds: float | None, default: float | None = None
    ) -> AsyncGenerator[Any, None]:
        return self.stream(method, *self._within(params, seconds, default))

    async def call(self, method: str, params: Any, seconds: float | None = None) -> Any:
        """Return a method's result in its wire type, for streams the list of all pages.

        Raises:
            RlmmError: what the daemon answered; DaemonUnreachable, TimedOut or OutcomeUnknown
                when it did not.
        """
        row = api.METHODS[method]
        deadline = self._end(seconds)
        pauses = common.retries(self._luck)
        turn = self._turn
        while True:
            main = await self._connected(deadline, turn)
            try:
                return await main.call(row, params, deadline)
            except TimeoutError as error:
                raise common.silent(method) from error
            except (OSError, common.NotSent) as error:
                if isinstance(error, OSError) and not common.repeatable(method):
                    raise common.lost(method) from error
                await _pause(pauses, deadline, method, error)

    async def stream(
        self, method: str, params: Any, seconds: float | None = None
    ) -> AsyncGenerator[Any, None]:
        """Yield the pages of a streamed answer; closing the generator cancels it."""
        row = api.METHODS[method]
        deadline = self._end(seconds)
        connection = await self._connect(self._options.hello(), deadline)
        try:
            request_id = await connection.send(method, params, deadline)
            more = True
            while more:
                body = await connection.receive(deadline)
                page = common.result_of(body, request_id, row.result)
                more = page.more
                yield page
        except TimeoutError as error:
            raise common.silent(method) from error
        except (OSError, common.NotSent) as error:
            raise common.lost(method) from error
        finally:
            connection.close()

    async def open_bulk(
        self, method: str, params: Any, seconds: float | None = None
    ) -> AsyncBulkReader:
        """Return a reader of a bulk answer whose header has come."""
        deadline = self._end(seconds)
        pauses = common.retries(self._luck)
        self._take_up()
        turn = self._turn
        give_back = partial(self._give_back, turn)
        while True:
            self._require_open(turn)
            connection, self._bulk = self._bulk, None
            if connection is None:
                connection = await self._connect(self._options.hello("bulk"), deadline)
            try:
                request_id = await connection.send(method, params, deadline)
                body = await connection.receive(deadline)
                header = common.result_of(body, request_id, frames.BulkHeader)
            except BaseException as error:
                if isinstance(error, RlmmError) and not isinstance(error, ProtocolViolation):
                    give_back(connection)
                    raise
                connection.close()
                if isinstance(error, TimeoutError):
                    raise common.silent(method) from error
                if not isinstance(error, (OSError, common.NotSent)):
                    raise
                await _pause(pauses, deadline, method, error)
            else:
                return AsyncBulkReader(connection, header, deadline, give_back)

    def _give_back(self, turn: AsyncTurn, connection: AsyncConnection) -> None:
        if self._bulk is None and self._turn is turn:
            self._bulk = connection
        else:
            connection.close()

    def _end(self, seconds: float | None) -> float:
        return now() + self._options.deadline(seconds, None)[0] + common.GRACE_SECONDS

    def _take_up(self) -> None:
        if self._turn.is_elsewhere():
            self._main = self._bulk = None

    async def _connected(self, deadline: float, turn: AsyncTurn) -> AsyncExchange:
        """Return the connection, made anew if need be, unless the client was closed since `turn`.

        Raises:
            DaemonUnreachable: it was: what is connected for a call of before nobody would close.
        """
        self._take_up()
        self._require_open(turn)
        if self._main is None or self._main.lost:
            async with turn.before(deadline):
                self._require_open(turn)
                if self._main is None or self._main.lost:
                    connection = await self._connect(self._options.hello(), deadline)
                    main = await AsyncExchange.over(connection)
                    if self._turn is not turn:
                        main.close()
                    self._require_open(turn)
                    self._main = main
        return self._main

    def _require_open(self, turn: AsyncTurn) -> None:
        if self._turn is not turn:
            raise DaemonUnreachable("the client was closed while it asked")

    async def _connect(self, hello: bytes, deadline: float) -> AsyncConnection:
        """Connect; a client that was connected before tries again for a while."""
        pauses = common.back_off(self._luck)
        give_up = min(deadline, now() + self._options.reconnect_seconds)
        while True:
            try:
                connection = await AsyncConnection.open(self._path, hello, deadline)
            except DaemonUnreachable:
                pause = next(pauses)
                if not self._was_connected or now() + pause >= give_up:
                    raise
                await sleep(pause)
            else:
                self._was_connected = True
                return connection


async def _pause(pauses: Iterator[float], deadline: float, method: str, error: Exception) -> None:
    """Sleep before a lost request, which cannot have changed anything, is sent again.

    Raises:
        DaemonUnreachable: the deadline would pass meanwhile.
    """
    pause = next(pauses)
    if now() + pause >= deadline:
        raise DaemonUnreachable(f"the connection was lost again and again in {method}") from error
    await sleep(pause)
