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
#: `core.storage.layout.Layout` says what the hash is; it is in front or nowhere.
KeyPrefix = Annotated[
    str,
    Meta(
        pattern=r"^(\{hash:(4|8|12|16|20|24|28|32)\}(/[A-Za-z0-9._=-]+)*"
        r"|([A-Za-z0-9._=-]+(/[A-Za-z0-9._=-]+)*)?)$"
    ),
]
ObjectTag = Annotated[str, Meta(pattern=r"^[A-Za-z0-9 +._:/@-]{1,128}=[A-Za-z0-9 +._:/@-]{0,256}$")]
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
    #: A reader that takes nothing for so long, with answers waiting, is cut off.
    slow_reader_timeout_ms: Milliseconds = 60_000
    #: Unfinished frames over all connections.
    unfinished_bytes_max: Annotated[int, Meta(ge=_MIB, le=4_096 * _MIB)] = 64 * _MIB
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
    #: Drop the events of segments that are gone. False: the log only grows.
    compact: bool = True
    #: A metadata partition's log is compacted when it is so many times as large as the last
    #: compaction left it.
    compact_factor: Annotated[float, Meta(ge=1.2, le=100)] = 1.5
    #: And has so many bytes.
    compact_bytes_min: Annotated[int, Meta(ge=_MIB, le=1_024 * _MIB)] = 4 * _MIB


class KafkaSecurity(_Section, frozen=True, kw_only=True):
    """How the brokers know this daemon, and it them. Files are read again on SIGHUP."""

    protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    #: PEM; absent: the machine's own certificate authorities.
    ca_file: FilePath | None = None
    #: PEM, for mutual TLS; a chain may follow the certificate.
    certificate_file: FilePath | None = None
    key_file: FilePath | None = None
    key_password_file: FilePath | None = None
    key_password_env: str | None = None
    #: False accepts any host name in a certificate that the authority signed.
    verify_host_name: bool = True
    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = None
    username: str | None = None
    password_file: FilePath | None = None
    password_env: str | None = None


class KafkaProducer(_Section, frozen=True, kw_only=True):
    """Writing to the metadata topic: idempotent, acks=all."""

    #: A record whose fate is not known after so long is given up as `outcome_unknown`.
    delivery_timeout_ms: Milliseconds = 120_000
    #: Default: as in [event_log.kafka].
    request_timeout_ms: Milliseconds | None = None
    #: Values in one record batch; below the topic's max.message.bytes.
    batch_bytes_max: Annotated[int, Meta(ge=1_024, le=64 * _MIB)] = 256 * 1024
    #: Waiting, of one metadata partition; more are refused as overloaded.
    pending_records_max: Annotated[int, Meta(ge=1, le=1_048_576)] = 16_384


class KafkaFetch(_Section, frozen=True, kw_only=True):
    """Reading the metadata topic: one connection and one long poll per followed partition."""

    #: The broker answers after so long even if nothing came.
    max_wait_ms: Annotated[int, Meta(ge=1, le=30_000)] = 500
    bytes_max: Annotated[int, Meta(ge=4_096, le=64 * _MIB)] = _MIB
    #: What the records of one compressed batch may take without compression.
    unpacked_bytes_max: Annotated[int, Meta(ge=65_536, le=1_024 * _MIB)] = 16 * _MIB
    #: Beyond max_wait_ms; then the connection is called dead.
    request_timeout_ms: Milliseconds = 5_000


class KafkaAdmin(_Section, frozen=True, kw_only=True):
    """The metadata topic itself: how it is made if absent, what is asked of an existing one."""

    partition_count: Annotated[int, Meta(ge=1, le=10_000)] = 50
    replication_factor: Annotated[int, Meta(ge=1, le=32_767)] = 3
    #: Default: 2, or what the replication factor allows.
    min_insync_replicas: Annotated[int, Meta(ge=1, le=32_767)] | None = None
    #: More of a new topic's configuration, or other than cleanup.policy=delete, retention -1,
    #: remote.storage.enable=false; what may lose events is warned of as on any topic.
    topic_settings: dict[str, str] = {}
    #: True refuses a topic that compacts or deletes by age or size; false warns.
    require_infinite_retention: bool = False
    #: Default: as in [event_log.kafka].
    request_timeout_ms: Milliseconds | None = None


class KafkaClient(_Section, frozen=True, kw_only=True):
    """How the brokers are reached; the sections below it override what they name."""

    #: `host:port`, any brokers of the cluster; the one beside the daemon is a good first.
    bootstrap: Annotated[
        tuple[Annotated[str, Meta(pattern=r"^(\[[0-9A-Fa-f:.]+\]|[^:\s\[\]]+):\d{1,5}$")], ...],
        Meta(min_length=1),
    ]
    topic: Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{1,249}$")] = "__remote_log_metadata"
    client_id: Annotated[str, Meta(min_length=1, max_length=255)] = "rlmm"
    connect_timeout_ms: Milliseconds = 5_000
    request_timeout_ms: Milliseconds = 10_000
    #: After an error; doubled up to the second with each further one, and jittered.
    retry_backoff_ms: Milliseconds = 50
    retry_backoff_max_ms: Milliseconds = 2_000
    security: KafkaSecurity = KafkaSecurity()
    producer: KafkaProducer = KafkaProducer()
    fetch: KafkaFetch = KafkaFetch()
    admin: KafkaAdmin = KafkaAdmin()


class KafkaLog(_Section, frozen=True, kw_only=True, tag_field="kind", tag="kafka"):
    """Kafka's own metadata topic, in the cluster of the broker beside this daemon."""

    kafka: KafkaClient


#: The kinds of log this version knows, told apart by `kind`; another one is one more struct here.
EventLog = EmbeddedLog | KafkaLog


class Assignment(_Section, frozen=True, kw_only=True):
    """Which metadata partitions are followed before anybody asks."""

    #: announced: those of the partitions that the broker's metadata manager announces. discover:
    #: also those of the tiered partitions that the broker replicates, by the cluster's word, for a
    #: broker whose metadata manager is another one.
    mode: Literal["announced", "discover"] = "announced"


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
    prefix: KeyPrefix = ""


class S3Storage(_Section, frozen=True, kw_only=True, tag_field="kind", tag="s3"):
    """Segments in a bucket of AWS S3, or of a server that speaks its protocol."""

    bucket: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9]$")]
    #: Default: AWS's us-east-1, whose name most other servers take too.
    region: Annotated[str, Meta(pattern=r"^[a-z0-9-]{1,64}$")] | None = None
    #: Default: AWS's own for the region.
    endpoint: Annotated[str, Meta(pattern=r"^https?://[^/\s@]+/?$")] | None = None
    #: Who makes ranged GETs. All other calls are aiobotocore's.
    transport: Literal["aiobotocore", "obstore"] = "obstore"
    #: Of the segments' keys; no leading or trailing slash.
    prefix: KeyPrefix = ""
    addressing: Literal["auto", "path", "virtual"] = "auto"
    #: PEM file of the authorities to trust. Default: AWS_CA_BUNDLE's, else the SDK's own.
    ca_file: FilePath | None = None
    proxy: Annotated[str, Meta(pattern=r"^https?://[^/\s@]+/?$")] | None = None
    #: Keys from files (or, named with `_env`, from the environment); without them the SDK's chain.
    access_key_id_file: FilePath | None = None
    access_key_id_env: str | None = None
    secret_access_key_file: FilePath | None = None
    secret_access_key_env: str | None = None
    session_token_file: FilePath | None = None
    session_token_env: str | None = None
    #: A `.log` at least so large is sent in parts.
    multipart_threshold_bytes: Annotated[int, Meta(ge=_MIB, le=5_120 * _MIB)] = 100 * _MIB
    #: Grown where a segment would need more than 10,000 parts.
    part_size_bytes: Annotated[int, Meta(ge=5 * _MIB, le=5_120 * _MIB)] = 64 * _MIB
    #: Over all copies.
    parts_in_flight_max: Annotated[int, Meta(ge=1, le=256)] = 4
    #: Calls at once; halved while the storage asks for fewer.
    writes_in_flight_max: Annotated[int, Meta(ge=1, le=1_024)] = 16
    reads_in_flight_max: Annotated[int, Meta(ge=1, le=1_024)] = 32
    connect_timeout_ms: Milliseconds = 5_000
    #: Without a byte in either direction.
    read_timeout_ms: Milliseconds = 30_000
    #: One call, apart from the time its bytes take at 64 KiB/s.
    call_timeout_ms: Milliseconds = 60_000
    #: A reader that takes nothing for so long loses its connection, not its place.
    idle_timeout_ms: Milliseconds = 10_000
    #: Of one call, the first included.
    attempts_max: Annotated[int, Meta(ge=1, le=20)] = 4
    #: "" leaves it to the bucket's default.
    sse: Literal["", "AES256", "aws:kms"] = ""
    #: With "aws:kms": the key's id or ARN. Default: the account's own for S3.
    sse_kms_key: Annotated[str, Meta(min_length=1)] | None = None
    #: Account id; calls to a bucket of another account are refused by S3.
    expected_bucket_owner: Annotated[str, Meta(pattern=r"^[0-9]{12}$")] | None = None
    #: As S3 names it. Default: STANDARD. Archive classes can't be read back at once.
    storage_class: Annotated[str, Meta(pattern=r"^[A-Z_]{1,64}$")] | None = None
    #: `name=value` each, on every object.
    tags: Annotated[tuple[ObjectTag, ...], Meta(max_length=10)] = ()
    #: Of the whole process; 0: no limit. SIGHUP applies a change, to transfers in flight too.
    copy_bytes_per_second_max: Annotated[int, Meta(ge=0, le=1_048_576 * _MIB)] = 0
    fetch_bytes_per_second_max: Annotated[int, Meta(ge=0, le=1_048_576 * _MIB)] = 0


#: The kinds of storage this version knows, told apart by `kind`.
Storage = NoStorage | LocalStorage | S3Storage


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


class Read(_Section, frozen=True, kw_only=True):
    """Reading segments back, where the storage is not a local directory."""

    #: Default: `cache` below the state directory. No other daemon may use it.
    cache_directory: FilePath | None = None
    #: Of all cached chunks; the least recently used go first. 0: no cache on the disk.
    cache_bytes: Annotated[int, Meta(ge=0, le=1_048_576 * _MIB)] = 1_024 * _MIB
    #: The cache gives way where less than this would stay free on its disk.
    cache_free_bytes_min: Annotated[int, Meta(ge=0, le=1_048_576 * _MIB)] = 1_024 * _MIB
    #: The most that one request brings, and that one cached file holds; changing it empties the
    #: cache.
    chunk_bytes: Annotated[int, Meta(ge=65_536, le=64 * _MIB, multiple_of=65_536)] = 4 * _MIB
    #: Segments' indexes in memory; 0 keeps none.
    index_cache_bytes: Annotated[int, Meta(ge=0, le=65_536 * _MIB)] = 32 * _MIB
    #: Of one reader, on their way beside the chunk it reads; 0 reads nothing ahead.
    read_ahead_chunks_max: Annotated[int, Meta(ge=0, le=64)] = 4
    #: Chunks in memory, over all readers.
    buffered_bytes_max: Annotated[int, Meta(ge=65_536, le=65_536 * _MIB)] = 64 * _MIB
    #: What a reader doesn't take for so long is dropped; a storage silent for so long asked again.
    idle_seconds: Seconds = 30


class Observe(_Section, frozen=True, kw_only=True):
    """Marking topics unasked that every live broker has long called unknown."""

    enabled: bool = False
    #: Unknown for so long, in every look, before it is marked.
    grace_seconds: Annotated[int, Meta(ge=1, le=8_640_000)] = 86_400
    #: Between two looks at the cluster.
    interval_seconds: Seconds = 300


class Cleaner(_Section, frozen=True, kw_only=True):
    """Removing what is marked for removal, and ending what got stuck."""

    #: Between two looks at a metadata partition; a mark is taken up at once.
    interval_seconds: Seconds = 30
    #: Calls to the storage in flight, over all metadata partitions.
    parallelism: Annotated[int, Meta(ge=1, le=64)] = 4
    #: Of the whole daemon; 0: no limit.
    segments_per_second_max: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    #: A delete that the broker's own expiration has not ended after so long is taken over.
    stuck_delete_seconds: Seconds = 3_600
    #: False says that no broker runs Kafka's own metadata manager on this log, which
    #: DELETE_PARTITION_FINISHED would end for good.
    jvm_peers: bool = True
    observe: Observe = Observe()


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
    read: Read = Read()
    cleaner: Cleaner = Cleaner()
    admin: Admin = Admin()
    log: Log = Log()

    @property
    def event_log_directory(self) -> str:
        """Where the embedded log keeps its files, or would."""
        chosen = self.event_log.directory if isinstance(self.event_log, EmbeddedLog) else None
        return chosen or f"{self.daemon.state_dir}/log"

    @property
    def cache_directory(self) -> str:
        """Where chunks of segments are cached, or would be."""
        return self.read.cache_directory or f"{self.daemon.state_dir}/cache"

    @property
    def snapshot_directory(self) -> str:
        """Where snapshots are kept."""
        return f"{self.daemon.state_dir}/snapshots"
