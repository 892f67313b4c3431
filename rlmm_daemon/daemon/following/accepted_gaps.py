"""Gaps of the present log whose loss was accepted, here or on another daemon.

The bucket's marker keeps them for all daemons, `accepted.json` for this one's next start.
"""

from collections.abc import Iterable, Sequence

import structlog

from rlmm_daemon.codec.state_files import AcceptedFile
from rlmm_daemon.daemon.base.state_directory import StateDirectory
from rlmm_daemon.domain.errors import Malformed, UnsupportedProtocol
from rlmm_daemon.domain.ids import TopicId, uuid_text
from rlmm_daemon.ports.event_log import LogRange, ranges_joined

logger = structlog.get_logger(__name__)

#: As the marker names them: log, metadata partition, offsets.
MarkedGaps = Sequence[tuple[TopicId, int, LogRange]]


class AcceptedGaps:
    """The gaps of each metadata partition of one log."""

    def __init__(self, state: StateDirectory) -> None:
        self._state = state
        self._gaps: dict[int, tuple[LogRange, ...]] = {}

    def of(self, partition: int) -> tuple[LogRange, ...]:
        """Return the gaps of a metadata partition, in order."""
        return self._gaps.get(partition, ())

    def forget(self) -> None:
        """Another log is followed from now on."""
        self._gaps = {}

    async def load(self, topic_id: TopicId, marked: MarkedGaps) -> None:
        """Take up what an operator accepted of this very log."""
        try:
            kept = await self._state.accepted()
        except (Malformed, UnsupportedProtocol, OSError) as damage:
            logger.warning("state file ignored", error=str(damage))  # asked for again at worst
            kept = None
        if kept is not None and kept.topic_id == uuid_text(topic_id):
            for number, ranges in kept.gaps.items():
                self.note(int(number), [LogRange(start=s, end=e) for s, e in ranges])
        self.learn(topic_id, marked)

    def learn(self, topic_id: TopicId, marked: MarkedGaps) -> bool:
        """Take up what the marker knows; return whether that was any news."""
        before = dict(self._gaps)
        for of, number, gap in marked:
            if of == topic_id:
                self.note(number, [gap])
        return before != self._gaps

    def note(self, number: int, gaps: Iterable[LogRange]) -> None:
        """Add gaps of a metadata partition."""
        self._gaps[number] = ranges_joined([*self.of(number), *gaps])

    async def write(self, topic_id: TopicId) -> None:
        """Keep them in the state directory.

        Raises:
            OSError: it did not take them.
        """
        if self._gaps:
            await self._state.write(
                AcceptedFile(
                    topic_id=uuid_text(topic_id),
                    gaps={
                        str(number): [(gap.start, gap.end) for gap in gaps]
                        for number, gaps in sorted(self._gaps.items())
                    },
                )
            )

    async def write_or_later(self, topic_id: TopicId) -> None:
        """Keep what the marker has too: a disk that does not take it costs a question at worst."""
        try:
            await self.write(topic_id)
        except OSError as error:
            logger.warning("accepted gaps not written", error=str(error))
