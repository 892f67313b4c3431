"""Snapshots of a replica: made, fetched piece by piece, served piece by piece, removed.

One gets its name once all of it is on the disk. A fetched one that takes the log's place is marked
first, so that a start after a crash goes on with it.
"""

from functools import partial
from typing import Final

from rlmm_daemon.adapters.quorum.files.layout import (
    INSTALLING_SUFFIX,
    Layout,
    damaged,
    names,
)
from rlmm_daemon.adapters.quorum.files.segments import make_segment
from rlmm_daemon.adapters.quorum.files.snapshot_writer import SnapshotWriter
from rlmm_daemon.codec.kraft import checkpoint, line_checkpoint, small_files
from rlmm_daemon.codec.kraft.checkpoint import Checkpoint
from rlmm_daemon.core.raft.log_facts import LogPoint
from rlmm_daemon.core.raft.voters import VotersAt
from rlmm_daemon.domain.errors import ChecksumMismatch, InvalidArgument, LogCorrupt, SnapshotGone
from rlmm_daemon.ports import disk_writes
from rlmm_daemon.ports.disk import Disk, DiskFile

#: Of a snapshot that is checked, so much is in memory.
_PIECE_BYTES: Final = 1024 * 1024


class Snapshots:
    """The snapshots in one log's directory."""

    def __init__(self, disk: Disk, layout: Layout) -> None:
        self._disk = disk
        self._layout = layout
        self._part: tuple[LogPoint, DiskFile, int] | None = None

    async def store(self, point: LogPoint, position: int, piece: bytes) -> None:
        """Put a piece behind the one before; at position 0 the snapshot begins anew.

        Raises:
            InvalidArgument: it is not the one that follows.
        """
        if position == 0:
            await self.close()
            path = self._layout.part(point)
            file = await self._disk.open(path, write=True, create=True)
            self._part = (point, file, 0)
            await file.truncate(0)
        if self._part is None or self._part[0] != point or self._part[2] != position:
            raise InvalidArgument(f"a piece of {checkpoint.name(point)} at {position}: a gap")
        file = self._part[1]
        await disk_writes.write_all(file, position, piece)
        self._part = (point, file, position + len(piece))

    async def keep(self, point: LogPoint) -> Checkpoint:
        """Have the fetched snapshot on the disk, marked as what takes the log's place.

        Raises:
            ChecksumMismatch: it is not whole, and was removed: it has to be fetched anew.
        """
        if self._part is None or self._part[0] != point:
            raise InvalidArgument(f"no piece of {checkpoint.name(point)} was stored")
        path, file = self._layout.part(point), self._part[1]
        try:
            found = await _read(self._disk, path, point)
        except LogCorrupt as error:
            await self.close()
            await self._disk.remove(path)
            raise ChecksumMismatch(f"the fetched snapshot does not hold: {error}") from error
        await file.fdatasync()
        await self.close()
        await self._disk.rename(path, self._layout.installing(point))
        await self._disk.fsync_directory(self._layout.log)
        return found

    async def begin(
        self, point: LogPoint, voters: VotersAt, *, timestamp_ms: int, last_timestamp_ms: int
    ) -> SnapshotWriter:
        """Begin to write a snapshot; `name` it once it has ended."""
        builder = checkpoint.Builder(point, timestamp_ms=timestamp_ms)
        path = self._layout.part(point)
        file = await self._disk.open(path, write=True, create=True)
        writer = SnapshotWriter(self._disk, path, file, point=point, builder=builder)
        try:
            await file.truncate(0)
            await writer.write(builder.begin(voters, last_timestamp_ms=last_timestamp_ms))
        except BaseException:
            await writer.abandon()
            raise
        return writer

    async def name(self, writer: SnapshotWriter) -> None:
        """Give a snapshot its name, durably; all of it is on the disk."""
        await self._disk.rename(writer.path, self._layout.snapshot(writer.point))
        await self._disk.fsync_directory(self._layout.log)

    async def read(self, point: LogPoint, position: int, bytes_max: int) -> tuple[int, bytes]:
        """Return a snapshot's size, and the bytes from a position on.

        Raises:
            SnapshotGone: it was removed.
        """
        try:
            file = await self._disk.open(self._layout.snapshot(point))
        except FileNotFoundError as error:
            raise SnapshotGone(f"{checkpoint.name(point)} was removed") from error
        try:
            return await file.size(), await file.pread(position, bytes_max)
        finally:
            await file.close()

    async def remove_before(self, start: int) -> None:
        """Remove those that end before this offset; those that a crash keeps go at an open."""
        for point in (await names(self._disk, self._layout)).snapshots:
            if point.end < start:
                await self._disk.remove(self._layout.snapshot(point))

    async def close(self) -> None:
        """Give up what was fetched in part."""
        part, self._part = self._part, None
        if part is not None:
            await part[1].close()


async def read(disk: Disk, layout: Layout, point: LogPoint) -> Checkpoint:
    """Return what a whole snapshot says of itself.

    Raises:
        LogCorrupt: it does not hold.
    """
    path = layout.snapshot(point)
    try:
        return await _read(disk, path, point)
    except LogCorrupt as error:
        raise damaged(path, error.message) from error


async def mark(disk: Disk, layout: Layout, point: LogPoint) -> None:
    """Mark a whole snapshot as what takes the place of the log."""
    await disk.rename(layout.snapshot(point), layout.installing(point))
    await disk.fsync_directory(layout.log)


async def install(disk: Disk, layout: Layout, point: LogPoint) -> None:
    """Have a marked snapshot take the place of the log; can be repeated from any step.

    Raises:
        LogCorrupt: it does not hold.
    """
    path = layout.installing(point)
    try:
        await _read(disk, path, point)
    except LogCorrupt as error:
        raise damaged(path, error.message) from error
    await _clear(disk, layout, but=path)
    await make_segment(disk, layout, point.end)
    await disk.write_atomically(layout.epochs, line_checkpoint.encode(()))
    for where in (layout.recovery_point, layout.log_start):
        await disk.write_atomically(where, small_files.encode_offset(layout.topic, point.end))
    await disk.rename(path, layout.snapshot(point))
    await disk.fsync_directory(layout.log)


async def _clear(disk: Disk, layout: Layout, *, but: str) -> None:
    """Remove the log and all snapshots but one, such too as were to take the log's place before."""
    for name in sorted(await disk.list(layout.log)):
        path = f"{layout.log}/{name}"
        if path != but and name.endswith((".log", checkpoint.SUFFIX, INSTALLING_SUFFIX)):
            await disk.remove(path)


async def _read(disk: Disk, path: str, point: LogPoint) -> Checkpoint:
    reading, position = checkpoint.Reading(point), 0
    file = await disk.open(path)
    try:
        while piece := await file.pread(position, _PIECE_BYTES):
            await disk.compute(partial(reading.take, piece))
            position += len(piece)
    finally:
        await file.close()
    return reading.end()
