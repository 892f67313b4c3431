"""Snapshot files: one per metadata partition and generation, newest first, the one before kept.

A file is written under a temporary name, synced, renamed, and its directory synced; an unreadable
one is set aside as `.rejected`, and the newest of those kept for whoever wants to see it. Whether a
readable one may be used is the follower's question.
"""

import asyncio
import errno
import re
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import Final

import msgspec
import structlog
from crc32c import crc32c

from rlmm_daemon.codec.snapshot import (
    PIECE_BYTES_MAX,
    Header,
    TableEntry,
    decode_directory,
    decode_header,
    judge_table,
)
from rlmm_daemon.core.fold.fold import Fold
from rlmm_daemon.core.fold.user_partitions import Image
from rlmm_daemon.core.snapshots import sealing, unsealing
from rlmm_daemon.daemon.base.os_errors import named
from rlmm_daemon.domain.errors import (
    CorruptError,
    Malformed,
    UnsupportedProtocol,
)
from rlmm_daemon.domain.ids import MetadataPartition
from rlmm_daemon.ports.clock import Clock
from rlmm_daemon.ports.disk import Disk, DiskFile
from rlmm_daemon.ports.event_log import LogIdentity

GENERATIONS_KEPT: Final = 2
REJECTED: Final = ".rejected"
_NAME: Final = re.compile(r"(\d+)-(\d{10})\.snapshot")

logger = structlog.get_logger(__name__)


class LoadedSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot that reads well, and whether it was taken of the log we are on."""

    fold: Fold
    same_log: bool
    created_at_ms: int


class WrittenSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What a snapshot came to, for `rlmm snapshot now` and the metrics."""

    metadata_partition: int
    path: str
    next_offset: int
    bytes: int
    seconds: float


class NewerSnapshot(UnsupportedProtocol):
    """The newest snapshot was written by a newer daemon; it is given up only on purpose."""


class SnapshotStore:
    """The snapshots of all metadata partitions, in one directory."""

    def __init__(
        self, disk: Disk, directory: str, clock: Clock, *, keep: int = GENERATIONS_KEPT
    ) -> None:
        self._keep = keep
        self._disk = disk
        self._directory = directory
        self._clock = clock
        self._identity: LogIdentity | None = None
        self.rejected = 0
        self._attempts = 0

    def belongs_to(self, identity: LogIdentity) -> None:
        """Say which log snapshots are written for and accepted from."""
        self._identity = identity

    async def _generations(self, partition: MetadataPartition) -> list[tuple[int, str]]:
        """Return (generation, name) of a partition's snapshots, newest first."""
        try:
            names = await self._disk.list(self._directory)
        except FileNotFoundError:
            return []
        matches = [match for name in names if (match := _NAME.fullmatch(name))]
        mine = [(int(m[2]), m[0]) for m in matches if int(m[1]) == partition]
        return sorted(mine, reverse=True)

    async def any(self) -> bool:
        """Whether there is a snapshot of any metadata partition, whole or not."""
        try:
            names = await self._disk.list(self._directory)
        except FileNotFoundError:
            return False
        return any(_NAME.fullmatch(name) for name in names)

    async def load(self, partition: MetadataPartition) -> LoadedSnapshot | None:
        """Return the newest snapshot that reads well, or None.

        Raises:
            NewerSnapshot: the newest was written by a newer daemon; nothing was touched.
            OSError: the disk failed, which says nothing about the file.
        """
        for _, name in await self._generations(partition):
            path = f"{self._directory}/{name}"
            try:
                data = await self._disk.map(path)
            except OSError as error:
                raise named(error, path) from error
            try:
                header, fold = unsealing.in_place(data)
                if header.metadata_partition != partition:
                    raise Malformed(f"{path} is a snapshot of {header.metadata_partition}")
            except UnsupportedProtocol as newer:
                raise NewerSnapshot(f"{path}: {newer.message}") from newer
            except (CorruptError, Malformed) as error:
                await self.reject(path, str(error))
                continue
            if fold.image is not None:
                fold.image.path = path
            return LoadedSnapshot(
                fold=fold, same_log=self._is_ours(header), created_at_ms=header.created_at_ms
            )
        return None

    async def oldest_position(self, partition: MetadataPartition) -> int | None:
        """Return up to which offset the oldest snapshot kept has read; None if there is none.

        0 if one is another log's, or a newer daemon's: nobody here knows what it has read. One
        that is damaged is never taken up.

        Raises:
            OSError: the disk failed.
        """
        positions = list[int]()
        for _, name in await self._generations(partition):
            try:
                header, _ = decode_header(await self._disk.map(f"{self._directory}/{name}"))
            except UnsupportedProtocol:
                return 0
            except (CorruptError, Malformed):
                continue
            positions.append(header.next_offset if self._is_ours(header) else 0)
        return min(positions, default=None)

    def _is_ours(self, header: Header) -> bool:
        identity = self._identity
        assert identity is not None, "snapshots are loaded once the log is known"
        return (
            header.topic_id == identity.topic_id
            and header.partition_count == identity.partition_count
            and (
                None in (header.cluster_id, identity.cluster_id)
                or header.cluster_id == identity.cluster_id
            )
        )

    async def reject(self, path: str, why: str) -> None:
        """Set a damaged file aside."""
        self.rejected += 1
        logger.warning("snapshot rejected, the log is replayed instead", path=path, why=why)
        with suppress(FileNotFoundError):  # a newer one may have taken its place
            await self._disk.rename(path, path + REJECTED)
        await self._disk.fsync_directory(self._directory)

    async def read_through(self, image: Image, numbers: Collection[int]) -> None:
        """Check tables that nobody looked at yet, from the disk and without stopping the loop.

        Raises:
            ChecksumMismatch, Malformed: one is damaged, or lies where the disk can't be read.
            OSError: the disk failed.
        """
        assert image.path is not None, "only files are checked later"
        try:
            file = await self._disk.open(image.path)
        except FileNotFoundError:  # newer ones were written and not taken up: it is still mapped
            for number in numbers:
                image.table(number)
                await asyncio.sleep(0)
            return
        try:
            for number in numbers:
                if image.is_unchecked(number):
                    entry = image.entries[number]
                    judge_table(entry, await _checksum(file, entry))
                    image.checked(number)
        finally:
            await file.close()

    async def opened(self, path: str) -> Image:
        """Return a file that was just written, to be answered from.

        Raises:
            OSError: the disk failed.
            ChecksumMismatch, Malformed: it is not what was written.
        """
        buffer = await self._disk.map(path)
        _, entries = decode_directory(buffer)
        image = Image(buffer, entries, checked=True)
        image.path = path
        return image

    def image(self, fold: Fold) -> Iterable[bytes | memoryview]:
        """Return the pieces of a snapshot of `fold`, which must not change while they are drawn."""
        identity = self._identity
        assert identity is not None, "snapshots are written once the log is known"
        header = sealing.header_of(
            fold,
            cluster_id=identity.cluster_id,
            topic_id=identity.topic_id,
            created_at_ms=self._clock.now_ms(),
        )
        return sealing.write_chunks(fold, header)

    async def write(
        self,
        partition: MetadataPartition,
        next_offset: int,
        pieces: Iterable[bytes | memoryview],
        *,
        still_true: Callable[[], bool],
    ) -> WrittenSnapshot | None:
        """Write a new generation durably and remove those that are too old.

        Returns None, and leaves everything as it was, if the fold was dropped meanwhile.

        Raises:
            OSError: nothing was replaced, and what was written of it was removed if that can be.
        """
        started = self._clock.monotonic()
        generations = await self._generations(partition)
        newest = generations[0][0] if generations else 0
        path = f"{self._directory}/{partition}-{newest + 1:010}.snapshot"
        # Its own name for each attempt: a write of a cancelled one may still be on its way.
        self._attempts += 1
        temporary = f"{self._directory}/{partition}-{self._attempts}.tmp"
        try:
            size = await self._write_file(temporary, pieces)
            if not still_true():
                await self._disk.remove(temporary)
                return None
            await self._disk.rename(temporary, path)
        except BaseException:  # cancelled too: each attempt would take its part of a full disk
            with suppress(OSError):
                await self._disk.remove(temporary)
            raise
        await self._disk.fsync_directory(self._directory)
        for _, name in generations[self._keep - 1 :]:
            await self._disk.remove(f"{self._directory}/{name}")
        await self._forget_rejected(partition)
        return WrittenSnapshot(
            metadata_partition=partition,
            path=path,
            next_offset=next_offset,
            bytes=size,
            seconds=self._clock.monotonic() - started,
        )

    async def _forget_rejected(self, partition: MetadataPartition) -> None:
        """Remove what was set aside of a partition, but for the newest: each is a whole file."""
        ours = f"{partition}-"
        names = await self._disk.list(self._directory)
        mine = sorted(each for each in names if each.startswith(ours) and each.endswith(REJECTED))
        for name in mine[:-1]:
            await self._disk.remove(f"{self._directory}/{name}")

    async def remove_all(self) -> None:
        """Remove every snapshot, durably: the log that they were taken of is given up."""
        for name in await self._disk.list(self._directory):
            if _NAME.fullmatch(name):
                await self._disk.remove(f"{self._directory}/{name}")
        await self._disk.fsync_directory(self._directory)

    async def sweep(self) -> None:
        """Remove what attempts of an earlier process left."""
        for name in await self._disk.list(self._directory):
            if name.endswith(".tmp"):
                await self._disk.remove(f"{self._directory}/{name}")

    async def _write_file(self, path: str, pieces: Iterable[bytes | memoryview]) -> int:
        file = await self._disk.open(path, write=True, create=True)
        try:
            await file.truncate(0)
            size = 0
            for piece in pieces:
                size += await write_fully(file, size, piece)
            await file.fdatasync()
        finally:
            await file.close()
        return size

    async def remove(self, partition: MetadataPartition) -> None:
        """Remove every generation of a partition, durably: their lineage ended."""
        for _, name in await self._generations(partition):
            await self._disk.remove(f"{self._directory}/{name}")
        await self._disk.fsync_directory(self._directory)


async def _checksum(file: DiskFile, entry: TableEntry) -> int:
    """Return the checksum of a table as the file has it; of what is there, if that is less."""
    crc, at, end = 0, entry.at, entry.at + entry.size
    while at < end:
        try:
            piece = await file.pread(at, min(PIECE_BYTES_MAX, end - at))
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            # To look at it through the map would end the process; the log has everything.
            raise Malformed(f"the disk cannot read it at byte {at}: {error.strerror}") from error
        if not piece:
            break
        crc = crc32c(piece, crc)
        at += len(piece)
    return crc


async def write_fully(file: DiskFile, offset: int, data: bytes | memoryview) -> int:
    """Write all of `data`, however many calls that takes; return its length."""
    view = memoryview(data)
    done = 0
    while done < len(view):
        done += await file.pwrite(offset + done, view[done:])
    return len(view)
