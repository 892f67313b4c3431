"""A snapshot of a replica's own that is being written: piece by piece, beside all else."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from rlmm_daemon.codec.kraft.checkpoint import Builder
from rlmm_daemon.codec.kraft.control import Pair
from rlmm_daemon.core.raft.log_facts import LogPoint
from rlmm_daemon.ports import disk_writes
from rlmm_daemon.ports.disk import Disk, DiskFile

#: Written bytes after which they are synced: the log's own syncs would wait for more.
_SYNC_BYTES: Final = 4 * 1024 * 1024


class SnapshotWriter:
    """One of them; it has no name before it is on the disk."""

    def __init__(
        self, disk: Disk, path: str, file: DiskFile, *, point: LogPoint, builder: Builder
    ) -> None:
        self.point = point
        #: So many bytes are written.
        self.size = 0
        self.path = path
        self._disk = disk
        self._file = file
        self._builder = builder
        self._unsynced = 0

    async def put(self, records: Sequence[Pair]) -> None:
        """Write records as one batch.

        Raises:
            InvalidArgument: none, or more than a batch holds.
            OSError: the disk did not take them.
        """
        await self.write(self._builder.data(records))

    async def copy(self, batch: bytes) -> None:
        """Write a batch of another snapshot.

        Raises:
            LogCorrupt: it does not hold.
            OSError: the disk did not take it.
        """
        await self.write(self._builder.copied(batch))

    async def write(self, data: bytes) -> None:
        """Write a whole batch that the builder made."""
        if self._unsynced >= _SYNC_BYTES:
            await self._file.fdatasync()
            self._unsynced = 0
        await disk_writes.write_all(self._file, self.size, data)
        self.size += len(data)
        self._unsynced += len(data)

    async def end(self) -> None:
        """Write the end, and have all of it on the disk."""
        await self.write(self._builder.end())
        await self._file.fdatasync()
        await self._file.close()

    async def abandon(self) -> None:
        """Remove what was written, if that can be; else the next open does."""
        with suppress(OSError):
            await self._file.close()
            await self._disk.remove(self.path)
