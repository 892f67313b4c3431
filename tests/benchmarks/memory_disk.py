"""`ports.disk` in memory, without threads: what the code above it costs, and nothing else."""

from collections.abc import Callable
from typing import TypeVar

from rlmm_daemon.codec.snapshot import Mapped

T = TypeVar("T")


class MemoryLock:
    async def release(self) -> None:
        """Nobody else wants it."""


class MemoryFile:
    """One open file."""

    def __init__(self, content: bytearray) -> None:
        self._content = content

    async def pread(self, offset: int, length: int) -> bytes:
        return bytes(memoryview(self._content)[offset : offset + length])

    async def pwrite(self, offset: int, data: bytes | memoryview) -> int:
        if offset > len(self._content):
            self._content.extend(bytes(offset - len(self._content)))
        self._content[offset : offset + len(data)] = data
        return len(data)

    async def pwrite_synced(self, offset: int, data: bytes | memoryview) -> int:
        return await self.pwrite(offset, data)

    async def truncate(self, size: int) -> None:
        if size < len(self._content):
            del self._content[size:]
        else:
            self._content.extend(bytes(size - len(self._content)))

    async def fdatasync(self) -> None:
        """Nothing is lost here."""

    async def size(self) -> int:
        return len(self._content)

    async def close(self) -> None:
        """The content stays."""


class MemoryDisk:
    """Files by path."""

    def __init__(self) -> None:
        self.files: dict[str, bytearray] = {}

    def log_bytes(self, directory: str) -> int:
        """Return what a log's files take, zeros that were made ahead among them."""
        ours = (path for path in self.files if path.startswith(directory) and path.endswith(".log"))
        return sum(len(self.files[path]) for path in ours)

    async def open(self, path: str, *, write: bool = False, create: bool = False) -> MemoryFile:
        del write
        if path not in self.files:
            if not create:
                raise FileNotFoundError(path)
            self.files[path] = bytearray()
        return MemoryFile(self.files[path])

    async def read(self, path: str) -> bytes:
        if path not in self.files:
            raise FileNotFoundError(path)
        return bytes(self.files[path])

    async def map(self, path: str) -> bytes | Mapped:
        return await self.read(path)

    async def write_atomically(self, path: str, *pieces: bytes | bytearray) -> None:
        self.files[path] = bytearray(b"".join(pieces))

    async def rename(self, source: str, target: str) -> None:
        if source not in self.files:
            raise FileNotFoundError(source)
        self.files[target] = self.files.pop(source)

    async def remove(self, path: str) -> None:
        if path not in self.files:
            raise FileNotFoundError(path)
        del self.files[path]

    async def make_directory(self, path: str) -> None:
        """Paths are all there is."""

    async def list(self, path: str) -> list[str]:
        below = path + "/"
        return sorted(
            {each[len(below) :].split("/")[0] for each in self.files if each.startswith(below)}
        )

    async def exists(self, path: str) -> bool:
        return path in self.files

    async def fsync_directory(self, path: str) -> None:
        """Nothing is lost here."""

    async def lock(self, path: str) -> MemoryLock:
        del path
        return MemoryLock()

    async def compute(self, work: Callable[[], T]) -> T:
        return work()

    async def free_bytes(self, path: str) -> int:
        del path
        return 1 << 40
