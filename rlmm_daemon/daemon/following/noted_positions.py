"""The positions of followed metadata partitions in `positions.json`, and whether they are exact.

An exact position says that nothing was acknowledged beyond it. Only a daemon that stops by itself,
on a log that nobody else writes to, can say that; so none stands in the file while it appends.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec
import structlog

from rlmm_daemon.codec.state_files import Position, Positions
from rlmm_daemon.core.readiness.states import PartitionState
from rlmm_daemon.daemon.base.os_errors import in_words, is_shortage
from rlmm_daemon.daemon.base.state_directory import StateDirectory
from rlmm_daemon.daemon.following.follower import Follower
from rlmm_daemon.daemon.following.known_reads import KnownReads
from rlmm_daemon.domain.errors import Draining, StorageFull, StorageUnavailable
from rlmm_daemon.domain.ids import MetadataPartition, TopicId, uuid_text
from rlmm_daemon.ports.event_log import NO_EPOCH, EventLog, OwnEpochs

POSITIONS_SECONDS: Final = 1.0

logger = structlog.get_logger(__name__)


class NotedPositions:
    """How far each partition was read, written down at most once a second."""

    def __init__(
        self,
        log: EventLog,
        state: StateDirectory,
        reads: KnownReads,
        followers: Mapping[MetadataPartition, Follower],
    ) -> None:
        """`followers` are those of now, which come and go."""
        self._log, self._state, self._reads, self._followers = log, state, reads, followers
        #: Where each log started whose missing head was accepted.
        self.accepted_starts: dict[int, int] = {}
        self._topic_id: TopicId | None = None
        #: The file says of some position that nothing was appended beyond it.
        self._exact_on_disk = False
        #: Why it could not be rewritten.
        self._unwritten: OSError | None = None
        #: The last positions are written: nothing is appended any more.
        self._stopping = False

    def belong_to(self, topic_id: TopicId) -> None:
        """They are of this log from now on."""
        self._topic_id = topic_id

    async def take_up(self, positions: Positions) -> None:
        """Go on from those of the life before, which are of this log."""
        numbered = positions.numbered().items()
        self._reads.recorded = {number: self._believed(at) for number, at in numbered}
        self.accepted_starts = {int(n): at for n, at in positions.accepted_starts.items()}
        await self._begin_life()

    def take_up_elsewhere(self, positions: Positions) -> None:
        """Keep those of a log that another one stands for."""
        numbered = positions.numbered().items()
        self._reads.recorded = {number: self._elsewhere(at) for number, at in numbered}

    async def _begin_life(self) -> None:
        """Let no position in the file count as exact any more, before anything is appended.

        A disk that does not take it is tried again later: nothing is appended until then.
        """
        self._exact_on_disk = any(map(_vouches, self._reads.recorded.values()))
        if not self._exact_on_disk:
            return
        try:
            await self.write()
        except OSError as error:
            self._unwritten = error
            logger.warning("positions not written yet", error=str(error))

    # Appends.

    @property
    def refusal(self) -> str:
        """Why nothing is appended for now, whatever the log could do; empty if it is."""
        error = self._unwritten
        if error is None or not self._exact_on_disk:
            return ""
        return str(error.strerror) if is_shortage(error) else in_words(error)

    def require_appendable(self) -> None:
        """Ask before each append.

        Raises:
            UnavailableError: none may begin.
        """
        if self._stopping:
            raise Draining("the daemon stops; nothing was begun")
        if self._exact_on_disk:
            full = self._unwritten is None or is_shortage(self._unwritten)
            error = StorageFull if full else StorageUnavailable
            raise error(f"the state directory: {self.refusal}; nothing was begun")

    # Writing.

    async def keep(self, before_each: Callable[[], Awaitable[None]]) -> None:
        """Write them down where they moved, for ever."""
        written: Mapping[int, Position] = dict(self._reads.recorded)
        starts = dict(self.accepted_starts)
        while True:
            await asyncio.sleep(POSITIONS_SECONDS)
            if self._stopping:
                continue  # the last positions stay as they are
            await before_each()
            for follower in self._followers.values():
                self.note(follower)
            changed = self._reads.recorded != written or self.accepted_starts != starts
            if changed or self._exact_on_disk:
                try:
                    await self.write()
                except OSError as error:
                    logger.warning("positions not written", error=str(error))
                    continue
                written, starts = dict(self._reads.recorded), dict(self.accepted_starts)

    def note(self, follower: Follower) -> None:
        """Take up how far a follower has read, where that was confirmed."""
        if not follower.accepted_start:
            self.accepted_starts.pop(follower.partition, None)
        if follower.position_confirmed and follower.state is not PartitionState.FAILED:
            at = follower.settled
            before = self._reads.recorded.get(follower.partition)
            known = at is not None and at.next_offset > 0 and at.leader_epoch >= 0
            if at and known and (before is None or before.next_offset < at.next_offset):
                self._reads.recorded[follower.partition] = at

    def note_last(self, follower: Follower) -> None:
        """Take up where a follower ends, which is not followed any more."""
        self._reads.recorded.update(self._exactly(follower))

    async def write_last(self) -> None:
        """Let nothing be appended any more, and write down where each partition ends."""
        self._stopping = True
        await self.write()

    async def write(self) -> None:
        """Write the file as of now; only the last positions can be exact.

        Raises:
            OSError: the disk did not take it.
        """
        assert self._topic_id is not None, "the log is open"
        positions = dict(self._reads.recorded)
        for follower in self._followers.values():
            self.note(follower)
            positions |= self._exactly(follower)
        positions = {n: at if self._stopping else _inexact(at) for n, at in positions.items()}
        await self._state.write(
            Positions(
                topic_id=uuid_text(self._topic_id),
                partitions={str(number): at for number, at in sorted(positions.items())},
                accepted_starts={str(n): at for n, at in sorted(self.accepted_starts.items())},
            )
        )
        self._exact_on_disk = any(map(_vouches, positions.values()))

    def _exactly(self, follower: Follower) -> dict[int, Position]:
        """Return the recorded position of a follower, exact if nothing lies beyond it."""
        recorded, at = self._reads.recorded.get(follower.partition), follower.read_all
        if recorded is None:
            return {}
        # One that took no append, as it was not read to its end, is as the life before left it.
        before = recorded.exact and not follower.writer.has_appended
        exact = before if at is None else at.next_offset == recorded.next_offset
        ended = self._believed(msgspec.structs.replace(recorded, exact=exact))
        return {follower.partition: ended}

    def _believed(self, at: Position) -> Position:
        """Return a position that is exact only in a log which nobody else writes to.

        Into a log of brokers, other daemons write while this one is stopped.
        """
        return at if isinstance(self._log, OwnEpochs) else _inexact(at)

    def _elsewhere(self, at: Position) -> Position:
        """Return a position in a log that another one stands for: that one can't confirm it.

        What other daemons had acknowledged in a log of brokers they hold against it themselves.
        """
        exact = at.exact or not isinstance(self._log, OwnEpochs)
        return Position(at.next_offset, NO_EPOCH, exact)


def _inexact(at: Position) -> Position:
    """Return a position of a life that goes on; nothing is appended to another log."""
    return at if at.leader_epoch < 0 else Position(at.next_offset, at.leader_epoch)


def _vouches(at: Position) -> bool:
    """Whether a position says of this log that nothing was acknowledged beyond it."""
    return at.exact and at.leader_epoch >= 0
