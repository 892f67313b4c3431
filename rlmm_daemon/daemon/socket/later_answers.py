"""Answers that take a task: jobs, orders, pages, and look-ups that wait to become ready."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, nullcontext, suppress
from typing import Any, Final

from rlmm_daemon.codec import frames
from rlmm_daemon.core.fold.walks import Walk
from rlmm_daemon.daemon.base.caller import Caller
from rlmm_daemon.daemon.socket import handlers
from rlmm_daemon.daemon.socket.admission import Shared
from rlmm_daemon.daemon.socket.audit import BROKERS_DELETE, audited, audited_delete, is_order
from rlmm_daemon.daemon.socket.greeting import Introduction
from rlmm_daemon.domain.errors import NotReady, TimedOut
from rlmm_daemon.domain.ids import TopicIdPartition

#: Of one held read; bounds what a partition that is ready and not, in turn, could cost.
_ASKS_MAX: Final = 4
_result_frame: Final = frames.result_frame


class LaterAnswers:
    """Each returns the frame that ends its request; pages before it are sent as they come."""

    def __init__(
        self,
        shared: Shared,
        introduction: Introduction,
        caller: Caller,
        send: Callable[[bytes], Awaitable[None]],
    ) -> None:
        self._shared, self._introduction = shared, introduction
        self._caller, self._send = caller, send
        self._stats, self._lookups = shared.stats, shared.services.lookups

    async def written(
        self, request_id: int, write: handlers.Write, params: Any, until: float
    ) -> bytes:
        """Answer a write, which keeps its deadline (the loop's time) itself."""
        left = until - asyncio.get_running_loop().time()
        if left <= 0:
            raise TimedOut("no time was left to append the record; nothing was begun")
        await write(self._shared.services.events, params, self._caller, left)
        return _result_frame(request_id, None)

    async def announced(self, request_id: int, rest: asyncio.Task[Exception | None]) -> bytes:
        """Answer an announcement once the rest of it is taken up."""
        if (error := await asyncio.shield(rest)) is not None:
            raise error
        return _result_frame(request_id, None)

    async def one(self, request_id: int, method: str, params: Any) -> bytes:
        """Answer a question, a job or an order by its one result."""
        if method not in handlers.ABOUT_THE_DAEMON:
            with suppress(NotReady) if method in handlers.WITHOUT_A_LOG else nullcontext():
                await self._shared.services.opened()
        work = handlers.REQUESTS[method](self._shared.services, params, self._caller)
        if is_order(method, self._introduction.role):
            work = audited(self._introduction, method, params, work)
        elif method == BROKERS_DELETE:
            work = audited_delete(self._introduction, params, work)
        return _result_frame(request_id, await work)

    async def pages(self, request_id: int, stream: handlers.Stream, params: Any) -> bytes:
        """Answer with pages."""
        await self._shared.services.opened()
        return await self._send_all(request_id, stream(self._shared.services, params, self._caller))

    async def _send_all(self, request_id: int, pages: AsyncGenerator[Any, None]) -> bytes:
        """Send all pages but the last, which is returned."""
        async with aclosing(pages):
            async for page in pages:
                frame = _result_frame(request_id, page)
                if not page.more:
                    return frame
                await self._send(frame)
        raise AssertionError("a stream ends with a page that says so")

    async def walked(self, request_id: int, method: str, walk: Walk[Any]) -> bytes:
        """Answer a long listing, or the size of a long one, drawn in turns."""
        if method == handlers.SIZING:
            pieces = handlers.drawn(walk, self._shared.turns)
            return _result_frame(request_id, sum([piece async for piece in pieces]))
        records = handlers.records_of(walk, self._shared.turns)
        return await self._send_all(request_id, handlers.record_pages(records))

    async def _asked(self, method: str, tp: TopicIdPartition, params: Any, seconds: float) -> Any:
        """Return the look-up's result as soon as there is one.

        Raises:
            NotReady: the time is up.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        for _ in range(_ASKS_MAX - 1):
            await self._lookups.until_readable(tp, self._caller, until - loop.time())
            try:
                return handlers.LOOKUPS[method](self._lookups, tp, params, self._caller)
            except NotReady:
                if loop.time() >= until:
                    raise
        return handlers.LOOKUPS[method](self._lookups, tp, params, self._caller)

    async def asked_again(self, request_id: int, method: str, params: Any, seconds: float) -> bytes:
        """Wait as long as the manager lets this caller wait, asking whenever it looks ready.

        More than one ask, since a damaged table of a snapshot shows at its first touch: what
        looked ready is then replayed from the log.
        """
        tp = params.partition.to_domain()
        self._stats.held_reads += 1
        self._stats.held_reads_now += 1
        if self._caller is Caller.BROKER:
            # Its reader threads are few: it is held only so long that clients do not hammer.
            seconds = min(seconds, self._shared.options.not_ready_hold_seconds)
        try:
            result = await self._asked(method, tp, params, seconds)
        finally:
            self._stats.held_reads_now -= 1
        self._stats.held_reads_answered += 1
        if method in handlers.WALKS:
            return await self.walked(request_id, method, result)
        return _result_frame(request_id, result)
