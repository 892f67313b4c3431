"""The operating system's errors as ours, and what has to happen for them to pass."""

import errno
from typing import Final

from rlmm_daemon.domain.errors import StorageFull, StorageUnavailable, UnavailableError

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_FOR_A_PERSON: Final = frozenset({errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR})
_SHORT: Final = _FULL | {errno.EMFILE, errno.ENFILE, errno.ENOMEM}


def from_os_error(error: OSError) -> UnavailableError:
    """Return the error to answer with: the daemon's own disk failed, which may pass."""
    if error.errno in _FULL:
        return StorageFull("the daemon's own disk is full")
    reason = error.strerror or type(error).__name__
    return StorageUnavailable(f"the daemon's own disk failed: {reason}")


def is_shortage(error: OSError) -> bool:
    """Whether there is no room, memory or descriptor just now: the same call may succeed later."""
    return error.errno in _SHORT


def is_for_a_person(error: OSError) -> bool:
    """Whether a file is not this user's, or no file: nothing changes until somebody mends that."""
    return error.errno in _FOR_A_PERSON


def named(error: OSError, path: str) -> OSError:
    """Return the same error with the file's name, which a failed read does not have."""
    return OSError(error.errno, error.strerror or str(error), path)


def in_words(error: OSError) -> str:
    """Return what failed and where, without the number."""
    reason = error.strerror or type(error).__name__
    return reason if error.filename is None else f"{error.filename}: {reason}"
