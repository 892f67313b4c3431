"""The operating system's errors as ours, for requests that met one."""

import errno

from rlmm_daemon.domain.errors import StorageFull, StorageUnavailable, UnavailableError


def from_os_error(error: OSError) -> UnavailableError:
    """Return the error to answer with: the daemon's own disk failed, which may pass."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageFull("the daemon's own disk is full")
    reason = error.strerror or type(error).__name__
    return StorageUnavailable(f"the daemon's own disk failed: {reason}")
