"""The cluster by its brokers' word and the controllers' together: neither is believed alone.

Where the controllers give no word, everything is as without them.
"""

from collections.abc import Mapping
from typing import Final

import structlog

from rlmm_daemon.adapters.controllers.observer import ControllersObserver
from rlmm_daemon.core.cluster_image.word import ControllersWord
from rlmm_daemon.core.disposal.topic_facts import require_all_asked, weigh
from rlmm_daemon.domain.ids import BrokerId, MetadataPartition, TopicId, uuid_text
from rlmm_daemon.ports.clock import Clock
from rlmm_daemon.ports.cluster import BrokerInfo, Cluster, ClusterLook, TieredTopics

_log = structlog.get_logger(__name__)

#: Ids that are named in a line of the log.
_NAMED_MAX: Final = 5


class WeighedCluster:
    """Asks the brokers, then the controllers."""

    def __init__(self, brokers: Cluster, observer: ControllersObserver, clock: Clock) -> None:
        self._brokers, self.observer, self._clock = brokers, observer, clock

    async def cluster_id(self) -> str:
        """Return the brokers' word; controllers of another cluster are not listened to."""
        return await self._brokers.cluster_id()

    async def brokers(self) -> Mapping[BrokerId, BrokerInfo]:
        """Return every broker that either calls registered; one that the brokers lack is fenced.

        A broker that lags does not list those that came last.
        """
        asked_at = self._clock.monotonic()
        found = dict(await self._brokers.brokers())
        cluster_id = await self._brokers.cluster_id()
        word = await self.observer.word((), asked_at, cluster_id=cluster_id)
        for each in word.registered if word else ():
            found.setdefault(each, BrokerInfo(broker_id=each, fenced=True))
        return found

    async def metadata_leaders(self) -> Mapping[MetadataPartition, BrokerId]:
        """Return the brokers' word: they serve the metadata topic."""
        return await self._brokers.metadata_leaders()

    async def topic_ids_unknown(self, topic_ids: frozenset[TopicId]) -> frozenset[TopicId]:
        """Return the ids that every live broker calls unknown, without those controllers know."""
        asked_at = self._clock.monotonic()
        unknown = await self._brokers.topic_ids_unknown(topic_ids)
        if not unknown:
            return unknown
        cluster_id = await self._brokers.cluster_id()
        return self._weighed(
            unknown, await self.observer.word(unknown, asked_at, cluster_id=cluster_id)
        )

    async def look(self, topic_ids: frozenset[TopicId]) -> ClusterLook:
        """Return the brokers' look, as far as the controllers bear it out.

        Raises:
            UnavailableError: as without controllers, or fewer brokers were asked than are live.
        """
        asked_at = self._clock.monotonic()
        told = await self._brokers.look(topic_ids)
        word = await self.observer.word(topic_ids, asked_at, cluster_id=told.cluster_id)
        require_all_asked(told.live, word)
        unknown = self._weighed(told.unknown, word)
        return ClusterLook(
            cluster_id=told.cluster_id,
            controller=told.controller,
            live=told.live,
            registered=told.registered,
            unknown=unknown,
        )

    async def tiered_topics(self, broker_id: BrokerId) -> TieredTopics:
        """Return the brokers' word: they know settings and replicas."""
        return await self._brokers.tiered_topics(broker_id)

    def refresh(self) -> None:
        """Let the next questions ask the brokers."""
        self._brokers.refresh()

    def _weighed(
        self, unknown: frozenset[TopicId], word: ControllersWord | None
    ) -> frozenset[TopicId]:
        weighed = weigh(unknown, word)
        if weighed.contradicted:
            _log.warning(
                "topics that every live broker calls unknown are there by the controllers' word",
                topic_ids=[uuid_text(each) for each in sorted(weighed.contradicted)[:_NAMED_MAX]],
                count=len(weighed.contradicted),
            )
        return weighed.unknown
