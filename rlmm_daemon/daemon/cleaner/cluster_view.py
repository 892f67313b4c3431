"""The cluster as it was at the newest complete answer: asked for on change and every 30 s.

A partial answer changes nothing: what was known stays, with its age and what went wrong.
"""

import asyncio
import random
from collections.abc import Callable, Collection, Mapping
from typing import Final

import msgspec
import structlog

from rlmm_daemon.daemon.base.broadcast import Broadcast
from rlmm_daemon.domain.backoff import Backoff
from rlmm_daemon.domain.errors import InvalidArgument, RlmmError, StorageUnavailable
from rlmm_daemon.domain.ids import BrokerId, MetadataPartition, TopicIdPartition
from rlmm_daemon.ports.clock import Clock
from rlmm_daemon.ports.cluster import BrokerInfo, Cluster, TieredTopics

REFRESH_SECONDS: Final = 30.0
#: Changes that come together share one question.
SETTLE_SECONDS: Final = 0.2
RETRY_SECONDS_MIN: Final = 0.5
RETRY_SECONDS_MAX: Final = 15.0

logger = structlog.get_logger(__name__)


class ClusterFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One complete answer."""

    brokers: Mapping[BrokerId, BrokerInfo]
    leaders: Mapping[MetadataPartition, BrokerId]
    #: None unless partitions are discovered.
    tiered: TieredTopics | None
    #: On the clock's `monotonic`: before the question, so that an age is never too small.
    asked_at: float


class ClusterView:
    """Asks for ever, keeps the newest complete answer, and tells of each."""

    def __init__(
        self,
        cluster: Cluster,
        clock: Clock,
        rng: random.Random,
        *,
        broker_id: BrokerId,
        discovers: bool = False,
        private_storage: bool = False,
        on_answer: Callable[[ClusterFacts], None] = lambda _: None,
    ) -> None:
        """`private_storage`: a directory that no other broker sees, as far as is configured."""
        self.cluster = cluster
        self._clock = clock
        self._rng = rng
        self._broker_id = broker_id
        self._discovers = discovers
        self._private_storage = private_storage
        self._on_answer = on_answer
        self.facts: ClusterFacts | None = None
        #: What the newest question met; None: a complete answer.
        self.trouble: str | None = None
        self.failures = 0
        #: Rung at each complete answer.
        self.changed = Broadcast()
        self._wanted = asyncio.Event()

    def refresh(self) -> None:
        """Ask again soon: something is known to have changed."""
        self._wanted.set()

    @property
    def age_seconds(self) -> float | None:
        """How old the newest complete answer is; None: there was none yet."""
        return None if self.facts is None else self._clock.monotonic() - self.facts.asked_at

    def brokers(self) -> Collection[BrokerId] | None:
        """Return the brokers, fenced ones too, at the newest complete answer; None: none yet."""
        return None if self.facts is None else self.facts.brokers.keys()

    def owned(self) -> frozenset[MetadataPartition]:
        """Return the metadata partitions that this broker led at the newest complete answer."""
        leaders = {} if self.facts is None else self.facts.leaders
        return frozenset(each for each, leader in leaders.items() if leader == self._broker_id)

    def owned_within(self, seconds_max: float) -> frozenset[MetadataPartition] | None:
        """Return what `owned` does; None, so nothing, once the newest answer is older than that.

        A broker that was cut off does not hear that it leads no more.
        """
        age = self.age_seconds
        return None if age is None or age > seconds_max else self.owned()

    def storage_trouble(self) -> str | None:
        """Return why this broker's storage is no place for a copy, if that is so."""
        count = 0 if self.facts is None else len(self.facts.brokers)
        if not self._private_storage or count <= 1:
            return None
        return (
            f"the cluster has {count} brokers and storage.shared = false says that the others do "
            "not see this broker's directory; mount one that they all see and set it to true"
        )

    def refuse_copy(self, partition: TopicIdPartition) -> None:
        """Refuse a copy that other brokers could not read, or that KIP-405 does not support.

        Raises:
            InvalidArgument: the directory is this broker's own, or the topic compacts.
            StorageUnavailable: it may be, and nobody has said yet how many brokers there are.
        """
        if self._private_storage and self.facts is None:
            raise StorageUnavailable(
                "storage.shared = false, and the cluster has not said yet how many brokers it has"
            )
        if (trouble := self.storage_trouble()) is not None:
            raise InvalidArgument(trouble)
        self.refuse_compacted(partition)

    def refuse_compacted(self, partition: TopicIdPartition) -> None:
        """Refuse what KIP-405 does not support, where the cluster was asked about it.

        Raises:
            InvalidArgument: the partition's topic compacts.
        """
        tiered = None if self.facts is None else self.facts.tiered
        if tiered is not None and partition.topic_id in tiered.compacted:
            raise InvalidArgument(
                f"topic {partition.topic} compacts, which remote storage does not support (KIP-405)"
            )

    async def run(self) -> None:
        """Ask now, on change and every 30 s, for ever; a failure is tried again sooner."""
        backoff = Backoff(RETRY_SECONDS_MIN, RETRY_SECONDS_MAX, self._rng.random)
        while True:
            self._wanted.clear()
            try:
                await self._ask()
            except RlmmError as error:
                self.failures += 1
                if self.trouble is None:
                    logger.warning("cluster not known", error=error.message)
                self.trouble = error.message
                await asyncio.sleep(backoff.next())
                continue
            backoff.reset()
            try:
                async with asyncio.timeout(REFRESH_SECONDS):
                    await self._wanted.wait()
            except TimeoutError:
                continue
            await asyncio.sleep(SETTLE_SECONDS)

    async def _ask(self) -> None:
        asked_at = self._clock.monotonic()
        self.cluster.refresh()
        tiered = await self.cluster.tiered_topics(self._broker_id) if self._discovers else None
        facts = ClusterFacts(
            brokers=await self.cluster.brokers(),
            leaders=await self.cluster.metadata_leaders(),
            tiered=tiered,
            asked_at=asked_at,
        )
        self.facts, self.trouble = facts, None
        self._on_answer(facts)
        self.changed.ring()
