"""Every key there is: its unit (in its name), its bounds, its default, and what it is for.

Structs are frozen and passed down whole or by section. `config/rlmm.toml` explains the keys to the
operator; a test holds it and this module to the same set.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from rlmm_daemon.domain.ids import BrokerId

Count = Annotated[int, Meta(ge=1, le=1_000_000_000)]
Milliseconds = Annotated[int, Meta(ge=1, le=86_400_000)]
Seconds = Annotated[int, Meta(ge=1, le=86_400)]
#: Made absolute against the working directory when the file is read.
FilePath = Annotated[str, Meta(min_length=1)]
Uid = Annotated[int, Meta(ge=0, le=2**32 - 2)]

_MIB = 1024 * 1024


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class Daemon(_Section, frozen=True, kw_only=True):
    """Who this daemon is and where its own files are."""

    #: The `node.id` of the broker that it stands beside.
    broker_id: Annotated[BrokerId, Meta(ge=0, le=2**31 - 1)]
    #: As in the broker's `meta.properties`; required with an embedded log.
    cluster_id: Annotated[str, Meta(min_length=1, max_length=255)] | None = None
    state_dir: FilePath = "/var/lib/rlmm"
    #: The broker's `log.dirs`: a copy's source files must lie below one of them.
    log_dirs: tuple[FilePath, ...] = ()
    #: How long SIGTERM waits for copies and snapshots; keep it below the unit's TimeoutStopSec.
    drain_deadline_ms: Milliseconds = 25_000
    #: The systemd watchdog is fed only while the event loop's lag stays below this.
    watchdog_lag_ms_max: Milliseconds = 5_000


class Peers(_Section, frozen=True, kw_only=True):
    """Processes by what the kernel says of them (SO_PEERCRED): one match is enough."""

    uids: tuple[Uid, ...] = ()
    gids: tuple[Uid, ...] = ()


class Rights(_Section, frozen=True, kw_only=True):
    """Who may do what; admin includes write, write includes read.

    Root and the daemon's own user may do everything.
    """

    read: Peers = Peers()
    write: Peers = Peers()
    admin: Peers = Peers()


class Socket(_Section, frozen=True, kw_only=True):
    """The Unix socket and its limits."""

    path: FilePath = "/run/rlmm/rlmm.sock"
    #: Octal, as in chmod.
    mode: Annotated[str, Meta(pattern=r"^0?[0-7]{3}$")] = "0660"
    rights: Rights = Rights()
    connections_max: Annotated[int, Meta(ge=1, le=65_536)] = 1_024
    requests_per_connection_max: Annotated[int, Meta(ge=1, le=65_536)] = 1_024
    #: In flight over all connections.
    requests_max: Annotated[int, Meta(ge=1, le=1_048_576)] = 16_384
    frame_bytes_max: Annotated[int, Meta(ge=4_096, le=64 * _MIB)] = 4 * _MIB
    #: Answers waiting for a slow reader; beyond it that connection is read no further.
    buffered_bytes_max: Annotated[int, Meta(ge=65_536, le=1_024 * _MIB)] = 8 * _MIB
    hello_timeout_ms: Milliseconds = 5_000
    #: Of one request, copies apart; a caller may ask for less.
    request_timeout_ms: Milliseconds = 30_000


class EmbeddedLog(_Section, frozen=True, kw_only=True, tag_field="kind", tag="embedded"):
    """A log of this daemon's own: for a cluster of one broker."""

    #: Has to be written out as true: the log is not replicated.
    single_broker: bool
    #: Default: `log` below the state directory.
    directory: FilePath | None = None
    #: Fixed at first contact, like the partition count of Kafka's metadata topic.
    partition_count: Annotated[int, Meta(ge=1, le=10_000)] = 50
    #: A file is sealed at this size; recovery reads only the newest one.
    segment_bytes: Annotated[int, Meta(ge=_MIB, le=1_024 * _MIB)] = 16 * _MIB


#: The kinds of log this version knows, told apart by `kind`; another one is one more struct here.
EventLog = EmbeddedLog


class Assignment(_Section, frozen=True, kw_only=True):
    """Which user partitions are served: those that the broker announces."""

    mode: Literal["announced"] = "announced"


class Readiness(_Section, frozen=True, kw_only=True):
    """When an answer may be given."""

    #: Without an answer of the log for so long, only positive look-ups are answered.
    stale_after_seconds: Seconds = 60
    #: The same for `is_ready` and `highest_offset_for_epoch`.
    strict_stale_after_seconds: Seconds = 5
    #: How long a read that is not ready is held before it is refused; 0 refuses at once.
    not_ready_hold_ms: Annotated[int, Meta(ge=0, le=60_000)] = 100
    held_reads_max: Annotated[int, Meta(ge=1, le=1_048_576)] = 1_024


class Snapshots(_Section, frozen=True, kw_only=True):
    """A metadata partition is written when it advanced by so much, or so long ago."""

    every_events: Count = 100_000
    every_seconds: Seconds = 300
    #: Generations on disk, the newest included.
    keep: Annotated[int, Meta(ge=2, le=100)] = 2


class NoStorage(_Section, frozen=True, kw_only=True, tag_field="kind", tag="none"):
    """Metadata only: storage methods answer `storage_not_configured`."""


class LocalStorage(_Section, frozen=True, kw_only=True, tag_field="kind", tag="local"):
    """Segments in a directory, laid out as Kafka's LocalTieredStorage does."""

    directory: FilePath
    #: True says that every broker sees this same directory.
    shared: bool = False
    #: Below the directory; no leading or trailing slash.
    prefix: Annotated[str, Meta(pattern=r"^([A-Za-z0-9._=-]+(/[A-Za-z0-9._=-]+)*)?$")] = ""


#: The kinds of storage this version knows, told apart by `kind`.
Storage = NoStorage | LocalStorage


class Copy(_Section, frozen=True, kw_only=True):
    """Copying one segment."""

    deadline_seconds: Seconds = 1_200
    #: A copy slower than the floor over a whole window is given up; 0 switches the floor off.
    progress_bytes_per_second_min: Annotated[int, Meta(ge=0, le=1_024 * _MIB)] = 65_536
    progress_window_seconds: Seconds = 60
    parallelism: Annotated[int, Meta(ge=1, le=256)] = 4
    #: Copies that wait for their turn; beyond it they are refused as overloaded.
    waiting_max: Annotated[int, Meta(ge=0, le=65_536)] = 256
    #: Check every batch of the segment file before it is called finished.
    check_segment: bool = True


class Admin(_Section, frozen=True, kw_only=True):
    """The HTTP port for /metrics, /healthz and /readyz."""

    #: `host:port`, `[v6]:port`; port 0 takes a free one; empty: no HTTP.
    listen: Annotated[str, Meta(pattern=r"^$|^(\[[0-9A-Fa-f:.]+\]|[^:\s\[\]]+):\d{1,5}$")] = (
        "127.0.0.1:9405"
    )


class Log(_Section, frozen=True, kw_only=True):
    """The daemon's own log lines, on standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    #: auto: colours on a terminal, else JSON.
    format: Literal["auto", "json", "console"] = "auto"


class Config(_Section, frozen=True, kw_only=True):
    """The whole configuration, checked."""

    daemon: Daemon
    event_log: EventLog
    socket: Socket = Socket()
    assignment: Assignment = Assignment()
    readiness: Readiness = Readiness()
    snapshots: Snapshots = Snapshots()
    storage: Storage = NoStorage()
    copy: Copy = Copy()
    admin: Admin = Admin()
    log: Log = Log()

    @property
    def event_log_directory(self) -> str:
        """Where the embedded log keeps its files."""
        return self.event_log.directory or f"{self.daemon.state_dir}/log"

    @property
    def snapshot_directory(self) -> str:
        """Where snapshots are kept."""
        return f"{self.daemon.state_dir}/snapshots"
