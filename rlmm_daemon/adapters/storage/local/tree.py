"""Blocking file calls below a local storage's root: list, delete, control objects; no copies."""

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from rlmm_daemon.adapters.storage.local.copying import NOTE_SEPARATOR
from rlmm_daemon.adapters.storage.local.deletion import Deletion, directory_of
from rlmm_daemon.adapters.storage.local.root import (
    PRIVATE,
    NameTooLong,
    Root,
    open_directory,
    sync_directory,
)
from rlmm_daemon.codec.marker import MARKER_KEY
from rlmm_daemon.domain.errors import RlmmError, StorageUnavailable
from rlmm_daemon.ports.storage import Conflict, ControlObject, ObjectInfo, UploadInfo

PAGE_KEYS: Final = 1000
CONTROL_BYTES_MAX: Final = 16 * 1024 * 1024
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


class Tree:
    """The files of one root, as seen by one owner (a broker id) among several."""

    def __init__(self, root: Root, owner: str, *, reads_only: bool = False) -> None:
        self.root, self._reads_only = root, reads_only
        self._attempts = f"{root.path}/{PRIVATE}/attempts"
        self._locks = f"{root.path}/{PRIVATE}/locks"
        self.own_attempts = f"{self._attempts}/{owner}"
        self._swept = False

    def open(self) -> None:
        """Take the root, make the private area, sweep what a crash of this owner left there.

        Another directory than before is taken if a marker stands in it, as after a mount that has
        come back: whoever saw the marker just before would go on in an empty mount point. Swept
        only once: what is found there later is being written by this very process. Whoever only
        reads makes and sweeps nothing.

        Raises:
            StorageUnavailable: the root is not there, or is another directory than before.
        """
        if self.root.taken and not Path(self.root.file(MARKER_KEY)).is_file():
            self.root.check()
        self.root.take()
        if self._reads_only:
            return
        with self._told("open"):
            self.root.make(self.own_attempts)
            self.root.make(self._locks)
            if self._swept:
                return
            with os.scandir(self.own_attempts) as entries:
                for entry in entries:
                    shutil.rmtree(entry.path, ignore_errors=True)
            self._swept = True

    def absent(self, *keys: str) -> list[str]:
        """Return those of our private directories, and of these others, that are not there yet."""
        private = [f"{self.root.path}/{PRIVATE}", self._attempts, self.own_attempts, self._locks]
        others = [f"{self.root.path}/{key}" for key in keys]
        return [path for path in [*private, *others] if not os.path.lexists(path)]

    def size(self, key: str) -> int | None:
        """Return the size of a regular file, None if it is certainly absent."""
        try:
            path = self.root.file(key)
        except NameTooLong:
            self.root.check()
            return None
        with self.root.told(f"size of {key}"):
            try:
                status = Path(path).lstat()
            except (FileNotFoundError, NotADirectoryError):
                self.root.check()
                self.root.require_links(path)
                return None
        return status.st_size if stat.S_ISREG(status.st_mode) else None

    def delete(self, deletion: Deletion) -> dict[str, RlmmError | None]:
        """Unlink each, then sync each directory once; nobody asks for the rest of one given up."""
        try:
            return self._deleted(deletion)
        finally:
            deletion.ended()

    def _deleted(self, deletion: Deletion) -> dict[str, RlmmError | None]:
        keys = deletion.keys
        results: dict[str, RlmmError | None] = dict.fromkeys(keys)
        names: dict[str, dict[str, str]] = {}
        for key in keys:
            try:
                directory, _, name = self.root.file(key).rpartition("/")
            except NameTooLong:
                continue  # it was never stored
            except RlmmError as error:
                results[key] = error
            else:
                names.setdefault(directory, {})[key] = name
        for directory, inside in names.items():
            if not deletion.enter(directory_of(next(iter(inside)))):
                break
            try:
                with (
                    contextlib.suppress(FileNotFoundError),  # none is there
                    self.root.told(f"delete in {directory}", f"{directory}/"),
                    contextlib.suppress(NotADirectoryError),
                    open_directory(directory) as opened,
                ):
                    self._delete(inside, opened, results, deletion)
            except RlmmError as error:
                results.update(dict.fromkeys(inside, error))
        try:
            # In another directory under the root's name all of it would be absent.
            self.root.check()
        except RlmmError as error:
            results = {key: failed or error for key, failed in results.items()}
        return results

    def _delete(
        self,
        names: Mapping[str, str],
        directory: int,
        results: dict[str, RlmmError | None],
        deletion: Deletion,
    ) -> None:
        gone: list[str] = []
        for key, name in names.items():
            if not deletion.begin(key):
                break
            try:
                with self.root.told(f"delete {key}"), contextlib.suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=directory)
                    gone.append(key)
            except RlmmError as error:
                results[key] = error
            deletion.end(key)
        if not gone:
            return
        try:
            with self.root.told("sync of a delete"):
                os.fsync(directory)
        except RlmmError as error:
            results.update(dict.fromkeys(gone, error))

    def objects(self, prefix: str) -> Iterator[list[ObjectInfo]]:
        """Yield pages of at most PAGE_KEYS; directories are read as they are reached."""
        page: list[ObjectInfo] = []
        with self.root.told("list"):
            self.root.check()
            for entry in self._walk(prefix):
                with contextlib.suppress(FileNotFoundError):  # deleted since it was listed
                    page.append(self._info(entry))
                if len(page) == PAGE_KEYS:
                    yield page
                    page = []
            self.root.check()
        if page:
            yield page

    def uploads(self, prefix: str) -> Iterator[list[UploadInfo]]:
        """Yield one page per attempt, of every owner."""
        with self.root.told("list of uploads"), contextlib.suppress(FileNotFoundError):
            for owner in Path(self._attempts).iterdir():
                for attempt in owner.iterdir():
                    rows = self._attempt(attempt, prefix)
                    if rows:
                        yield rows

    def abort(self, upload: UploadInfo) -> None:
        """Remove an attempt's directory with all its files."""
        owner, _, attempt = upload.upload_id.partition("/")
        # Refuses what would leave the area: the id came from outside.
        self.root.file(f"{owner}/{attempt}")
        with self.root.told("abort"), contextlib.suppress(FileNotFoundError):
            shutil.rmtree(f"{self._attempts}/{owner}/{attempt}")

    def get_control(self, key: str) -> ControlObject | None:
        """Return a small file whole."""
        path = self.root.file(key)
        with self.root.told(f"read of {key}"):
            try:
                data, modified_ms = _read(path)
            except FileNotFoundError:
                self.root.check()
                self.root.require_links(path)
                return None
            if self.root.taken:
                self.root.check()  # else a marker would vouch for what stood here before
        return ControlObject(data=data, etag=etag_of(data), modified_ms=modified_ms)

    def try_put_control(self, key: str, data: bytes, if_etag: str | None) -> str | None:
        """Compare and set under a lock file; None while another process holds the lock."""
        path = self.root.file(key)
        name = hashlib.sha256(key.encode()).hexdigest()
        self.root.check()
        with self._told(f"write of {key}"), Path(f"{self._locks}/{name}").open("wb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return None
            present = self.get_control(key)
            if (present.etag if present else None) != if_etag:
                raise Conflict(key)
            self._replace(path, data)
        return etag_of(data)

    def require_writable(self, key: str) -> None:
        """See that a file could be put in its place: its directory, or the next above, allows it.

        Raises:
            StorageUnavailable: it does not.
        """
        directory = self.root.file(key).rpartition("/")[0]
        while not os.path.lexists(directory):
            directory = directory.rpartition("/")[0]
        if not os.access(directory, os.W_OK | os.X_OK, effective_ids=True):
            raise StorageUnavailable(
                f"write of {key}: this user may not write in {directory}", reason="denied"
            )

    def overwrite_control(self, key: str, data: bytes) -> None:
        """Write a small file by renaming, durably; on a full disk in its own place.

        What frees room waits for it: nothing is deleted while the file is another daemon's.
        """
        path = self.root.file(key)
        self.root.check()
        with self._told(f"write of {key}"):
            try:
                self._replace(path, data)
            except OSError as error:
                if error.errno not in _FULL or not _written_in_place(path, data):
                    raise

    @contextlib.contextmanager
    def _told(self, what: str) -> Iterator[None]:
        """Tell also of what is ours below the root and was removed; `open` makes it anew."""
        try:
            with self.root.told(what):
                yield
        except FileNotFoundError as error:
            raise StorageUnavailable(
                f"{what}: {self.root.path}/{PRIVATE} was removed; a daemon that runs makes it "
                "again within half a minute"
            ) from error

    def _replace(self, path: str, data: bytes) -> None:
        directory = path.rpartition("/")[0]
        if directory != self.root.path:
            self.root.make(directory)
        temporary = f"{self.own_attempts}/control-{os.urandom(8).hex()}"
        Path(temporary).mkdir()
        try:
            with Path(f"{temporary}/0").open("wb") as file:
                file.write(data)
                file.flush()
                os.fdatasync(file.fileno())
            Path(f"{temporary}/0").rename(path)
            sync_directory(directory)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def _walk(self, prefix: str) -> Iterator[os.DirEntry[str]]:
        """Yield regular files whose key begins with `prefix`, symlinks never followed."""
        inside = prefix.rpartition("/")[0]
        try:
            start = self.root.file(inside) if inside else self.root.path
        except NameTooLong:
            return  # nothing is there
        stack = [start]
        while stack:
            directory = stack.pop()
            try:
                entries = os.scandir(directory)
            except (FileNotFoundError, NotADirectoryError):
                self.root.require_links(f"{directory}/")
                continue
            with entries:
                for entry in entries:
                    key = entry.path[len(self.root.path) + 1 :]
                    if entry.is_dir(follow_symlinks=False):
                        if key != PRIVATE and (key.startswith(prefix) or prefix.startswith(key)):
                            stack.append(entry.path)
                    elif key.startswith(prefix) and entry.is_file(follow_symlinks=False):
                        yield entry

    def _info(self, entry: os.DirEntry[str]) -> ObjectInfo:
        status = entry.stat(follow_symlinks=False)
        return ObjectInfo(
            key=entry.path[len(self.root.path) + 1 :],
            size=status.st_size,
            modified_ms=status.st_mtime_ns // 1_000_000,
            etag=f"{status.st_mtime_ns:x}-{status.st_size:x}",
        )

    def _attempt(self, directory: Path, prefix: str) -> list[UploadInfo]:
        upload_id = f"{directory.parent.name}/{directory.name}"
        rows: list[UploadInfo] = []
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            # One for all objects; a daemon before 0.1.0 wrote one for each.
            for note in directory.glob("*.key"):
                keys, begun_ms = note.read_text("utf-8"), note.stat().st_mtime_ns // 1_000_000
                rows.extend(
                    UploadInfo(key=key, upload_id=upload_id, initiated_ms=begun_ms)
                    for key in keys.split(NOTE_SEPARATOR)
                    if key.startswith(prefix)
                )
        return rows


def _read(path: str) -> tuple[bytes, int]:
    """Return a small file, which nobody writes to once it has its name, and when it was written."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # A buffer of the largest size, as a file object takes, is a call of the kernel's by itself.
        status = os.fstat(descriptor)
        data = os.read(descriptor, min(status.st_size, CONTROL_BYTES_MAX))
        return data, status.st_mtime_ns // 1_000_000
    finally:
        os.close(descriptor)


def etag_of(data: bytes) -> str:
    """Return the tag of a control object: equal content is the same version."""
    return hashlib.sha256(data).hexdigest()[:32]


def _written_in_place(path: str, data: bytes) -> bool:
    """Write over a file that is there, durably; False, and it is as it was, without room for it."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if os.fstat(descriptor).st_size < len(data):
            os.posix_fallocate(descriptor, 0, len(data))  # mostly in a block that it has
        os.pwrite(descriptor, data, 0)
        os.ftruncate(descriptor, len(data))
        os.fdatasync(descriptor)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
