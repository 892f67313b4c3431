"""The real disk with failures on order."""

from collections import deque
from typing import Any

from rlmm_daemon.ports.disk import Disk, DiskFile


class FaultyDisk:
    """Passes everything on, but the next calls of a kind may fail first."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._faults: dict[str, deque[int]] = {}
        self.calls: list[str] = []
        self._fault_at: tuple[int, int] | None = None

    def fail_next(self, kind: str, *numbers: int) -> None:
        """Let the next calls fail with these errnos, one each."""
        self._faults.setdefault(kind, deque()).extend(numbers)

    def fail_at(self, step: int, number: int) -> None:
        """Let the call after so many others fail, whatever it is; nothing fails to be closed."""
        self._fault_at = (len(self.calls) + step, number)

    def heal(self) -> None:
        self._faults.clear()
        self._fault_at = None

    def fails_next(self, kind: str) -> bool:
        return bool(self._faults.get(kind))

    def check(self, kind: str) -> None:
        self.calls.append(kind)
        if self._fault_at is not None and kind != "close" and len(self.calls) > self._fault_at[0]:
            number, self._fault_at = self._fault_at[1], None
            raise OSError(number, f"ordered failure of {kind}")
        faults = self._faults.get(kind)
        if faults:
            raise OSError(faults.popleft(), f"ordered failure of {kind}")

    async def open(self, path: str, *, write: bool = False, create: bool = False) -> Any:
        self.check("open")
        return FaultyFile(self, await self._disk.open(path, write=write, create=create))

    def __getattr__(self, name: str) -> Any:
        passed_on = getattr(self._disk, name)

        async def call(*arguments: Any, **named: Any) -> Any:
            self.check(name)
            return await passed_on(*arguments, **named)

        return call


class FaultyFile:
    def __init__(self, disk: FaultyDisk, file: DiskFile) -> None:
        self._disk = disk
        self._file = file

    async def pwrite_synced(self, offset: int, data: bytes | memoryview) -> int:
        self._disk.check("pwrite")
        if self._disk.fails_next("fdatasync"):  # the bytes are there when the sync fails
            await self._file.pwrite(offset, data)
        self._disk.check("fdatasync")
        return await self._file.pwrite_synced(offset, data)

    def __getattr__(self, name: str) -> Any:
        passed_on = getattr(self._file, name)

        async def call(*arguments: Any, **named: Any) -> Any:
            self._disk.check(name)
            return await passed_on(*arguments, **named)

        return call
