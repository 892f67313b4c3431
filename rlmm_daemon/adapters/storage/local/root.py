"""The directory that a local storage lives in: which path a key has, and whether it is there."""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rlmm_daemon.domain.errors import (
    InvalidArgument,
    RlmmError,
    StorageFull,
    StorageUnavailable,
)

#: Ours below the root, invisible to listings: temporary files and lock files.
PRIVATE: Final = ".rlmm"
#: The reason of an error: a link below the root leads nowhere.
BROKEN_LINK: Final = "broken_link"
_NAME_BYTES_MAX: Final = 255
#: Directories that are known to be durable, each some dozen bytes.
_DURABLE_MAX: Final = 65_536
_NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class NameTooLong(InvalidArgument):
    """A key that no file can have: of a topic whose name is nearly as long as Kafka allows."""


class Root:
    """A root that must exist already: one that vanished is unmounted, not empty."""

    def __init__(self, path: str) -> None:
        self._here = Path(path).absolute()
        self.path = str(self._here)
        self._identity: tuple[int, int] | None = None
        #: Directories whose names this process has made durable. Whoever made one that was found
        #: may have been killed, or have met an error, before the sync.
        self._durable: set[tuple[int, int]] = set()

    @property
    def taken(self) -> bool:
        """Whether it was there once, so that another one in its place is told apart."""
        return self._identity is not None

    def take(self) -> None:
        """Remember which directory this is.

        Raises:
            StorageUnavailable: it is not there, or not a directory.
        """
        self._identity = self._look()

    def check(self) -> None:
        """Make sure that this is still the directory that was taken.

        An unmounted file system leaves an empty directory behind, in which everything is absent.

        Raises:
            StorageUnavailable: it is another one now, or none.
        """
        self._require_taken(self._look())

    @contextlib.contextmanager
    def opened(self) -> Iterator[int]:
        """Give the taken directory's descriptor, good whatever its name stands for later.

        Raises:
            StorageUnavailable: another directory has the name by now.
        """
        with open_directory(self.path) as descriptor:
            status = os.fstat(descriptor)
            self._require_taken((status.st_dev, status.st_ino))
            yield descriptor

    def file(self, key: str) -> str:
        """Return the path of a key.

        Raises:
            InvalidArgument: the key would leave the root, or names something private of ours.
            NameTooLong: no file can have it, so none has.
        """
        parts = key.split("/")
        if parts[0] == PRIVATE or {"", ".", ".."} & set(parts) or "\0" in key:
            raise InvalidArgument(f"{key!r} is not a key of this storage")
        longest = max(len(os.fsencode(part)) for part in parts)
        if longest > _NAME_BYTES_MAX:
            raise NameTooLong(
                f"{key!r} is not a key of this storage: a name of {longest} bytes is in it, and a "
                f"file's has at most {_NAME_BYTES_MAX}"
            )
        return f"{self.path}/{key}"

    def make(self, path: str) -> None:
        """Create what is missing of a directory below the root, durably."""
        with (
            open_directory(self.path) as root,
            self.entered(path.removeprefix(f"{self.path}/"), root),
        ):
            return

    @contextlib.contextmanager
    def entered(self, directory: str, root: int) -> Iterator[int]:
        """Give the descriptor of a directory below the open root: made if need be, and durable."""
        if not self._is_durable(directory, root):
            _make_directories(root, directory)
        with open_directory(directory, within=root) as found:
            self._durable.add(_identity_of(os.fstat(found)))
            yield found

    def _is_durable(self, directory: str, root: int) -> bool:
        """Whether this process made its name durable, or has seen to that."""
        if len(self._durable) >= _DURABLE_MAX:
            self._durable.clear()
        try:
            status = os.stat(directory, dir_fd=root)
        except FileNotFoundError:
            return False
        return _identity_of(status) in self._durable

    def require_links(self, path: str) -> None:
        """Make sure that what is absent below the root does not lie behind a broken link.

        Raises:
            StorageUnavailable: it does.
        """
        if (link := broken_link(self.path, path)) is not None:
            raise StorageUnavailable(broken(link), reason=BROKEN_LINK)

    @contextlib.contextmanager
    def told(self, what: str, *paths: str) -> Iterator[None]:
        """Turn the system's errors into ours; FileNotFoundError passes if the root is there.

        Raises:
            StorageFull: no space or quota is left.
            StorageUnavailable: the root is gone, one of the paths lies behind a broken link, or
                any other fault of the file system.
        """
        try:
            yield
        except FileNotFoundError:
            self.check()
            for path in paths:
                self.require_links(path)
            raise
        except OSError as error:
            raise translated(error, what) from error

    def _require_taken(self, found: tuple[int, int]) -> None:
        if found != self._identity:
            raise StorageUnavailable(f"storage root {self.path} is another directory than before")

    def _look(self) -> tuple[int, int]:
        try:
            status = self._here.stat()
        except OSError as error:
            raise StorageUnavailable(
                f"storage root {self.path} is not there: {error.strerror}"
            ) from error
        return status.st_dev, status.st_ino


def broken_link(root: str, path: str) -> str | None:
    """Return a link that leads nowhere, and behind which an absent file below a root would lie.

    A directory that was moved to another disk, and linked, is away while that is not mounted.
    """
    directory = path.rpartition("/")[0]
    while len(directory) > len(root) and not os.path.lexists(directory):
        directory = directory.rpartition("/")[0]
    found = Path(directory)
    return directory if found.is_symlink() and not found.exists() else None


def broken(link: str) -> str:
    """Say what is wrong with a broken link."""
    return f"{link} is a link to what is not there: is a disk not mounted?"


def translated(error: OSError, what: str) -> RlmmError:
    """Return our error for the system's."""
    kind = StorageFull if error.errno in _NO_SPACE else StorageUnavailable
    return kind(f"{what}: {error.strerror}", errno=errno.errorcode.get(error.errno or 0, "?"))


@contextlib.contextmanager
def open_directory(path: str, *, within: int | None = None) -> Iterator[int]:
    """Give a directory's descriptor, good for `dir_fd` and `fsync`; `within` is another one's."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=within)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def sync_directory(path: str) -> None:
    """Make the names in a directory durable."""
    with open_directory(path) as descriptor:
        os.fsync(descriptor)


def _identity_of(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _make_directories(root: int, path: str) -> None:
    """Create what is missing of a relative path below an open directory, all of it durably."""
    made = "."
    for name in path.split("/"):
        with open_directory(made, within=root) as parent:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, dir_fd=parent)
            os.fsync(parent)
        made = f"{made}/{name}"
