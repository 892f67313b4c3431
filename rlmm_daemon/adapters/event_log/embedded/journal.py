"""Durable end of one partition: the one place where its writer tells its readers."""

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence

import msgspec

from rlmm_daemon.adapters.event_log.embedded.compacted_files import NEVER, Compaction
from rlmm_daemon.adapters.event_log.embedded.epochs import EpochHistory
from rlmm_daemon.domain.ids import MetadataPartition
from rlmm_daemon.ports.event_log import LogBatch, LogRange


class Synced(msgspec.Struct, frozen=True, kw_only=True):
    """One batch that fdatasync has covered."""

    base_offset: int
    next_offset: int
    leader_epoch: int
    values: Sequence[bytes]
    bytes_of_values: int


class Journal(msgspec.Struct, kw_only=True):
    """Files and ends of a partition; nothing in it was ever promised before it was durable."""

    partition: MetadataPartition
    directory: str
    #: First offsets of the files, ascending; the last is the newest, which alone is written.
    #: None before the first write.
    bases: list[int]
    #: Durable bytes of the newest file.
    position: int
    #: The next offset to be written: the stable end.
    next_offset: int
    epochs: EpochHistory
    recent_bytes_max: int
    #: The last compaction of the partition.
    compaction: Compaction = NEVER
    #: Bytes of files that are written no more, by first offset, as far as anybody asked.
    sizes: dict[int, int] = msgspec.field(default_factory=dict)
    #: Bytes of the log when a compaction would not have made it much smaller.
    kept: int = 0
    _recent: deque[Synced] = msgspec.field(default_factory=deque)
    _recent_bytes: int = 0
    _waiting: list[asyncio.Future[bool]] = msgspec.field(default_factory=list)

    @property
    def range(self) -> LogRange:
        """The offsets that are there."""
        return LogRange(start=self.bases[0] if self.bases else 0, end=self.next_offset)

    @property
    def newest(self) -> int:
        """The base offset of the newest file."""
        return self.bases[-1]

    def base_of(self, offset: int) -> int:
        """Return the base offset of the file that holds `offset`."""
        return self.bases[bisect_right(self.bases, offset) - 1]

    def after(self, base: int) -> int | None:
        """Return the base offset of the file that follows, if one does."""
        index = bisect_right(self.bases, base)
        return self.bases[index] if index < len(self.bases) else None

    def compacted(self, compaction: Compaction) -> None:
        """Note that files of a compaction are in their place: what is read anew is read there."""
        kept = [base for base in self.bases if base >= compaction.until]
        self.bases = [*compaction.bases, *kept]
        self.sizes = {base: size for base, size in self.sizes.items() if base >= compaction.until}
        self.compaction, self.kept = compaction, 0
        # A reader must not find in memory what the files before have no beginning of.
        while self._recent and self._recent[0].base_offset < compaction.until:
            self._recent_bytes -= self._recent.popleft().bytes_of_values

    def growth(self) -> asyncio.Future[bool]:
        """Return a future that the next growth makes True; look before waiting for it."""
        waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting = [each for each in self._waiting if not each.done()]
        self._waiting.append(waiter)
        return waiter

    def wake(self) -> None:
        """Let every follower look again."""
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(True)

    def grew(self, synced: Synced, *, size: int) -> None:
        """Note a batch of `size` file bytes that is durable now, and wake the followers."""
        self.position += size
        self.next_offset = synced.next_offset
        self.epochs.note(synced.leader_epoch, synced.base_offset)
        self._recent.append(synced)
        self._recent_bytes += synced.bytes_of_values
        while self._recent_bytes > self.recent_bytes_max:
            self._recent_bytes -= self._recent.popleft().bytes_of_values
        self.wake()

    def recent(self, offset: int) -> LogBatch | None:
        """Return the synced batch that holds `offset` if it is still in memory."""
        for synced in reversed(self._recent):
            if synced.next_offset <= offset:
                return None
            if synced.base_offset <= offset:
                skipped = offset - synced.base_offset
                return LogBatch(
                    next_offset=synced.next_offset,
                    leader_epoch=synced.leader_epoch,
                    records=tuple(enumerate(synced.values[skipped:], offset)),
                    range=self.range,
                )
        return None
