"""Check whether the kernel has a file's pages in memory, without waiting for a disk."""

import errno
import os

#: What one `preadv` says of a page that would have to be read first.
_NOT_NOW = errno.EAGAIN


def is_cached(file: int, start: int, end: int) -> bool:
    """Return whether the first and last page are in the page cache.

    The kernel reads ahead, so a window whose ends are there is there. A file system that cannot
    tell (EOPNOTSUPP) counts as not cached: a thread costs little, a stalled loop much.
    """
    return _probe(file, start, end) == 0


def comes_from_disk(file: int, start: int, end: int) -> bool:
    """Return whether reading would certainly go to the disk; False where it cannot be told."""
    return _probe(file, start, end) == _NOT_NOW


def _probe(file: int, start: int, end: int) -> int:
    """Return 0, or the errno of the first page that is not there."""
    one = bytearray(1)
    try:
        for at in (start, end - 1):
            os.preadv(file, [one], at, os.RWF_NOWAIT)
    except OSError as error:
        return error.errno or errno.EIO
    return 0
