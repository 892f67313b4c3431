"""A run's directory for what only the run itself needs: gone when it ends, however it ended.

Listing and log, written down, are large. A run that is killed can't take them away, so the next one
does: a lock, which dies with its process, says whose are still needed.
"""

import contextlib
import fcntl
import platform
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

WORK: Final = "work"
#: What a run did, a line each; kept when the rest of it is removed.
AUDIT: Final = "audit.jsonl"
_LOCK: Final = ".alive"


@contextmanager
def kept(run: Path) -> Iterator[Path]:
    """Make a run's directory and yield the one to work in, which is removed afterwards."""
    work = run / WORK
    work.mkdir(parents=True)
    try:
        fresh = work / f"{_LOCK}.fresh"
        with fresh.open("w") as lock:
            lock.write(platform.node())
            lock.flush()
            with contextlib.suppress(OSError):  # no locks there: then it is nobody's to remove
                fcntl.flock(lock, fcntl.LOCK_EX)
                fresh.rename(work / _LOCK)  # never there without its lock
            sweep(run.parent)
            yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def sweep(home: Path) -> None:
    """Remove what killed runs have left to work with; their findings and audit logs stay."""
    for work in home.glob(f"*/{WORK}"):
        try:
            with (work / _LOCK).open() as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # A shared directory may keep its locks to each machine.
                if lock.read() == platform.node():
                    shutil.rmtree(work, ignore_errors=True)
        except OSError:
            continue  # another run's that lives, or one that is just being made
