"""This replica's committed log, folded as it grows, and who waits for more of it."""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import Final

from rlmm_daemon.adapters.quorum.event_log.chunks import Chunks
from rlmm_daemon.adapters.quorum.event_log.options import QuorumLogOptions
from rlmm_daemon.adapters.quorum.node import Node
from rlmm_daemon.codec import batches
from rlmm_daemon.codec.kraft.record_key import RecordKey, read_key
from rlmm_daemon.core.quorum_log.fold import Accepted, LogFold, Outcome
from rlmm_daemon.domain.errors import LogCorrupt, RlmmError, StorageUnavailable
from rlmm_daemon.domain.ids import MetadataPartition
from rlmm_daemon.ports.event_log import EpochEnd, LogBatch, LogRange

_READ_BYTES: Final = 256 * 1024
_PAUSE_SECONDS: Final = 0.05


class Folding:
    """All that was folded, and the task that goes on with it."""

    def __init__(
        self, options: QuorumLogOptions, hear: Callable[[RecordKey, Outcome], None]
    ) -> None:
        """`hear` is told of each record with a key of ours, in the order of the log."""
        self.fold = LogFold()
        #: All before this offset of the quorum's log is folded.
        self.applied = 0
        self._hear = hear
        self._node: Node | None = None
        self._chunks = Chunks(
            self._read, chunk_bytes=options.chunk_bytes, cache_bytes=options.cache_bytes
        )
        self._bell = asyncio.Event()
        self._failure: RlmmError | None = None
        self._waiting: dict[MetadataPartition, list[asyncio.Future[None]]] = defaultdict(list)
        self._reaching: list[tuple[int, asyncio.Future[None]]] = []

    def attach(self, node: Node | None) -> None:
        """Go on with this replica's log; None: its files can't be read now."""
        self._node = node
        if node is not None:
            node.on_commit.append(self._bell.set)
            self._bell.set()

    async def run(self) -> None:
        """Fold whatever is committed, until cancelled."""
        try:
            while True:
                self._bell.clear()
                try:
                    await self._catch_up()
                except OSError:  # the replica ends of it too, or it is read again
                    await asyncio.sleep(_PAUSE_SECONDS)
                    self._bell.set()
                await self._bell.wait()
        except RlmmError as error:
            self.fail(error)

    def fail(self, error: RlmmError) -> None:
        """Tell all that wait, and will, that nothing more is folded."""
        self._failure = error
        waiting = [each for several in self._waiting.values() for each in several]
        self._waiting.clear()
        for future in (*waiting, *(each for _, each in self._reaching)):
            if not future.done():
                future.set_result(None)
        self._reaching.clear()

    def require_whole(self) -> None:
        """Raise why nothing more is folded, if so."""
        if self._failure is not None:
            raise self._failure

    async def reached(self, end: int, *, timeout_seconds: float) -> None:
        """Wait until all before this offset of the quorum's log is folded.

        Raises:
            StorageUnavailable: it takes longer.
        """
        if self.applied < end:
            waiting = end, asyncio.get_running_loop().create_future()
            self._reaching.append(waiting)
            try:
                async with asyncio.timeout(timeout_seconds):
                    await waiting[1]
            except TimeoutError as error:
                raise StorageUnavailable(
                    f"this replica has applied {self.applied} of {end} records of the quorum's log"
                ) from error
            finally:
                self._reaching = [each for each in self._reaching if each is not waiting]
        self.require_whole()

    # One partition.

    def range(self, partition: MetadataPartition) -> LogRange:
        """Return the offsets that are there."""
        return LogRange(start=0, end=self.fold.ends[partition])

    def epoch_end(self, partition: MetadataPartition, epoch: int) -> EpochEnd:
        """Return the largest epoch up to `epoch` that wrote here, and where it ends."""
        found, end = self.fold.epochs[partition].end_of(epoch, self.fold.ends[partition])
        return EpochEnd(epoch=found, end_offset=end)

    async def batch(self, partition: MetadataPartition, offset: int) -> LogBatch:
        """Return a partition's events from one that is there on.

        Raises:
            LogCorrupt: the replica's file is damaged there.
            StorageUnavailable: not now.
        """
        try:
            values = await self._chunks.values(partition, offset)
        except OSError as error:
            raise StorageUnavailable(f"the quorum's log can't be read: {error}") from error
        behind = offset + len(values)
        return LogBatch(
            next_offset=behind,
            leader_epoch=self.fold.epochs[partition].epoch_of(behind - 1),
            records=tuple(enumerate(values, offset)),
            range=self.range(partition),
        )

    async def growth(self, partition: MetadataPartition, *, timeout_seconds: float) -> bool:
        """Wait for an event of a partition, or for that long; return whether one came."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[partition].append(future)
        try:
            async with asyncio.timeout(timeout_seconds):
                await future
        except TimeoutError:
            return False
        finally:
            if future in self._waiting[partition]:
                self._waiting[partition].remove(future)
        return True

    def wake(self) -> None:
        """Let all followers look again."""
        for partition in tuple(self._waiting):
            self._wake(partition)

    def _wake(self, partition: int) -> None:
        for future in self._waiting.pop(MetadataPartition(partition), ()):
            if not future.done():
                future.set_result(None)

    # The task.

    async def _read(self, offset: int, end: int) -> bytes:
        if self._node is None:
            raise OSError("the replica is not open")
        data = await self._node.read(offset, end, _READ_BYTES)
        if not data:
            raise LogCorrupt(
                f"offset {offset} of the quorum's log is not in it any more: a checkpoint took "
                "its place, which this version can't read"
            )
        return data

    async def _catch_up(self) -> None:
        while self._node is not None and self.applied < (end := self._node.replica.committed):
            data = await self._read(self.applied, end)
            for partition in self._apply(data):
                self._wake(partition)
            left = [each for each in self._reaching if each[0] > self.applied]
            for reached, future in self._reaching:
                if reached <= self.applied and not future.done():
                    future.set_result(None)
            self._reaching = left
            await asyncio.sleep(0)

    def _apply(self, data: bytes) -> set[int]:
        """Fold whole batches; return the partitions that grew."""
        grew: set[int] = set()
        for batch in batches.split(data):
            self._chunks.begin(batch.base_offset, self.fold.ends)
            if not batch.is_control:
                for offset, packed, value in batches.keyed_records_of(batch):
                    key = read_key(packed)
                    outcome = self.fold.apply(batch.leader_epoch, key, value)
                    if isinstance(outcome, Accepted):
                        self._chunks.add(outcome.partition, value)
                        grew.add(outcome.partition)
                    else:
                        self._chunks.skip(offset)
                    if key is not None:
                        self._hear(key, outcome)
            self.applied = batch.base_offset + batch.last_offset_delta + 1
        return grew
