"""An attempt to store a segment: copy to temporary names, verify, sync, rename into place.

Everything here blocks, in one worker thread; `stop` ends it soon, short of the renames.
"""

import concurrent.futures
import contextlib
import os
import shutil
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from rlmm_daemon.adapters.storage.local.root import (
    Root,
    open_directory,
)
from rlmm_daemon.domain.errors import ChecksumMismatch, StorageFull
from rlmm_daemon.ports.passes import Passes, PassStopped
from rlmm_daemon.ports.storage import ObjectKind, Progress, ReadSource, Source, StoredObject

#: Names what an attempt stores, beside the files: a key may be longer than one file name.
NOTE: Final = "0.key"
#: Between a note's keys, of which none holds it.
NOTE_SEPARATOR: Final = "\0"
#: Companions up to this size are all on their way to the disk before the `.log` is waited for.
EARLY_BYTES: Final = 1024 * 1024
_NEW_FILE: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


class Attempt(msgspec.Struct):
    """One `put_segment`, with its own directory for temporary files."""

    root: Root
    directory: str
    stop: threading.Event
    progress: Progress
    passes: Passes
    #: Descriptors of temporary files that are whole, and not durable yet.
    _unsynced: list[int] = msgspec.field(default_factory=list)

    def run(self, objects: Sequence[tuple[ObjectKind, str, Source]]) -> list[StoredObject]:
        """Store all objects, the `.log` visible last and only when all is durable.

        They go into the directory that the root is now, also where another one has its name later.
        """
        with self.root.opened() as root:
            return self._run(objects, root)

    def _run(
        self, objects: Sequence[tuple[ObjectKind, str, Source]], root: int
    ) -> list[StoredObject]:
        progress, keys = self.progress, [key for _, key, _ in objects]
        progress.phase, progress.bytes_total = "upload", sum(s.size for _, _, s in objects)
        self._require_space()
        Path(self.directory).mkdir()
        try:
            with open_directory(self.directory) as home:
                progress.write_begun = True
                self._note(keys, home)
                stored = self._store_all(objects, home)
                self._check_stop()
                progress.call = "rename"
                self._publish(keys, home, root)
        except BaseException:
            shutil.rmtree(self.directory, ignore_errors=True)
            raise
        self._clear()
        return stored

    def _clear(self) -> None:
        """Remove what all the renames left; the segment is stored, whatever this comes to."""
        try:
            Path(f"{self.directory}/{NOTE}").unlink()
            Path(self.directory).rmdir()
        except OSError:
            shutil.rmtree(self.directory, ignore_errors=True)

    def _require_space(self) -> None:
        status = os.statvfs(self.root.path)
        free = status.f_bavail * status.f_frsize
        if self.progress.bytes_total > free:
            raise StorageFull(needed_bytes=self.progress.bytes_total, free_bytes=free)

    def _note(self, keys: Sequence[str], home: int) -> None:
        note = os.open(NOTE, _NEW_FILE, 0o644, dir_fd=home)
        try:
            # On a full disk it may be cut short, and then nothing that it names is stored either.
            os.write(note, NOTE_SEPARATOR.join(keys).encode())
        finally:
            os.close(note)

    def _store_all(
        self, objects: Sequence[tuple[ObjectKind, str, Source]], home: int
    ) -> list[StoredObject]:
        stored: list[StoredObject] = []
        try:
            for number, (kind, key, source) in enumerate(objects):
                self.progress.call = f"copy {kind.value}"
                target = os.open(str(number), _NEW_FILE, 0o644, dir_fd=home)
                self._unsynced.append(target)
                stored.append(self._store(kind, key, source, target))
                if kind is ObjectKind.LOG:  # a segment ends with it
                    self._sync_files()
            self._sync_files()
        finally:
            self._close_files()
        return stored

    def _store(self, kind: ObjectKind, key: str, source: Source, target: int) -> StoredObject:
        before = _status(source)
        crc32c = self._copy(kind, source, target)
        if _status(source) != before:
            raise ChecksumMismatch(f"the source of {key} changed while it was copied", key=key)
        if kind is not ObjectKind.LOG and source.size <= EARLY_BYTES:
            _begin_write_back(target)
        return StoredObject(key=key, size=source.size, crc32c=crc32c)

    def _copy(self, kind: ObjectKind, source: Source, target: int) -> int:
        """Return the CRC-32C of what the target holds, which is that of the source."""
        # A `.log` that is read by somebody else is not read a second time.
        elsewhere = source if kind is ObjectKind.LOG and isinstance(source, ReadSource) else None
        copied = self.passes.copy(
            source, target, reads=elsewhere is None, stop=self.stop, moved=self.progress.moved
        )
        read = copied.read
        if elsewhere is not None:
            try:
                read = elsewhere.checksum()
            except concurrent.futures.CancelledError as error:
                raise PassStopped from error
        if read != copied.written:
            raise ChecksumMismatch("the copy differs from its source")
        return copied.written

    def _sync_files(self) -> None:
        # The last one first, which alone is not on its way yet.
        for target in reversed(self._unsynced):
            os.fdatasync(target)
        self.progress.parts_done += len(self._unsynced)
        self._close_files()

    def _close_files(self) -> None:
        while self._unsynced:
            os.close(self._unsynced.pop())

    def _publish(self, keys: Sequence[str], home: int, root: int) -> None:
        """Rename in order. From the first rename on nothing stops this short of a crash.

        The directory is synced before the `.log` gets its name: after a crash a visible `.log`
        still means that all its companions are there. What an earlier attempt stored is replaced,
        never removed: a COPY_SEGMENT_FINISHED may name it. Until the `.log` is replaced, the old
        one stands beside new companions; each of them belongs to the same segment.
        """
        places = [_split(key) for key in keys]
        with contextlib.ExitStack() as held:
            opened: dict[str, int] = {}
            for directory, _ in places:
                if directory not in opened:
                    entered = self.root.entered(directory, root)
                    opened[directory] = held.enter_context(entered)
            self._check_stop()  # the directories may have hung, and nobody waits any more
            for number, (directory, name) in enumerate(places):
                if number == len(places) - 1:
                    _sync_names({opened[directory] for directory, _ in places[:-1]})
                os.rename(str(number), name, src_dir_fd=home, dst_dir_fd=opened[directory])
            _sync_names({opened[places[-1][0]]})

    def _check_stop(self) -> None:
        if self.stop.is_set():
            raise PassStopped


def _begin_write_back(target: int) -> None:
    """Have the disk take a file now, without waiting: a hint.

    What a file system notes of it in its journal is then in one transaction with the others'.
    """
    with contextlib.suppress(OSError):
        os.posix_fadvise(target, 0, 0, os.POSIX_FADV_DONTNEED)


def _sync_names(directories: Iterable[int]) -> None:
    for directory in directories:
        os.fsync(directory)


def _split(path: str) -> tuple[str, str]:
    directory, _, name = path.rpartition("/")
    return directory or ".", name


def _status(source: Source) -> tuple[int, int, int] | None:
    descriptor = source.fileno()
    if descriptor is None:
        return None
    status = os.fstat(descriptor)
    if status.st_size != source.size:
        raise ChecksumMismatch("the source is not as long as it was when it was opened")
    return status.st_size, status.st_mtime_ns, status.st_ino
