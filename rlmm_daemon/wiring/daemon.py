"""A process put together: its rooms, started, reloaded and drained in this order."""

import asyncio
import os
import random
import socket
from collections.abc import Callable

import structlog

from rlmm_daemon import __version__
from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.adapters.os.disk import LocalDisk
from rlmm_daemon.adapters.os.lock_place import place_of
from rlmm_daemon.adapters.passes.in_threads import InThreads
from rlmm_daemon.adapters.passes.process import OneProcess
from rlmm_daemon.config import Config, differences
from rlmm_daemon.config import S3Storage as S3StorageConfig
from rlmm_daemon.config.model import RELOADED
from rlmm_daemon.daemon.base.crash_guard import CrashGuard
from rlmm_daemon.daemon.base.services import Services
from rlmm_daemon.daemon.base.state_directory import LOCK, StateDirectory
from rlmm_daemon.daemon.bucket.owed import NoBucket
from rlmm_daemon.daemon.bucket.presence import Author
from rlmm_daemon.daemon.bucket.presence_files import PresenceReader
from rlmm_daemon.daemon.bucket.recorded_log import RecordedLog
from rlmm_daemon.daemon.bucket.storage_keeper import StorageKeeper
from rlmm_daemon.daemon.cleaner.cluster_view import ClusterView
from rlmm_daemon.daemon.cleaner.left_behind import LeftBehind
from rlmm_daemon.daemon.cleaner.report import Report
from rlmm_daemon.daemon.copying.copier import Copier
from rlmm_daemon.daemon.following.bucket_record import BucketRecord
from rlmm_daemon.daemon.metadata.manager import Manager
from rlmm_daemon.daemon.operator.admin import AdminServer
from rlmm_daemon.daemon.operator.copy_lag import CopyLag
from rlmm_daemon.daemon.operator.gauges import Gauges
from rlmm_daemon.daemon.operator.memory import CopyingProcess
from rlmm_daemon.daemon.operator.methods import Operator
from rlmm_daemon.daemon.operator.standing import Standing, event_log_kind
from rlmm_daemon.daemon.operator.topics import TopicLabels, Topics
from rlmm_daemon.daemon.process.runtime import Runtime, Stopping, execute
from rlmm_daemon.daemon.process.systemd import Notifier
from rlmm_daemon.daemon.reading.fetcher import Fetcher
from rlmm_daemon.daemon.socket.server import Server
from rlmm_daemon.observability import logging
from rlmm_daemon.observability.metrics import Metrics
from rlmm_daemon.ports.event_log import EventLog
from rlmm_daemon.wiring import adapters, start
from rlmm_daemon.wiring.cleaner import CleanerRoom, proof_of
from rlmm_daemon.wiring.cluster import ClusterRoom
from rlmm_daemon.wiring.log_facts import log_facts
from rlmm_daemon.wiring.options import (
    copy_options_of,
    manager_options_of,
    server_options_of,
)
from rlmm_daemon.wiring.page import fleet_of, forecasts_of, page_room
from rlmm_daemon.wiring.reading import fetcher_of, read_caches_of
from rlmm_daemon.wiring.recovery import recovery_of
from rlmm_daemon.wiring.storage_view import storage_view_of

logger = structlog.get_logger(__name__)

#: Of the drain's time, for requests in flight; copies and snapshots have the rest.
_FINISH_SHARE = 0.2
_COPIES_SHARE = 0.6
#: Of the read cache: files are opened, checked, written and removed.
_CACHE_THREADS = 8
#: Twice what a copy has at once: as many again may hang on a disk that their callers gave up.
_PASSES_A_COPY = 4


def run(config: Config, *, reload: Callable[[], Config]) -> int:
    """Run the daemon until it is stopped; return the process's exit code."""
    return execute(lambda: _serve(config, reload))


async def _serve(config: Config, reload: Callable[[], Config]) -> None:
    start.tell_start(config)
    daemon = Daemon(config, reload)
    try:
        await daemon.serve()
    finally:
        daemon.cache_disk.close(wait=False)
        daemon.disk.close()


class Daemon:
    """All rooms of one process, put together from one configuration."""

    def __init__(self, config: Config, reload: Callable[[], Config]) -> None:
        self._config = config
        self._reload = reload
        self.disk = LocalDisk()
        #: The read cache may lie on another one, which may hang: no event waits for it.
        self.cache_disk = LocalDisk(threads=_CACHE_THREADS)
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
        self._passes = OneProcess(
            instead=InThreads(), passes_max=_PASSES_A_COPY * config.copy.parallelism
        )
        self._storage = adapters.storage_of(config, self._rng, passes=self._passes)
        self._presences = (
            None
            if self._storage is None
            else PresenceReader(self._storage.backend, config.daemon.broker_id)
        )

    async def serve(self) -> None:
        """Run until a stop was ordered and drained, or until something failed."""
        async with asyncio.TaskGroup() as writes:
            # The log's own tasks outlive every room, so that `close` can finish them.
            log = adapters.event_log_of(
                self._config,
                self.disk,
                self._clock,
                self._rng,
                spawn=lambda work, name: writes.create_task(work, name=name),
                metrics=self._metrics.log,
            )
            manager = self._manager(log)
            cluster = ClusterRoom(self._config, manager, self._clock, self._rng)
            if self._presences is not None and self._config.asks_brokers:
                self._presences.named = cluster.view.brokers
            try:
                async with asyncio.TaskGroup() as jobs:
                    await self._serve_rooms(manager, cluster, jobs)
                    raise Stopping  # what is still copying had its share of the drain
            except* Stopping:
                pass
            finally:
                await log.close()
                cluster.close()
                if self._storage is not None:
                    await self._storage.backend.close()
                await asyncio.to_thread(self._passes.close)

    def _manager(self, log: EventLog) -> Manager:
        return Manager(
            log=log,
            disk=self.disk,
            clock=self._clock,
            rng=self._rng,
            options=manager_options_of(self._config),
            bucket=self._recorded(),
            quarantined=self._guard.quarantined(),
            metrics=self._metrics.log,
        )

    def _recorded(self) -> BucketRecord:
        """Return what is asked of the log, and told of accepted losses, beside the log itself."""
        state = StateDirectory(self.disk, self._config.daemon.state_dir)
        ours = self._config.daemon
        broker_id, cluster_id, now_ms = ours.broker_id, ours.cluster_id, self._clock.now_ms
        if self._storage is None:
            return NoBucket(state, broker_id=broker_id, cluster_id=cluster_id, now_ms=now_ms)
        return RecordedLog(
            self._storage.backend,
            self._storage.bucket,
            broker_id=broker_id,
            cluster_id=cluster_id,
            now_ms=now_ms,
            state=state,
            presences=self._presences,
        )

    async def _serve_rooms(
        self, manager: Manager, cluster: ClusterRoom, jobs: asyncio.TaskGroup
    ) -> None:
        config, runtime = self._config, self._runtime
        bucket = self._storage.bucket if self._storage else None
        view, kafka = cluster.view, adapters.kafka_log_of(config, manager.log)
        copier = self._copier(manager, jobs, view)
        caches = read_caches_of(
            config,
            manager,
            jobs,
            disk=self.cache_disk,
            clock=self._clock,
            rng=self._rng,
            metrics=self._metrics,
        )
        fetcher = fetcher_of(manager, bucket, caches, rng=self._rng, metrics=self._metrics)
        proof = proof_of(config, manager, view, self.disk)
        room = (
            None
            if self._storage is None
            else CleanerRoom(
                config,
                manager,
                view,
                storage=self._storage,
                copier=copier,
                proof=proof,
                clock=self._clock,
                rng=self._rng,
            )
        )
        removals = None if room is None else room.report
        keeper = self._storage_keeper(manager, view)
        standing = self._standing(manager, cluster, copier, removals, keeper=keeper)
        forecasts = forecasts_of(config, manager, copier, fetcher=fetcher, storage=self._storage)
        operator = Operator(
            manager,
            runtime=runtime,
            guard=self._guard,
            repair=adapters.repair_of(manager.log),
            recovery=recovery_of(config, manager, copier, bucket=bucket, clock=self._clock),
            removals=removals,
            left_behind=None if room else LeftBehind(manager, proof),
            forecasts=forecasts,
        )
        server = Server(
            server_options_of(config),
            Services(
                manager=manager,
                lookups=manager.lookups,
                events=manager.events,
                operator=operator,
                standing=standing,
                copier=copier if bucket else None,
                fetcher=fetcher,
                opened=lambda: start.until_open(manager, bucket),
                log_trouble=lambda: start.log_trouble(manager),
            ),
            broker_id=config.daemon.broker_id,
            cluster_id=config.daemon.cluster_id,
            # A broker of several refuses a log that is its daemon's alone, whatever keeps it.
            event_log=event_log_kind(config) if config.shares_log else "embedded",
            version=__version__,
        )
        manager.assignment.is_connected = server.has_metadata_manager
        manager.assignment.is_stored_for = server.has_heard_storage_manager
        topics, lag = Topics(manager), CopyLag(manager, config.daemon.log_dirs)
        standing.plugins, standing.copy_lag = server.stats.plugins, lag.facts
        fleet = fleet_of(config, manager)
        gauges = self._gauges(
            manager, copier, removals, server, topics=topics, fetcher=fetcher, lag=lag
        )
        await start.name_known_cluster(server, manager)
        server.listen()
        self._on_drain(manager, copier, server)
        runtime.on_reload("config", self._reloaded)
        if kafka is not None:
            runtime.on_reload("certificates", kafka.reload)
        async with (
            AdminServer(
                config.admin.listen,
                self._metrics,
                lambda: start.readiness(manager),
                manager.bugs,
                page=page_room(
                    config,
                    manager,
                    standing,
                    topics,
                    copier=copier,
                    fetcher=fetcher,
                    removals=removals,
                    metrics=self._metrics,
                    fleet=fleet,
                    forecasts=forecasts,
                    jobs=jobs,
                ),
            ) as admin,
            runtime.running(),
        ):
            runtime.spawn("manager", manager.run())
            runtime.spawn("server", server.run(), may_end=True)
            runtime.spawn("gauges", gauges.run())
            runtime.spawn("topics", topics.run())
            runtime.spawn("copies.lag", lag.run(), may_end=True)
            runtime.spawn("fleet", fleet.run())
            runtime.spawn("cluster", start.name_cluster(server, manager), may_end=True)
            cluster.start(runtime)
            if kafka is not None:
                runtime.spawn("cluster.settings", kafka.watch_settings())
            if keeper is not None:
                runtime.spawn("storage", keeper.run())
            if copier.late is not None:
                runtime.spawn("copies.late", copier.late.run())
            if room is not None:
                room.start(runtime)
            if caches is not None:
                runtime.spawn("read caches", caches.run())
            runtime.spawn("admin", start.serve_admin(admin, manager), may_end=True)
            runtime.spawn("runtime.slices", start.ask_for_short_slices(), may_end=True)
            runtime.spawn("ready", start.tell_ready(manager), may_end=True)
            runtime.ready("serving")
        copier.abandon()

    def _copier(self, manager: Manager, jobs: asyncio.TaskGroup, view: ClusterView) -> Copier:
        """Return the copier; without a storage it has nothing to do, and says so."""
        return Copier(
            self._storage.bucket if self._storage else None,
            manager.events,
            jobs,
            options=copy_options_of(self._config),
            log_dirs=self._config.daemon.log_dirs,
            broker_id=self._config.daemon.broker_id,
            now_ms=self._clock.now_ms,
            passes=self._passes,
            require_copyable=view.refuse_copy,
            require_running=manager.pauses.require_running,
            lane_of=adapters.lanes_of(self._config, self._storage),
            metrics=self._metrics.storage,
            bugs=manager.bugs,
        )

    def _standing(
        self,
        manager: Manager,
        cluster: ClusterRoom,
        copier: Copier,
        removals: Report | None,
        *,
        keeper: StorageKeeper | None,
    ) -> Standing:
        config, s3 = self._config, adapters.s3_of(self._config, self._storage)

        return Standing(
            manager,
            config=config,
            copier=copier,
            removals=removals,
            runtime=self._runtime,
            storage=storage_view_of(config, keeper, s3.traffic if s3 else None, self._clock),
            log_facts=lambda: log_facts(config, manager.log, cluster.controllers),
            copying=lambda: CopyingProcess(pid=self._passes.pid, in_hand=self._passes.in_hand),
        )

    def _gauges(
        self,
        manager: Manager,
        copier: Copier,
        removals: Report | None,
        server: Server,
        *,
        topics: Topics,
        lag: CopyLag,
        fetcher: Fetcher | None,
    ) -> Gauges:
        kafka = adapters.kafka_log_of(self._config, manager.log)
        quorum = adapters.as_quorum_log(self._config, manager.log)
        s3 = adapters.s3_of(self._config, self._storage)
        return Gauges(
            self._metrics,
            manager,
            copier,
            server.stats,
            log_facts=kafka.facts if kafka else None,
            quorum_facts=quorum.facts if quorum else None,
            traffic=s3.traffic if s3 else None,
            removals=removals,
            writable=lambda: not (adapters.refusal_of(manager.log) or manager.fleet.noted.refusal),
            buffered=server.buffered_bytes,
            topics=topics,
            lag=lag,
            topic_labels=TopicLabels(self._config.admin.topics_max),
            fetched=lambda: {} if fetcher is None else fetcher.bytes_by_topic,
        )

    def _storage_keeper(self, manager: Manager, view: ClusterView) -> StorageKeeper | None:
        if self._storage is None:
            return None
        return StorageKeeper(
            self._storage.backend,
            self._storage.bucket,
            manager,
            self._runtime,
            broker_id=self._config.daemon.broker_id,
            cluster_id=self._config.daemon.cluster_id,
            copy_deadline_seconds=self._config.copy.deadline_seconds,
            trouble_by_cluster=view.storage_trouble,
            metrics=self._metrics.storage,
            author=lambda: Author(
                place=place_of(f"{self._config.daemon.state_dir}/{LOCK}"),
                host=f"{socket.gethostname()}, pid {os.getpid()}",
            ),
            private_log=not self._config.shares_log,
            presences=self._presences,
        )

    def _on_drain(self, manager: Manager, copier: Copier, server: Server) -> None:
        seconds = self._config.daemon.drain_deadline_ms / 1000

        async def close_the_door() -> None:
            server.drain()

        async def stop_server() -> None:
            server.stop()

        self._runtime.on_drain("server", close_the_door)
        self._runtime.on_drain("copies", lambda: copier.drain(seconds * _COPIES_SHARE))
        self._runtime.on_drain("requests", lambda: server.finish(seconds * _FINISH_SHARE))
        self._runtime.on_drain("snapshots", manager.drain)
        self._runtime.on_drain("socket", stop_server)

    async def _reloaded(self) -> None:
        fresh = self._reload()
        backend = adapters.s3_of(self._config, self._storage)
        if backend is not None and isinstance(fresh.storage, S3StorageConfig):
            await backend.reload_credentials()  # first: where it fails, the old settings stay
            backend.set_rates(adapters.rates_of(fresh.storage))
        logging.set_level(fresh.log.level)
        for key in differences(self._config, fresh):
            if key not in RELOADED:
                logger.warning("this key changes at the next start only", key=key)
