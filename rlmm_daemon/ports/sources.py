"""Sources of a copy, as `ports.storage.Source`: an open file, or bytes."""

import contextlib
import os
from collections.abc import Iterator

from rlmm_daemon.domain.errors import ChecksumMismatch, StorageUnavailable
from rlmm_daemon.ports.storage import SOURCE_UNREADABLE


class FileSource:
    """`ports.storage.Source` over an open file.

    Raises:
        StorageUnavailable: its disk or mount fails.
    """

    def __init__(self, descriptor: int, name: str) -> None:
        self._descriptor = descriptor
        self.name = name
        with self._told():
            self._opened = _version(descriptor)

    @property
    def size(self) -> int:
        """Bytes when it was opened."""
        return self._opened[0]

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._descriptor

    def pread(self, offset: int, length: int) -> bytes:
        """Return exactly these bytes.

        Raises:
            ChecksumMismatch: the file became shorter.
            StorageUnavailable: its disk or mount fails.
        """
        pieces: list[bytes] = []
        end = offset + length
        while offset < end:
            with self._told():
                piece = os.pread(self._descriptor, end - offset, offset)
            if not piece:
                raise ChecksumMismatch(f"{self.name} became shorter while it was read")
            pieces.append(piece)
            offset += len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def check_unchanged(self) -> None:
        """Make sure that nobody wrote to the file since it was opened.

        Raises:
            ChecksumMismatch: its length or its time of change is another one.
            StorageUnavailable: its disk or mount fails.
        """
        with self._told():
            present = _version(self._descriptor)
        if present != self._opened:
            raise ChecksumMismatch(f"{self.name} changed while it was copied", file=self.name)

    def close(self) -> None:
        """Give the descriptor back; idempotent."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Make the system's error one that ends this copy alone, and blame the right disk."""
        try:
            yield
        except OSError as error:
            raise StorageUnavailable(
                f"{self.name} can't be read: {error.strerror}",
                reason=SOURCE_UNREADABLE,
                file=self.name,
                retry=False,
            ) from error


class BufferSource:
    """`ports.storage.Source` over bytes."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self._body)

    def fileno(self) -> None:
        """Return None: no descriptor."""

    def pread(self, offset: int, length: int) -> bytes:
        """Return these bytes."""
        return self._body[offset : offset + length]


def _version(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_size, status.st_mtime_ns
