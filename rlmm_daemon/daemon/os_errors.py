"""The operating system's errors as ours, and those that pass once somebody gives something back."""

import errno
from typing import Final

from rlmm_daemon.domain.errors import StorageFull, StorageUnavailable, UnavailableError

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
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
