"""Connection that the async client's calls share: requests overlap, answers come in any order."""

import asyncio
from typing import Any, Self, cast

from rlmm_daemon.client import _common as common
from rlmm_daemon.client._async.connection import AsyncConnection
from rlmm_daemon.client._async.wire import until
from rlmm_daemon.codec import api, frames
from rlmm_daemon.domain.errors import Malformed, ProtocolViolation, RlmmError


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


class AsyncExchange(asyncio.Protocol):
    """Calls under way, by the ids of their requests."""

    def __init__(self, connection: AsyncConnection) -> None:
        self.welcome = connection.welcome
        self.lost = False
        self._splitter = connection.splitter
        self._pending: dict[int, _Pending] = {}
        self._ids = common.HELLO_ID
        self._transport: asyncio.Transport

    @classmethod
    async def over(cls, connection: AsyncConnection) -> Self:
        """Return the exchange over a connection that has said hello and nothing else."""
        _, exchange = await asyncio.get_running_loop().create_unix_connection(
            lambda: cls(connection), sock=connection.wire.socket
        )
        return exchange

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin, with what came behind the hello's answer."""
        self._transport = cast("asyncio.Transport", transport)
        self.data_received(b"")

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
        self._fail(ConnectionResetError("the daemon closed the connection"))

    def _fail(self, error: Exception) -> None:
        self.lost = True
        for pending in self._pending.values():
            if not pending.future.done():
                pending.future.set_exception(error)
        self._pending.clear()

    async def call(self, row: api.Method, params: Any, deadline: float) -> Any:
        """Return a method's result, for streams all pages; cancelling tells the daemon.

        Raises:
            OSError: the connection is lost, or TimeoutError.
            RlmmError: what the daemon answered.
        """
        self._ids += 1
        request_id = self._ids
        pending = _Pending(row, asyncio.get_running_loop().create_future())
        self._pending[request_id] = pending
        self._transport.write(frames.request_frame(request_id, row.name, params))
        async with until(deadline):
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
