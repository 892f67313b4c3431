"""Requests of one connection that are answered later: tasks, and writes that need none."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import structlog

from rlmm_daemon.codec import frames
from rlmm_daemon.core.fold.outcome import Outcome
from rlmm_daemon.daemon.base.appends import Append, MustWait, error_of
from rlmm_daemon.daemon.base.caller import Caller
from rlmm_daemon.daemon.socket import handlers
from rlmm_daemon.daemon.socket.admission import Shared, begun
from rlmm_daemon.domain.errors import Draining, InvalidArgument, RlmmError, TimedOut

#: Jobs that wait for a disk soon, and have little to do before.
_DISK_BOUND: Final = frozenset({"copy_segment", "delete_segment"})


class InFlight:
    """What is in flight, by request id; bounded by what a connection may have."""

    def __init__(
        self,
        shared: Shared,
        caller: Caller,
        transport: asyncio.Transport,
        send: Callable[[bytes], Awaitable[None]],
    ) -> None:
        self._shared, self._caller = shared, caller
        self._transport, self._send = transport, send
        self._stats = shared.stats
        #: Connections since the daemon began; with a request's id, its correlation id in the log.
        self._number = shared.stats.connections
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        #: Writes that were begun without a task.
        self._writes: dict[int, Append] = {}
        #: Answers to those, flushed once for each turn of the loop.
        self._answers: list[bytes] = []

    def cancel(self, request_id: int) -> None:
        """End a request that its peer does not want any more; one that is not known is nothing."""
        task = self._tasks.get(request_id)
        if task is not None:
            self._stats.requests_cancelled += 1
            task.cancel()
        elif request_id in self._writes:
            self._stats.requests_cancelled += 1
            self._leave_write(request_id)

    def end(self) -> None:
        """Cancel all: nobody is left to be told."""
        for task in self._tasks.values():
            task.cancel()
        for request_id in list(self._writes):
            self._leave_write(request_id)

    def start(
        self,
        request_id: int,
        method: str,
        work: Callable[[], Awaitable[bytes]],
        seconds: float | None,
    ) -> None:
        """Answer a request by what `work` returns, from a task.

        Raises:
            InvalidArgument, Overloaded, Draining: it may not be begun.
        """
        self._admit(request_id)
        running = self._run(request_id, method, work, seconds)
        try:
            task = self._tasks[request_id] = begun(self._shared.tasks, running, f"session.{method}")
        except Draining:
            self._shared.end_request()
            raise
        task.add_done_callback(lambda _: self._ended(request_id))

    def _ended(self, request_id: int) -> None:
        # A done callback, because a task that is cancelled before its first step runs no `finally`.
        del self._tasks[request_id]
        self._shared.end_request()

    async def _run(
        self,
        request_id: int,
        method: str,
        work: Callable[[], Awaitable[bytes]],
        seconds: float | None,
    ) -> None:
        """Do a task's work and send its last answer; operators' tasks begin one in a turn."""
        deadline, outcome = asyncio.timeout(seconds), "ok"
        correlation_id = f"{self._number}.{request_id}"
        try:
            with structlog.contextvars.bound_contextvars(correlation_id=correlation_id):
                async with deadline:
                    if self._caller is Caller.OPERATOR:
                        await self._shared.turns.wait(yields=method not in _DISK_BOUND)
                    frame = await work()
        except RlmmError as error:
            outcome = error.wire_name()
            frame = frames.error_frame(request_id, error)
        except TimeoutError as error:
            if not deadline.expired():
                await self._send(self._shared.answer_to_bug(request_id, method, error))
                return
            self._stats.requests_timed_out += 1
            outcome = TimedOut.wire_name()
            told = self._shared.with_cause(str(error) or TimedOut().message)
            frame = frames.error_frame(request_id, TimedOut(told))
        except Exception as bug:  # noqa: BLE001 - it ends this request, and nothing else
            await self._send(self._shared.answer_to_bug(request_id, method, bug))
            return
        self._stats.outcomes[method, outcome] += 1
        await self._send(frame)

    def begin_write(
        self, request_id: int, method: str, params: Any, seconds: float
    ) -> bytes | None:
        """Begin a write that is answered by a call; the answer, if it needed no append.

        Raises:
            MustWait: it needs a task; nothing was done.
        """
        self._admit(request_id)
        try:
            append = handlers.BEGUN[method](
                self._shared.services.events,
                params,
                seconds,
                partial(self._written_at, request_id, method),
            )
        except MustWait:
            self._shared.end_request()
            raise
        except BaseException as error:
            self._shared.end_request()
            if isinstance(error, RlmmError):
                self._stats.outcomes[method, error.wire_name()] += 1
            raise  # a bug is counted where it is answered
        if append is None:
            self._shared.end_request()
            self._stats.outcomes[method, "ok"] += 1
            return frames.result_frame(request_id, None)
        self._writes[request_id] = append
        return None

    def _written_at(self, request_id: int, method: str, outcome: Outcome | RlmmError) -> None:
        """A write came to this: answer, whatever waits in front of a slow reader.

        What one connection may have in flight bounds how much that can be.
        """
        del self._writes[request_id]
        self._shared.end_request()
        try:
            error = error_of(outcome)
            frame = _written_frame(request_id, error)
        except Exception as bug:  # noqa: BLE001 - this is called by whoever applies for everybody
            error = self._shared.bugs.met_after_append(method, bug)
            frame = _written_frame(request_id, error)
        self._stats.outcomes[method, "ok" if error is None else error.wire_name()] += 1
        self._answers.append(frame)
        if not self._writes:  # no other can join it
            self._flush()
        elif len(self._answers) == 1:
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Send what one turn of the loop answered: a call into the kernel costs more than it.

        In a burst nobody waits for one of many answers as for a look-up's.
        """
        answers, self._answers = self._answers, []
        if answers and not self._transport.is_closing():
            self._transport.write(b"".join(answers))
            if not self._writes:
                self._shared.turns.answered()

    def _leave_write(self, request_id: int) -> None:
        """Nobody waits for it any more; the record is not taken back."""
        self._writes.pop(request_id).leave()
        self._shared.end_request()

    def _admit(self, request_id: int) -> None:
        if request_id in self._tasks or request_id in self._writes:
            raise InvalidArgument(f"request {request_id} is in flight already")
        self._shared.begin_request(len(self._tasks) + len(self._writes))


def _written_frame(request_id: int, error: RlmmError | None) -> bytes:
    """Return the frame of a write's answer."""
    if error is None:
        return frames.result_frame(request_id, None)
    return frames.error_frame(request_id, error)
