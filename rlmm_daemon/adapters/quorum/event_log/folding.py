"""This replica's committed log, folded as it grows, and who waits for more of it."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

import msgspec

from rlmm_daemon.adapters.quorum.event_log import checkpointed
from rlmm_daemon.adapters.quorum.event_log.chunks import Chunk, Chunks, Rows, Stretch
from rlmm_daemon.adapters.quorum.event_log.options import QuorumLogOptions
from rlmm_daemon.adapters.quorum.node import Node
from rlmm_daemon.codec import batches
from rlmm_daemon.codec.kraft.checkpoint_records import Counter
from rlmm_daemon.codec.kraft.record_key import RecordKey, read_key
from rlmm_daemon.core.quorum_log.checkpoint import Dropped, counters
from rlmm_daemon.core.quorum_log.fold import AcceptedEvent, LogFold, Outcome
from rlmm_daemon.core.raft.log_facts import LogPoint
from rlmm_daemon.domain.errors import LogCorrupt, RlmmError, SnapshotGone, StorageUnavailable
from rlmm_daemon.domain.ids import MetadataPartition
from rlmm_daemon.ports.event_log import EpochEnd, LogBatch, LogRange

_READ_BYTES: Final = 256 * 1024
_PAUSE_SECONDS: Final = 0.05


class Captured(msgspec.Struct, frozen=True, kw_only=True):
    """All that is folded at one moment, for a checkpoint."""

    #: Of the quorum's log.
    end: int
    timestamp_ms: int
    counters: list[Counter]
    ends: list[int]
    #: What compactions dropped before, by partition.
    dropped: Mapping[int, Dropped]
    #: What stands before that.
    chunks: list[Chunk]
    #: Bytes of records since the newest checkpoint.
    bytes: int


class Folding:
    """All that was folded, and the task that goes on with it."""

    def __init__(
        self,
        options: QuorumLogOptions,
        hear: Callable[[RecordKey, Outcome], None],
        passed_over: Callable[[LogFold], None],
    ) -> None:
        """`hear` is told of each record with a key of ours, in the order of the log.

        `passed_over` is told of the fold where a checkpoint took the place of such records.
        """
        self.fold = LogFold()
        #: All before this offset of the quorum's log is folded.
        self.applied = 0
        #: Bytes of records behind the newest checkpoint, and of that one.
        self.bytes_since = self.checkpoint_bytes = 0
        #: What compactions dropped of it, by partition.
        self.dropped: Mapping[int, Dropped] = {}
        #: Called when more was folded.
        self.on_growth: Callable[[], None] = lambda: None
        #: Where the checkpoint ends that events are read from.
        self._stands_on = 0
        self._timestamp_ms = 0
        self._reach_seconds = options.reach_seconds
        self._hear = hear
        self._passed_over = passed_over
        self._node: Node | None = None
        self._chunks = Chunks(
            self._read,
            self._read_piece,
            chunk_bytes=options.chunk_bytes,
            cache_bytes=options.cache_bytes,
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
        found = await self._stretch(partition, offset)
        return LogBatch(
            next_offset=found.next_offset,
            leader_epoch=self.fold.epochs[partition].epoch_of(found.next_offset - 1),
            records=tuple(found.rows),
            range=self.range(partition),
            dropped_to=found.dropped_to,
        )

    async def _stretch(self, partition: MetadataPartition, offset: int) -> Stretch:
        while True:
            try:
                return await self._chunks.stretch(partition, offset)
            except OSError as error:
                raise StorageUnavailable(f"the quorum's log can't be read: {error}") from error
            except SnapshotGone:
                start = self._node.log.start if self._node is not None else 0
                if self.applied >= start:
                    raise
                await self.reached(start, timeout_seconds=self._reach_seconds)

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

    # Checkpoints.

    def capture(self) -> Captured:
        """Return all that is folded by now."""
        return Captured(
            end=self.applied,
            timestamp_ms=self._timestamp_ms,
            counters=list(counters(self.fold, self.dropped)),
            ends=list(self.fold.ends),
            dropped=self.dropped,
            chunks=list(self._chunks.closed(self.applied, self.fold.ends)),
            bytes=self.bytes_since,
        )

    async def rows(self, chunk: Chunk) -> Rows:
        """Return the events of a captured chunk."""
        return await self._chunks.rows(chunk)

    async def stand_on(self, point: LogPoint, captured: Captured | None = None) -> None:
        """Go on from a checkpoint, of what was captured or of what was not folded yet.

        Raises:
            LogCorrupt: it is none of this log.
            SnapshotGone: it was removed.
        """
        loaded = await checkpointed.load(self._read_piece, point)
        if point.end <= self._stands_on:
            return  # a newer one was there first
        self._stands_on = point.end
        ends = loaded.fold.ends
        jumps = self.applied < point.end
        self._require_goes_on(loaded, jumps=jumps)
        self._chunks.stand_on(loaded.source, loaded.chunks, ends, applied=self.applied)
        self.checkpoint_bytes, self.dropped = loaded.size, loaded.dropped
        self.bytes_since -= captured.bytes if captured is not None else self.bytes_since
        if jumps:
            self.fold, self.applied = loaded.fold, point.end
            self._passed_over(self.fold)
            self.wake()

    def _require_goes_on(self, loaded: checkpointed.Checkpointed, *, jumps: bool) -> None:
        old, new = (self.fold, loaded.fold) if jumps else (loaded.fold, self.fold)
        same = old.partition_count in (None, new.partition_count)
        if not same or any(a > b for a, b in zip(old.ends, new.ends, strict=False)):
            raise LogCorrupt(
                f"the checkpoint {loaded.source.point} is none of what was read before"
            )

    # The task.

    async def _read(self, offset: int, end: int) -> bytes:
        if self._node is None:
            raise OSError("the replica is not open")
        node = self._node
        data = await node.read(offset, end, _READ_BYTES)
        if not data and offset < node.log.start:
            raise SnapshotGone(f"a checkpoint takes the place of offset {offset}")
        if not data and offset >= node.log.end:  # a new disk, which is given all of it again
            raise OSError(
                f"this replica does not have offset {offset} of the quorum's log again yet"
            )
        if not data:
            raise LogCorrupt(f"offset {offset} of the quorum's log is not in it any more")
        return data

    async def _read_piece(
        self, point: LogPoint, position: int, bytes_max: int
    ) -> tuple[int, bytes]:
        if self._node is None:
            raise OSError("the replica is not open")
        return await self._node.snapshots.read(point, position, bytes_max)

    async def _catch_up(self) -> None:
        while (node := self._node) is not None:
            if (point := self._to_begin_at(node)) is not None:
                with suppress(SnapshotGone):  # a newer one took its place
                    await self.stand_on(point)
            elif self.applied < (end := node.replica.committed):
                data = await node.read(self.applied, end, _READ_BYTES)
                if data:
                    for partition in self._apply(data):
                        self._wake(partition)
                elif node is self._node and self._to_begin_at(node) is None:
                    raise LogCorrupt(f"offset {self.applied} is not in the quorum's log any more")
            else:
                return
            self._tell_who_reaches()
            self.on_growth()
            await asyncio.sleep(0)

    def _to_begin_at(self, node: Node) -> LogPoint | None:
        """Return the checkpoint to go on from, where the log does not hold what comes next."""
        log = node.log
        if not log.snapshots or not (self.applied == 0 or self.applied < log.start):
            return None
        return log.snapshots[-1]

    def _tell_who_reaches(self) -> None:
        left = [each for each in self._reaching if each[0] > self.applied]
        for reached, future in self._reaching:
            if reached <= self.applied and not future.done():
                future.set_result(None)
        self._reaching = left

    def _apply(self, data: bytes) -> set[int]:
        """Fold whole batches; return the partitions that grew."""
        grew: set[int] = set()
        for batch in batches.split(data):
            self._chunks.begin(batch.base_offset, self.fold.ends)
            if not batch.is_control:
                self.bytes_since += batch.size
                self._timestamp_ms = batch.max_timestamp_ms
                for offset, packed, value in batches.keyed_records_of(batch):
                    key = read_key(packed)
                    outcome = self.fold.apply(batch.leader_epoch, key, value)
                    if isinstance(outcome, AcceptedEvent):
                        self._chunks.add(outcome.partition, outcome.offset, value)
                        grew.add(outcome.partition)
                    else:
                        self._chunks.skip(offset)
                    if key is not None:
                        self._hear(key, outcome)
            self.applied = batch.base_offset + batch.last_offset_delta + 1
        return grew
