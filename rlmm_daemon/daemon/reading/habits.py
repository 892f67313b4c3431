"""Habits of a segment's readers: where each of them went, so that its next range is expected."""

from collections import deque
from typing import Final

import msgspec
from cachetools import LRUCache

from rlmm_daemon.daemon.reading.chunk_fill import ALIGNED_BYTES
from rlmm_daemon.daemon.reading.chunk_index import ObjectId

#: Segments whose readers' habits are remembered.
HABITS_MAX: Final = 4_096
#: Readers of one segment that are told apart. More, and one that jumps about would seem to go on
#: where some other one stopped.
READERS_MAX: Final = 4
#: What a reader may have been sent and not have taken, as it was in the sockets' buffers.
UNTAKEN_BYTES_MAX: Final = 4 * 1024 * 1024


class Habit(msgspec.Struct, eq=False):
    """How a reader of a segment went."""

    start: int
    at: int
    depth: int

    def leads_to(self, start: int) -> bool:
        """Return whether whoever begins there goes on from here."""
        earliest = max(self.start + 1, self.at - UNTAKEN_BYTES_MAX)
        return earliest <= start <= self.at + ALIGNED_BYTES


class Habits:
    """Of all segments that were read lately."""

    def __init__(self) -> None:
        self._habits: LRUCache[ObjectId, deque[Habit]] = LRUCache(HABITS_MAX)

    def before(self, object_id: ObjectId, start: int) -> Habit | None:
        """Return how the reader went whom a reader from `start` goes on from."""
        known = reversed(self._habits.get(object_id, ()))
        return next((each for each in known if each.leads_to(start)), None)

    def note(self, object_id: ObjectId, habit: Habit, before: Habit | None) -> None:
        """Remember how a reader went, in the place of the one it went on from.

        One that got nothing will ask again from there.
        """
        if habit.at == habit.start:
            return
        known = self._habits.setdefault(object_id, deque(maxlen=READERS_MAX))
        if before is not None and before in known:
            known.remove(before)
        known.append(habit)
