"""The name of a lock file among all hosts and file systems, as long as its host runs."""

from pathlib import Path
from typing import Final

_BOOT: Final = "/proc/sys/kernel/random/boot_id"


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
