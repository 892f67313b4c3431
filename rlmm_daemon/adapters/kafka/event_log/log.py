"""The event log on Kafka's metadata topic: the port's promises, kept by the modules beside it."""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from typing import Any, Final

import structlog
from aiokafka.conn import create_conn

from rlmm_daemon.adapters.kafka.connection import Directory, KafkaClient, TopicView
from rlmm_daemon.adapters.kafka.connection.connection import Dial
from rlmm_daemon.adapters.kafka.connection.requests import NO_ID
from rlmm_daemon.adapters.kafka.connection.security import Security
from rlmm_daemon.adapters.kafka.event_log.asking import Asker
from rlmm_daemon.adapters.kafka.event_log.fetcher import PartitionFetcher
from rlmm_daemon.adapters.kafka.event_log.producer import Producer, Spawn
from rlmm_daemon.adapters.kafka.event_log.provisioning import (
    create_topic,
    read_settings,
    shortcomings,
)
from rlmm_daemon.config import KafkaClient as ClientConfig
from rlmm_daemon.domain.backoff import Backoff
from rlmm_daemon.domain.errors import (
    Draining,
    InvalidArgument,
    StorageUnavailable,
    UnavailableError,
)
from rlmm_daemon.domain.ids import MetadataPartition
from rlmm_daemon.ports.clock import Clock
from rlmm_daemon.ports.event_log import (
    EpochEnd,
    LogBatch,
    LogForeign,
    LogIdentity,
    LogMissing,
    LogRange,
    NoTopicId,
    Told,
    TopicIdChanged,
    appended,
)

#: How often the topic's settings are looked at, and while nobody answers.
SETTINGS_SECONDS: Final = 300.0
SETTINGS_UNSEEN_SECONDS: Final = 15.0
#: How long `close` waits for records that were taken.
CLOSE_SECONDS: Final = 5.0

logger = structlog.get_logger(__name__)


class KafkaLog:
    """One daemon's connections to the topic; see the package's docstring for what it withstands."""

    def __init__(
        self,
        config: ClientConfig,
        *,
        clock: Clock,
        luck: random.Random,
        spawn: Spawn,
        load_security: Callable[[], Security],
        dial: Dial = create_conn,
        cluster_id: str | None = None,
    ) -> None:
        """`cluster_id` is the cluster that the brokers must be of; None: whichever they are of."""
        self._cluster_id = cluster_id
        self.client = KafkaClient(config, load_security=load_security, luck=luck, dial=dial)
        self._config = config
        self.directory = Directory(self.client, config.topic)
        self._asker = Asker(self.client, self.directory, config.topic)
        self.producer = Producer(
            client=self.client,
            directory=self.directory,
            topic=config.topic,
            clock=clock,
            spawn=spawn,
        )
        self._identity: LogIdentity | None = None
        self._closed = True
        self._fetchers: set[PartitionFetcher] = set()
        self._unpacking = asyncio.Semaphore(1)
        #: Of followers that have ended.
        self._fetch_errors = 0
        #: What is wrong with the topic's settings; empty once they were read and are right.
        self.warnings: list[str] = []
        #: The topic's settings that matter here, as last read; empty until they were read.
        self.settings: Mapping[str, str] = {}
        #: Whether the last look at the topic's settings was answered.
        self._settings_seen = False

    # Opening and closing.

    async def open(self, *, create: bool) -> LogIdentity:
        """Find the topic, or make it; again after it was recreated, to accept the new one.

        Raises:
            LogMissing: there is no topic, and it may not be created.
            NoTopicId: the cluster gives the topic no id; it must be upgraded.
            LogForeign: the brokers are another cluster's.
            UnavailableError: no broker answered, or the topic's settings are refused.
        """
        self.client.reopen()
        view = await self.directory.refresh()
        if view is None:
            if not create:
                raise LogMissing(f"topic {self._config.topic} does not exist")
            await create_topic(self.client, self._config.topic)
            view = await self._created()
        if self._cluster_id is not None and self._cluster_id != view.cluster_id:
            raise LogForeign(
                f"the brokers are of cluster {view.cluster_id}, and this daemon's is "
                f"{self._cluster_id}",
                cluster_id=view.cluster_id,
            )
        if view.topic_id == NO_ID:
            raise NoTopicId(self._config.topic)
        await self._look_at_settings()
        if self.warnings and self._config.admin.require_infinite_retention:
            raise StorageUnavailable(
                f"topic {self._config.topic} is refused (require_infinite_retention): "
                + "; ".join(self.warnings)
            )
        self._identity = LogIdentity(
            cluster_id=view.cluster_id,
            topic_id=view.topic_id,
            partition_count=view.partition_count,
        )
        self._closed = False
        self.producer.start(view.topic_id)
        return self._identity

    async def _created(self) -> TopicView:
        """Wait until a broker shows the new topic with all its leaders."""
        loop = asyncio.get_running_loop()
        over = loop.time() + self._config.request_timeout_ms / 1000
        while loop.time() < over:
            view = await self.directory.refresh()
            if view is not None and len(view.leaders) == view.partition_count:
                return view
            await asyncio.sleep(self._config.retry_backoff_ms / 1000)
        raise StorageUnavailable(f"topic {self._config.topic} was created and is not there yet")

    async def _look_at_settings(self) -> None:
        known, self._settings_seen = set(self.warnings), False
        try:
            self.settings = await read_settings(self.client, self._config.topic)
            self.warnings = shortcomings(self.settings)
            self._settings_seen = True
        except UnavailableError as error:
            if not self.settings:  # what was read once does not become wrong with a broker's end
                self.warnings = [f"the topic's settings could not be checked: {error}"]
        for warning in self.warnings:
            if warning not in known:
                logger.warning(
                    "metadata topic may lose events", topic=self._config.topic, warning=warning
                )

    async def watch_settings(self) -> None:
        """Look at the topic's settings for ever: somebody may change them, or put them right.

        A topic that an open log follows is never refused for them, only warned of.
        """
        while True:
            seconds = SETTINGS_SECONDS if self._settings_seen else SETTINGS_UNSEEN_SECONDS
            await asyncio.sleep(seconds * (0.5 + self.client.luck.random() / 2))
            if not self._closed and self._identity is not None:
                await self._look_at_settings()

    @property
    def identity(self) -> LogIdentity | None:
        """What `open` returned last."""
        return self._identity

    async def reload(self) -> None:
        """Read certificates and passwords again; open connections keep theirs.

        Raises:
            ConfigError: something is not usable; what was in force stays so.
        """
        self.client.reload()

    async def close(self) -> None:
        """Finish appends that were taken, for a few seconds; then close every connection."""
        if not self._closed:
            self._closed = True
            await self.producer.close(CLOSE_SECONDS)
        self.client.close()

    # The port.

    def begin_append(self, partition: MetadataPartition, value: bytes, told: Told) -> None:
        """Take a record; see the port. One too large for the topic is told InvalidArgument."""
        self._check_partition(partition)
        self.producer.begin_append(partition, value, told)

    async def append(self, partition: MetadataPartition, value: bytes) -> int:
        """Append; see the port."""
        return await appended(self, partition, value)

    async def end_offsets(
        self, partitions: Collection[MetadataPartition]
    ) -> Mapping[MetadataPartition, LogRange]:
        """Return start and high watermark, each asked of the partition's leader just now."""
        if self._closed or self._identity is None:
            return {}
        count = self._identity.partition_count
        wanted = [each for each in partitions if 0 <= each < count]
        try:
            return await self._asker.ranges(wanted, self._identity.topic_id)
        except UnavailableError:
            return {}

    async def epoch_end(self, partition: MetadataPartition, epoch: int) -> EpochEnd:
        """Return where the epoch ends, by the leader's word."""
        identity = self._check_partition(partition)
        return await self._asker.epoch_end(partition, epoch, identity.topic_id)

    async def follow(
        self, partition: MetadataPartition, from_offset: int, *, epoch: int
    ) -> AsyncGenerator[LogBatch, None]:
        """Follow over a connection of its own; see the port and `fetcher`."""
        identity = self._check_partition(partition)
        view = self.directory.view
        if view is not None and view.topic_id != identity.topic_id:
            raise TopicIdChanged(view.topic_id)
        fetcher = PartitionFetcher(
            partition,
            from_offset,
            epoch,
            topic_id=identity.topic_id,
            client=self.client,
            directory=self.directory,
            asker=self._asker,
            backoff=Backoff(
                self._config.retry_backoff_ms / 1000,
                self._config.retry_backoff_max_ms / 1000,
                self.client.luck.random,
            ),
            check_open=self._check_open,
            unpacking=self._unpacking,
        )
        self._fetchers.add(fetcher)
        batches = fetcher.batches()
        try:
            async for batch in batches:
                yield batch
                self.producer.read_back(partition, batch.next_offset)
        finally:
            self.producer.read_back(partition, None)
            await batches.aclose()
            self._fetchers.discard(fetcher)
            self._fetch_errors += fetcher.errors_count

    def facts(self) -> Mapping[str, Any]:
        """Return what operators and metrics ask: connections, states, last errors. No secrets."""
        return {
            "topic": self._config.topic,
            "warnings": list(self.warnings),
            "connections": self.client.connection_count,
            "connections_opened": self.client.opened_count,
            "errors": {
                "fetch": self._fetch_errors + sum(each.errors_count for each in self._fetchers),
                "produce": self.producer.errors_count,
            },
            "following": sum(fetcher.connected for fetcher in self._fetchers),
            "partitions": {
                int(fetcher.partition): {
                    "state": fetcher.state.value,
                    "position": fetcher.position,
                    "leader_epoch": fetcher.epoch,
                    "leader": str(fetcher.leader.node) if fetcher.leader else None,
                    "pause_seconds": round(fetcher.pause_seconds, 3),
                    "errors": fetcher.errors_count,
                    "last_error": fetcher.last_error,
                }
                for fetcher in self._fetchers
            },
            "producer": {
                "in_flight": self.producer.in_flight,
                "lost": self.producer.lost_count,
                "last_error": self.producer.last_error,
            },
        }

    def _check_open(self) -> None:
        if self._closed:
            raise Draining("the event log is closed")

    def _check_partition(self, partition: MetadataPartition) -> LogIdentity:
        self._check_open()
        assert self._identity is not None, "open"
        if not 0 <= partition < self._identity.partition_count:
            raise InvalidArgument(f"the log has no partition {partition}")
        return self._identity
