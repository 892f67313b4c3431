"""A replica whose consensus is one list: its log, its disk that outlives it, its snapshots.

What the product's fold and its checkpoints ask of a node is here, and no more. A crash leaves of a
snapshot that was not synced a part only, whatever its name says.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Final

from rlmm_daemon.codec import batches
from rlmm_daemon.codec.kraft import checkpoint
from rlmm_daemon.codec.kraft.control import Pair
from rlmm_daemon.core.raft.log_facts import LogFacts, LogPoint
from rlmm_daemon.core.raft.voters import VotersAt, VoterSet
from rlmm_daemon.domain.errors import InvalidArgument, SnapshotGone, StorageUnavailable

_NOBODY: Final = VotersAt(-1, VoterSet(), 0)


class ToyLog:
    """What is committed: batch by batch."""

    def __init__(self) -> None:
        self.bases: list[int] = []
        self.data: list[bytes] = []
        self.epochs: list[int] = []
        self.end = 0

    def append(self, epoch: int, records: Sequence[Pair]) -> int:
        base = self.end
        self.bases.append(base)
        self.epochs.append(epoch)
        self.data.append(
            batches.build_keyed(records, base_offset=base, leader_epoch=epoch, timestamp_ms=1)
        )
        self.end += len(records)
        return base

    def epoch_before(self, end: int) -> int:
        return max(epoch for base, epoch in zip(self.bases, self.epochs, strict=True) if base < end)

    def read(self, begin: int, end: int) -> bytes:
        found = zip(self.bases, self.data, strict=True)
        return b"".join(data for base, data in found if begin <= base < end)

    def ends(self) -> list[int]:
        return [*self.bases[1:], self.end]


class ToyWriter:
    """A snapshot that is being written."""

    def __init__(self, point: LogPoint, pause: Callable[[], float]) -> None:
        self.point = point
        self.synced = False
        self._pause = pause
        self._builder = checkpoint.Builder(point, timestamp_ms=1)
        self.data = self._builder.begin(_NOBODY, last_timestamp_ms=1)

    @property
    def size(self) -> int:
        return len(self.data)

    async def put(self, records: Sequence[Pair]) -> None:
        self.data += self._builder.data(records)
        await asyncio.sleep(self._pause())

    async def copy(self, batch: bytes) -> None:
        self.data += self._builder.copied(batch)
        await asyncio.sleep(self._pause())

    async def end(self) -> None:
        self.data += self._builder.end()
        await asyncio.sleep(self._pause())
        self.synced = True

    async def abandon(self) -> None:
        pass


class ToyDisk:
    """What a daemon's lives have in common: where its log begins, and its snapshots."""

    def __init__(self) -> None:
        self.start = 0
        self.snapshots: dict[LogPoint, ToyWriter] = {}

    def crash(self) -> None:
        for writer in self.snapshots.values():
            if not writer.synced:
                writer.data, writer.synced = writer.data[: len(writer.data) // 2], True

    @property
    def newest(self) -> ToyWriter | None:
        return self.snapshots[max(self.snapshots)] if self.snapshots else None


class ToyNode:
    """One life of a replica."""

    def __init__(self, log: ToyLog, disk: ToyDisk, rng: random.Random) -> None:
        # A log that holds a snapshot's end takes none that ends before.
        self.replica = SimpleNamespace(
            committed=max([disk.start, *(p.end for p in disk.snapshots)])
        )
        self.on_commit: list[Callable[[], None]] = []
        self.snapshots = SimpleNamespace(
            begin=self.begin,
            keep=self.keep,
            read=self.read_snapshot,
            are_fetched=self.are_fetched,
            begin_at=self.begin_at,
        )
        self.dead = False
        self._log = log
        self._disk = disk
        self._rng = rng

    @property
    def log(self) -> LogFacts:
        disk = self._disk
        return LogFacts(disk.start, self._log.end, 0, (), tuple(sorted(disk.snapshots)))

    def replicate(self, end: int) -> None:
        self.replica.committed = end
        self._tell()

    def install(self, other: ToyWriter) -> None:
        """Have another replica's snapshot take the log's place."""
        self._disk.snapshots = {other.point: other}
        self._disk.start = self.replica.committed = other.point.end
        self._tell()

    def _tell(self) -> None:
        for call in self.on_commit:
            call()

    async def read(self, offset: int, end: int, _bytes_max: int) -> bytes:
        await self._a_while()
        return self._log.read(offset, end) if offset >= self._disk.start else b""

    # Of snapshots.

    async def begin(self, end: int, *, last_timestamp_ms: int) -> ToyWriter:
        del last_timestamp_ms
        await self._a_while()
        if end <= self._disk.start or end not in self._log.ends():
            raise InvalidArgument(f"{end} is no end of a batch behind {self._disk.start}")
        return ToyWriter(LogPoint(self._log.epoch_before(end), end), self._pause)

    async def keep(self, writer: ToyWriter) -> LogPoint:
        await self._a_while()
        if writer.point.end <= self._disk.start:
            raise InvalidArgument("another one took the log's place")
        self._disk.snapshots[writer.point] = writer
        return writer.point

    async def read_snapshot(self, point: LogPoint, position: int, size: int) -> tuple[int, bytes]:
        await self._a_while()
        writer = self._disk.snapshots.get(point)
        if writer is None:
            raise SnapshotGone(f"{point} was removed")
        return writer.size, writer.data[position : position + size]

    def are_fetched(self, *, before: LogPoint) -> bool:
        del before
        return self._rng.random() < 0.2

    async def begin_at(self, oldest: LogPoint) -> None:
        await self._a_while()
        if oldest not in self._disk.snapshots:
            raise InvalidArgument("it is gone")
        self._disk.start = oldest.end
        kept = {point: each for point, each in self._disk.snapshots.items() if point >= oldest}
        self._disk.snapshots = kept

    def _pause(self) -> float:
        self._require_alive()
        return self._rng.choice([0.0, 0.0, 0.01, 0.1])

    async def _a_while(self) -> None:
        await asyncio.sleep(self._pause())
        self._require_alive()

    def _require_alive(self) -> None:
        if self.dead:
            raise StorageUnavailable("this life is over")
