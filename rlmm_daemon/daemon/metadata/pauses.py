"""Topics of which no copy begins, since a person ordered it; kept in the state directory.

A pause goes by the topic's name, so a topic that is created anew is paused as well. What has begun
goes on; reads, deletes and retention know nothing of it.
"""

import asyncio
from collections.abc import Callable, Sequence

import structlog

from rlmm_daemon.codec.state_files import Paused, PausedTopic
from rlmm_daemon.daemon.base.os_errors import in_words, is_shortage
from rlmm_daemon.daemon.base.state_directory import StateDirectory
from rlmm_daemon.domain.errors import (
    ConfigError,
    CopiesPaused,
    Malformed,
    StorageFull,
    StorageUnavailable,
    UnsupportedProtocol,
)
from rlmm_daemon.domain.ids import TopicIdPartition

logger = structlog.get_logger(__name__)


class Pauses:
    """Of one daemon; empty until `load`."""

    def __init__(self, state: StateDirectory, now_ms: Callable[[], int]) -> None:
        self._state, self._now_ms = state, now_ms
        self._topics = dict[str, PausedTopic]()
        self._one_at_a_time = asyncio.Lock()
        #: Why nobody can tell what is paused, so that no copy begins at all; None: it is known.
        self.trouble: str | None = None
        #: Copies that were refused.
        self.refused = 0

    async def load(self) -> None:
        """Take up what earlier lives were told.

        Raises:
            ConfigError: a newer daemon wrote it.
            OSError: it can't be read now.
        """
        try:
            kept = await self._state.paused()
        except UnsupportedProtocol as newer:
            raise ConfigError(newer.message) from newer
        except Malformed as damage:
            # A copy too few fills a disk slowly; one too many was forbidden.
            self.trouble = f"{damage.message}, so no copy begins"
            logger.error("no copy begins", error=damage.message)  # noqa: TRY400 - it was planned for
        else:
            self._topics = {each.topic: each for each in kept.topics} if kept else {}

    def rows(self) -> Sequence[PausedTopic]:
        """Return the paused topics by name."""
        return [self._topics[topic] for topic in sorted(self._topics)]

    def since_ms(self, topic: str) -> int | None:
        """Return since when a topic is paused; None: it is not."""
        found = self._topics.get(topic)
        return None if found is None else found.since_ms

    @property
    def oldest_seconds(self) -> float:
        """How long the topic that was paused first has been; 0: none is, or a clock went back."""
        now_ms = self._now_ms()
        return max(0, *(now_ms - each.since_ms for each in self._topics.values()), 0) / 1000

    def require_running(self, partition: TopicIdPartition) -> None:
        """Refuse to begin a copy of a paused topic.

        Raises:
            CopiesPaused: nothing was begun.
        """
        if self.trouble is not None:
            self.refused += 1
            raise CopiesPaused(
                f"{self.trouble}; rlmm pause or rlmm resume with --execute writes it anew"
            )
        if partition.topic in self._topics:
            self.refused += 1
            raise CopiesPaused(
                f"copies of topic {partition.topic} are paused here; rlmm resume ends that"
            )

    async def pause(self, topic: str) -> None:
        """Begin no more copies of a topic; one that is paused stays so since when it was.

        Raises:
            StorageFull, StorageUnavailable: it could not be written down; nothing has changed.
        """
        async with self._one_at_a_time:
            mine = self._topics.get(topic) or PausedTopic(topic, self._now_ms())
            await self._replace({**self._topics, topic: mine})

    async def resume(self, topic: str) -> None:
        """Let copies of a topic begin again; idempotent.

        Raises:
            StorageFull, StorageUnavailable: it could not be written down; nothing has changed.
        """
        async with self._one_at_a_time:
            rest = {name: each for name, each in self._topics.items() if name != topic}
            await self._replace(rest)

    async def _replace(self, topics: dict[str, PausedTopic]) -> None:
        try:
            await self._state.write(Paused(topics=list(topics.values())))
        except OSError as error:
            kind = StorageFull if is_shortage(error) else StorageUnavailable
            raise kind(f"it could not be written down: {in_words(error)}") from error
        self._topics, self.trouble = topics, None
