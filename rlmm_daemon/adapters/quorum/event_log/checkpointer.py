"""Checkpoints of the event log: when one is made, of what, and when the log begins behind it.

Each replica makes its own, beside all else. One holds what the one before holds, copied batch by
batch, and what was written to the log since. The log begins where the one before ends, and only
once the new one is on the disk and nobody fetches an older one.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Final

import msgspec
import structlog

from rlmm_daemon.adapters.quorum.event_log.chunks import Rows
from rlmm_daemon.adapters.quorum.event_log.compacting import Allowed, Compaction
from rlmm_daemon.adapters.quorum.event_log.folding import Captured, Folding
from rlmm_daemon.adapters.quorum.event_log.options import QuorumLogOptions
from rlmm_daemon.adapters.quorum.files.snapshot_writer import SnapshotWriter
from rlmm_daemon.adapters.quorum.node import Node
from rlmm_daemon.codec.kraft import checkpoint
from rlmm_daemon.codec.kraft.checkpoint_records import Event, Pair, Starts, pack
from rlmm_daemon.core.raft.log_facts import LogPoint
from rlmm_daemon.domain.errors import InvalidArgument, RlmmError, SnapshotGone

#: Values that go into one batch, and are packed between two turns of the loop.
_BATCH_BYTES: Final = 64 * 1024

_log = structlog.get_logger(__name__)


class Counts(msgspec.Struct):
    """What was done since the start."""

    made: int = 0
    failed: int = 0
    #: Of the newest.
    bytes: int = 0
    #: The last error, until one is made.
    trouble: str | None = None


class Checkpointer:
    """Makes one replica's checkpoints."""

    def __init__(self, folding: Folding, options: QuorumLogOptions) -> None:
        self._folding = folding
        self._options = options
        self.allowed = Allowed(options)
        self.counts = Counts()
        self._bell = asyncio.Event()
        folding.on_growth = self._look

    async def run(self, node: Node) -> None:
        """Make what is due, until cancelled; a failure is logged and tried again later."""
        self._look()
        while True:
            await self._bell.wait()
            self._bell.clear()
            if not self.is_due:
                continue
            try:
                await self.make(node)
            except (InvalidArgument, SnapshotGone) as error:
                _log.info("quorum_checkpoint_overtaken", why=error.message)
            except (RlmmError, OSError) as error:
                self.counts.failed += 1
                self.counts.trouble = str(error)
                _log.warning("quorum_checkpoint_failed", why=str(error))
                await asyncio.sleep(self._options.checkpoint_again_seconds)
            self._look()

    @property
    def is_due(self) -> bool:
        """Whether enough was written since the last one."""
        last = self._folding.checkpoint_bytes
        least = max(self._options.checkpoint_bytes_min, self._options.checkpoint_factor * last)
        founded = self._folding.fold.partition_count is not None
        return founded and self._folding.bytes_since > least

    async def make(self, node: Node) -> LogPoint:
        """Make one of all that is folded by now.

        Raises:
            InvalidArgument, SnapshotGone: another replica's took its place.
            LogCorrupt: what it is made of is damaged.
            OSError: the disk does not take it.
        """
        captured = self._folding.capture()
        writer = await node.snapshots.begin(captured.end, last_timestamp_ms=captured.timestamp_ms)
        try:
            await self._write(writer, captured, node)
            await writer.end()
            point = await node.snapshots.keep(writer)
        except BaseException:
            await writer.abandon()
            raise
        await self._folding.stand_on(point, captured)
        self.counts.made += 1
        self.counts.bytes = writer.size
        self.counts.trouble = None
        _log.info("quorum_checkpoint_made", end=point.end, epoch=point.epoch, bytes=writer.size)
        await self._move_start(node)
        return point

    async def _write(self, writer: SnapshotWriter, captured: Captured, node: Node) -> None:
        compaction = Compaction(self.allowed.due(captured), captured, self.allowed.turn)
        await compaction.learn(self._folding)
        for records in checkpoint.chunks(map(pack, compaction.counters())):
            await writer.put(records)
            await asyncio.sleep(0)
        for chunk in captured.chunks:
            concerned = compaction.concerns(chunk)
            if chunk.source is not None and not concerned:
                size = chunk.end - chunk.base
                _, data = await node.snapshots.read(chunk.source.point, chunk.base, size)
                await writer.copy(data)
            else:
                starts = [chunk.start(each) for each in range(len(captured.ends))]
                rows = await self._folding.rows(chunk)
                left = compaction.left(rows) if concerned else rows
                async for records in _slices(starts, left):
                    await writer.put(records)

    async def _move_start(self, node: Node) -> None:
        """Have the log begin where the one before the newest ends; else the next one does."""
        snapshots = node.log.snapshots
        if len(snapshots) < 2:  # noqa: PLR2004 - one older is kept
            return
        oldest = snapshots[-2]
        if oldest.end > node.log.start and not node.snapshots.are_fetched(before=oldest):
            await node.snapshots.begin_at(oldest)

    def _look(self) -> None:
        if self.is_due:
            self._bell.set()


async def _slices(starts: list[int], rows: Rows) -> AsyncIterator[list[Pair]]:
    """Yield batches of a chunk's events, one in each turn of the loop."""
    for records in _batches(starts, rows):
        yield records
        await asyncio.sleep(0)


def _batches(starts: list[int], rows: Rows) -> Iterator[list[Pair]]:
    records, size = [pack(Starts(tuple(starts)))], 0
    for partition in sorted(rows):
        for offset, value in rows[partition]:
            if size >= _BATCH_BYTES:
                yield records
                records, size = [pack(Starts(tuple(starts)))], 0
            records.append(pack(Event(partition, offset, value)))
            size += len(value or b"")
            starts[partition] = offset + 1
    if len(records) > 1:
        yield records
