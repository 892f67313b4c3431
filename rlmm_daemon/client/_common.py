"""The parts that the blocking and the async client share: address, identity, time-outs, retries."""

import math
import os
import random
import socket
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from rlmm_daemon.codec import api, frames, records
from rlmm_daemon.domain.backoff import Backoff
from rlmm_daemon.domain.errors import (
    ConfigError,
    DaemonUnreachable,
    Malformed,
    OutcomeUnknown,
    ProtocolViolation,
    RlmmError,
    TimedOut,
)
from rlmm_daemon.domain.ids import TopicIdPartition
from rlmm_daemon.domain.segment import SegmentMetadata

DEFAULT_PATH: Final = "/run/rlmm/rlmm.sock"
#: sun_path of sockaddr_un holds 108 bytes, the last of which is a zero.
PATH_BYTES_MAX: Final = 107
#: For whole jobs, unless the caller says otherwise.
JOB_SECONDS: Final = 3_600.0
FOREVER: Final = math.inf
#: The daemon gets the caller's deadline and this much more to say how it ended.
GRACE_SECONDS: Final = 1.0
#: Larger than the daemon's own limit: an answer of one page may hold one long record more.
ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
HELLO_ID: Final = 1
_BACK_OFF_FIRST: Final = 0.02
_BACK_OFF_MAX: Final = 1.0


class NotSent(Exception):
    """The request did not leave whole, so it cannot have begun anything."""


def socket_path(explicit: str | None = None) -> str:
    """Return the daemon's socket: as given, else `RLMM_SOCKET`, else `/run/rlmm/rlmm.sock`.

    Raises:
        ConfigError: the path has more than the 107 bytes that a Unix socket address holds.
    """
    path = explicit or os.environ.get("RLMM_SOCKET") or DEFAULT_PATH
    size = len(os.fsencode(path))
    if size > PATH_BYTES_MAX:
        raise ConfigError(
            f"the socket path has {size} bytes, more than the {PATH_BYTES_MAX} that a Unix socket"
            f" address holds: {path}",
            path=path,
        )
    return path


class ClientOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Who the client says it is, and its patience."""

    #: Free text for the daemon's log.
    client: str = "rlmm-client"
    #: "operator" or "broker"; brokers name their ids and are bound by their announcements.
    role: str = "operator"
    part: str = ""
    cluster_id: str | None = None
    broker_id: int | None = None
    broker_incarnation: int | None = None
    #: Of every call that does not say otherwise.
    timeout_seconds: float = 30.0
    #: How long a client that was connected before tries to connect again.
    reconnect_seconds: float = 5.0

    def hello(self, role: str | None = None) -> bytes:
        """Return the frame that opens a connection."""
        params = api.HelloParams(
            frames.PROTOCOL_VERSION,
            self.client,
            role or self.role,
            self.part,
            self.cluster_id,
            self.broker_id,
            self.broker_incarnation,
        )
        return frames.request_frame(HELLO_ID, "hello", params)

    def deadline(self, seconds: float | None, default: float | None) -> tuple[float, int | None]:
        """Return a call's seconds and what the daemon is told of them; FOREVER tells nothing."""
        chosen = seconds if seconds is not None else default
        if chosen is None:
            chosen = self.timeout_seconds
        return chosen, None if math.isinf(chosen) else max(1, int(chosen * 1000))


def back_off(luck: random.Random) -> Iterator[float]:
    """Yield ever longer pauses in seconds, each drawn between half and all of its bound."""
    backoff = Backoff(_BACK_OFF_FIRST, _BACK_OFF_MAX, luck.random)
    while True:
        yield backoff.next()


def retries(luck: random.Random) -> Iterator[float]:
    """Yield the pauses before a lost request is sent again: none at first, then ever longer ones.

    A daemon that restarted costs nothing so; one that takes connections and drops them is spared.
    """
    yield 0.0
    yield from back_off(luck)


def result_of(body: bytes, expected_id: int, kind: Any) -> Any:
    """Return an answer's result; None for an answer to another request.

    Raises:
        RlmmError: the error that the daemon sent.
        ProtocolViolation: not an answer.
    """
    response = response_of(body)
    if response.id not in (expected_id, frames.CONNECTION_ID):
        raise ProtocolViolation(f"answer {response.id} where {expected_id} was expected")
    if response.error is not None:
        raise response.error.to_error()
    return decoded(response.result, kind)


def response_of(body: bytes) -> frames.Response:
    """Return a frame as an answer.

    Raises:
        ProtocolViolation: it is none.
    """
    try:
        message = frames.decode_message(body)
    except Malformed as error:
        raise ProtocolViolation(error.message) from error
    if not isinstance(message, frames.Response):
        raise ProtocolViolation("the daemon sent something else than an answer")
    return message


def decoded(raw: Any, kind: Any) -> Any:
    """Return a result as its type.

    Raises:
        ProtocolViolation: it is not.
    """
    try:
        return frames.decode_result(raw, kind)
    except Malformed as error:
        raise ProtocolViolation(error.message) from error


def lost(method: str) -> RlmmError:
    """Return what to raise when the connection went before the answer came."""
    if api.METHODS[method].right is api.Right.READ:
        return DaemonUnreachable(f"the connection was lost during {method}")
    return OutcomeUnknown(f"the connection was lost before the answer to {method}")


def silent(method: str) -> RlmmError:
    """Return what to raise when the daemon did not answer in time, not even to say so."""
    if api.METHODS[method].right is api.Right.READ:
        return TimedOut(f"no answer to {method} in time")
    return OutcomeUnknown(f"no answer to {method} in time")


def repeatable(method: str) -> bool:
    """Return whether a call whose connection was lost is simply made again."""
    return api.METHODS[method].right is api.Right.READ


def unix_socket() -> socket.socket:
    """Return a fresh Unix stream socket."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)


def segment_of(record: bytes) -> SegmentMetadata:
    """Return the segment that a record describes.

    Raises:
        ProtocolViolation: another kind of record.
    """
    segment = records.decode(record)
    if not isinstance(segment, SegmentMetadata):
        raise ProtocolViolation(f"a segment was expected, not {type(segment).__name__}")
    return segment


def maybe_segment(record: bytes | None) -> SegmentMetadata | None:
    """Return the segment that a record describes, if there is one."""
    return None if record is None else segment_of(record)


def wire_of(partitions: Iterable[TopicIdPartition]) -> list[api.Partition]:
    """Return partitions in their wire form."""
    return [api.Partition.of(partition) for partition in partitions]
