"""Files that root makes among the daemon's, given to whom their directory belongs.

Commands that work without the daemon are typed by root as a rule, and the daemon could not read
what they leave.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_ROOT: Final = 0


@contextmanager
def given_to_owner(home: str, *others: str) -> Iterator[None]:
    """Give what is made or changed in these directories meanwhile to the owner of the first one.

    That is the owner of the nearest directory above it where it is not there yet. Only root gives
    anything away: what is its own, for others write there meanwhile (a broker, where a directory
    was mistyped), and nothing that has another name elsewhere.
    """
    if os.geteuid() != 0:
        yield
        return
    directories = [Path(each) for each in (home, *others)]
    owner, before = _owner(directories[0]), {state for _, state in _below(directories)}
    try:
        yield
    finally:
        for path, state in _below(directories):
            if state not in before:
                with suppress(FileNotFoundError):
                    _give(path, owner)


def _give(path: Path, owner: tuple[int, int]) -> None:
    found = path.lstat()
    ours = found.st_uid == _ROOT and (found.st_uid, found.st_gid) != owner
    if ours and (path.is_dir() or found.st_nlink == 1):
        os.chown(path, *owner, follow_symlinks=False)


def _owner(directory: Path) -> tuple[int, int]:
    there = next(each for each in (directory, *directory.absolute().parents) if each.is_dir())
    found = there.stat()
    return found.st_uid, found.st_gid


def _below(directories: list[Path]) -> Iterator[tuple[Path, tuple[int, int, int]]]:
    """Yield the directories and what is in them; whatever goes meanwhile is somebody else's."""
    for directory in directories:
        for home, inside, files in os.walk(directory):
            own = () if Path(home) != directory else ("",)
            for path in (Path(home, name) for name in (*own, *inside, *files)):
                with suppress(FileNotFoundError):
                    yield path, _state(path)


def _state(path: Path) -> tuple[int, int, int]:
    """Return what tells a file from whatever gets its number later, and is new once it changed."""
    found = path.lstat()
    return found.st_dev, found.st_ino, found.st_ctime_ns
