"""Options of each room, from the configuration's keys."""

from rlmm_daemon.config import Config, Peers
from rlmm_daemon.config import KafkaLog as KafkaLogConfig
from rlmm_daemon.config import QuorumLog as QuorumLogConfig
from rlmm_daemon.config.accounts import ids_of
from rlmm_daemon.core.disposal.observation import ObservationOptions
from rlmm_daemon.core.readiness.states import Freshness
from rlmm_daemon.daemon.cleaner.observer import ObserverOptions
from rlmm_daemon.daemon.cleaner.options import CleanerOptions
from rlmm_daemon.daemon.copying.copy_job import CopyOptions
from rlmm_daemon.daemon.following.fleet import FleetOptions
from rlmm_daemon.daemon.following.snapshotter import SnapshotOptions
from rlmm_daemon.daemon.metadata.manager import ManagerOptions
from rlmm_daemon.daemon.reading.chunk_cache import ChunkCacheOptions
from rlmm_daemon.daemon.reading.read_ahead import ReadOptions
from rlmm_daemon.daemon.reading.read_caches import ReadCacheOptions
from rlmm_daemon.daemon.socket.limits import ServerOptions
from rlmm_daemon.daemon.socket.rights import Grant, RightsTable


def manager_options_of(config: Config) -> ManagerOptions:
    """Return when a fold is stale, when a snapshot is due and what is kept of them."""
    readiness, snapshots = config.readiness, config.snapshots
    return ManagerOptions(
        state_dir=config.daemon.state_dir,
        fleet=FleetOptions(
            freshness=Freshness(
                stale_after_seconds=readiness.stale_after_seconds,
                strict_after_seconds=readiness.strict_stale_after_seconds,
            ),
            delivery_timeout_seconds=delivery_seconds_of(config),
        ),
        snapshots=SnapshotOptions(
            after_events=snapshots.every_events, after_seconds=snapshots.every_seconds
        ),
        snapshots_kept=snapshots.keep,
    )


def server_options_of(config: Config) -> ServerOptions:
    """Return the socket's limits and rights.

    Raises:
        InvalidArgument: this machine does not know a user or group that a right names.
    """
    socket, rights = config.socket, config.socket.rights
    return ServerOptions(
        path=socket.path,
        mode=int(socket.mode, 8),
        rights=RightsTable(
            read=_grant("read", rights.read),
            write=_grant("write", rights.write),
            admin=_grant("admin", rights.admin),
        ),
        connections_max=socket.connections_max,
        requests_per_connection_max=socket.requests_per_connection_max,
        requests_max=socket.requests_max,
        frame_bytes_max=socket.frame_bytes_max,
        buffered_bytes_max=socket.buffered_bytes_max,
        slow_reader_seconds=socket.slow_reader_timeout_ms / 1000,
        unfinished_bytes_max=socket.unfinished_bytes_max,
        hello_seconds=socket.hello_timeout_ms / 1000,
        request_seconds=socket.request_timeout_ms / 1000,
        job_seconds=config.copy.deadline_seconds * 2,
        held_reads_max=config.readiness.held_reads_max,
        not_ready_hold_seconds=config.readiness.not_ready_hold_ms / 1000,
    )


def _grant(right: str, peers: Peers) -> Grant:
    ids = ids_of(f"socket.rights.{right}", peers)
    return Grant(uids=ids.uids, gids=ids.gids)


def copy_options_of(config: Config) -> CopyOptions:
    """Return the copier's limits."""
    copy = config.copy
    return CopyOptions(
        parallel_max=copy.parallelism,
        waiting_max=copy.waiting_max,
        deadline_seconds=copy.deadline_seconds,
        progress_floor_bytes_per_second=copy.progress_bytes_per_second_min,
        progress_window_seconds=copy.progress_window_seconds,
        check_segments=copy.check_segment,
    )


def read_cache_options_of(config: Config) -> ReadCacheOptions:
    """Return the sizes of the read path."""
    read = config.read
    return ReadCacheOptions(
        reads=ReadOptions(
            chunk_bytes=read.chunk_bytes,
            ahead_chunks_max=read.read_ahead_chunks_max,
            buffered_bytes_max=read.buffered_bytes_max,
            idle_seconds=read.idle_seconds,
            silence_seconds=read.idle_seconds,
        ),
        chunks=ChunkCacheOptions(
            directory=config.cache_directory,
            bytes_max=read.cache_bytes,
            chunk_bytes=read.chunk_bytes,
            free_bytes_min=read.cache_free_bytes_min,
        ),
        index_bytes_max=read.index_cache_bytes,
    )


def delivery_seconds_of(config: Config) -> float:
    """Return after how long a record whose fate is not known is given up."""
    if isinstance(config.event_log, KafkaLogConfig):
        return config.event_log.kafka.producer.delivery_timeout_ms / 1000
    if isinstance(config.event_log, QuorumLogConfig):
        return config.event_log.quorum.delivery_timeout_ms / 1000
    return FleetOptions().delivery_timeout_seconds


def cleaner_options_of(config: Config) -> CleanerOptions:
    """Return the cleaner's bounds. Kafka's own metadata managers read Kafka's topic only."""
    cleaner = config.cleaner
    return CleanerOptions(
        interval_seconds=cleaner.interval_seconds,
        parallelism=cleaner.parallelism,
        segments_per_second_max=cleaner.segments_per_second_max,
        stuck_delete_seconds=cleaner.stuck_delete_seconds,
        copy_deadline_seconds=config.copy.deadline_seconds,
        delivery_timeout_seconds=delivery_seconds_of(config),
        jvm_peers=cleaner.jvm_peers and isinstance(config.event_log, KafkaLogConfig),
    )


def observer_options_of(config: Config) -> ObserverOptions:
    """Return when the cluster is looked at, and after how long a topic is marked."""
    observe = config.cleaner.observe
    return ObserverOptions(
        interval_seconds=observe.interval_seconds,
        bounds=ObservationOptions(grace_ms=1000 * observe.grace_seconds),
    )
