"""Writes of all bytes and cuts to an exact size, made of a disk file's single calls."""

import errno
from collections.abc import Awaitable, Callable

from rlmm_daemon.ports.disk import DiskFile


async def write_all(file: DiskFile, offset: int, data: bytes) -> None:
    """Write all of `data`, however little each call takes."""
    await _all_of(data, offset, file.pwrite)


async def write_all_synced(file: DiskFile, offset: int, data: bytes) -> None:
    """Write all of `data` and make it durable with one sync, issued after its last byte."""
    await _all_of(data, offset, file.pwrite_synced)


async def _all_of(
    data: bytes, offset: int, write: Callable[[int, memoryview], Awaitable[int]]
) -> None:
    rest = memoryview(data)
    while rest:
        written = await write(offset, rest)
        if written <= 0:
            raise OSError(errno.EIO, "the disk took no bytes and named no reason")
        offset += written
        rest = rest[written:]


async def cut(file: DiskFile, size: int) -> None:
    """Cut the file to `size`, durably, even if it seems to have that size already.

    After a sync that failed, the kernel may take a size for clean that never reached the disk,
    and a truncate to the same size would then be skipped: so the size is really changed.
    """
    await file.truncate(size + 1)
    await file.truncate(size)
    await file.fdatasync()
