"""A disk that leaves one call out: on whose behalf, of which kind, of which file."""

import posixpath
import re
import sys
from dataclasses import dataclass
from types import FrameType
from typing import Any

from tests.simulation.disk import SimDisk


@dataclass(frozen=True, slots=True)
class Plant:
    """A call that is left out: which kind, on whose behalf, on which file."""

    kind: str
    caller: str
    name: str = ".*"

    def fits(self, kind: str, caller: str, name: str) -> bool:
        known = (self.kind, self.caller) == (kind, caller)
        return known and re.fullmatch(self.name, name) is not None


class Watched:
    """A disk that counts who syncs, and leaves out what is planted."""

    def __init__(self, disk: SimDisk, plant: Plant | None, seen: set[tuple[str, str, str]]) -> None:
        self._disk = disk
        self._plant = plant
        self.seen = seen

    def left_out(self, kind: str, path: str) -> bool:
        caller, name = _caller(sys._getframe(2)), _masked(posixpath.basename(path))
        self.seen.add((kind, caller, name))
        return self._plant is not None and self._plant.fits(kind, caller, name)

    async def open(self, path: str, **how: bool) -> "WatchedFile":
        return WatchedFile(self, path, await self._disk.open(path, **how))

    async def fsync_directory(self, path: str) -> None:
        if not self.left_out("fsync_directory", path):
            await self._disk.fsync_directory(path)

    async def write_atomically(self, path: str, *pieces: bytes) -> None:
        if not self.left_out("write_atomically", path):
            await self._disk.write_atomically(path, *pieces)
            return
        data = b"".join(pieces)
        file = await self._disk.open(f"{path}.tmp0", write=True, create=True)
        await file.truncate(0)
        written = 0
        while written < len(data):
            written += await file.pwrite(written, data[written:])
        await file.close()
        await self._disk.rename(f"{path}.tmp0", path)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)


class WatchedFile:
    def __init__(self, disk: Watched, path: str, file: Any) -> None:
        self._disk = disk
        self._path = path
        self._file = file

    async def fdatasync(self) -> None:
        if not self._disk.left_out("fdatasync", self._path):
            await self._file.fdatasync()

    async def pwrite(self, offset: int, data: bytes | memoryview) -> int:
        if self._disk.left_out("pwrite", self._path):
            return len(data)
        return int(await self._file.pwrite(offset, data))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _caller(frame: FrameType | None) -> str:
    """Return the innermost function of the replica's files that is waiting for this call."""
    while frame is not None:
        if "/adapters/quorum/" in frame.f_code.co_filename:
            return frame.f_code.co_qualname
        frame = frame.f_back
    return "?"


def _masked(name: str) -> str:
    return re.sub(r"\d{20}(-\d{10})?", "N", name)
