"""Source files of a copy: only those of the partition's own directory, and no links.

The paths come over the socket, so they are wishes. Each component below a configured log directory
is opened with O_NOFOLLOW from its parent's descriptor, only regular files pass, and from then on
only the descriptor is read: what the name becomes later does not matter. All of this blocks.
"""

import contextlib
import os
import stat
from collections.abc import Iterator, Sequence
from typing import Final

from rlmm_daemon.codec.api import SegmentFiles
from rlmm_daemon.domain.errors import InvalidArgument, PathNotAllowed
from rlmm_daemon.domain.ids import TopicIdPartition
from rlmm_daemon.domain.segment import SegmentMetadata
from rlmm_daemon.observability.escape import escape
from rlmm_daemon.ports.sources import BufferSource, FileSource
from rlmm_daemon.ports.storage import ObjectKind, Source

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_SHOWN_CHARACTERS: Final = 512
#: O_NONBLOCK: opening a FIFO must not wait for its writer.
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class SegmentSources:
    """What is to be stored of one segment, in upload order."""

    def __init__(self, objects: Sequence[tuple[ObjectKind, FileSource | BufferSource]]) -> None:
        self.objects = objects

    @property
    def log(self) -> Source:
        """The `.log`, which is the last."""
        return self.objects[-1][1]

    def check_unchanged(self) -> None:
        """Make sure that no file was written to since it was opened.

        Raises:
            ChecksumMismatch: one was.
        """
        for _, source in self.objects:
            if isinstance(source, FileSource):
                source.check_unchanged()

    def close(self) -> None:
        """Close all files; idempotent."""
        for _, source in self.objects:
            if isinstance(source, FileSource):
                source.close()


def open_sources(
    metadata: SegmentMetadata, files: SegmentFiles, log_dirs: Sequence[str]
) -> SegmentSources:
    """Open a segment's files under the path rule. The transaction index is what was recorded.

    Raises:
        PathNotAllowed: a path outside the partition's directory, a symbolic link, no regular file.
        InvalidArgument: a file that is not there, a length or a transaction index that
            contradicts the metadata.
    """
    wanted = {
        ObjectKind.OFFSET: files.offset_index,
        ObjectKind.TIMESTAMP: files.time_index,
        ObjectKind.TRANSACTION: files.transaction_index,
        ObjectKind.PRODUCER_SNAPSHOT: files.producer_snapshot,
        ObjectKind.LOG: files.log,
    }
    opened: list[tuple[ObjectKind, FileSource | BufferSource]] = []
    sources = SegmentSources(opened)
    try:
        with _Directories() as directories:
            for kind in ObjectKind:
                if kind is ObjectKind.LEADER_EPOCH:
                    opened.append((kind, BufferSource(files.leader_epoch_checkpoint)))
                elif (path := wanted[kind]) is not None:
                    source = _open_source(metadata.partition, path, log_dirs, directories)
                    opened.append((kind, source))
        _settle_transaction_index(metadata, opened)
        if sources.log.size != metadata.segment_size_bytes:
            raise InvalidArgument(
                f"{_shown(files.log)} has {sources.log.size} bytes, its metadata says "
                f"{metadata.segment_size_bytes}"
            )
    except BaseException:
        sources.close()
        raise
    return sources


class _Directories(contextlib.ExitStack):
    """Directories of one partition, each opened once for all files of a segment in it."""

    def __init__(self) -> None:
        super().__init__()
        self._opened: dict[str, int] = {}

    def open(self, root: str, name: str) -> int:
        """Return the descriptor of the directory below that log directory."""
        if root not in self._opened:
            top = os.open(root, _DIRECTORY)
            try:
                self._opened[root] = os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=top)
            finally:
                os.close(top)
            self.callback(os.close, self._opened[root])
        return self._opened[root]


def _open_source(
    partition: TopicIdPartition, path: str, log_dirs: Sequence[str], directories: _Directories
) -> FileSource:
    if not _can_be_a_path(path):
        raise PathNotAllowed(f"{_shown(path)} is no path that a file can have", path=_shown(path))
    directory = f"{partition.topic}-{partition.partition}"
    for log_dir in log_dirs:
        root = "/" + log_dir.strip("/")
        parts = path.removeprefix(f"{root}/").split("/")
        if path.startswith(f"{root}/") and len(parts) == len((directory, "name")):
            if parts[0] != directory or parts[1] in {"", ".", ".."}:
                break
            with _told(path):
                return FileSource(_open_in(directories.open(root, directory), parts[1]), path)
    shown = _shown(path)
    where = f"{_shown(directory)}/ under a log directory"
    raise PathNotAllowed(f"{shown} does not lie in {where}", path=shown)


def _can_be_a_path(path: str) -> bool:
    """Whether the system can be asked for it, and an answer can name it."""
    try:
        return b"\0" not in path.encode()
    except UnicodeEncodeError:  # half a character
        return False


def _shown(path: str) -> str:
    """Return a caller's path as an answer may name it: printable, and no longer than one line."""
    text = escape(path[:_SHOWN_CHARACTERS])
    return text if len(path) <= _SHOWN_CHARACTERS else f"{text}..."


def _open_in(directory: int, name: str) -> int:
    # Looked at before it is opened too: opening a device may do something.
    if not stat.S_ISREG(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
        raise PathNotAllowed(f"{_shown(name)} is not a regular file", path=_shown(name))
    descriptor = os.open(name, _FILE, dir_fd=directory)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise PathNotAllowed(f"{_shown(name)} is not a regular file", path=_shown(name))
    return descriptor


def _settle_transaction_index(
    metadata: SegmentMetadata, opened: list[tuple[ObjectKind, FileSource | BufferSource]]
) -> None:
    """Keep the transaction index only if one was recorded; a contradiction is refused.

    An index lost here would later read as "no aborted transactions".
    """
    given = next((row for row in opened if row[0] is ObjectKind.TRANSACTION), None)
    if metadata.txn_index_empty and given is not None:
        if given[1].size:
            raise InvalidArgument("the transaction index is recorded as empty and is not")
        opened.remove(given)
        if isinstance(given[1], FileSource):
            given[1].close()
    if not metadata.txn_index_empty and given is None:
        raise InvalidArgument("the metadata records a transaction index and none was given")


@contextlib.contextmanager
def _told(path: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise InvalidArgument(f"{_shown(path)}: no such file", path=_shown(path)) from error
    except OSError as error:
        raise PathNotAllowed(f"{_shown(path)}: {error.strerror}", path=_shown(path)) from error
