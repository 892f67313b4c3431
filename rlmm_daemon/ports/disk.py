"""Files, as far as the daemon's own state is concerned: every call awaited, every sync explicit.

What makes a write durable is said by the caller: `fdatasync` for bytes and size, `fsync_directory`
for names. Errors are `OSError` with its errno, as the kernel gave it.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from rlmm_daemon.codec.snapshot import Mapped

T = TypeVar("T")


class DiskFile(Protocol):
    """One open file. Calls may run in threads: two calls in flight have no order."""

    async def pread(self, offset: int, length: int) -> bytes:
        """Return up to `length` bytes from `offset`; fewer only at the end of the file."""

    async def pwrite(self, offset: int, data: bytes | memoryview) -> int:
        """Write and return how many bytes were taken, which may be fewer than given."""

    async def pwrite_synced(self, offset: int, data: bytes | memoryview) -> int:
        """Write and, if all was taken, make it durable; return how many bytes were taken.

        One call for what `pwrite` and `fdatasync` do in two: a small write then waits for a
        thread once. Fewer bytes than given: nothing was synced, and the rest has to follow.
        """

    async def truncate(self, size: int) -> None:
        """Cut or extend to `size`; what is added reads as zeros."""

    async def fdatasync(self) -> None:
        """Make bytes and size durable. After an error the unsynced bytes may be lost for good."""

    async def size(self) -> int:
        """Return the file's size in bytes."""

    async def close(self) -> None:
        """Give the descriptor back; idempotent, syncs nothing."""


class DiskLock(Protocol):
    """A lock on a file, held until released or until the process ends."""

    async def release(self) -> None:
        """Let go; idempotent."""


class Disk(Protocol):
    """The file system below the state directory and the embedded log. Paths are absolute."""

    async def open(self, path: str, *, write: bool = False, create: bool = False) -> DiskFile:
        """Open a regular file.

        Raises:
            FileNotFoundError: absent and not `create`.
        """

    async def read(self, path: str) -> bytes:
        """Return a whole small file."""

    async def map(self, path: str) -> bytes | Mapped:
        """Return a whole file whose pages are read when they are looked at.

        It stays what it was when the file is removed or replaced; nobody may write into it. To
        look at a page that is gone (somebody cut the file short) or that the disk fails to read
        ends the process (SIGBUS): no error can be raised there, so `bring_in` is asked first.
        """

    async def write_atomically(self, path: str, *pieces: bytes | bytearray) -> None:
        """Replace `path` durably by the pieces: temporary name, fdatasync, rename, directory fsync.

        After an error or a crash either the old or the new file is there, whole.
        """

    async def rename(self, source: str, target: str) -> None:
        """Rename within one directory, atomically; durable only after `fsync_directory`."""

    async def remove(self, path: str) -> None:
        """Remove a file.

        Raises:
            FileNotFoundError: it is not there.
        """

    async def make_directory(self, path: str) -> None:
        """Create a directory and its parents, durably; fine if it is there."""

    async def list(self, path: str) -> list[str]:
        """Return the names in a directory, in no order.

        Raises:
            FileNotFoundError: no such directory.
        """

    async def exists(self, path: str) -> bool:
        """Return whether a file or directory of that name is there."""

    async def fsync_directory(self, path: str) -> None:
        """Make the names in a directory durable."""

    async def lock(self, path: str) -> DiskLock:
        """Take the exclusive lock of a file, created if absent.

        Raises:
            BlockingIOError: another process or holder has it.
        """

    async def compute(self, work: Callable[[], T]) -> T:
        """Return what comes of work on a large file's content, which would hold up the loop."""

    async def free_bytes(self, path: str) -> int:
        """Return the bytes an unprivileged writer can still use on that file system."""


class ScratchDisk(Disk, Protocol):
    """A disk for files too that nobody misses after a crash."""

    async def acquire(self, work: Callable[[], T], undo: Callable[[T], None]) -> T:
        """Return what comes of work that opens something; `undo` is given it if nobody takes it."""

    async def write_scratch(self, path: str, pieces: Sequence[bytes], *, suffix: str) -> None:
        """Write a new file under its name and `suffix`, then rename it; nothing is synced.

        One call for what `open`, `pwrite`, `close` and `rename` do in four. After an error neither
        name is there; of a cancelled caller's neither will be, once what has begun is over.
        """
