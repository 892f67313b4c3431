"""Choice of the adapter behind each port, as configured.

Those that bring a library of their own are imported when they are chosen: a start would wait for
the SDK of S3 and for Kafka's client longer than for everything else, also where neither is used.
"""

import asyncio
import functools
import os
import random
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, assert_never

import msgspec

from rlmm_daemon.adapters.event_log.embedded import EmbeddedLog, EmbeddedOptions
from rlmm_daemon.adapters.event_log.embedded.repair import repair
from rlmm_daemon.adapters.fixed_cluster import FixedCluster
from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.adapters.os.disk import LocalDisk
from rlmm_daemon.adapters.storage.local import LocalStorage
from rlmm_daemon.config import Config, NoStorage, read_secret
from rlmm_daemon.config import KafkaClient as KafkaClientConfig
from rlmm_daemon.config import KafkaLog as KafkaLogConfig
from rlmm_daemon.config import LocalStorage as LocalStorageConfig
from rlmm_daemon.config import QuorumLog as QuorumLogConfig
from rlmm_daemon.config import S3Storage as S3StorageConfig
from rlmm_daemon.core.snapshots.compaction import When
from rlmm_daemon.core.storage.layout import Layout
from rlmm_daemon.daemon.bucket.bucket import Bucket
from rlmm_daemon.daemon.operator.mending import LogRepair
from rlmm_daemon.domain.errors import ConfigError
from rlmm_daemon.domain.ids import MetadataPartition
from rlmm_daemon.domain.secret import Secret
from rlmm_daemon.observability.metrics import LogMetrics
from rlmm_daemon.ports.cluster import Cluster
from rlmm_daemon.ports.event_log import EventLog
from rlmm_daemon.ports.passes import Passes
from rlmm_daemon.ports.storage import RemoteStorage

if TYPE_CHECKING:
    from rlmm_daemon.adapters.controllers.observer import ControllersObserver
    from rlmm_daemon.adapters.kafka.connection import KafkaClient
    from rlmm_daemon.adapters.kafka.event_log import KafkaLog
    from rlmm_daemon.adapters.quorum.event_log import QuorumLog
    from rlmm_daemon.adapters.storage.s3 import Rates, S3Options, S3Storage, StaticKeys


def event_log_of(
    config: Config,
    disk: LocalDisk,
    clock: SystemClock,
    rng: random.Random,
    *,
    spawn: Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]],
    metrics: LogMetrics | None = None,
) -> EventLog:
    """Return the configured event log, closed."""
    chosen = config.event_log
    if isinstance(chosen, QuorumLogConfig):
        from rlmm_daemon.wiring.quorum_log import quorum_log_of

        return quorum_log_of(config, disk, clock, rng, spawn=spawn)
    if isinstance(chosen, KafkaLogConfig):
        from rlmm_daemon.adapters.kafka.connection.security import load_security
        from rlmm_daemon.adapters.kafka.event_log import KafkaLog

        security = chosen.kafka.security
        return KafkaLog(
            chosen.kafka,
            clock=clock,
            luck=rng,
            spawn=spawn,
            load_security=lambda: load_security(security),
            cluster_id=config.daemon.cluster_id,
        )
    return EmbeddedLog(
        disk=disk,
        clock=clock,
        spawn=spawn,
        luck=rng,
        directory=config.event_log_directory,
        partition_count=chosen.partition_count,
        cluster_id=config.daemon.cluster_id,
        options=EmbeddedOptions(
            segment_bytes=chosen.segment_bytes,
            compaction=When(factor=chosen.compact_factor, bytes_min=chosen.compact_bytes_min)
            if chosen.compact
            else None,
        ),
        on_sync=None if metrics is None else metrics.synced,
    )


def kafka_log_of(config: Config, log: EventLog) -> "KafkaLog | None":
    """Return the event log as Kafka's; None where another one is configured."""
    if not isinstance(config.event_log, KafkaLogConfig):
        return None
    from rlmm_daemon.adapters.kafka.event_log import KafkaLog

    assert isinstance(log, KafkaLog), "the log is the configured one"
    return log


def as_quorum_log(config: Config, log: EventLog) -> "QuorumLog | None":
    """Return the event log as a quorum's; None where another one is configured."""
    if not isinstance(config.event_log, QuorumLogConfig):
        return None
    from rlmm_daemon.adapters.quorum.event_log import QuorumLog

    assert isinstance(log, QuorumLog), "the log is the configured one"
    return log


def refusal_of(log: EventLog) -> str:
    """Return why the log's files take no more, empty if they do; others are asked instead."""
    return log.refusal if isinstance(log, EmbeddedLog) else ""


def repair_of(log: EventLog) -> LogRepair | None:
    """Return how the log's files are mended; None where others have the events, too."""
    if not isinstance(log, EmbeddedLog):
        return None

    async def mend(partition: MetadataPartition, records: Collection[bytes]) -> Mapping[str, Any]:
        repaired: dict[str, Any] = msgspec.to_builtins(await repair(log, partition, records))
        return repaired

    return mend


def cluster_of(config: Config, log: EventLog, client: "KafkaClient | None" = None) -> Cluster:
    """Return the cluster of the log's brokers; of a log of one broker, that one.

    `client` is `brokers_of`: beside a quorum's log brokers are asked through it.
    """
    if isinstance(config.event_log, KafkaLogConfig):
        from rlmm_daemon.adapters.kafka.cluster import KafkaCluster

        kafka = kafka_log_of(config, log)
        assert kafka is not None, "the log is the configured one"
        return KafkaCluster(
            kafka.client,
            config.event_log.kafka.topic,
            lambda: kafka.identity.topic_id if kafka.identity else None,
        )

    def partition_count() -> int:
        return log.identity.partition_count if log.identity else 0

    cluster_id = config.daemon.cluster_id or ""
    quorum = as_quorum_log(config, log)
    if quorum is None or not config.shares_log:
        return FixedCluster(
            cluster_id=cluster_id,
            broker_id=config.daemon.broker_id,
            partition_count=partition_count,
        )
    from rlmm_daemon.adapters.quorum.cluster import QuorumCluster

    return QuorumCluster(
        None if client is None else _asked_through(client),
        cluster_id=cluster_id,
        leader=lambda: quorum.leader,
        partition_count=partition_count,
    )


def _asked_through(client: "KafkaClient") -> Cluster:
    from rlmm_daemon.adapters.kafka.cluster import KafkaCluster

    return KafkaCluster(client, "", lambda: None)  # of no metadata topic: the quorum has the log


def brokers_of(config: Config, rng: random.Random) -> "KafkaClient | None":
    """Return connections to brokers that are only asked about the cluster; None: nobody is."""
    if not isinstance(config.event_log, QuorumLogConfig):
        return None
    brokers = config.event_log.quorum.brokers
    if brokers is None:
        return None
    from rlmm_daemon.adapters.kafka.connection import KafkaClient
    from rlmm_daemon.adapters.kafka.connection.security import load_security

    here, security = "event_log.quorum.brokers.security", brokers.security
    settings = KafkaClientConfig(
        bootstrap=brokers.bootstrap,
        client_id=brokers.client_id,
        connect_timeout_ms=brokers.connect_timeout_ms,
        request_timeout_ms=brokers.request_timeout_ms,
    )
    return KafkaClient(settings, load_security=lambda: load_security(security, here=here), luck=rng)


class Controllers(msgspec.Struct, frozen=True):
    """The cluster's controllers, as they are followed, and the cluster by their word too."""

    observer: "ControllersObserver"
    cluster: Cluster
    reload: Callable[[], Awaitable[None]]

    def facts(self) -> Mapping[str, Any]:
        """Return how following them stands."""
        told: dict[str, Any] = msgspec.to_builtins(self.observer.observed())
        return told


def controllers_of(
    config: Config, brokers: Cluster, clock: SystemClock, rng: random.Random
) -> Controllers | None:
    """Return the controllers' word beside the brokers'; None where they are not configured."""
    if not isinstance(config.event_log, KafkaLogConfig):
        return None
    chosen = config.event_log.kafka.controllers
    if chosen is None:
        return None
    from rlmm_daemon.adapters.controllers.cluster import WeighedCluster
    from rlmm_daemon.adapters.controllers.dialer import KafkaDialer
    from rlmm_daemon.adapters.controllers.observer import (
        ControllersObserver,
        connecting,
        endpoints_of,
    )
    from rlmm_daemon.adapters.kafka.connection.security import load_security

    here = "event_log.kafka.controllers.security"
    dialer = KafkaDialer(lambda: load_security(chosen.security, here=here))
    observer = ControllersObserver(
        endpoints_of(chosen.bootstrap),
        connecting(dialer),
        brokers.cluster_id,
        clock=clock,
        rng=rng,
    )
    return Controllers(observer, WeighedCluster(brokers, observer, clock), dialer.reload)


class Storage(msgspec.Struct):
    """What stands behind the storage methods."""

    backend: RemoteStorage
    bucket: Bucket


def storage_of(
    config: Config,
    rng: random.Random,
    *,
    owner: str | None = None,
    reads_only: bool = False,
    passes: Passes | None = None,
) -> Storage | None:
    """Return the configured storage, closed; None for metadata only.

    `passes` makes what takes long of a local copy; its own threads do where it is left out.

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
                passes=passes,
            )
            return Storage(backend, _bucket(backend, prefix, rng, directory))
        case S3StorageConfig() as s3:
            from rlmm_daemon.adapters.storage.s3 import S3Storage

            options = s3_options_of(config, s3)
            remote = S3Storage(options, owner=owner, rng=rng, sweeps=sweeps)
            return Storage(remote, _bucket(remote, s3.prefix, rng, s3.bucket))
        case _:
            assert_never(config.storage)


def _bucket(backend: RemoteStorage, prefix: str, rng: random.Random, name: str) -> Bucket:
    return Bucket(backend, layout=Layout(prefix), rng=rng, name=name)


def is_private(config: Config) -> bool:
    """Return whether only this broker sees the storage, in what may be a cluster of several."""
    return (
        config.shares_log
        and isinstance(config.storage, LocalStorageConfig)
        and not config.storage.shared
    )


def s3_of(config: Config, storage: Storage | None) -> "S3Storage | None":
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
        rates=rates_of(s3),
        copy_deadline=float(config.copy.deadline_seconds),
        prefix=s3.prefix,
    )


def s3_static_keys_of(s3: S3StorageConfig) -> "Callable[[], StaticKeys] | None":
    """Return what reads the configured keys, or None where the SDK's chain finds them."""
    has_keys = s3.access_key_id_file is not None or s3.access_key_id_env is not None
    return functools.partial(_static_keys, s3) if has_keys else None


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


def rates_of(s3: S3StorageConfig) -> "Rates":
    """Return the bounds of copies and fetches, which a reload may change."""
    from rlmm_daemon.adapters.storage.s3 import Rates

    return Rates(
        copy_bytes_per_second=s3.copy_bytes_per_second_max,
        copy_by_topic={
            pattern: int(rate)
            for pattern, _, rate in (
                each.partition("=") for each in s3.copy_bytes_per_second_max_by_topic
            )
        },
        fetch_bytes_per_second=s3.fetch_bytes_per_second_max,
    )


def lanes_of(config: Config, storage: Storage | None) -> "Callable[[str], str | None]":
    """Return what names whose limit a topic's copies share; only S3 has limits."""
    s3 = s3_of(config, storage)
    return (lambda _: None) if s3 is None else s3.lane_of
