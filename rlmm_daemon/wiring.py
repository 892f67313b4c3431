"""Which adapter stands behind which port: the only module that names concrete ones.

Those that bring a library of their own are imported when they are chosen: a start would wait for
the SDK of S3 and for Kafka's client longer than for everything else, also where neither is used.
"""

import asyncio
import functools
import os
import random
from collections.abc import Callable, Collection, Coroutine, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, assert_never

import structlog

from rlmm_daemon import __version__
from rlmm_daemon.adapters.clock import SystemClock
from rlmm_daemon.adapters.cluster.fixed import FixedCluster
from rlmm_daemon.adapters.disk import LocalDisk
from rlmm_daemon.adapters.event_log.embedded import EmbeddedLog, EmbeddedOptions
from rlmm_daemon.adapters.event_log.embedded.repair import repair
from rlmm_daemon.adapters.storage.local import LocalStorage
from rlmm_daemon.codec.marker import PresencePartition
from rlmm_daemon.codec.state_files import Position
from rlmm_daemon.config import Config, NoStorage, differences, read_secret
from rlmm_daemon.config import KafkaLog as KafkaLogConfig
from rlmm_daemon.config import LocalStorage as LocalStorageConfig
from rlmm_daemon.config import S3Storage as S3StorageConfig
from rlmm_daemon.core.disposal.observation import ObservationOptions
from rlmm_daemon.core.facts import LastError
from rlmm_daemon.core.layout import Layout
from rlmm_daemon.core.readiness import Freshness, PartitionState
from rlmm_daemon.daemon.admin import AdminServer, Ready
from rlmm_daemon.daemon.bucket import Bucket, BucketIdentity
from rlmm_daemon.daemon.chunk_cache import ChunkCacheOptions
from rlmm_daemon.daemon.cleaner.cleaner import Cleaner
from rlmm_daemon.daemon.cleaner.observer import (
    WATCHED_BY_OWNER_OF,
    Observer,
    ObserverOptions,
)
from rlmm_daemon.daemon.cleaner.options import CleanerOptions
from rlmm_daemon.daemon.cleaner.peers import NoPeers, PresentPeers
from rlmm_daemon.daemon.cleaner.proof import AnnouncedProof, ClusterProof
from rlmm_daemon.daemon.cluster_view import ClusterFacts, ClusterView
from rlmm_daemon.daemon.copier import Copier
from rlmm_daemon.daemon.copy_job import CopyOptions
from rlmm_daemon.daemon.crash_guard import CrashGuard
from rlmm_daemon.daemon.facts import StorageView
from rlmm_daemon.daemon.fetcher import Fetcher
from rlmm_daemon.daemon.fleet import FleetOptions
from rlmm_daemon.daemon.gauges import Gauges
from rlmm_daemon.daemon.limits import ServerOptions
from rlmm_daemon.daemon.manager import Manager, ManagerOptions
from rlmm_daemon.daemon.mending import LogRepair
from rlmm_daemon.daemon.operator import Operator, storage_kind
from rlmm_daemon.daemon.presence import LEASE_SECONDS, PresenceFacts, PresenceFile
from rlmm_daemon.daemon.read_ahead import ReadOptions
from rlmm_daemon.daemon.read_caches import ReadCacheOptions, ReadCaches
from rlmm_daemon.daemon.recorded_log import RecordedLog
from rlmm_daemon.daemon.rights import Grant, RightsTable
from rlmm_daemon.daemon.runtime import Runtime, Stopping, execute
from rlmm_daemon.daemon.server import Server
from rlmm_daemon.daemon.services import Services
from rlmm_daemon.daemon.snapshotter import SnapshotOptions
from rlmm_daemon.daemon.systemd import Notifier
from rlmm_daemon.domain.errors import ConfigError, RlmmError
from rlmm_daemon.domain.ids import MetadataPartition, uuid_text
from rlmm_daemon.domain.secret import Secret
from rlmm_daemon.observability import logging
from rlmm_daemon.observability.metrics import LogMetrics, Metrics
from rlmm_daemon.ports.cluster import Cluster
from rlmm_daemon.ports.event_log import EventLog
from rlmm_daemon.ports.storage import RemoteStorage

if TYPE_CHECKING:
    from rlmm_daemon.adapters.event_log.kafka import KafkaLog
    from rlmm_daemon.adapters.storage.s3 import Rates, S3Options, S3Storage, StaticKeys

logger = structlog.get_logger(__name__)

#: Of the drain's time, for requests in flight; copies and snapshots have the rest.
_FINISH_SHARE = 0.2
_COPIES_SHARE = 0.6
#: A request that comes with the start waits so long for the bucket's marker; see `_until_open`.
_MARKER_SECONDS = 2.0
#: Keys that SIGHUP applies.
_RELOADED = frozenset(
    {
        "log.level",
        "storage.copy_bytes_per_second_max",
        "storage.fetch_bytes_per_second_max",
    }
)
_LOOK_SECONDS = 0.5
#: What the admin port waits for the log.
_OPEN_SECONDS = 1.0
#: And then for a broker's first words. A time: no condition says whether one is about to connect.
_FIRST_WORDS_SECONDS = 0.2
_LAST_WORDS_SECONDS = 2.0


def run(config: Config, *, reload: Callable[[], Config]) -> int:
    """Run the daemon until it is stopped; return the process's exit code."""
    return execute(lambda: _serve(config, reload))


async def _serve(config: Config, reload: Callable[[], Config]) -> None:
    daemon = Daemon(config, reload)
    try:
        await daemon.serve()
    finally:
        daemon.disk.close()


@dataclass(slots=True)
class _Storage:
    """What stands behind the storage methods."""

    backend: RemoteStorage
    bucket: Bucket


class Daemon:
    """All rooms of one process, put together from one configuration."""

    def __init__(self, config: Config, reload: Callable[[], Config]) -> None:
        self._config = config
        self._reload = reload
        self.disk = LocalDisk()
        self._clock = SystemClock()
        self._rng = random.Random(os.urandom(16))  # noqa: S311 - jitter and names, no secrets
        self._metrics = Metrics()
        self._metrics.process.build.labels(__version__).set(1)
        self._guard = CrashGuard(f"{config.daemon.state_dir}/crashes.json", self._clock.now_ms)
        self._runtime = Runtime(
            metrics=self._metrics,
            notifier=Notifier.from_environment(os.environ, os.getpid()),
            drain_seconds=config.daemon.drain_deadline_ms / 1000,
            watchdog_lag_seconds_max=config.daemon.watchdog_lag_ms_max / 1000,
            guard=self._guard,
        )
        self._storage = storage_of(config, self._rng)
        self._storage_error: LastError | None = None
        self._presence: PresenceFile | None = None

    async def serve(self) -> None:
        """Run until a stop was ordered and drained, or until something failed."""
        async with asyncio.TaskGroup() as writes:
            # The log's own tasks outlive every room, so that `close` can finish them.
            log = event_log_of(
                self._config,
                self.disk,
                self._clock,
                self._rng,
                lambda work, name: writes.create_task(work, name=name),
                metrics=self._metrics.log,
            )
            manager = self._manager(log)
            try:
                async with asyncio.TaskGroup() as jobs:
                    await self._serve_rooms(manager, jobs)
                    raise Stopping  # what is still copying had its share of the drain
            except* Stopping:
                pass
            finally:
                await log.close()
                if self._storage is not None:
                    await self._storage.backend.close()

    def _manager(self, log: EventLog) -> Manager:
        readiness, snapshots = self._config.readiness, self._config.snapshots
        return Manager(
            log=log,
            disk=self.disk,
            clock=self._clock,
            rng=self._rng,
            options=ManagerOptions(
                state_dir=self._config.daemon.state_dir,
                fleet=FleetOptions(
                    freshness=Freshness(
                        stale_after_seconds=readiness.stale_after_seconds,
                        strict_after_seconds=readiness.strict_stale_after_seconds,
                    ),
                    delivery_timeout_seconds=delivery_seconds_of(self._config),
                ),
                snapshots=SnapshotOptions(
                    after_events=snapshots.every_events, after_seconds=snapshots.every_seconds
                ),
                snapshots_kept=snapshots.keep,
            ),
            bucket=None
            if self._storage is None
            else RecordedLog(
                self._storage.backend,
                self._storage.bucket,
                broker_id=self._config.daemon.broker_id,
                cluster_id=self._config.daemon.cluster_id,
                now_ms=self._clock.now_ms,
            ),
            quarantined=self._guard.quarantined(),
            metrics=self._metrics.log,
        )

    async def _serve_rooms(self, manager: Manager, jobs: asyncio.TaskGroup) -> None:
        config, runtime = self._config, self._runtime
        bucket = self._storage.bucket if self._storage else None
        view = self._cluster_view(manager)
        kafka, s3 = kafka_log_of(config, manager.log), _s3_of(config, self._storage)
        copier = Copier(
            bucket,
            manager,
            jobs,
            options=copy_options_of(config),
            log_dirs=config.daemon.log_dirs,
            broker_id=config.daemon.broker_id,
            now_ms=self._clock.now_ms,
            require_copyable=view.refuse_copy,
            metrics=self._metrics.storage,
        )
        caches = self._read_caches(manager, jobs)
        fetcher = (
            Fetcher(bucket, manager, rng=self._rng, caches=caches, metrics=self._metrics)
            if bucket
            else None
        )
        cleaner = self._cleaner(manager, copier, view)
        log_facts = kafka.facts if kafka else None
        operator = Operator(
            manager,
            log_facts=log_facts or dict,
            copier=copier,
            config=config,
            runtime=runtime,
            guard=self._guard,
            version=__version__,
            storage=lambda: StorageView(
                kind=storage_kind(config), error=self._storage_trouble(view)
            ),
            repair=_repair_of(manager.log),
            cleaner=cleaner,
        )
        server = Server(
            server_options_of(config),
            Services(
                manager=manager,
                operator=operator,
                copier=copier if bucket else None,
                fetcher=fetcher,
                opened=lambda: _until_open(manager, bucket),
            ),
            broker_id=config.daemon.broker_id,
            cluster_id=config.daemon.cluster_id,
            version=__version__,
        )
        manager.assignment.is_connected = server.has_metadata_manager
        manager.assignment.is_stored_for = server.has_heard_storage_manager
        gauges = Gauges(
            self._metrics,
            manager,
            copier,
            server.stats,
            log_facts=log_facts,
            traffic=s3.traffic if s3 else None,
            cleaner=cleaner,
            writable=lambda: not isinstance(manager.log, EmbeddedLog) or manager.log.writable,
            buffered=server.buffered_bytes,
        )
        await _name_known_cluster(server, manager)
        server.listen()
        self._on_drain(manager, copier, server)
        runtime.on_reload("config", self._reloaded)
        if kafka is not None:
            runtime.on_reload("certificates", kafka.reload)
        async with (
            AdminServer(config.admin.listen, self._metrics, lambda: _readiness(manager)) as admin,
            runtime.running(),
        ):
            runtime.spawn("manager", manager.run())
            runtime.spawn("server", server.run(), may_end=True)
            runtime.spawn("gauges", gauges.run())
            runtime.spawn("cluster", _name_cluster(server, manager), may_end=True)
            runtime.spawn("cluster.view", _keep_view(view, manager))
            if kafka is not None:
                runtime.spawn("cluster.settings", kafka.watch_settings())
            if self._storage is not None:
                runtime.spawn("storage", self._keep_storage(self._storage, manager))
            if cleaner is not None:
                runtime.spawn("cleaner", cleaner.run())
                if cleaner.observer is not None:
                    runtime.spawn("cleaner.observer", cleaner.observer.run())
            if caches is not None:
                runtime.spawn("read caches", caches.run())
            runtime.spawn("admin", _serve_admin(admin, manager), may_end=True)
            runtime.ready("serving")
        copier.abandon()

    def _cluster_view(self, manager: Manager) -> ClusterView:
        """Return the view of the broker's cluster, which asks from when the log is open."""
        discovers = self._config.assignment.mode == "discover"

        def answered(facts: ClusterFacts) -> None:
            manager.fleet.seen(partition_count=len(facts.leaders))
            if facts.tiered is not None and manager.fleet.follow_set is not None:
                manager.fleet.follow_set.discover(facts.tiered.replicated)

        view = ClusterView(
            cluster_of(self._config, manager.log),
            self._clock,
            self._rng,
            broker_id=self._config.daemon.broker_id,
            discovers=discovers,
            private_storage=_is_private(self._config),
            on_answer=answered,
        )
        if (kafka := kafka_log_of(self._config, manager.log)) is not None:
            kafka.directory.on_change.append(view.refresh)
        return view

    def _cleaner(self, manager: Manager, copier: Copier, view: ClusterView) -> Cleaner | None:
        """Return the cleaner; metadata alone leaves nothing to clean."""
        if self._storage is None:
            return None
        config, storage = self._config, self._storage
        shared = isinstance(config.event_log, KafkaLogConfig)
        options = cleaner_options_of(config)

        def owned() -> frozenset[MetadataPartition] | None:
            if not shared:
                identity = manager.fleet.identity
                count = identity.partition_count if identity else 0
                return frozenset(MetadataPartition(number) for number in range(count))
            return view.owned_within(options.view_seconds_max)

        cleaner = Cleaner(
            manager=manager,
            bucket=storage.bucket,
            copier=copier,
            proof=ClusterProof(view.cluster, manager.assignment)
            if shared
            else AnnouncedProof(manager.assignment, self.disk, config.daemon.log_dirs),
            peers=PresentPeers(view.cluster, storage.backend, cluster_id=config.daemon.cluster_id)
            if shared
            else NoPeers(config.daemon.broker_id),
            owned=owned,
            options=options,
            broker_id=config.daemon.broker_id,
            clock=self._clock,
            rng=self._rng,
            leader_of=lambda number: view.facts.leaders.get(number) if view.facts else None,
        )
        if config.cleaner.observe.enabled:
            cleaner.observer = Observer(
                manager=manager,
                cluster=view.cluster,
                log_dirs=config.daemon.log_dirs,
                broker_id=config.daemon.broker_id,
                watches=lambda: cleaner.owns(WATCHED_BY_OWNER_OF),
                options=observer_options_of(config),
            )
        return cleaner

    def _read_caches(self, manager: Manager, jobs: asyncio.TaskGroup) -> ReadCaches | None:
        """Return what remote reads need; local files are sent as they are."""
        if not isinstance(self._config.storage, S3StorageConfig):
            return None
        return ReadCaches(
            read_cache_options_of(self._config),
            manager,
            disk=self.disk,
            spawn=lambda work, name: jobs.create_task(work, name=name),
            rng=self._rng,
            metrics=self._metrics.reads,
            monotonic=self._clock.monotonic,
        )

    def _on_drain(self, manager: Manager, copier: Copier, server: Server) -> None:
        seconds = self._config.daemon.drain_deadline_ms / 1000

        async def close_the_door() -> None:
            server.drain()

        async def finish() -> None:
            await server.finish(seconds * _FINISH_SHARE)

        async def stop_server() -> None:
            server.stop()

        self._runtime.on_drain("server", close_the_door)
        self._runtime.on_drain("copies", lambda: copier.drain(seconds * _COPIES_SHARE))
        self._runtime.on_drain("requests", finish)
        self._runtime.on_drain("snapshots", manager.drain)
        self._runtime.on_drain("socket", stop_server)

    def _storage_trouble(self, view: ClusterView) -> LastError | None:
        """Return what is wrong with the remote storage: refused, a broker's own, or away."""
        if self._storage_error is not None:
            return self._storage_error
        if (trouble := view.storage_trouble()) is not None:
            return LastError(message=trouble, at_ms=self._clock.now_ms())
        return None if self._presence is None else self._presence.trouble

    async def _keep_storage(self, storage: _Storage, manager: Manager) -> None:
        """Settle the marker once the log is known, then keep the presence file fresh."""
        while (identity := manager.fleet.identity) is None:
            await manager.fleet.changed.wait()
        cluster_id = identity.cluster_id or self._config.daemon.cluster_id or ""
        try:
            await storage.bucket.open(
                BucketIdentity(
                    cluster_id=cluster_id,
                    partition_count=identity.partition_count,
                    metadata_topic_id=uuid_text(identity.topic_id),
                )
            )
        except ConfigError as refusal:
            # Metadata is served on; copies, fetches and deletes are refused with this reason.
            logger.warning("remote storage refused", error=refusal.message)
            self._storage_error = LastError(message=refusal.message, at_ms=self._clock.now_ms())
            await asyncio.Event().wait()
        presence = self._presence = PresenceFile(
            storage.backend,
            self._clock,
            cluster_id=cluster_id,
            broker_id=self._config.daemon.broker_id,
            copy_deadline_seconds=self._config.copy.deadline_seconds,
            facts=lambda: presence_of(manager),
        )
        self._runtime.on_drain("presence", lambda: _last_words(presence))
        self._runtime.spawn("storage.presence", presence.run())
        await _tell_of_changes(manager, presence)

    async def _reloaded(self) -> None:
        fresh = self._reload()
        backend = _s3_of(self._config, self._storage)
        if backend is not None and isinstance(fresh.storage, S3StorageConfig):
            await backend.reload_credentials()  # first: where it fails, the old settings stay
            backend.set_rates(_rates_of(fresh.storage))
        logging.set_level(fresh.log.level)
        for key in differences(self._config, fresh):
            if key not in _RELOADED:
                logger.warning("this key changes at the next start only", key=key)


def _repair_of(log: EventLog) -> LogRepair | None:
    """Return how the log's files are mended; None where they are the brokers'."""
    if not isinstance(log, EmbeddedLog):
        return None

    async def mend(partition: MetadataPartition, records: Collection[bytes]) -> Mapping[str, Any]:
        return asdict(await repair(log, partition, records))

    return mend


async def _name_known_cluster(server: Server, manager: Manager) -> None:
    """Tell the server the cluster that the state directory is bound to; a restart need not ask."""
    with suppress(OSError, RlmmError):  # whatever is wrong with it, opening the log will tell
        known = await manager.state.identity()
        if known is not None and known.cluster_id is not None:
            server.identify(known.cluster_id)


async def _name_cluster(server: Server, manager: Manager) -> None:
    """Tell the server which cluster this is, where only the brokers know; it waits for that."""
    while (identity := manager.fleet.identity) is None:
        await manager.fleet.changed.wait()
    if identity.cluster_id is not None:
        server.identify(identity.cluster_id)


async def _serve_admin(admin: AdminServer, manager: Manager) -> None:
    """Serve the admin port in a moment: what it loads would hold up a broker's first words."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_OPEN_SECONDS):
            await manager.until_open()
    await asyncio.sleep(_FIRST_WORDS_SECONDS)
    await admin.serve()


async def _keep_view(view: ClusterView, manager: Manager) -> None:
    """Ask the cluster for ever, once the log that says which cluster it is has opened."""
    await manager.until_open()
    await view.run()


async def _last_words(presence: PresenceFile) -> None:
    """Leave the presence file as of the end, unless the storage is away."""
    try:
        async with asyncio.timeout(_LAST_WORDS_SECONDS):
            await presence.write()
    except TimeoutError:
        logger.warning("presence file not written at the end")


async def _tell_of_changes(manager: Manager, presence: PresenceFile) -> None:
    """Have the presence file rewritten soon after a state or the broker's manager changed."""
    before: object = None
    while True:
        now = (
            manager.assignment.incarnation_ms,
            manager.assignment.has_manager,
            {follower.partition: follower.state for follower in manager.followed()},
        )
        if now != before:
            before = now
            presence.changed()
        await asyncio.sleep(_LOOK_SECONDS)


def event_log_of(
    config: Config,
    disk: LocalDisk,
    clock: SystemClock,
    rng: random.Random,
    spawn: Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]],
    *,
    metrics: LogMetrics | None = None,
) -> EventLog:
    """Return the configured event log, closed."""
    chosen = config.event_log
    if isinstance(chosen, KafkaLogConfig):
        from rlmm_daemon.adapters.event_log.kafka import KafkaLog
        from rlmm_daemon.adapters.kafka_connection.security import load_security

        security = chosen.kafka.security
        return KafkaLog(
            chosen.kafka,
            clock=clock,
            luck=rng,
            spawn=spawn,
            load_security=lambda: load_security(security),
        )
    return EmbeddedLog(
        disk=disk,
        clock=clock,
        spawn=spawn,
        luck=rng,
        directory=config.event_log_directory,
        partition_count=chosen.partition_count,
        cluster_id=config.daemon.cluster_id,
        options=EmbeddedOptions(segment_bytes=chosen.segment_bytes),
        on_sync=None if metrics is None else metrics.synced,
    )


def kafka_log_of(config: Config, log: EventLog) -> "KafkaLog | None":
    """Return the event log as Kafka's; None where another one is configured."""
    if not isinstance(config.event_log, KafkaLogConfig):
        return None
    from rlmm_daemon.adapters.event_log.kafka import KafkaLog

    assert isinstance(log, KafkaLog), "the log is the configured one"
    return log


def cluster_of(config: Config, log: EventLog) -> Cluster:
    """Return the cluster of the log's brokers; an embedded log's is the one broker."""
    if isinstance(config.event_log, KafkaLogConfig):
        from rlmm_daemon.adapters.cluster.kafka import KafkaCluster

        kafka = kafka_log_of(config, log)
        assert kafka is not None, "the log is the configured one"
        return KafkaCluster(
            kafka.client,
            config.event_log.kafka.topic,
            lambda: kafka.identity.topic_id if kafka.identity else None,
        )
    return FixedCluster(
        cluster_id=config.daemon.cluster_id or "",
        broker_id=config.daemon.broker_id,
        partition_count=lambda: log.identity.partition_count if log.identity else 0,
    )


def _is_private(config: Config) -> bool:
    """Return whether only this broker sees the storage, in what may be a cluster of several."""
    several = isinstance(config.event_log, KafkaLogConfig)
    return several and isinstance(config.storage, LocalStorageConfig) and not config.storage.shared


def storage_of(
    config: Config, rng: random.Random, *, owner: str | None = None, reads_only: bool = False
) -> _Storage | None:
    """Return the configured storage, closed; None for metadata only.

    `open` sweeps what an earlier run of the daemon left: whoever is not the daemon, and may run
    beside it, says another `owner`, or that it `reads_only` and has nothing made or swept.
    """
    sweeps = owner is None and not reads_only
    owner = owner or str(config.daemon.broker_id)
    match config.storage:
        case NoStorage():
            return None
        case LocalStorageConfig(directory=directory, prefix=prefix):
            backend = LocalStorage(
                directory,
                owner=owner,
                threads_max=config.copy.parallelism + 2,
                reads_only=reads_only,
            )
            return _Storage(backend, Bucket(backend, layout=Layout(prefix), rng=rng))
        case S3StorageConfig() as s3:
            from rlmm_daemon.adapters.storage.s3 import S3Storage

            options = s3_options_of(config, s3)
            remote = S3Storage(options, owner=owner, rng=rng, sweeps=sweeps)
            return _Storage(remote, Bucket(remote, layout=Layout(s3.prefix), rng=rng))
        case _:
            assert_never(config.storage)


def _s3_of(config: Config, storage: _Storage | None) -> "S3Storage | None":
    """Return the storage as S3's; None where another one is configured, or none."""
    if storage is None or not isinstance(config.storage, S3StorageConfig):
        return None
    from rlmm_daemon.adapters.storage.s3 import S3Storage

    assert isinstance(storage.backend, S3Storage), "the storage is the configured one"
    return storage.backend


def s3_options_of(config: Config, s3: S3StorageConfig) -> "S3Options":
    """Return the S3 adapter's options; the keys are read when they are needed."""
    from rlmm_daemon.adapters.storage.s3 import S3Options

    return S3Options(
        bucket=s3.bucket,
        region=s3.region,
        endpoint=s3.endpoint,
        transport=s3.transport,
        addressing=s3.addressing,
        ca_file=s3.ca_file,
        proxy=s3.proxy,
        static_keys=s3_static_keys_of(s3),
        multipart_threshold_bytes=s3.multipart_threshold_bytes,
        part_size_bytes=s3.part_size_bytes,
        parts_in_flight_max=s3.parts_in_flight_max,
        connect_timeout=s3.connect_timeout_ms / 1000,
        read_timeout=s3.read_timeout_ms / 1000,
        call_timeout=s3.call_timeout_ms / 1000,
        idle_timeout=s3.idle_timeout_ms / 1000,
        attempts_max=s3.attempts_max,
        writes_max=s3.writes_in_flight_max,
        reads_max=s3.reads_in_flight_max,
        sse=s3.sse,
        sse_kms_key_id=s3.sse_kms_key,
        expected_bucket_owner=s3.expected_bucket_owner,
        storage_class=s3.storage_class,
        tags={name: value for name, _, value in (tag.partition("=") for tag in s3.tags)},
        rates=_rates_of(s3),
        copy_deadline=float(config.copy.deadline_seconds),
        prefix=s3.prefix,
    )


def s3_static_keys_of(s3: S3StorageConfig) -> "Callable[[], StaticKeys] | None":
    """Return what reads the configured keys, or None where the SDK's chain finds them."""
    has_keys = s3.access_key_id_file is not None or s3.access_key_id_env is not None
    return functools.partial(_static_keys, s3) if has_keys else None


def _rates_of(s3: S3StorageConfig) -> "Rates":
    from rlmm_daemon.adapters.storage.s3 import Rates

    return Rates(
        copy_bytes_per_second=s3.copy_bytes_per_second_max,
        fetch_bytes_per_second=s3.fetch_bytes_per_second_max,
    )


def _static_keys(s3: S3StorageConfig) -> "StaticKeys":
    from rlmm_daemon.adapters.storage.s3 import StaticKeys

    def read(name: str) -> Secret | None:
        return read_secret(
            f"storage.{name}",
            file=getattr(s3, f"{name}_file"),
            env=getattr(s3, f"{name}_env"),
            environ=os.environ,
        )

    key, secret = read("access_key_id"), read("secret_access_key")
    if key is None or secret is None:
        raise ConfigError("storage.access_key_id_* and storage.secret_access_key_* go together")
    return StaticKeys(
        access_key_id=key, secret_access_key=secret, session_token=read("session_token")
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


def delivery_seconds_of(config: Config) -> float:
    """Return after how long a record whose fate is not known is given up."""
    if isinstance(config.event_log, KafkaLogConfig):
        return config.event_log.kafka.producer.delivery_timeout_ms / 1000
    return FleetOptions().delivery_timeout_seconds


def cleaner_options_of(config: Config) -> CleanerOptions:
    """Return the cleaner's bounds. Nobody else reads an embedded log."""
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


def server_options_of(config: Config) -> ServerOptions:
    """Return the socket's limits and rights."""
    socket, rights = config.socket, config.socket.rights

    def grant(peers: Any) -> Grant:
        return Grant(uids=frozenset(peers.uids), gids=frozenset(peers.gids))

    return ServerOptions(
        path=socket.path,
        mode=int(socket.mode, 8),
        rights=RightsTable(
            read=grant(rights.read), write=grant(rights.write), admin=grant(rights.admin)
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


def presence_of(manager: Manager) -> PresenceFacts:
    """Return what the presence file says of the followed metadata partitions."""
    identity = manager.fleet.identity
    topic_id = uuid_text(identity.topic_id) if identity else ""
    states = {follower.partition: follower.state for follower in manager.followed()}
    unread = {partition: Position(0, -1) for partition in states}
    positions = {**unread, **manager.fleet.furthest()}
    return PresenceFacts(
        incarnation=manager.assignment.incarnation_ms,
        lease_end_ms=manager.clock.now_ms() + round(LEASE_SECONDS * 1000),
        # Another manager never connects, and neither does ours before the broker runs.
        metadata_manager="rlmm" if manager.assignment.has_manager else "foreign",
        partitions={
            partition: PresencePartition(
                state=states.get(partition, PartitionState.UNASSIGNED).value,
                topic_id=topic_id,
                leader_epoch=position.leader_epoch,
                next_offset=position.next_offset,
            )
            for partition, position in positions.items()
        },
    )


async def _until_open(manager: Manager, bucket: Bucket | None) -> None:
    """Return once log and bucket are known; a storage that is away is waited for only briefly."""
    await manager.until_open()
    if bucket is not None and manager.fleet.identity is not None:
        await bucket.until_judged(_MARKER_SECONDS)


def _readiness(manager: Manager) -> Ready:
    """`/readyz`: the log is open and every followed metadata partition is ready."""
    states = {str(f.partition): f.state.value for f in manager.followed()}
    opened = manager.fleet.identity is not None and manager.fleet.whole_failure is None
    ready = opened and all(state == "ready" for state in states.values())
    return Ready(ready=ready, facts={"log": manager.fleet.trouble or "open", "partitions": states})
