"""`ports.disk.Disk` for one process life: seeded delays and faults over a platter.

The rules that matter most: an operation takes effect when it is issued or when it completes, by
coin, and takes effect even if its caller was cancelled meanwhile; a failed fdatasync marks its
pages clean; a name is durable only after `fsync_directory`; `list` has no order.
"""

import asyncio
import contextlib
import errno
import os
import posixpath
import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, TypeVar, cast

from tests.simulation.loop import SimLoop
from tests.simulation.platter import Inode, NameLoss, Platter, Tear

T = TypeVar("T")

FREE_BYTES: Final = 1 << 40
#: What a busy or dying disk may take for one call, in virtual seconds.
STALL_SECONDS: Final = 5.0


class ProcessDead(BaseException):
    """The call came from code of a life that has ended; a BaseException so that it only unwinds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskFaults:
    """Probabilities per call, and what a crash does. The default is a disk without faults."""

    latency_seconds: float = 0.0005
    stall: float = 0.0
    #: Effect at completion rather than at issue.
    late: float = 0.5
    short_write: float = 0.0
    no_space: float = 0.0
    #: How long a full disk stays full, on average, in virtual seconds.
    full_seconds: float = 1.0
    write_error: float = 0.0
    sync_error: float = 0.0
    directory_sync_error: float = 0.0
    read_error: float = 0.0
    #: The cache forgets clean pages after a failed sync and at a kill.
    evict: bool = False
    tear: Tear = Tear.NONE
    names: NameLoss = NameLoss.JOURNAL

    def calm(self) -> "DiskFaults":
        """Return the same disk without errors; crashes stay what they are."""
        return DiskFaults(
            latency_seconds=self.latency_seconds,
            late=self.late,
            evict=self.evict,
            tear=self.tear,
            names=self.names,
        )

    def without(self, fault: str) -> "DiskFaults":
        """Return the same with one field at its default."""
        return replace(self, **{fault: getattr(DiskFaults(), fault)})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Luck:
    """The draws of one call: always all of them, so that no fault shifts another's stream."""

    delay: float
    late: bool
    fault: float
    second: float
    share: float


class SimDisk:
    """The port of one life. `dead` is set by the world at the crash: then every call raises."""

    def __init__(
        self, platter: Platter, loop: SimLoop, rng: random.Random, faults: DiskFaults
    ) -> None:
        self.platter = platter
        self.loop = loop
        self.faults = faults
        self.dead = False
        self.calls = 0
        #: What no correct caller does; the world fails the run over it.
        self.misuse: list[str] = []
        self.injected: dict[str, int] = {}
        #: Told of each fault: where a crash close by is most likely to hurt.
        self.on_fault: Callable[[], None] = lambda: None
        #: Told of each name that a rename has given, which no sync has made durable yet.
        self.on_rename: Callable[[str], None] = lambda _: None
        self._rng = rng
        self._full_until = 0.0
        self._temporary = 0

    # -- the port --

    async def open(self, path: str, *, write: bool = False, create: bool = False) -> "SimFile":
        def effect() -> SimFile:
            inode = self.platter.names.get(path)
            if inode is None and not create:
                raise _error(errno.ENOENT, path)
            return SimFile(self, path, inode or self._create(path), writable=write or create)

        return await self.call("open", path, effect)

    async def read(self, path: str) -> bytes:
        return await self.call(
            "read", path, lambda: bytes(self._inode(path).data), error=self.faults.read_error
        )

    async def map(self, path: str) -> bytes:
        return await self.read(path)

    async def write_atomically(self, path: str, *pieces: bytes | bytearray) -> None:
        # A task of the disk's own, as the real one is a thread: a cancelled caller stops nothing.
        if self.dead:
            raise ProcessDead(f"write {path}")
        self._temporary += 1
        work = self._replace(path, f"{path}.tmp{self._temporary}", b"".join(pieces))
        task = self.loop.create_task(work, name=f"disk.replace {path}")
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # seen by nobody?
        await asyncio.shield(task)

    async def _replace(self, path: str, temporary: str, data: bytes) -> None:
        file = await self.open(temporary, write=True, create=True)
        try:
            await file.truncate(0)
            written = 0
            while written < len(data):
                written += await file.pwrite(written, data[written:])
            await file.fdatasync()
            await file.close()
            await self.rename(temporary, path)
        except OSError:
            await file.close()
            with contextlib.suppress(OSError):
                await self.remove(temporary)
            raise
        await self.fsync_directory(posixpath.dirname(path))

    async def rename(self, source: str, target: str) -> None:
        assert posixpath.dirname(source) == posixpath.dirname(target), "one directory only"

        def effect() -> None:
            self._rename(source, target)

        await self.call("rename", f"{source} {target}", effect, error=self.faults.write_error)

    async def remove(self, path: str) -> None:
        def effect() -> None:
            self._inode(path)
            self.platter.change(posixpath.dirname(path), removed=path)

        await self.call("remove", path, effect)

    async def make_directory(self, path: str) -> None:
        def effect() -> None:
            parent = path
            while parent not in self.platter.directories:
                self.platter.directories.add(parent)
                parent = posixpath.dirname(parent)

        await self.call("mkdir", path, effect)

    async def list(self, path: str) -> list[str]:
        coins = random.Random(self.draw().share)

        def effect() -> list[str]:
            if path not in self.platter.directories:
                raise _error(errno.ENOENT, path)
            here = sorted(
                posixpath.basename(name)
                for name in [*self.platter.names, *self.platter.directories]
                if posixpath.dirname(name) == path and name != path
            )
            coins.shuffle(here)
            return here

        return await self.call("list", path, effect)

    async def exists(self, path: str) -> bool:
        platter = self.platter
        return await self.call(
            "exists", path, lambda: path in platter.names or path in platter.directories
        )

    async def fsync_directory(self, path: str) -> None:
        upto = self.platter.name_seq

        def effect() -> None:
            if path not in self.platter.directories:
                raise _error(errno.ENOENT, path)
            self.platter.sync_directory(path, upto)

        await self.call("fsync_directory", path, effect, error=self.faults.directory_sync_error)

    async def lock(self, path: str) -> "SimLock":
        def effect() -> SimLock:
            if path in self.platter.locks:
                raise _error(errno.EAGAIN, path)
            if path not in self.platter.names:
                self._create(path)
            lock = SimLock(self, path)
            self.platter.locks[path] = lock
            return lock

        return await self.call("lock", path, effect)

    async def compute(self, work: Callable[[], T]) -> T:
        failed: list[Exception] = []

        def effect() -> T | None:
            try:
                return work()
            except Exception as error:  # noqa: BLE001  # the caller's own, as a thread hands it on
                failed.append(error)
                return None

        done = await self.call("compute", "", effect)
        if failed:
            raise failed[0]
        return cast("T", done)

    async def free_bytes(self, path: str) -> int:
        return await self.call("free", path, lambda: 0 if self.full else FREE_BYTES)

    # -- how a call happens --

    @property
    def full(self) -> bool:
        """Whether the disk is in a spell without space."""
        return self.loop.time() < self._full_until

    def fill(self, seconds: float) -> None:
        """Begin a spell without space."""
        self._full_until = self.loop.time() + seconds

    async def call(self, kind: str, path: str, effect: Callable[[], T], *, error: float = 0.0) -> T:
        """Do `effect` at issue or completion, or fail with EIO at the probability `error`."""
        luck = self.draw()

        def tried() -> T:
            if luck.fault < error:
                self.inject(f"{kind.split(maxsplit=1)[0]} EIO", path)
                raise _error(errno.EIO, path)
            return effect()

        return await self.begin(kind, path, tried, luck)

    def begin(
        self, kind: str, path: str, effect: Callable[[], T], luck: _Luck | None = None
    ) -> asyncio.Future[T]:
        """Issue one call; its effect happens whatever becomes of the future."""
        if self.dead:
            raise ProcessDead(f"{kind} {path}")
        luck = luck or self.draw()
        self.calls += 1
        self.loop.mix(zlib.crc32(f"{kind} {path}".encode()))
        self.loop.note(f"disk {kind} {path}")
        future: asyncio.Future[T] = self.loop.create_future()
        settle = None if luck.late else _attempt(effect)

        def complete() -> None:
            outcome = settle or _attempt(effect)
            if not future.done():
                outcome(future)

        self.loop.call_later(luck.delay, complete)
        return future

    def draw(self) -> _Luck:
        """Take this call's luck from the stream."""
        rng, faults = self._rng, self.faults
        stalled = rng.random() < faults.stall
        return _Luck(
            delay=rng.expovariate(1 / faults.latency_seconds) + (STALL_SECONDS if stalled else 0),
            late=rng.random() < faults.late,
            fault=rng.random(),
            second=rng.random(),
            share=rng.random(),
        )

    def inject(self, what: str, path: str) -> None:
        """Count a fault and leave a line in the trace."""
        self.injected[what] = self.injected.get(what, 0) + 1
        self.loop.note(f"disk fault: {what} on {path}")
        self.on_fault()

    # -- effects that several calls share --

    def _inode(self, path: str) -> Inode:
        inode = self.platter.names.get(path)
        if inode is None:
            raise _error(errno.ENOENT, path)
        return inode

    def _create(self, path: str) -> Inode:
        directory = posixpath.dirname(path)
        if directory not in self.platter.directories:
            raise _error(errno.ENOENT, path)
        if self.full:
            raise _error(errno.ENOSPC, path)
        inode = Inode()
        self.platter.change(directory, added=(path, inode))
        return inode

    def _rename(self, source: str, target: str) -> None:
        inode = self._inode(source)
        self.platter.change(posixpath.dirname(target), removed=source, added=(target, inode))
        self.on_rename(target)

    def write_some(self, inode: Inode, path: str, offset: int, data: bytes, luck: _Luck) -> int:
        """Write all, or a part as the faults say; return how many bytes were taken."""
        if luck.fault < self.faults.write_error:
            inode.write(offset, data[: int(luck.share * len(data))])
            self.inject("write EIO", path)
            raise _error(errno.EIO, path)
        if offset + len(data) > inode.allocated:
            self._need_space(inode, path, offset, data, luck)
        taken = len(data)
        if len(data) > 1 and luck.second < self.faults.short_write:
            taken = 1 + int(luck.share * (len(data) - 1))
            self.inject("short write", path)
        inode.write(offset, data[:taken])
        return taken

    def _need_space(self, inode: Inode, path: str, offset: int, data: bytes, luck: _Luck) -> None:
        if not self.full and 1 - luck.fault < self.faults.no_space:
            self.fill(self.faults.full_seconds * (0.1 + luck.share))
        if self.full:
            inode.write(offset, data[: int(luck.share * len(data))])
            self.inject("ENOSPC", path)
            raise _error(errno.ENOSPC, path)


def _error(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)


def _attempt(effect: Callable[[], T]) -> Callable[[asyncio.Future[T]], None]:
    """Do it now; return what tells a future how it went."""
    try:
        value = effect()
    except OSError as error:
        failure = error
        return lambda future: future.set_exception(failure)
    return lambda future: future.set_result(value)


class SimFile:
    """`ports.disk.DiskFile`: an open descriptor, bound to its inode and not to the name."""

    def __init__(self, disk: SimDisk, path: str, inode: Inode, *, writable: bool) -> None:
        self._disk = disk
        self._path = path
        self._inode = inode
        self._writable = writable
        self._closed = False

    async def pread(self, offset: int, length: int) -> bytes:
        self._check("pread")
        return await self._disk.call(
            "pread",
            self._path,
            lambda: bytes(self._inode.data[offset : offset + length]),
            error=self._disk.faults.read_error,
        )

    async def pwrite(self, offset: int, data: bytes | memoryview) -> int:
        self._check("pwrite", writing=True)
        return await self._pwrite(offset, data)

    async def pwrite_synced(self, offset: int, data: bytes | memoryview) -> int:
        self._check("pwrite_synced", writing=True)
        if self._disk.dead:
            raise ProcessDead(f"pwrite_synced {self._path}")
        # Two steps, in a task of the disk's own: a cancelled caller comes between them no more
        # than between two calls of one thread.
        work = self._pwrite_synced(offset, data)
        task = self._disk.loop.create_task(work, name=f"disk.synced {self._path}")
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # seen by nobody?
        return await asyncio.shield(task)

    async def _pwrite_synced(self, offset: int, data: bytes | memoryview) -> int:
        taken = await self._pwrite(offset, data)
        if taken == len(data):
            await self._fdatasync()
        return taken

    async def _pwrite(self, offset: int, data: bytes | memoryview) -> int:
        disk, luck, taken = self._disk, self._disk.draw(), bytes(data)
        return await disk.begin(
            f"pwrite {offset}+{len(taken)}",
            self._path,
            lambda: disk.write_some(self._inode, self._path, offset, taken, luck),
            luck,
        )

    async def truncate(self, size: int) -> None:
        self._check("truncate", writing=True)
        await self._disk.call(
            f"truncate {size}",
            self._path,
            lambda: self._inode.truncate(size),
            error=self._disk.faults.write_error,
        )

    async def fdatasync(self) -> None:
        self._check("fdatasync")
        await self._fdatasync()

    async def _fdatasync(self) -> None:
        disk, luck = self._disk, self._disk.draw()
        upto = self._inode.seq  # what was written before this call, and nothing later

        def effect() -> None:
            if luck.fault < disk.faults.sync_error:
                coins = random.Random(luck.share)
                self._inode.fail_sync(upto, coins, evict=disk.faults.evict and luck.second < 0.5)
                disk.inject("fdatasync EIO", self._path)
                raise _error(errno.EIO, self._path)
            self._inode.sync(upto)

        await disk.begin("fdatasync", self._path, effect, luck)

    async def size(self) -> int:
        self._check("size")
        return await self._disk.call("size", self._path, lambda: len(self._inode.data))

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await self._disk.call("close", self._path, lambda: None)

    def _check(self, kind: str, *, writing: bool = False) -> None:
        if self._closed:
            self._disk.misuse.append(f"{kind} on closed {self._path}")
            raise _error(errno.EBADF, self._path)
        if writing and not self._writable:
            self._disk.misuse.append(f"{kind} on read-only {self._path}")
            raise _error(errno.EBADF, self._path)


class SimLock:
    """`ports.disk.DiskLock`; a crash releases it."""

    def __init__(self, disk: SimDisk, path: str) -> None:
        self._disk = disk
        self._path = path

    async def release(self) -> None:
        def effect() -> None:
            if self._disk.platter.locks.get(self._path) is self:
                del self._disk.platter.locks[self._path]

        await self._disk.call("unlock", self._path, effect)
