"""The name of a lock file among all hosts and file systems, and which process here holds it."""

import os
from pathlib import Path
from typing import Final

_BOOT: Final = "/proc/sys/kernel/random/boot_id"
_LOCKS: Final = "/proc/locks"


def place_of(lock: str, boot: str = _BOOT) -> str:
    """Return a name that a copy of the file, or the same one on another host, does not have.

    Two processes that find the same one cannot both hold the lock. "" where nobody can say.

    Source: random(4), boot_id: drawn anew at each boot of the kernel.
    """
    try:
        found = Path(lock).stat()
        return f"{Path(boot).read_text(encoding='ascii').strip()}/{found.st_dev}/{found.st_ino}"
    except (OSError, ValueError):
        return ""


def holder_of(lock: str, locks: str = _LOCKS) -> int | None:
    """Return the process of this machine that holds a file's flock; None: nobody, or not known.

    A process in a namespace of its own is not shown, nor is one on another host.

    Source: proc_locks(5).
    """
    try:
        found = Path(lock).stat()
        rows = [line.split() for line in Path(locks).read_text(encoding="ascii").splitlines()]
    except (OSError, ValueError):
        return None
    device = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}"
    for row in rows:
        # Whoever waits for it has an arrow there.
        if row[1] == "FLOCK" and row[5] == f"{device}:{found.st_ino}" and int(row[4]) > 0:
            return int(row[4])
    return None
