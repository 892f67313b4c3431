"""A client's connection: look-ups answered at once, all other requests in tasks of their own.

The shape follows from what is fast on one event loop: a look-up is answered inside the read
callback, a broker's write is begun there and answered by its own apply, and all answers of one turn
of the loop leave in one write. Everything else is a task. What comes in faster than it can be
answered waits in the kernel: while the peer does not read its answers, this side does not read its
requests.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Any, Final, cast

import msgspec
import structlog

from rlmm_daemon.codec import api, frames
from rlmm_daemon.core.fold.walks import Walk
from rlmm_daemon.daemon.base.appends import MustWait
from rlmm_daemon.daemon.base.caller import Caller
from rlmm_daemon.daemon.socket import handlers, quick_lookups
from rlmm_daemon.daemon.socket.admission import PARAMS, UNDECODABLE, Shared, decode_params
from rlmm_daemon.daemon.socket.greeting import Introduction, Role
from rlmm_daemon.daemon.socket.in_flight import InFlight
from rlmm_daemon.daemon.socket.later_answers import LaterAnswers
from rlmm_daemon.daemon.socket.quick_lookups import QuickLookups
from rlmm_daemon.daemon.socket.slow_reader import SlowReader
from rlmm_daemon.domain.errors import (
    InvalidArgument,
    Malformed,
    NotReady,
    Overloaded,
    RlmmError,
)

#: Answers of one read callback are handed to the transport in pieces of about this size.
BURST_BYTES: Final = 256 * 1024
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
        self._loop = asyncio.get_running_loop()
        self._writable = asyncio.Event()
        self._writable.set()
        self._paused = False
        self._fast: dict[str, Any] = {}
        self._later = LaterAnswers(shared, introduction, self._caller, self._send)
        self._quick = QuickLookups(self._lookups, self._caller)
        #: What came last was one of those, so it pays to try them first.
        self._expect_common = False
        self._transport: asyncio.Transport
        self._slow_reader: SlowReader
        self._in_flight: InFlight

    # --- the transport's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Answer `hello` and what came right behind it, before anything else is read."""
        self._transport = cast("asyncio.Transport", transport)
        self._slow_reader = SlowReader(self._transport, self._shared.options, self._stats)
        self._in_flight = InFlight(self._shared, self._caller, self._transport, self._send)
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
        self._slow_reader.wait()

    def resume_writing(self) -> None:
        """Go on where reading stopped."""
        self._paused = False
        self._slow_reader.end()
        self._writable.set()
        self._go_on()
        if not self._paused and not self._transport.is_closing():
            self._transport.resume_reading()

    def _go_on(self) -> None:
        if not self._transport.is_closing():
            self._pump()

    def connection_lost(self, _error: Exception | None) -> None:
        """Cancel what this peer asked for: nobody is left to be told."""
        self._slow_reader.end()
        self._stats.unfinished_bytes_now -= self._unfinished_bytes
        self._unfinished_bytes = 0
        self._splitter.take_rest()
        self._writable.set()
        self._in_flight.end()
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
        self._slow_reader.end()
        if error is not None:
            self._transport.write(frames.error_frame(frames.CONNECTION_ID, error))
        self._transport.close()
        self._slow_reader.wait_for_close()

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
            return self._shared.answer_to_bug(request_id, method, bug)

    def _notified(self, message: frames.Message) -> None:
        if not isinstance(message, frames.Notification):
            raise Malformed("a request or a notification was expected")
        if message.method != frames.CANCEL:
            return  # a later version's; notifications are never answered
        try:
            (request_id,) = msgspec.msgpack.decode(message.params, type=tuple[int])
        except UNDECODABLE as error:
            raise Malformed(f"cancel: {error}") from error
        self._in_flight.cancel(request_id)

    def _begin(self, request_id: int, method: str, raw: msgspec.Raw) -> bytes | None:
        row = self._shared.admit(method, self.rights)
        if row.shape is api.Shape.BULK:
            raise InvalidArgument(f"{method} needs a connection of role bulk")
        params = decode_params(row, raw)
        seconds = self._shared.seconds_for(method, params)
        work: Callable[[], Awaitable[bytes]]
        if (announce := handlers.ANNOUNCEMENTS.get(method)) is not None:
            rest = self._shared.announcing.begin(
                announce(self._shared.services.manager, params), short=handlers.is_short(params)
            )
            if rest is None:
                return _result_frame(request_id, None)
            work = partial(self._later.announced, request_id, rest)
        elif (write := handlers.WRITES.get(method)) is not None:
            assert seconds is not None, "only a tail has no end"
            if self._caller is Caller.BROKER and method in handlers.BEGUN:
                with suppress(MustWait):
                    return self._in_flight.begin_write(request_id, method, params, seconds)
            until = self._loop.time() + seconds
            work = partial(self._later.written, request_id, write, params, until)
            seconds += _GRACE_SECONDS
        elif row.shape is api.Shape.STREAM:
            work = partial(self._later.pages, request_id, handlers.STREAMS[method], params)
        else:
            work = partial(self._later.one, request_id, method, params)
        self._in_flight.start(request_id, method, work, seconds)
        return None

    def _walked(self, request_id: int, method: str, walk: Walk[Any]) -> bytes | None:
        """Answer a listing or a size at once if it is short, else from a task."""
        if not walk.is_long:
            if method == handlers.SIZING:
                return _result_frame(request_id, sum(walk.pieces))
            pages = handlers.pages_of(list(chain.from_iterable(walk.pieces)))
            if len(pages) == 1:
                return _result_frame(request_id, pages[0])
            walk = Walk([page.records for page in pages])
        work = partial(self._later.walked, request_id, method, walk)
        self._in_flight.start(request_id, method, work, self._shared.options.request_seconds)
        return None

    async def _send(self, frame: bytes) -> None:
        """Write once the peer has taken enough; the slow reader's limit bounds the wait."""
        while self._paused and not self._transport.is_closing():
            await self._writable.wait()
        if not self._transport.is_closing():
            self._write(frame)

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
            assert seconds is not None, "only a tail has no end"
            work = partial(self._later.asked_again, request_id, method, params, seconds)
            self._in_flight.start(request_id, method, work, None)
        except RlmmError as error:
            return frames.error_frame(request_id, error)
        return None
