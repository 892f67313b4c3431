"""Check whether a device is a disk of this host, or something that may hang with another host."""

import os
from pathlib import Path
from typing import Final

#: Without a block device beneath, and yet nobody else's.
_OURS: Final = frozenset({"btrfs", "overlay", "ramfs", "tmpfs", "zfs"})
_MOUNTS: Final = "/proc/self/mountinfo"


def is_of_this_host(device: int, mounts: str = _MOUNTS) -> bool:
    """Return whether files of this device number (`st_dev`) are reached without a network.

    A block device is taken for a disk, whatever bus it is on: so is that of the broker's own log.
    What is not known is not ours: the answer costs a reader speed, and never more.

    Source: proc_pid_mountinfo(5); a file system without a block device has major number 0.
    """
    if os.major(device):
        return True
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = Path(mounts).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    return any(_kind(line) in _OURS for line in lines if line.split(" ", 3)[2:3] == [wanted])


def _kind(line: str) -> str:
    """Return the file system's type, which follows a lone dash and fields of any number."""
    return line.partition(" - ")[2].partition(" ")[0]
