"""One attempt to store a segment: copy to temporary names, verify, sync, then rename into place.

Everything here blocks, in one worker thread; `stop` ends it soon, short of the renames.
"""

import concurrent.futures
import os
import shutil
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rlmm_daemon.adapters.storage.local.root import Root, make_directories, sync_directory
from rlmm_daemon.domain.errors import ChecksumMismatch, StorageFull
from rlmm_daemon.ports.passes import Passes, Stopped
from rlmm_daemon.ports.storage import ObjectKind, Progress, ReadSource, Source, StoredObject


@dataclass(slots=True)
class Attempt:
    """One `put_segment`, with its own directory for temporary files."""

    root: Root
    directory: str
    stop: threading.Event
    progress: Progress
    passes: Passes

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
        """Return the CRC-32C of what the target holds, which is that of the source."""
        # One that is read meanwhile is not read a second time.
        reads = not isinstance(source, ReadSource)
        copied = self.passes.copy(
            source, target, reads=reads, stop=self.stop, moved=self.progress.moved
        )
        read = copied.read
        if isinstance(source, ReadSource):
            try:
                read = source.checksum()
            except concurrent.futures.CancelledError as error:
                raise Stopped from error
        if read != copied.written:
            raise ChecksumMismatch("the copy differs from its source")
        return copied.written

    def _publish(self, targets: Sequence[str]) -> None:
        """Rename in order. From the first rename on nothing stops this short of a crash.

        The directory is synced before the `.log` gets its name: after a crash a visible `.log`
        still means that all its companions are there. What an earlier attempt stored is replaced,
        never removed: a COPY_SEGMENT_FINISHED may name it. Until the `.log` is replaced, the old
        one stands beside new companions; each of them belongs to the same segment.
        """
        for directory in {_parent(target) for target in targets}:
            make_directories(directory, below=self.root.path)
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
