"""Compaction of metadata partitions as a checkpoint is made: what it keeps of their events.

The daemon says of each partition up to where its own folds and snapshots have read. What other
daemons have read does not matter: one that stands before a compaction's end makes its fold anew.
"""

import asyncio
from array import array
from collections.abc import Mapping
from typing import Final

from rlmm_daemon.adapters.quorum.event_log.chunks import Chunk, Rows
from rlmm_daemon.adapters.quorum.event_log.folding import Captured, Folding
from rlmm_daemon.adapters.quorum.event_log.options import QuorumLogOptions
from rlmm_daemon.codec.kraft.checkpoint_records import Counter, PartitionAt
from rlmm_daemon.core.quorum_log.checkpoint import NOTHING, Dropped
from rlmm_daemon.core.snapshots.kept import Kept
from rlmm_daemon.domain.ids import MetadataPartition
from rlmm_daemon.ports.event_log import Turn

#: Events that are put in between two turns of the loop.
_TURN_EVENTS: Final = 16
_COUNTED_AT_ONCE: Final = 1024


async def _next_turn() -> None:
    await asyncio.sleep(0)


class Allowed:
    """Up to which offset each partition may be compacted."""

    def __init__(self, options: QuorumLogOptions) -> None:
        self._options = options
        self._upto: dict[int, int] = {}
        #: Up to where each was looked through in this life.
        self._seen: dict[int, int] = {}
        self.turn: Turn = _next_turn

    def allow(self, partition: int, upto: int) -> None:
        """Know that this daemon needs nothing of a partition that a fold of so much does not."""
        self._upto[partition] = upto

    def due(self, captured: Captured) -> dict[int, int]:
        """Return which partitions the next checkpoint compacts, and up to where."""
        options = self._options
        gains: list[tuple[int, int, int]] = []
        for partition, upto in self._upto.items():
            dropped = captured.dropped.get(partition, NOTHING)
            new = upto - max(dropped.to, self._seen.get(partition, 0))
            left = dropped.to - dropped.events
            enough = new >= max(options.compact_events_min, options.compact_factor * left)
            if enough and upto <= captured.ends[partition]:
                gains.append((new, partition, upto - dropped.events))
        found: dict[int, int] = {}
        room = options.compact_events_max
        for _, partition, size in sorted(gains, reverse=True):
            if not found or size <= room:
                found[partition] = self._seen[partition] = self._upto[partition]
                room -= size
        return found


class Compaction:
    """That of one checkpoint."""

    def __init__(self, upto: Mapping[int, int], captured: Captured, turn: Turn) -> None:
        self._upto = upto
        self._captured = captured
        self._turn = turn
        count = len(captured.ends)
        self._kept = {each: Kept(MetadataPartition(each), count) for each in upto}
        self._taken = {each: array("q") for each in upto}
        self._dropped: dict[int, Dropped] = {}

    def concerns(self, chunk: Chunk) -> bool:
        """Whether a chunk may hold events that go."""
        return any(chunk.start(each) < upto for each, upto in self._upto.items())

    async def learn(self, folding: Folding) -> None:
        """Look through all events that may go, and know those that stay.

        Raises:
            LogCorrupt, SnapshotGone, OSError: as reads of the log.
        """
        for chunk in filter(self.concerns, self._captured.chunks):
            rows = await folding.rows(chunk)
            for partition, upto in self._upto.items():
                for offset, value in rows.get(partition, ()):
                    if offset >= upto:
                        break
                    self._kept[partition].take(offset, value)
                    self._taken[partition].append(offset)
                    if not len(self._taken[partition]) % _TURN_EVENTS:
                        await self._turn()
        for partition, kept in self._kept.items():
            for _ in kept.settle():
                await self._turn()
            await self._count(partition, kept)

    async def _count(self, partition: int, kept: Kept) -> None:
        left, taken = 0, self._taken[partition]
        for at in range(0, len(taken), _COUNTED_AT_ONCE):
            left += sum(offset in kept for offset in taken[at : at + _COUNTED_AT_ONCE])
            await self._turn()
        upto = self._upto[partition]
        if left < len(taken):
            self._dropped[partition] = Dropped(upto, upto - left)

    def left(self, rows: Rows) -> Rows:
        """Return what stays of a chunk's events."""
        found = dict(rows)
        for partition, upto in self._upto.items():
            kept = self._kept[partition]
            found[partition] = [
                each for each in rows.get(partition, ()) if each[0] >= upto or each[0] in kept
            ]
        return found

    def counters(self) -> list[Counter]:
        """Return what the checkpoint says of the log, and of what was dropped."""
        return [_with(each, self._dropped) for each in self._captured.counters]


def _with(counter: Counter, dropped: Mapping[int, Dropped]) -> Counter:
    if not isinstance(counter, PartitionAt) or counter.partition not in dropped:
        return counter
    return PartitionAt(counter.partition, counter.end, *dropped[counter.partition])
