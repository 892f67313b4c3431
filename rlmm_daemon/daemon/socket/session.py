"""A connection of requests and answers.

The shape follows from what is fast on one event loop: a look-up is answered inside the read
callback, a broker's write is begun there and answered by its own apply, and all answers of one turn
of the loop leave in one write. Everything else is a task. What comes in faster than it can be
answered waits in the kernel: while the peer does not read its answers, this side does not read its
requests.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, nullcontext, suppress
from functools import partial
from itertools import chain
from typing import Any, Final, cast

import msgspec
import structlog

from rlmm_daemon.codec import api, frames
from rlmm_daemon.core.fold.outcome import Outcome
from rlmm_daemon.core.fold.walks import Walk
from rlmm_daemon.daemon.base.appends import Append, MustWait, error_of
from rlmm_daemon.daemon.base.caller import Caller
from rlmm_daemon.daemon.base.crash_guard import blamed
from rlmm_daemon.daemon.socket import handlers, quick_lookups
from rlmm_daemon.daemon.socket.admission import PARAMS, UNDECODABLE, Shared, decode_params
from rlmm_daemon.daemon.socket.audit import audited, is_order
from rlmm_daemon.daemon.socket.greeting import Introduction, Role
from rlmm_daemon.daemon.socket.quick_lookups import QuickLookups
from rlmm_daemon.domain.errors import (
    InvalidArgument,
    Malformed,
    NotReady,
    Overloaded,
    RlmmError,
    TimedOut,
)
from rlmm_daemon.domain.ids import TopicIdPartition

#: Answers of one read callback are handed to the transport in pieces of about this size.
BURST_BYTES: Final = 256 * 1024
#: Of one held read; bounds what a partition that is ready and not, in turn, could cost.
_ASKS_MAX: Final = 4
#: A held read's second ask says more than a plain `timed_out`, so it gets this much longer.
_GRACE_SECONDS: Final = 1.0
_HEADER: Final = frames.HEADER_BYTES
_length_at_start: Final = frames.LENGTH.unpack_from
_decode_request: Final = frames.decode_request
_result_frame: Final = frames.result_frame

_log = structlog.get_logger(__name__)

#: Look-ups that the read callback answers: how to decode, what to call, whether it is walked.
_FAST: Final = {
    name: (PARAMS[name], call, name in handlers.WALKS) for name, call in handlers.LOOKUPS.items()
}


#: Jobs that wait for a disk soon, and have little to do before.
_DISK_BOUND: Final = frozenset({"copy_segment", "delete_segment"})


async def fail(error: Exception) -> None:
    """Raise a partition's crash where the server's task group sees it: it ends the process."""
    raise error


class Session(asyncio.Protocol):
    """A connection of role broker or operator, from its accepted `hello` on."""

    def __init__(
        self,
        shared: Shared,
        introduction: Introduction,
        rights: frozenset[api.Right],
        *,
        welcome: bytes,
        rest: bytes,
        opened: Callable[["Session"], None],
        closed: Callable[["Session"], None],
    ) -> None:
        self.introduction = introduction
        self._shared = shared
        self.rights = rights
        self._welcome = welcome
        self._rest = rest
        self._opened = opened
        self._closed = closed
        self._caller = Caller.BROKER if introduction.role is Role.BROKER else Caller.OPERATOR
        self._lookups = shared.services.lookups
        self._stats = shared.stats
        self._splitter = frames.Splitter(shared.options.frame_bytes_max)
        self._unfinished_bytes = 0
        self._in_flight: dict[int, asyncio.Task[None]] = {}
        #: Writes that were begun without a task.
        self._writes: dict[int, Append] = {}
        #: Of this turn of the loop, for those.
        self._answers: list[bytes] = []
        #: Of this daemon's life; with a request's id it is the correlation id in the log.
        self._number = shared.stats.connections
        self._loop = asyncio.get_running_loop()
        self._writable = asyncio.Event()
        self._writable.set()
        self._paused = False
        self._patience: asyncio.TimerHandle | None = None
        self._fast: dict[str, Any] = {}
        self._quick = QuickLookups(self._lookups, self._caller)
        #: What came last was one of those, so it pays to try them first.
        self._expect_common = False
        self._transport: asyncio.Transport

    # --- the transport's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Answer `hello` and what came right behind it, before anything else is read."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=self._shared.options.buffered_bytes_max)
        self.refresh()
        self._opened(self)
        self._transport.write(self._welcome)
        if self._rest:
            # Not from in here: uvloop starts to read after this callback even if it paused reading.
            self._splitter.feed(self._rest)
            self._rest = b""
            self._unfinished_bytes = len(self._splitter)
            self._stats.unfinished_bytes_now += self._unfinished_bytes
            self._loop.call_soon(self._go_on)

    def refresh(self) -> None:
        """Open the fast path once the cluster is known and this peer may read."""
        known = self._shared.identity.cluster_id is not None
        self._fast = _FAST if known and api.Right.READ in self.rights else {}
        self._expect_common = False  # opened by the first that `_fast` lets pass

    def data_received(self, data: bytes) -> None:
        """Answer what can be answered at once, begin the rest."""
        size = len(data)
        if (
            not self._unfinished_bytes
            and not self._paused
            and _HEADER <= size <= _HEADER + self._splitter.frame_bytes_max
            and _length_at_start(data)[0] == size - _HEADER
        ):  # one whole frame: nothing to cut, nothing to keep
            try:
                answer = self._answer_common(data[_HEADER:])
            except Malformed as error:
                self._break(error)
            else:
                if answer is not None:
                    self._write(answer)
            return
        if self._unfinished_bytes or self._paused:
            self._splitter.feed(data)
        else:
            self._splitter.start(data[self._answer_many(data) :])
        self._pump()

    def _answer_many(self, data: bytes) -> int:
        """Answer a batch of the most common shape; returns how many bytes of it were taken.

        What stopped it, `_pump` knows what to do with.
        """
        if not self._expect_common:
            return 0
        answers, taken = self._quick.answer_many(data, self._splitter.frame_bytes_max, BURST_BYTES)
        self._stats.requests += len(answers)
        if answers:
            self._write(b"".join(answers))
        return taken

    def _answer_common(self, body: bytes) -> bytes | None:
        """As `_answer`, but try the most common shape first when the last one had it.

        Whatever is not a plain success is begun anew there: these look-ups change nothing.
        """
        if self._expect_common:
            try:
                answer = self._quick.answer(body)
            except Exception:  # noqa: BLE001 - the general path meets it again and answers it
                self._expect_common = False
            else:
                self._stats.requests += 1
                return answer
        return self._answer(body)

    def _pump(self) -> None:
        """Answer the frames that are here until the peer's reading falls behind."""
        answers: list[bytes] = []
        size = 0
        try:
            while not self._paused:
                body = self._splitter.next()
                if body is None:
                    break
                answer = self._answer_common(body)
                if answer is None:
                    continue
                answers.append(answer)
                size += len(answer)
                if size >= BURST_BYTES:
                    self._write(b"".join(answers))
                    answers, size = [], 0
            self._account()
        except (Malformed, Overloaded) as error:
            self._transport.write(b"".join(answers))
            self._break(error)
            return
        if answers:
            self._write(b"".join(answers))

    def _write(self, answer: bytes) -> None:
        """Send what somebody waits for, and let him run before the next step of a long work."""
        self._transport.write(answer)
        self._shared.turns.answered()

    def _account(self) -> None:
        """Keep the server's sum of unfinished frames; refuse to be one too many."""
        held = len(self._splitter)
        self._stats.unfinished_bytes_now += held - self._unfinished_bytes
        self._unfinished_bytes = held
        if held and self._stats.unfinished_bytes_now > self._shared.options.unfinished_bytes_max:
            self._stats.unfinished_bytes_refused += 1
            raise Overloaded("too many bytes of unfinished requests")

    def pause_writing(self) -> None:
        """Stop reading: the peer does not take its answers."""
        self._paused = True
        self._writable.clear()
        self._stats.slow_reader_pauses += 1
        self._transport.pause_reading()
        self._wait_for_reader(self._transport.get_write_buffer_size())

    def _wait_for_reader(self, waiting_bytes: int) -> None:
        seconds = self._shared.options.slow_reader_seconds
        self._patience = self._loop.call_later(seconds, self._check_reader, waiting_bytes)

    def _check_reader(self, waiting_before: int) -> None:
        waiting = self._transport.get_write_buffer_size()
        if waiting < waiting_before:
            self._wait_for_reader(waiting)
            return
        self._stats.slow_readers_closed += 1
        self._transport.abort()

    def resume_writing(self) -> None:
        """Go on where reading stopped."""
        self._paused = False
        self._end_patience()
        self._writable.set()
        self._go_on()
        if not self._paused and not self._transport.is_closing():
            self._transport.resume_reading()

    def _go_on(self) -> None:
        if not self._transport.is_closing():
            self._pump()

    def _end_patience(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def connection_lost(self, _error: Exception | None) -> None:
        """Cancel what this peer asked for: nobody is left to be told."""
        self._end_patience()
        self._stats.unfinished_bytes_now -= self._unfinished_bytes
        self._unfinished_bytes = 0
        self._splitter.take_rest()
        self._writable.set()
        for task in self._in_flight.values():
            task.cancel()
        for request_id in list(self._writes):
            self._leave_write(request_id)
        self._closed(self)

    @property
    def buffered_bytes(self) -> int:
        """Answers that the peer has not taken yet."""
        return self._transport.get_write_buffer_size()

    # --- closing

    @property
    def is_closing(self) -> bool:
        """Whether nothing is taken from this peer any more."""
        return self._transport.is_closing()

    def close(self, error: RlmmError | None = None) -> None:
        """Say why, if there is a reason, flush what was answered, close.

        A peer that does not even read that is cut off after a while.
        """
        if self._transport.is_closing():
            return
        self._end_patience()
        if error is not None:
            self._transport.write(frames.error_frame(frames.CONNECTION_ID, error))
        self._transport.close()
        self._patience = self._loop.call_later(
            self._shared.options.hello_seconds, self._transport.abort
        )

    def _break(self, error: RlmmError) -> None:
        if isinstance(error, Malformed):
            if "limit" in error.fields:
                self._stats.frames_too_long += 1
            else:
                self._stats.frames_malformed += 1
        _log.warning("session.broken", client=self.introduction.client, error=error.message)
        self.close(error)

    # --- one message

    def _answer(self, body: bytes) -> bytes | None:  # noqa: PLR0911 - one return per outcome
        """Return the whole answer, or None when there is none or it comes later.

        Raises:
            Malformed: the connection cannot go on.
        """
        try:
            request_id, method, raw = _decode_request(body)
        except Malformed:
            self._notified(frames.decode_message(body))
            return None
        self._stats.requests += 1
        fast = self._fast.get(method)
        try:
            if fast is None:
                return self._begin(request_id, method, raw)
            decode, call, walked = fast
            params = decode(raw)
            result = call(self._lookups, params.partition.to_domain(), params, self._caller)
            if walked:
                return self._walked(request_id, method, result)
            self._expect_common = method in quick_lookups.METHODS
            return _result_frame(request_id, result)
        except NotReady as error:
            return self._hold(request_id, method, raw, error)
        except UNDECODABLE as error:
            return frames.error_frame(request_id, InvalidArgument(f"{method}: {error}"))
        except RlmmError as error:
            return frames.error_frame(request_id, error)
        except Exception as bug:  # noqa: BLE001 - it ends this request, and nothing else
            return self._met(request_id, method, bug)

    def _met(self, request_id: int, method: str, bug: Exception) -> bytes:
        """Return the answer to a request that met a bug; a fold's ends the process besides."""
        if blamed(bug):
            self._shared.tasks.create_task(fail(bug), name="session.crash")
        error = self._shared.bugs.error_for(method, bug)
        self._stats.outcomes[method, error.wire_name()] += 1
        return frames.error_frame(request_id, error)

    def _notified(self, message: frames.Message) -> None:
        if not isinstance(message, frames.Notification):
            raise Malformed("a request or a notification was expected")
        if message.method != frames.CANCEL:
            return  # a later version's; notifications are never answered
        try:
            (request_id,) = msgspec.msgpack.decode(message.params, type=tuple[int])
        except UNDECODABLE as error:
            raise Malformed(f"cancel: {error}") from error
        task = self._in_flight.get(request_id)
        if task is not None:
            self._stats.requests_cancelled += 1
            task.cancel()
        elif request_id in self._writes:
            self._stats.requests_cancelled += 1
            self._leave_write(request_id)

    def _begin(self, request_id: int, method: str, raw: msgspec.Raw) -> bytes | None:
        row = self._shared.admit(method, self.rights)
        if row.shape is api.Shape.BULK:
            raise InvalidArgument(f"{method} needs a connection of role bulk")
        params = decode_params(row, raw)
        seconds = self._shared.seconds_for(method, params)
        announce = handlers.ANNOUNCEMENTS.get(method)
        if announce is not None:
            rest = self._shared.announcing.begin(
                announce(self._shared.services.manager, params), short=handlers.is_short(params)
            )
            if rest is None:
                return _result_frame(request_id, None)
            self._start(request_id, method, lambda: self._announced(request_id, rest), seconds)
            return None
        write = handlers.WRITES.get(method)
        if write is not None:
            assert seconds is not None, "only a tail has no end"
            if self._caller is Caller.BROKER and method in handlers.BEGUN:
                try:
                    return self._begin_write(request_id, method, params, seconds)
                except MustWait:
                    pass
            until = self._loop.time() + seconds
            self._start(
                request_id,
                method,
                lambda: self._written(request_id, write, params, until),
                seconds + _GRACE_SECONDS,
            )
            return None
        if row.shape is api.Shape.STREAM:
            stream = handlers.STREAMS[method]
            self._start(
                request_id, method, lambda: self._send_pages(request_id, stream, params), seconds
            )
        else:
            self._start(
                request_id, method, lambda: self._send_one(request_id, method, params), seconds
            )
        return None

    # --- writes that need no task

    def _begin_write(
        self, request_id: int, method: str, params: Any, seconds: float
    ) -> bytes | None:
        """Begin a write that is answered by a call; the answer, if it needed no append.

        Raises:
            MustWait: it needs a task; nothing was done.
        """
        self._admit_one_more(request_id)
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
            raise  # `_met` counts a bug
        if append is None:
            self._shared.end_request()
            self._stats.outcomes[method, "ok"] += 1
            return _result_frame(request_id, None)
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
            self._flush_answers()
        elif len(self._answers) == 1:
            self._loop.call_soon(self._flush_answers)

    def _flush_answers(self) -> None:
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

    def _admit_one_more(self, request_id: int) -> None:
        if request_id in self._in_flight or request_id in self._writes:
            raise InvalidArgument(f"request {request_id} is in flight already")
        self._shared.begin_request(len(self._in_flight) + len(self._writes))

    def _walked(self, request_id: int, method: str, walk: Walk[Any]) -> bytes | None:
        """Answer a listing or a size at once if it is short, else from a task."""
        if not walk.is_long:
            if method == handlers.SIZING:
                return _result_frame(request_id, sum(walk.pieces))
            pages = handlers.pages_of(list(chain.from_iterable(walk.pieces)))
            if len(pages) == 1:
                return _result_frame(request_id, pages[0])
            walk = Walk([page.records for page in pages])
        seconds = self._shared.options.request_seconds
        self._start(
            request_id, method, lambda: self._send_walked(request_id, method, walk), seconds
        )
        return None

    # --- tasks

    def _start(
        self,
        request_id: int,
        method: str,
        work: Callable[[], Any],
        seconds: float | None,
    ) -> None:
        self._admit_one_more(request_id)
        self._in_flight[request_id] = self._shared.tasks.create_task(
            self._run(request_id, method, work, seconds), name=f"session.{method}"
        )
        self._in_flight[request_id].add_done_callback(lambda _: self._ended(request_id))

    def _ended(self, request_id: int) -> None:
        # A done callback, because a task that is cancelled before its first step runs no `finally`.
        del self._in_flight[request_id]
        self._shared.end_request()

    async def _run(
        self, request_id: int, method: str, work: Callable[[], Any], seconds: float | None
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
                await self._send(self._met(request_id, method, error))
                return
            self._stats.requests_timed_out += 1
            outcome = TimedOut.wire_name()
            told = self._shared.with_cause(str(error) or TimedOut().message)
            frame = frames.error_frame(request_id, TimedOut(told))
        except Exception as bug:  # noqa: BLE001 - it ends this request, and nothing else
            await self._send(self._met(request_id, method, bug))
            return
        self._stats.outcomes[method, outcome] += 1
        await self._send(frame)

    async def _send(self, frame: bytes) -> None:
        """Write once the peer has taken enough; the slow reader's limit bounds the wait."""
        while self._paused and not self._transport.is_closing():
            await self._writable.wait()
        if not self._transport.is_closing():
            self._write(frame)

    async def _written(
        self, request_id: int, write: handlers.Write, params: Any, until: float
    ) -> bytes:
        left = until - self._loop.time()
        if left <= 0:
            raise TimedOut("no time was left to append the record; nothing was begun")
        await write(self._shared.services.events, params, self._caller, left)
        return _result_frame(request_id, None)

    async def _announced(self, request_id: int, rest: asyncio.Task[Exception | None]) -> bytes:
        if (error := await asyncio.shield(rest)) is not None:
            raise error
        return _result_frame(request_id, None)

    async def _send_one(self, request_id: int, method: str, params: Any) -> bytes:
        if method not in handlers.ABOUT_THE_DAEMON:
            with suppress(NotReady) if method in handlers.WITHOUT_A_LOG else nullcontext():
                await self._shared.services.opened()
        work = handlers.REQUESTS[method](self._shared.services, params, self._caller)
        if is_order(method, self.introduction.role):
            work = audited(self.introduction, method, params, work)
        return _result_frame(request_id, await work)

    async def _send_pages(self, request_id: int, stream: handlers.Stream, params: Any) -> bytes:
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

    async def _send_walked(self, request_id: int, method: str, walk: Walk[Any]) -> bytes:
        if method == handlers.SIZING:
            pieces = handlers.drawn(walk, self._shared.turns)
            return _result_frame(request_id, sum([piece async for piece in pieces]))
        records = handlers.records_of(walk, self._shared.turns)
        return await self._send_all(request_id, handlers.record_pages(records))

    # --- reads that wait to become ready

    def _hold(
        self, request_id: int, method: str, raw: msgspec.Raw, refusal: NotReady
    ) -> bytes | None:
        if method not in self._fast or self._shared.draining:
            return frames.error_frame(request_id, refusal)
        if self._stats.held_reads_now >= self._shared.options.held_reads_max:
            self._stats.held_reads_refused += 1
            return frames.error_frame(request_id, refusal)
        try:
            params = self._fast[method][0](raw)
            seconds = self._shared.seconds_for(method, params)
            self._start(
                request_id,
                method,
                lambda: self._ask_again(request_id, method, params, seconds),
                None,
            )
        except RlmmError as error:
            return frames.error_frame(request_id, error)
        return None

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

    async def _ask_again(
        self, request_id: int, method: str, params: Any, seconds: float | None
    ) -> bytes:
        """Wait as long as the manager lets this caller wait, asking whenever it looks ready.

        More than one ask, since a damaged table of a snapshot shows at its first touch: what
        looked ready is then replayed from the log.
        """
        assert seconds is not None
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
            return await self._send_walked(request_id, method, result)
        return _result_frame(request_id, result)


def _written_frame(request_id: int, error: RlmmError | None) -> bytes:
    """Return the frame of a write's answer."""
    if error is None:
        return _result_frame(request_id, None)
    return frames.error_frame(request_id, error)
