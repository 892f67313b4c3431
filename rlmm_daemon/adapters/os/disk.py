"""Real files behind `ports.disk`: blocking calls in a few threads, never in the loop."""

import asyncio
import errno
import fcntl
import itertools
import mmap
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TypeVar

from rlmm_daemon.ports.disk_threads import DiskThreads

T = TypeVar("T")

#: Four calls may block at once: a slow sync then does not hold up reads of other files.
THREADS_DEFAULT: Final = 4
TEMPORARY_SUFFIX: Final = ".tmp"
#: Of one `writev`; the kernel takes 1,024.
PIECES_MAX: Final = 512
_FILE_MODE: Final = 0o640
_DIRECTORY_MODE: Final = 0o750
#: Linux' MADV_POPULATE_READ; of pages that would end whoever looks at them it says EFAULT.
_POPULATE_READ: Final = 22


class LocalDisk:
    """The file system of this machine. A cancelled caller does not undo a call that has begun."""

    def __init__(self, *, threads: int = THREADS_DEFAULT) -> None:
        self._threads = DiskThreads(threads)
        self._temporary = itertools.count()

    def close(self, *, wait: bool = True) -> None:
        """End the threads, with `wait` once the calls in flight are over; files stay."""
        self._threads.close(wait=wait)

    async def open(self, path: str, *, write: bool = False, create: bool = False) -> "LocalFile":
        """Open a file; created ones are readable by owner and group."""
        flags = os.O_CLOEXEC | (os.O_RDWR if write else os.O_RDONLY)
        if create:
            flags |= os.O_CREAT
        descriptor = await self.acquire(lambda: os.open(path, flags, _FILE_MODE), os.close)
        return LocalFile(descriptor, self._threads)

    async def read(self, path: str) -> bytes:
        """Return a whole small file."""
        try:
            return await self._run(Path(path).read_bytes)
        except OSError as error:  # one that a failing disk gives names no file
            raise OSError(error.errno, error.strerror, path) from error

    async def map(self, path: str) -> "bytes | MappedFile":
        """Return a whole file, mapped."""
        return await self._run(lambda: _map(path))

    async def write_atomically(self, path: str, *pieces: bytes | bytearray) -> None:
        """Replace `path` durably; the temporary file stands beside it and is removed on error."""
        temporary = f"{path}.{os.getpid()}.{next(self._temporary)}{TEMPORARY_SUFFIX}"
        await self._run(lambda: _write_atomically(path, temporary, pieces))

    async def write_scratch(self, path: str, pieces: Sequence[bytes], *, suffix: str) -> None:
        """Write a new file, in one call and unsynced; see `ports.disk.ScratchDisk`."""
        await self.acquire(
            lambda: _write_scratch(path, f"{path}{suffix}", pieces),
            lambda _: Path(path).unlink(missing_ok=True),
        )

    async def rename(self, source: str, target: str) -> None:
        """Rename within one directory."""
        await self._run(lambda: Path(source).replace(target))

    async def remove(self, path: str) -> None:
        """Remove a file."""
        await self._run(Path(path).unlink)

    async def make_directory(self, path: str) -> None:
        """Create a directory and its parents; each new name is synced in its parent."""
        await self._run(lambda: _make_directory(Path(path)))

    async def list(self, path: str) -> list[str]:
        """Return the names in a directory."""
        return await self._run(lambda: [entry.name for entry in Path(path).iterdir()])

    async def exists(self, path: str) -> bool:
        """Return whether the name is there."""
        return await self._run(Path(path).exists)

    async def fsync_directory(self, path: str) -> None:
        """Make the names in a directory durable."""
        await self._run(lambda: _fsync_directory(path))

    async def lock(self, path: str) -> "LocalLock":
        """Take the file's flock, which a second holder in this very process conflicts with too."""
        return LocalLock(await self.acquire(lambda: _lock(path), os.close))

    async def compute(self, work: Callable[[], T]) -> T:
        """Work in one of the threads."""
        return await self._run(work)

    async def free_bytes(self, path: str) -> int:
        """Return the bytes that are free without root's reserve."""
        return await self._run(lambda: _free_bytes(path))

    async def _run(self, call: Callable[[], T]) -> T:
        return await self._threads.run(call)

    async def acquire(self, work: Callable[[], T], undo: Callable[[T], None]) -> T:
        """Work in one of the threads; what comes of it is undone if its caller was cancelled."""
        future = self._threads.run(work, unwanted=undo)
        try:
            return await future
        except asyncio.CancelledError:
            # The result may have come in the very turn in which the caller was cancelled.
            if future.done() and not future.cancelled() and future.exception() is None:
                undo(future.result())
            raise


class LocalFile:
    """One descriptor, closed only after the last call in flight on it has ended.

    A write of a cancelled caller may still run in its thread: were the descriptor closed below
    it, its number could by then belong to another file.
    """

    def __init__(self, descriptor: int, threads: DiskThreads) -> None:
        self._descriptor = descriptor
        self._threads = threads
        self._idle = threading.Condition(threading.Lock())
        self._users = 0
        self._closed = False

    async def pread(self, offset: int, length: int) -> bytes:
        """Return up to `length` bytes from `offset`."""
        return await self._run(lambda fd: _pread(fd, offset, length))

    async def pwrite(self, offset: int, data: bytes | memoryview) -> int:
        """Write and return how many bytes the kernel took."""
        return await self._run(lambda fd: os.pwrite(fd, data, offset))

    async def pwrite_synced(self, offset: int, data: bytes | memoryview) -> int:
        """Write, then sync if the kernel took all; return how many bytes it took."""
        return await self._run(lambda fd: _pwrite_synced(fd, offset, data))

    async def truncate(self, size: int) -> None:
        """Cut or extend to `size`."""
        await self._run(lambda fd: os.ftruncate(fd, size))

    async def fdatasync(self) -> None:
        """Make bytes and size durable."""
        await self._run(os.fdatasync)

    async def size(self) -> int:
        """Return the size in bytes."""
        return await self._run(lambda fd: os.fstat(fd).st_size)

    async def close(self) -> None:
        """Wait for calls in flight, then give the descriptor back."""
        await self._threads.run(self._close)

    async def _run(self, call: Callable[[int], T]) -> T:
        return await self._threads.run(lambda: self._call(call))

    def _call(self, call: Callable[[int], T]) -> T:
        with self._borrowed() as descriptor:
            return call(descriptor)

    @contextmanager
    def _borrowed(self) -> Iterator[int]:
        with self._idle:
            if self._closed:
                raise ValueError("the file is closed")
            self._users += 1
        try:
            yield self._descriptor
        finally:
            with self._idle:
                self._users -= 1
                self._idle.notify()  # `_close` alone ever waits

    def _close(self) -> None:
        with self._idle:
            if self._closed:
                return
            self._closed = True
            self._idle.wait_for(lambda: not self._users)
        os.close(self._descriptor)


class LocalLock:
    """A held flock: the kernel lets go of it when the descriptor or the process is gone."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    async def release(self) -> None:
        """Let go; closing a descriptor without unsynced bytes does not block."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


class MappedFile(mmap.mmap):
    """A file mapped to be read."""

    __slots__ = ()

    def bring_in(self, at: int, size: int) -> bool:
        """Have the kernel read a part, before anybody looks at it.

        A page that it cannot give, since the file was cut short or its disk has a bad sector, would
        end the process that looks at it. Kernels before 5.14 cannot be asked.
        """
        begin = at - at % mmap.PAGESIZE
        try:
            self.madvise(_POPULATE_READ, begin, at + size - begin)
        except OSError as error:
            return error.errno != errno.EFAULT
        return True


def _map(path: str) -> bytes | MappedFile:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if not os.fstat(descriptor).st_size:
            return b""  # nothing can be mapped
        return MappedFile(descriptor, 0, prot=mmap.PROT_READ)
    finally:
        os.close(descriptor)


def _pread(descriptor: int, offset: int, length: int) -> bytes:
    found = os.pread(descriptor, length, offset)
    while found and len(found) < length:
        more = os.pread(descriptor, length - len(found), offset + len(found))
        if not more:
            break
        found += more
    return found


def _pwrite_synced(descriptor: int, offset: int, data: bytes | memoryview) -> int:
    taken = os.pwrite(descriptor, data, offset)
    if taken == len(data):
        os.fdatasync(descriptor)
    return taken


def _write_atomically(path: str, temporary: str, pieces: Iterable[bytes | bytearray]) -> None:
    with _taking_the_place_of(path, temporary) as descriptor:
        for piece in pieces:
            rest = memoryview(piece)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
        os.fdatasync(descriptor)
    _fsync_directory(str(Path(path).parent))


def _write_scratch(path: str, temporary: str, pieces: Sequence[bytes]) -> None:
    with _taking_the_place_of(path, temporary) as descriptor:
        for first in range(0, len(pieces), PIECES_MAX):
            _write_all(descriptor, pieces[first : first + PIECES_MAX])


@contextmanager
def _taking_the_place_of(path: str, temporary: str) -> Iterator[int]:
    """Yield a new file's descriptor; once it is written, it is renamed, else removed."""
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        descriptor = os.open(temporary, flags, _FILE_MODE)
        try:
            yield descriptor
        finally:
            os.close(descriptor)
        Path(temporary).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(temporary).unlink()
        raise


def _write_all(descriptor: int, pieces: Sequence[bytes]) -> None:
    taken = os.writev(descriptor, pieces)
    for piece in pieces:
        rest = memoryview(piece)[taken:]
        taken = max(0, taken - len(piece))
        while rest:
            rest = rest[os.write(descriptor, rest) :]


def _make_directory(directory: Path) -> None:
    if directory.is_dir():
        # Its maker may have died before the sync: the name counts only once it is durable.
        _fsync_directory(str(directory.parent))
        return
    if not directory.parent.is_dir():
        _make_directory(directory.parent)
    directory.mkdir(_DIRECTORY_MODE, exist_ok=True)
    _fsync_directory(str(directory.parent))


def _fsync_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _lock(path: str) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _free_bytes(path: str) -> int:
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize
