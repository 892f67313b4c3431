"""The passes, made by the thread that calls them."""

import errno
import os
import threading
from collections.abc import Callable
from typing import Final, Protocol

from crc32c import crc32c

from rlmm_daemon.codec.segment_check import SegmentChecker
from rlmm_daemon.domain.errors import ChecksumMismatch
from rlmm_daemon.ports.passes import Claims, Copied, PassStopped, Stop
from rlmm_daemon.ports.storage import Source

#: One copy_file_range, and one pread for its checksum. The kernel lets go of the processor between
#: two of them, in few places else: whoever is to answer a look-up waits for one that is long. The
#: stop flag is looked at in between, too.
BLOCK_BYTES: Final = 256 * 1024
#: Writing back begins while the rest is still copied, so that the last sync finds little to do.
WRITE_BACK_BYTES: Final = 64 * 1024 * 1024
#: What file systems answer that cannot copy in the kernel.
_NO_KERNEL_COPY: Final = frozenset(
    {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF}
)


class SegmentCheck(Protocol):
    """Reads a `.log` in order and raises a RlmmError at the first thing that is wrong with it."""

    def feed(self, chunk: bytes, /) -> None:
        """Take the next bytes."""

    def finish(self) -> object:
        """Say that there are no more."""


NewCheck = Callable[[Claims], SegmentCheck]


def kafka_segment_check(claims: Claims) -> SegmentCheck:
    """Return the check of a Kafka segment file against what its metadata claims."""
    return SegmentChecker(
        start_offset=claims.start_offset,
        end_offset=claims.end_offset,
        size_bytes=claims.size_bytes,
    )


class InThreads:
    """`ports.passes.Passes`, each in the thread that calls it."""

    def __init__(self, new_check: NewCheck | None = kafka_segment_check) -> None:
        """`new_check` is what claims are held against; None: nothing is."""
        self._new_check = new_check

    def copy(
        self,
        source: Source,
        target: int,
        *,
        reads: bool,
        stop: Stop,
        moved: Callable[[int], None],
    ) -> Copied:
        """Copy block by block, in the kernel where the file systems allow it."""
        write_back = _WriteBack(target)
        copier = _BlockCopier(source, target)
        written = read = 0
        try:
            for offset in range(0, source.size, BLOCK_BYTES):
                _look_at(stop)
                length = min(BLOCK_BYTES, source.size - offset)
                copier.copy(offset, length)
                if reads:
                    read = crc32c(source.pread(offset, length), read)
                # At its end it must be as long as its source: one byte more has another checksum.
                last = offset + length == source.size
                written = crc32c(os.pread(target, length + last, offset), written)
                moved(length)
                write_back.advance(offset + length)
        finally:
            write_back.finish()
        return Copied(written=written, read=read if reads else None)

    def check(self, source: Source, claims: Claims | None, *, stop: Stop) -> int:
        """Read it from front to back; reading and hashing leave the interpreter to others."""
        check = self._new_check(claims) if self._new_check and claims else None
        found = 0
        for offset in range(0, source.size, BLOCK_BYTES):
            _look_at(stop)
            chunk = source.pread(offset, min(BLOCK_BYTES, source.size - offset))
            found = crc32c(chunk, found)
            if check is not None:
                check.feed(chunk)
        if check is not None:
            check.finish()
        return found


def _look_at(stop: Stop) -> None:
    if stop.is_set():
        raise PassStopped


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
