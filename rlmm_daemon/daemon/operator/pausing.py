"""Pause and resume as people order them: what it is about, said before it is done."""

from typing import Any, Final

from msgspec.structs import asdict

from rlmm_daemon.daemon.metadata.manager import Manager
from rlmm_daemon.domain.errors import InvalidArgument
from rlmm_daemon.domain.ids import TopicIdPartition, require_topic_name, uuid_text

#: User partitions that are looked at before others get a turn.
_AT_ONCE: Final = 512


class Pausing:
    """Orders about the pauses of one manager."""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager

    async def pause(self, named: str, *, execute: bool) -> dict[str, Any]:
        """Say what a pause of a topic is about; begin no more copies of it if told so.

        Raises:
            InvalidArgument: no topic's name.
            StorageFull, StorageUnavailable: nothing has changed.
        """
        topic, about = await self._about(named)
        if execute:
            await self._manager.pauses.pause(topic)
        return about | {"executed": execute, "paused": self._paused()}

    async def resume(self, named: str, *, execute: bool) -> dict[str, Any]:
        """Say what ending a pause is about; do it if told so.

        Raises:
            InvalidArgument: no topic's name.
            StorageFull, StorageUnavailable: nothing has changed.
        """
        topic, about = await self._about(named)
        if execute:
            await self._manager.pauses.resume(topic)
        return about | {"executed": execute, "paused": self._paused()}

    def _paused(self) -> list[dict[str, Any]]:
        return [asdict(each) for each in self._manager.pauses.rows()]

    async def _about(self, named: str) -> tuple[str, dict[str, Any]]:
        """Return the topic's name, also for its id, and what this daemon knows of it."""
        known, pauses = await self._partitions(named), self._manager.pauses
        names = {partition.topic for partition in known}
        if len(names) > 1:
            raise InvalidArgument(f"{named} is the name of a topic and the id of another one")
        topic = next(iter(names), named)
        if not known and pauses.since_ms(topic) is None:
            require_topic_name(topic)
        announced = self._manager.assignment.announced
        return topic, {
            "topic": topic,
            "paused_since_ms": pauses.since_ms(topic),
            "partitions": len(known),
            "leads": sum(announced.get(partition, False) for partition in known),
            "trouble": pauses.trouble,
        }

    async def _partitions(self, named: str) -> list[TopicIdPartition]:
        """Return the user partitions of a topic, by name or id, that are announced or followed."""
        found = dict[TopicIdPartition, None]()
        everywhere = (
            list(self._manager.assignment.announced),
            *(list(follower.fold.partitions) for follower in self._manager.followed()),
        )
        for partitions in everywhere:
            for at in range(0, len(partitions), _AT_ONCE):
                for each in partitions[at : at + _AT_ONCE]:
                    if named in (each.topic, uuid_text(each.topic_id)):
                        found[each] = None
                await self._manager.turns.wait()
        return list(found)
