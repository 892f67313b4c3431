"""Every key there is: its unit (in its name), its bounds, its default, and what it is for.

Structs are frozen and passed down whole or by section. The comment in front of a key is what
`docs/configuration.md` says of it; `config/rlmm.toml` has the keys beside values to start from.
"""

from typing import Annotated, Final, Literal

from msgspec import Meta

from rlmm_daemon.config.event_log import EmbeddedLog, EventLog
from rlmm_daemon.config.kafka_log import KafkaLog
from rlmm_daemon.config.quorum_log import QuorumLog
from rlmm_daemon.config.remote_storage import NoStorage, Storage
from rlmm_daemon.config.section import (
    MIB,
    Address,
    Count,
    FilePath,
    Milliseconds,
    Seconds,
    Section,
)
from rlmm_daemon.domain.ids import BrokerId

#: Keys whose change SIGHUP applies.
RELOADED: Final = frozenset(
    {
        "log.level",
        "storage.copy_bytes_per_second_max",
        "storage.copy_bytes_per_second_max_by_topic",
        "storage.fetch_bytes_per_second_max",
    }
)
#: Keys whose file SIGHUP reads again, if it is the same file.
READ_AGAIN: Final = frozenset(
    {
        "event_log.kafka.controllers.security.ca_file",
        "event_log.kafka.controllers.security.certificate_file",
        "event_log.kafka.controllers.security.key_file",
        "event_log.kafka.controllers.security.key_password_file",
        "event_log.kafka.controllers.security.password_file",
        "event_log.kafka.security.ca_file",
        "event_log.kafka.security.certificate_file",
        "event_log.kafka.security.key_file",
        "event_log.kafka.security.key_password_file",
        "event_log.kafka.security.password_file",
        "event_log.quorum.brokers.security.ca_file",
        "event_log.quorum.brokers.security.certificate_file",
        "event_log.quorum.brokers.security.key_file",
        "event_log.quorum.brokers.security.key_password_file",
        "event_log.quorum.brokers.security.password_file",
        "storage.access_key_id_file",
        "storage.secret_access_key_file",
        "storage.session_token_file",
    }
)
Uid = Annotated[int, Meta(ge=0, le=2**32 - 2)]
#: Of a user or a group; it may be a directory service's.
Name = Annotated[str, Meta(min_length=1, max_length=255)]


class Daemon(Section, frozen=True, kw_only=True):
    """Who this daemon is and where its own files are."""

    #: The `node.id` of the broker that it stands beside.
    broker_id: Annotated[BrokerId, Meta(ge=0, le=2**31 - 1)]
    #: `cluster.id` from the broker's `meta.properties`. Required unless the log is
    #: Kafka's, which names it.
    cluster_id: Annotated[str, Meta(min_length=1, max_length=255)] | None = None
    #: Directory of the daemon's own files: snapshots, positions, lock. Never run a second daemon
    #: on a copy of it.
    state_dir: FilePath = "/var/lib/rlmm"
    #: The broker's `log.dirs`: a copy's source files must lie below one of them.
    log_dirs: tuple[FilePath, ...] = ()
    #: How long SIGTERM waits for copies and snapshots; keep it below the unit's TimeoutStopSec.
    drain_deadline_ms: Milliseconds = 25_000
    #: The systemd watchdog is fed only while the event loop's lag stays below this.
    watchdog_lag_ms_max: Milliseconds = 5_000


class Peers(Section, frozen=True, kw_only=True):
    """Processes by what the kernel says of them (SO_PEERCRED): one match is enough."""

    #: User ids.
    uids: tuple[Uid, ...] = ()
    #: Group ids.
    gids: tuple[Uid, ...] = ()
    #: Users by name. The daemon does not start while this machine does not know one.
    users: tuple[Name, ...] = ()
    #: Groups by name, as `users`.
    groups: tuple[Name, ...] = ()


class Rights(Section, frozen=True, kw_only=True):
    """Who may do what; admin includes write, write includes read.

    Root and the daemon's own user may do everything.
    """

    read: Peers = Peers()
    write: Peers = Peers()
    admin: Peers = Peers()


class Socket(Section, frozen=True, kw_only=True):
    """The Unix socket and its limits."""

    #: The socket's file; its absolute path may have at most 107 bytes.
    path: FilePath = "/run/rlmm/rlmm.sock"
    #: Mode of the socket's file: octal, as in chmod.
    mode: Annotated[str, Meta(pattern=r"^0?[0-7]{3}$")] = "0660"
    rights: Rights = Rights()
    #: Open connections; more are refused.
    connections_max: Annotated[int, Meta(ge=1, le=65_536)] = 1_024
    #: Requests in flight on one connection; more are refused as `overloaded`.
    requests_per_connection_max: Annotated[int, Meta(ge=1, le=65_536)] = 1_024
    #: Requests in flight over all connections; more are refused as `overloaded`.
    requests_max: Annotated[int, Meta(ge=1, le=1_048_576)] = 16_384
    #: Size of one request; a larger one closes its connection.
    frame_bytes_max: Annotated[int, Meta(ge=4_096, le=64 * MIB)] = 4 * MIB
    #: Answers waiting for a slow reader; beyond it that connection is read no further.
    buffered_bytes_max: Annotated[int, Meta(ge=65_536, le=1_024 * MIB)] = 8 * MIB
    #: A reader that takes nothing for so long, with answers waiting, is cut off.
    slow_reader_timeout_ms: Milliseconds = 60_000
    #: Unfinished requests over all connections; beyond it the connection that adds to them is
    #: closed.
    unfinished_bytes_max: Annotated[int, Meta(ge=MIB, le=4_096 * MIB)] = 64 * MIB
    #: A new connection that has not said `hello` after so long is closed.
    hello_timeout_ms: Milliseconds = 5_000
    #: Deadline of one request, copies apart; a caller may ask for less.
    request_timeout_ms: Milliseconds = 30_000


class Assignment(Section, frozen=True, kw_only=True):
    """Which metadata partitions are followed before anybody asks."""

    #: `announced`: those of the partitions that the broker's metadata manager announces.
    #: `discover`: also those of the tiered partitions that the broker replicates, by the cluster's
    #: word, for a broker whose metadata manager is another one. It needs brokers to ask.
    mode: Literal["announced", "discover"] = "announced"


class Readiness(Section, frozen=True, kw_only=True):
    """When an answer may be given."""

    #: Without an answer of the log for so long, only positive look-ups are answered.
    stale_after_seconds: Seconds = 60
    #: Without an answer of the log for so long, `is_ready` and `highest_offset_for_epoch` wait.
    strict_stale_after_seconds: Seconds = 5
    #: How long a read that is not ready is held before it is refused; 0 refuses at once.
    not_ready_hold_ms: Annotated[int, Meta(ge=0, le=60_000)] = 100
    #: Reads that are held at once; more are refused at once.
    held_reads_max: Annotated[int, Meta(ge=1, le=1_048_576)] = 1_024


class Snapshots(Section, frozen=True, kw_only=True):
    """A metadata partition is written when it advanced by so much, or so long ago."""

    #: Events after which a metadata partition is written; sooner if many of them wait in memory for
    #: partitions that nobody announced.
    every_events: Count = 100_000
    #: Time after which a metadata partition that advanced is written.
    every_seconds: Seconds = 300
    #: Generations on disk, the newest included.
    keep: Annotated[int, Meta(ge=2, le=100)] = 2


class Copy(Section, frozen=True, kw_only=True):
    """Copying one segment."""

    #: Time for one copy. With a limit on the upload rate: well above `parallelism` times a
    #: segment's size over that rate.
    deadline_seconds: Seconds = 1_200
    #: A copy slower than this over a whole window is given up; 0: no floor. Only the storage's time
    #: counts, not a wait for other copies, for a rate or for the broker's disk.
    progress_bytes_per_second_min: Annotated[int, Meta(ge=0, le=1_024 * MIB)] = 65_536
    #: Window over which a copy's rate is judged.
    progress_window_seconds: Seconds = 60
    #: Copies at once.
    parallelism: Annotated[int, Meta(ge=1, le=256)] = 4
    #: Copies that wait for their turn; more are refused as `overloaded`.
    waiting_max: Annotated[int, Meta(ge=0, le=65_536)] = 256
    #: Check every batch of a segment file before the segment is called finished.
    check_segment: bool = True


class Read(Section, frozen=True, kw_only=True):
    """Reading segments back, where the storage is not a local directory."""

    #: Directory of the cached chunks. No other daemon may use it. Default: `cache` below
    #: `daemon.state_dir`.
    cache_directory: FilePath | None = None
    #: Size of all cached chunks; the least recently used go first. 0: no cache on the disk.
    cache_bytes: Annotated[int, Meta(ge=0, le=1_048_576 * MIB)] = 1_024 * MIB
    #: The cache gives way where less than this would stay free on its disk.
    cache_free_bytes_min: Annotated[int, Meta(ge=0, le=1_048_576 * MIB)] = 1_024 * MIB
    #: The most that one request brings, and that one cached file holds. A change empties the cache.
    chunk_bytes: Annotated[int, Meta(ge=65_536, le=64 * MIB, multiple_of=65_536)] = 4 * MIB
    #: Size of the segments' indexes that are kept in memory; 0 keeps none.
    index_cache_bytes: Annotated[int, Meta(ge=0, le=65_536 * MIB)] = 32 * MIB
    #: Chunks of one reader that are fetched beside the one it reads; 0 reads nothing ahead.
    read_ahead_chunks_max: Annotated[int, Meta(ge=0, le=64)] = 4
    #: Size of the chunks in memory, over all readers.
    buffered_bytes_max: Annotated[int, Meta(ge=65_536, le=65_536 * MIB)] = 64 * MIB
    #: What a reader does not take for so long is dropped; a storage silent for so long is asked
    #: again.
    idle_seconds: Seconds = 30


class Observe(Section, frozen=True, kw_only=True):
    """Marking topics unasked that every live broker has long called unknown."""

    #: Needs brokers to ask and a storage. `rlmm cleanup` shows the clocks.
    enabled: bool = False
    #: A topic is marked after it was unknown for so long, in every look.
    grace_seconds: Annotated[int, Meta(ge=1, le=8_640_000)] = 86_400
    #: Time between two looks at the cluster.
    interval_seconds: Seconds = 300


class Cleaner(Section, frozen=True, kw_only=True):
    """Removing what is marked for removal, and ending what got stuck; needs a storage."""

    #: Time between two looks at a metadata partition; a mark is taken up at once.
    interval_seconds: Seconds = 30
    #: Calls to the storage at once, over all metadata partitions; a page of a listing is one.
    parallelism: Annotated[int, Meta(ge=1, le=64)] = 4
    #: Segments that the whole daemon deletes in a second; 0: no limit.
    segments_per_second_max: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    #: A delete that the broker's own expiration has not ended after so long is taken over.
    stuck_delete_seconds: Seconds = 3_600
    #: False says that no broker runs Kafka's own metadata manager on this log, which
    #: DELETE_PARTITION_FINISHED would end for good.
    jvm_peers: bool = True
    observe: Observe = Observe()


Price = Annotated[float, Meta(ge=0, le=1_000_000)]


class Admin(Section, frozen=True, kw_only=True):
    """The HTTP port for /metrics, /healthz, /readyz, and a page to look at."""

    #: `host:port` or `[v6]:port`; port 0 takes a free one; empty: no HTTP.
    listen: Annotated[str, Meta(pattern=r"^$|^(\[[0-9A-Fa-f:.]+\]|[^:\s\[\]]+):\d{1,5}$")] = (
        "127.0.0.1:9405"
    )
    #: Names under which a browser may ask for the page, besides addresses, localhost and that in
    #: `listen`; those of a proxy before it, for example. /metrics is answered under any.
    hosts: tuple[str, ...] = ()
    #: `host:port` of other daemons' admin ports, which the page then shows beside this one. Each
    #: has to answer under that name: an address, or a name in its own `listen` or `hosts`.
    peers: Annotated[tuple[Address, ...], Meta(max_length=64)] = ()
    #: Topics that /metrics tells apart, the largest first; the rest are counted as "(other)".
    topics_max: Annotated[int, Meta(ge=0, le=1_000)] = 100


class Log(Section, frozen=True, kw_only=True):
    """The daemon's own log lines, on standard error."""

    #: The least important lines that are written.
    level: Literal["debug", "info", "warning", "error"] = "info"
    #: `auto`: colours on a terminal, else JSON.
    format: Literal["auto", "json", "console"] = "auto"


class Prices(Section, frozen=True, kw_only=True):
    """What the storage costs, for `rlmm forecast` and the page. Nobody's prices are built in."""

    #: Three letters, as they are to be shown.
    currency: Annotated[str, Meta(pattern=r"^[A-Z]{3}$")] = "USD"
    #: Of a GiB (2^30 bytes) held for a month. Here and below 0 is no price: no such cost is shown.
    gib_month: Price = 0.0
    #: Of 1,000 requests that write (PutObject, UploadPart and those around them).
    thousand_writes: Price = 0.0
    #: Of 1,000 requests that read (GetObject).
    thousand_reads: Price = 0.0


class Config(Section, frozen=True, kw_only=True):
    """The whole configuration, checked."""

    daemon: Daemon
    event_log: EventLog
    socket: Socket = Socket()
    assignment: Assignment = Assignment()
    readiness: Readiness = Readiness()
    snapshots: Snapshots = Snapshots()
    storage: Storage = NoStorage()
    copy: Copy = Copy()
    read: Read = Read()
    cleaner: Cleaner = Cleaner()
    admin: Admin = Admin()
    prices: Prices = Prices()
    log: Log = Log()

    @property
    def event_log_directory(self) -> str:
        """Where the embedded log keeps its files, or would."""
        chosen = self.event_log.directory if isinstance(self.event_log, EmbeddedLog) else None
        return chosen or f"{self.daemon.state_dir}/log"

    @property
    def quorum_directory(self) -> str:
        """Where this daemon's replica of a quorum's log is, or would be."""
        chosen = self.event_log
        named = chosen.quorum.directory if isinstance(chosen, QuorumLog) else None
        return named or f"{self.daemon.state_dir}/quorum"

    @property
    def shares_log(self) -> bool:
        """Whether other daemons keep their events in the same log."""
        match self.event_log:
            case EmbeddedLog():
                return False
            case KafkaLog():
                return True
            case QuorumLog(single_broker=alone):
                return not alone

    @property
    def asks_brokers(self) -> bool:
        """Whether brokers are asked about their cluster."""
        match self.event_log:
            case EmbeddedLog():
                return False
            case KafkaLog():
                return True
            case QuorumLog(quorum=quorum):
                return quorum.brokers is not None

    @property
    def cache_directory(self) -> str:
        """Where chunks of segments are cached, or would be."""
        return self.read.cache_directory or f"{self.daemon.state_dir}/cache"

    @property
    def snapshot_directory(self) -> str:
        """Where snapshots are kept."""
        return f"{self.daemon.state_dir}/snapshots"
