"""One attempt to store a segment: copy to temporary names, verify, sync, then rename into place.

Everything here blocks and runs in one worker thread; `stop` ends it between two blocks.
"""

import concurrent.futures
import contextlib
import errno
import os
import shutil
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from crc32c import crc32c

from rlmm_daemon.adapters.storage.local.root import Root, make_directories, sync_directory
from rlmm_daemon.domain.errors import ChecksumMismatch, StorageFull
from rlmm_daemon.ports.storage import ObjectKind, Progress, ReadSource, Source, StoredObject

#: One copy_file_range, and one pread for its checksum, which leave the interpreter to others: the
#: fewer, the less often the event loop waits for it. The stop flag is looked at in between.
BLOCK_BYTES: Final = 1024 * 1024
#: Writing back begins while the rest is still copied, so that the last sync finds little to do.
WRITE_BACK_BYTES: Final = 64 * 1024 * 1024
#: What file systems answer that cannot copy in the kernel.
_NO_KERNEL_COPY: Final = frozenset(
    {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF}
)


class Stopped(Exception):
    """The caller was cancelled; nothing is visible and nothing is left."""


@dataclass(slots=True)
class Attempt:
    """One `put_segment`, with its own directory for temporary files."""

    root: Root
    directory: str
    stop: threading.Event
    progress: Progress

    def run(self, objects: Sequence[tuple[ObjectKind, str, Source]]) -> list[StoredObject]:
        """Store all objects, the `.log` visible last and only when all is durable."""
        progress = self.progress
        progress.phase, progress.bytes_total = "upload", sum(s.size for _, _, s in objects)
        self._require_space()
        Path(self.directory).mkdir()
        try:
            progress.write_begun = True
            stored = [self._store(number, *row) for number, row in enumerate(objects)]
            self._check_stop()
            progress.call = "rename"
            self._publish([self.root.file(key) for _, key, _ in objects])
        finally:
            shutil.rmtree(self.directory, ignore_errors=True)
        return stored

    def _require_space(self) -> None:
        status = os.statvfs(self.root.path)
        free = status.f_bavail * status.f_frsize
        if self.progress.bytes_total > free:
            raise StorageFull(needed_bytes=self.progress.bytes_total, free_bytes=free)

    def _store(self, number: int, kind: ObjectKind, key: str, source: Source) -> StoredObject:
        self.progress.call = f"copy {kind.value}"
        path = f"{self.directory}/{number}"
        # The key beside the file: it may be longer than one file name.
        Path(f"{path}.key").write_text(key, encoding="utf-8")
        target = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            before = _status(source)
            crc32c = self._copy(source, target)
            if _status(source) != before or os.fstat(target).st_size != source.size:
                raise ChecksumMismatch(f"the source of {key} changed while it was copied", key=key)
            os.fdatasync(target)
        finally:
            os.close(target)
        self.progress.parts_done += 1
        return StoredObject(key=key, size=source.size, crc32c=crc32c)

    def _copy(self, source: Source, target: int) -> int:
        """Copy block by block and return the CRC-32C of what the target holds."""
        write_back = _WriteBack(target)
        copier = _BlockCopier(source, target)
        written = read = 0
        # One that is read meanwhile is not read a second time.
        reads = not isinstance(source, ReadSource)
        try:
            for offset in range(0, source.size, BLOCK_BYTES):
                self._check_stop()
                length = min(BLOCK_BYTES, source.size - offset)
                copier.copy(offset, length)
                if reads:
                    read = crc32c(source.pread(offset, length), read)
                written = crc32c(os.pread(target, length, offset), written)
                self.progress.bytes_done += length
                write_back.advance(offset + length)
        finally:
            write_back.finish()
        if isinstance(source, ReadSource):
            try:
                read = source.checksum()
            except concurrent.futures.CancelledError as error:
                raise Stopped from error
        if read != written:
            raise ChecksumMismatch("the copy differs from its source")
        return written

    def _publish(self, targets: Sequence[str]) -> None:
        """Rename in order. From the first rename on nothing stops this short of a crash.

        The directory is synced before the `.log` gets its name: after a crash a visible `.log`
        still means that all its companions are there.
        """
        for directory in {_parent(target) for target in targets}:
            make_directories(directory, below=self.root.path)
        # A `.log` of an earlier attempt must not stand beside the new companions.
        with contextlib.suppress(FileNotFoundError):
            Path(targets[-1]).unlink()
        for number, target in enumerate(targets):
            if number == len(targets) - 1:
                self._sync(targets[:-1])
            Path(f"{self.directory}/{number}").rename(target)
        self._sync(targets[-1:])

    def _sync(self, targets: Sequence[str]) -> None:
        for directory in {_parent(target) for target in targets}:
            sync_directory(directory)

    def _check_stop(self) -> None:
        if self.stop.is_set():
            raise Stopped


class _BlockCopier:
    """Copies in the kernel where the file systems allow it, else by reading and writing."""

    def __init__(self, source: Source, target: int) -> None:
        self._source, self._target = source, target
        self._descriptor = source.fileno()

    def copy(self, offset: int, length: int) -> None:
        end = offset + length
        while offset < end:
            copied = self._in_kernel(offset, end - offset)
            if copied is None:
                copied = self._by_hand(offset, end - offset)
            offset += copied

    def _in_kernel(self, offset: int, length: int) -> int | None:
        if self._descriptor is None:
            return None
        try:
            copied = os.copy_file_range(self._descriptor, self._target, length, offset, offset)
        except OSError as error:
            if error.errno not in _NO_KERNEL_COPY:
                # Either side's fault: if it is the source's, reading says so.
                self._source.pread(offset, length)
                raise
            self._descriptor = None
            return None
        if copied == 0:
            raise ChecksumMismatch("the source became shorter while it was copied")
        return copied

    def _by_hand(self, offset: int, length: int) -> int:
        return os.pwrite(self._target, self._source.pread(offset, length), offset)


class _WriteBack:
    """Starts `fdatasync` in a second thread now and then; its errors come back in `finish`."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._thread: threading.Thread | None = None
        self._mark = 0
        self._error: OSError | None = None

    def advance(self, position: int) -> None:
        if position - self._mark < WRITE_BACK_BYTES or (self._thread and self._thread.is_alive()):
            return
        self._mark = position
        self._thread = threading.Thread(target=self._sync, name="storage.write-back", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        if self._thread is not None:
            self._thread.join()
        # The kernel reports a failed write-back once: the last fdatasync would find nothing.
        if self._error is not None:
            raise self._error

    def _sync(self) -> None:
        try:
            os.fdatasync(self._target)
        except OSError as error:
            self._error = self._error or error


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _status(source: Source) -> tuple[int, int, int] | None:
    descriptor = source.fileno()
    if descriptor is None:
        return None
    status = os.fstat(descriptor)
    if status.st_size != source.size:
        raise ChecksumMismatch("the source is not as long as it was when it was opened")
    return status.st_size, status.st_mtime_ns, status.st_ino
