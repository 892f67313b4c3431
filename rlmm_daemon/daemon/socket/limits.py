"""The socket's limits and what came of them, one counter for each."""

from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec
from msgspec.structs import fields

from rlmm_daemon.codec.frames import FRAME_BYTES_MAX
from rlmm_daemon.daemon.socket.rights import RightsTable


class ServerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Where to listen, for whom, and how much of everything."""

    path: str
    mode: int = 0o660
    #: The socket file's group; None leaves the daemon's own.
    group_gid: int | None = None
    rights: RightsTable = msgspec.field(default_factory=RightsTable)
    connections_max: int = 1_024
    requests_per_connection_max: int = 1_024
    #: In flight over all connections; look-ups are answered at once and never in flight.
    requests_max: int = 16_384
    frame_bytes_max: int = FRAME_BYTES_MAX
    #: Unfinished frames over all connections.
    unfinished_bytes_max: int = 64 * 1024 * 1024
    #: Answers waiting for a slow reader; beyond it that connection is read no further.
    buffered_bytes_max: int = 8 * 1024 * 1024
    #: A connection whose peer takes nothing for so long, with answers waiting, is closed.
    slow_reader_seconds: float = 60.0
    hello_seconds: float = 5.0
    #: Of one request, copies and their kin apart; a caller may ask for less.
    request_seconds: float = 30.0
    #: Of copies, deletes, exports and repairs, which have deadlines of their own further down.
    job_seconds: float = 3_600.0
    #: Not-ready reads that wait to become ready; beyond it the answer is `not_ready` at once.
    held_reads_max: int = 4_096
    #: How long a broker's not-ready read is held.
    not_ready_hold_seconds: float = 0.1


#: Configuration key -> the counter of how often that limit refused or paused.
LIMITS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "connections_max": "connections_refused",
        "requests_max": "requests_refused",
        "requests_per_connection_max": "requests_refused_here",
        "hello_timeout_ms": "hello_timeouts",
        "frame_bytes_max": "frames_too_long",
        "held_reads_max": "held_reads_refused",
        "buffered_bytes_max": "slow_reader_pauses",
        "slow_reader_timeout_ms": "slow_readers_closed",
        "unfinished_bytes_max": "unfinished_bytes_refused",
        "request_timeout_ms": "requests_timed_out",
    }
)


class ServerStats(msgspec.Struct):
    """Counters of a server's life; `*_now` are levels."""

    connections_now: int = 0
    requests_now: int = 0
    held_reads_now: int = 0
    unfinished_bytes_now: int = 0
    connections: int = 0
    connections_refused: int = 0
    connections_deferred: int = 0
    hello_refused: int = 0
    hello_timeouts: int = 0
    requests: int = 0
    requests_refused: int = 0
    #: By the limit of their own connection.
    requests_refused_here: int = 0
    requests_timed_out: int = 0
    requests_cancelled: int = 0
    requests_unauthorized: int = 0
    frames_malformed: int = 0
    frames_too_long: int = 0
    unfinished_bytes_refused: int = 0
    held_reads: int = 0
    held_reads_answered: int = 0
    held_reads_refused: int = 0
    slow_reader_pauses: int = 0
    slow_readers_closed: int = 0
    bulk_answers: int = 0
    bulk_answers_broken: int = 0
    bulk_bytes: int = 0
    #: Role -> connections open now, from their `hello` on.
    roles: Counter[str] = msgspec.field(default_factory=Counter)
    #: A broker's part -> what its last connection called itself.
    plugins: dict[str, str] = msgspec.field(default_factory=dict)
    #: (method, "ok" or an error's wire name) -> answers, but for look-ups answered at once.
    outcomes: Counter[tuple[str, str]] = msgspec.field(default_factory=Counter)

    def snapshot(self) -> dict[str, int]:
        """Return every counter by its name."""
        levels = (each.name for each in fields(self) if each.type is int)
        return {name: getattr(self, name) for name in levels}
