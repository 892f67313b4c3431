"""Who holds a lock file, as the kernel tells."""

import fcntl
import os
from pathlib import Path

from rlmm_daemon.adapters.os.lock_place import holder_of


def test_the_process_that_holds_a_lock_is_named_and_none_else(tmp_path: Path) -> None:
    lock, other = tmp_path / "lock", tmp_path / "other"
    other.touch()
    assert holder_of(str(lock)) is None
    with lock.open("w") as file:
        assert holder_of(str(lock)) is None
        fcntl.flock(file, fcntl.LOCK_EX)
        assert holder_of(str(lock)) == os.getpid()
        assert holder_of(str(other)) is None
        assert holder_of(str(lock), f"{tmp_path}/no locks") is None
        waits = tmp_path / "locks"
        found = lock.stat()
        device = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}"
        row = f"FLOCK ADVISORY WRITE 7 {device}:{found.st_ino} 0 EOF"
        waits.write_text(f"1: -> {row}\n2: {row.replace('FLOCK', 'POSIX')}\n")
        assert holder_of(str(lock), str(waits)) is None
        waits.write_text(f"1: {row}\n")
        assert holder_of(str(lock), str(waits)) == 7
    assert holder_of(str(lock)) is None
