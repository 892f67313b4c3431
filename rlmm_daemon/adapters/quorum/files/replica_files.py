"""A replica's durable files, as its shell uses them: saved, written, cut, synced, read.

Calls that change something are made one after the other; syncs, and reads, may go on beside. What
fails leaves files that nothing more is written to: they are closed, and opened anew.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Final

from rlmm_daemon.adapters.quorum.files import formatted, identity, opening, recovery, snapshots
from rlmm_daemon.adapters.quorum.files.layout import Layout
from rlmm_daemon.adapters.quorum.files.opening import Opened
from rlmm_daemon.adapters.quorum.files.segments import SEGMENT_BYTES, Segments
from rlmm_daemon.adapters.quorum.files.snapshot_writer import SnapshotWriter
from rlmm_daemon.adapters.quorum.files.snapshots import Snapshots
from rlmm_daemon.codec.kraft import checkpoint, line_checkpoint, log_batches
from rlmm_daemon.codec.kraft.control import Pair
from rlmm_daemon.codec.kraft.small_files import encode_offset
from rlmm_daemon.core.raft.inputs import SavedState
from rlmm_daemon.core.raft.log_facts import Batch, LogPoint, emptied_to
from rlmm_daemon.core.raft.voters import ReplicaKey, VoterHistory, VotersAt, VoterSet
from rlmm_daemon.domain.errors import (
    ChecksumMismatch,
    InTheWay,
    InvalidArgument,
    StorageUnavailable,
)
from rlmm_daemon.ports.disk import Disk, DiskLock

#: Synced bytes after which the recovery point follows: so much is written again at a start.
_POINT_BYTES: Final = 4 * 1024 * 1024


class ReplicaFiles:
    """The files of one replica, locked for this process."""

    def __init__(
        self, disk: Disk, layout: Layout, lock: DiskLock, opened: Opened, *, segments: Segments
    ) -> None:
        files = opened.files
        self.cluster_id = opened.meta.cluster_id
        self.key = ReplicaKey(opened.meta.node_id, opened.meta.directory_id)
        self.saved = opened.saved
        #: As it is by now; `synced` grows as syncs end.
        self.log = files.log
        self.voters = files.voters
        self._disk = disk
        self._layout = layout
        self._lock = lock
        self._segments = segments
        self._snapshots = Snapshots(disk, layout)
        #: As the files have them: the checkpoint says the same, up to the recovery point at least.
        self._epochs = files.epochs
        self._epochs_said = list(files.epochs)
        self._point = files.log.end
        self._bytes_since_point = 0
        #: Of syncs, and of what they must not be beside.
        self._syncing = asyncio.Lock()
        self._failed: BaseException | None = None

    @classmethod
    async def open(
        cls,
        disk: Disk,
        directory: str,
        *,
        topic: str,
        topic_id: bytes,
        static_voters: VoterSet | None = None,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> "ReplicaFiles":
        """Open a formatted directory: all that is found in it is on the disk by then.

        `static_voters` are those of a quorum with kraft.version 0, whose log names none.

        Raises:
            ConfigError: it is not formatted.
            InTheWay: another process has it, perhaps one that is killed and whose disk hangs.
            LogCorrupt: a file that no crash leaves so.
            HistoryLost: something is gone that this replica may have acknowledged, or voted for.
            OSError: not now.
        """
        layout = Layout(directory, topic)
        await identity.read_meta(disk, layout)
        try:
            lock = await disk.lock(layout.lock)
        except BlockingIOError as error:
            raise InTheWay(f"{directory}: another process has it open") from error
        try:
            opened = await opening.open_all(disk, layout, topic_id, static_voters)
            found = opened.files.segments
            newest = await disk.open(layout.segment(found[-1].base), write=True)
        except BaseException:
            await lock.release()
            raise
        segments = Segments(disk, layout, found, newest, segment_bytes=segment_bytes)
        return cls(disk, layout, lock, opened, segments=segments)

    async def save(self, state: SavedState) -> None:
        """Have a state on the disk.

        Raises:
            OSError: whether it is, is unknown.
        """
        newest = self.voters.newest
        ids = tuple(key.id for key in newest.voters.keys)
        async with self._changing():
            await identity.save(
                self._disk, self._layout, state, None if newest.kraft_version else ids
            )
            self.saved = state

    async def write(self, batch: Batch) -> None:
        """Write a batch, whose payload is its bytes, at the log's end; `sync` makes it durable.

        Raises:
            OSError: the disk did not take it.
        """
        data = batch.payload
        assert isinstance(data, bytes), "a batch is built before it is written"
        assert log_batches.place(data) == (batch.base, batch.epoch), "and for this place"
        async with self._changing():
            assert batch.base == self.log.end, "a log has no gaps"
            await self._segments.append(batch.end, data)
            self._bytes_since_point += len(data)
            if not self._epochs or batch.epoch > self._epochs[-1][0]:
                self._epochs.append((batch.epoch, batch.base))
            if batch.voters is not None:
                self.voters = self.voters.append(recovery.set_by(batch, self.voters))
            self.log = self.log.append(batch)  # as it is now: a sync may have ended meanwhile

    async def truncate(self, end: int) -> None:
        """Remove what stands at `end` or behind, where a batch begins; durable when it returns.

        Raises:
            OSError: whether it is gone is unknown.
        """
        async with self._alone():
            if self._point > end:
                await self._move_point(end)
            await self._segments.cut(end)
            self.log = self.log.truncate(end).sync(end)
            self.voters = self.voters.truncate(end)
            self._epochs = [entry for entry in self._epochs if entry[1] < end]
            await self._say_epochs()

    async def sync(self) -> None:
        """Have on the disk what was written before the call.

        Raises:
            OSError: some of it may never get there: no later sync can tell.
        """
        async with self._alone():
            end, written = self.log.end, self._bytes_since_point
            await self._say_epochs()
            await self._segments.sync()
            self.log = self.log.sync(max(self.log.synced, end))
            if written >= _POINT_BYTES:
                self._bytes_since_point -= written
                await self._move_point(end)

    async def read(self, offset: int, end: int, bytes_max: int) -> bytes:
        """Return whole batches from the one that holds `offset`, all before `end`, at least one.

        Fewer than `bytes_max` bytes where a file of the log ends; none before the log's start.

        Raises:
            LogCorrupt: no valid batch is where one was written.
        """
        if offset < self.log.start:
            return b""
        return await self._segments.read(offset, end, bytes_max, epochs=self._epochs)

    async def store_piece(self, snapshot: LogPoint, position: int, piece: bytes) -> None:
        """Put a piece into a snapshot's partial file; position 0 begins it anew."""
        async with self._changing():
            await self._snapshots.store(snapshot, position, piece)

    async def install(self, snapshot: LogPoint) -> VotersAt:
        """Have the fetched snapshot take the log's place; return the voters that it names.

        Raises:
            ChecksumMismatch: it does not hold, and has to be fetched anew; the log is untouched.
            OSError: the next open goes on where this ended.
        """
        async with self._alone():
            found = await self._snapshots.keep(snapshot)
            await self._segments.replace(
                snapshot.end, lambda: snapshots.install(self._disk, self._layout, snapshot)
            )
            said = found.voters
            voters = said if said.kraft_version else self.voters.sets[0]
            self.log = emptied_to(snapshot)
            self.voters = VoterHistory((voters,))
            self._epochs, self._epochs_said = [], []
            self._point, self._bytes_since_point = snapshot.end, 0
        return voters

    async def read_piece(
        self, snapshot: LogPoint, position: int, bytes_max: int
    ) -> tuple[int, bytes]:
        """Return a snapshot's size, and its bytes from a position on.

        Raises:
            SnapshotGone: it was removed.
        """
        return await self._snapshots.read(snapshot, position, bytes_max)

    async def begin_snapshot(
        self, point: LogPoint, *, timestamp_ms: int = 0, last_timestamp_ms: int = 0
    ) -> SnapshotWriter:
        """Begin to write what the log holds before a point; that may go on beside all else.

        Raises:
            InvalidArgument: no batch of that epoch ends there, or it isn't on the disk yet.
        """
        self._require_whole()
        self._require_within(point, self.log.synced)
        if not await self._segments.ends_at(point.end):
            raise InvalidArgument(f"no batch ends at {point.end}: followers could not go on there")
        voters = [each for each in self.voters.sets if each.offset < point.end][-1]
        return await self._snapshots.begin(
            point, voters, timestamp_ms=timestamp_ms, last_timestamp_ms=last_timestamp_ms
        )

    async def keep_snapshot(self, writer: SnapshotWriter) -> None:
        """Have a snapshot count that was written and has ended; durable when it returns.

        Raises:
            InvalidArgument: another one took the log's place meanwhile.
        """
        self._require_whole()
        self._require_within(writer.point, self.log.synced)
        await self._snapshots.name(writer)
        self.log = self.log.with_snapshot(writer.point)

    def _require_within(self, point: LogPoint, end: int) -> None:
        if not self.log.start < point.end <= end:
            raise InvalidArgument(f"{point} is not within the log, as far as it is on the disk")
        if self.log.epoch_at(point.end - 1) != point.epoch:
            raise InvalidArgument(f"offset {point.end - 1} is not of epoch {point.epoch}")

    async def make_snapshot(
        self,
        point: LogPoint,
        records: Iterable[Pair],
        *,
        timestamp_ms: int = 0,
        last_timestamp_ms: int = 0,
    ) -> None:
        """Write what the log holds before a point, as keys and values; durable when it returns.

        Raises:
            InvalidArgument: as `begin_snapshot`.
        """
        writer = await self.begin_snapshot(
            point, timestamp_ms=timestamp_ms, last_timestamp_ms=last_timestamp_ms
        )
        try:
            for chunk in checkpoint.chunks(records):
                await writer.put(chunk)
            await writer.end()
        except BaseException:
            await writer.abandon()
            raise
        await self.keep_snapshot(writer)

    async def begin_at(self, oldest: LogPoint) -> None:
        """Have the log begin where a snapshot ends: files and snapshots before it are removed.

        Raises:
            OSError: the next open goes on where this ended.
        """
        async with self._changing():
            assert oldest in self.log.snapshots, "a log begins at 0, or where a snapshot ends"
            start = encode_offset(self._layout.topic, oldest.end)
            await self._disk.write_atomically(self._layout.log_start, start)
            self.log = self.log.begin_at(oldest)
            self.voters = self.voters.begin_at(oldest.end)
            await self._segments.drop_before(oldest.end)
            await self._snapshots.remove_before(oldest.end)

    async def withhold(self, why: str) -> None:
        """Have no later start go on with this log, if the disk takes that."""
        with suppress(OSError):
            await formatted.note_withheld(self._disk, self._layout.directory, why)

    async def close(self) -> None:
        """Sync what was written, and give files and lock back; after a failure, only that."""
        try:
            if self._failed is None:
                await self.sync()
                await self._move_point(self.log.end)
        finally:
            await self._snapshots.close()
            await self._segments.close()
            await self._lock.release()

    async def _say_epochs(self) -> None:
        """Have each epoch's begin on the disk before anything of it is acknowledged."""
        if self._epochs_said == self._epochs:
            return
        epochs = list(self._epochs)
        await self._disk.write_atomically(self._layout.epochs, line_checkpoint.encode(epochs))
        self._epochs_said = epochs

    async def _move_point(self, end: int) -> None:
        point = encode_offset(self._layout.topic, end)
        await self._disk.write_atomically(self._layout.recovery_point, point)
        self._point = end

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        """Change something that no sync may be beside; what one that ended met counts."""
        async with self._syncing, self._changing():
            yield

    @asynccontextmanager
    async def _changing(self) -> AsyncIterator[None]:
        """Take nothing more once something failed, or was left in the middle."""
        self._require_whole()
        try:
            yield
        except (ChecksumMismatch, InvalidArgument):
            raise  # nothing was changed
        except BaseException as error:
            self._failed = error
            raise

    def _require_whole(self) -> None:
        if self._failed is not None:
            raise StorageUnavailable(
                f"{self._layout.log}: nothing is written after a failure ({self._failed}); "
                "it has to be opened anew"
            )
