"""Checks before a request begins: its peer's rights, its parameters, the limits that all share.

Connections of both kinds ask, those of requests and answers and those of bulk reads.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, TypeVar

import msgspec

from rlmm_daemon.codec import api, frames
from rlmm_daemon.daemon.base.announcing import Announcing
from rlmm_daemon.daemon.base.bugs import Bugs
from rlmm_daemon.daemon.base.crash_guard import blamed
from rlmm_daemon.daemon.base.fair_scheduler import FairScheduler
from rlmm_daemon.daemon.base.services import Services
from rlmm_daemon.daemon.socket import handlers
from rlmm_daemon.daemon.socket.greeting import DaemonIdentity
from rlmm_daemon.daemon.socket.limits import ServerOptions, ServerStats
from rlmm_daemon.domain.errors import (
    Draining,
    InvalidArgument,
    NotReady,
    Overloaded,
    TimedOut,
    Unauthorized,
    UnknownMethod,
)
from rlmm_daemon.ports.disk_threads import DiskThreads

T = TypeVar("T")
#: Windows of files that are read into the page cache at once.
READS_MAX: Final = 8
#: What a decoder says of bytes that are not what was wanted.
UNDECODABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
#: By method.
PARAMS: Final[dict[str, Callable[[Any], Any]]] = {
    row.name: msgspec.msgpack.Decoder(row.params).decode for row in api.METHODS.values()
}


def begun(tasks: asyncio.TaskGroup, work: Coroutine[Any, Any, T], name: str) -> "asyncio.Task[T]":
    """Start a task of the server's.

    Raises:
        Draining: the group is ending, and the process with it.
    """
    try:
        return tasks.create_task(work, name=name)
    except RuntimeError:  # "is shutting down": connections are still open, and may ask
        work.close()
        raise Draining("the daemon stops; nothing was begun") from None


async def fail(error: Exception) -> None:
    """Raise a partition's crash where the server's task group sees it: it ends the process."""
    raise error


class Shared(msgspec.Struct):
    """What all sessions of one server have in common."""

    options: ServerOptions
    services: Services
    identity: DaemonIdentity
    tasks: asyncio.TaskGroup
    announcing: Announcing
    stats: ServerStats = msgspec.field(default_factory=ServerStats)
    draining: bool = False
    #: Set while no request is in flight.
    idle: asyncio.Event = msgspec.field(default_factory=asyncio.Event)
    #: For pieces of long answers, and whatever else takes long.
    turns: FairScheduler = msgspec.field(default_factory=FairScheduler)
    bugs: Bugs = msgspec.field(default_factory=Bugs)
    #: For what is not in the page cache, so that a disk or mount that hangs holds up no stop.
    reads: DiskThreads = msgspec.field(default_factory=lambda: DiskThreads(READS_MAX, "bulk.read"))

    def __post_init__(self) -> None:
        self.idle.set()

    def begin_request(self, in_flight_here: int) -> None:
        """Count one more request in flight.

        Raises:
            Overloaded: a limit is reached.
        """
        if in_flight_here >= self.options.requests_per_connection_max:
            self.stats.requests_refused_here += 1
            raise Overloaded(
                f"{in_flight_here} requests of this connection are in flight",
                limit=self.options.requests_per_connection_max,
            )
        if self.stats.requests_now >= self.options.requests_max:
            self.stats.requests_refused += 1
            raise Overloaded(limit=self.options.requests_max)
        self.stats.requests_now += 1
        self.idle.clear()

    def end_request(self) -> None:
        """Count one request less."""
        self.stats.requests_now -= 1
        if not self.stats.requests_now:
            self.idle.set()

    def answer_to_bug(self, request_id: int, method: str, bug: Exception) -> bytes:
        """Return the answer to a request that met a bug; a fold's ends the process besides."""
        if blamed(bug):
            with suppress(Draining):  # another one ends the process already
                begun(self.tasks, fail(bug), "session.crash")
        error = self.bugs.error_for(method, bug)
        self.stats.outcomes[method, error.wire_name()] += 1
        return frames.error_frame(request_id, error)

    def admit(self, method: str, rights: frozenset[api.Right]) -> api.Method:
        """Return the method's row if it may be begun now by such a peer.

        Raises:
            UnknownMethod, Unauthorized, NotReady, Draining: as they say.
        """
        row = api.METHODS.get(method)
        if row is None:
            raise UnknownMethod(f"there is no method {method[:100]!r}")
        if row.right not in rights:
            self.stats.requests_unauthorized += 1
            raise Unauthorized(f"{method} needs the right {row.right.value}", right=row.right.value)
        if self.identity.cluster_id is None and method not in handlers.ABOUT_THE_DAEMON:
            raise NotReady(
                self.with_cause("the daemon does not know its cluster yet"), state="starting"
            )
        if self.draining and method not in handlers.WHILE_DRAINING:
            raise Draining
        return row

    def with_cause(self, what: str) -> str:
        """Return a sentence with the event log's trouble behind it, while it is not open."""
        return ": ".join(filter(None, (what, self.services.log_trouble())))

    def seconds_for(self, method: str, params: Any) -> float | None:
        """Return how long a request may take; None only for a tail that is followed."""
        if getattr(params, "follow", False):
            seconds = None
        elif method in handlers.JOBS:
            seconds = self.options.job_seconds
        else:
            seconds = self.options.request_seconds
        asked: int | None = params.timeout_ms
        if asked is None:
            return seconds
        if asked <= 0:
            raise TimedOut("the request came with no time left")
        return asked / 1000 if seconds is None else min(seconds, asked / 1000)


def decode_params(row: api.Method, raw: msgspec.Raw) -> Any:
    """Return a method's parameters.

    Raises:
        InvalidArgument: not of the method's types and ranges.
    """
    try:
        return PARAMS[row.name](raw)
    except UNDECODABLE as error:
        raise InvalidArgument(f"{row.name}: {error}") from error
