"""A file system without room, as this process sees it below one directory: no mount is needed.

What would take more room fails with ENOSPC while the flag is there; what is written in its own
place, cut or removed goes on, as on a real one.
"""

import errno
import os
from pathlib import Path
from typing import Any, Final

#: Names the flag's file, in a directory beside the one that is full: `DIRECTORY=FLAG`.
VARIABLE: Final = "FULL_DISK"


def install(below: str, flag: str) -> None:
    """Put the checks before the calls that the daemon's disk makes."""
    home, sign = str(Path(below).resolve()), Path(flag)
    pwrite, write, mkdir = os.pwrite, os.write, os.mkdir

    def check(descriptor: int, end: int) -> None:
        path = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        if path.startswith(home) and end > os.fstat(descriptor).st_size and sign.exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    def checked_pwrite(descriptor: int, data: Any, offset: int) -> int:
        check(descriptor, offset + len(data))
        return pwrite(descriptor, data, offset)

    def checked_write(descriptor: int, data: Any) -> int:
        if str(Path(f"/proc/self/fd/{descriptor}").readlink()).startswith(home):
            check(descriptor, os.lseek(descriptor, 0, os.SEEK_CUR) + len(data))
        return write(descriptor, data)

    def checked_mkdir(path: Any, *arguments: Any, **named: Any) -> None:
        if str(Path(path).absolute()).startswith(home) and sign.exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        mkdir(path, *arguments, **named)

    for call in (checked_pwrite, checked_write, checked_mkdir):
        setattr(os, call.__name__.removeprefix("checked_"), call)
