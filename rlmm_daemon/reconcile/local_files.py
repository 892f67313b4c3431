"""What lies below the root of a local storage; what can't be read is never taken for absent."""

import os
from collections.abc import Iterator
from pathlib import Path

from rlmm_daemon.config import LocalStorage
from rlmm_daemon.reconcile.errors import Incomplete


def directories(storage: LocalStorage, root: str) -> list[str]:
    """Return the names of the directories directly below a prefix.

    Raises:
        Incomplete: the storage did not say.
    """
    home = Path(storage.directory)
    try:
        if not home.is_dir():  # nothing is mounted there
            raise Incomplete(f"there is no directory {str(home)!r}")
        return sorted(each.name for each in os.scandir(home / root) if each.is_dir())
    except FileNotFoundError:
        return []  # no daemon has put anything below this prefix yet
    except OSError as error:
        raise _unreadable(error) from error


def below(
    storage: LocalStorage, prefix: str, *, shallow: bool
) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the files below a prefix, `shallow` those directly below it, each by its key.

    Raises:
        Incomplete: the storage did not tell all.
    """
    root = Path(storage.directory)
    start = root / prefix.rpartition("/")[0]
    for directory, names, file_names in os.walk(start, onerror=_told):
        if shallow:
            names.clear()
        for name in file_names:
            key = str((Path(directory) / name).relative_to(root))
            status = look_up(storage, key)
            if status is not None:  # not deleted meanwhile
                yield key, status


def look_up(storage: LocalStorage, key: str) -> os.stat_result | None:
    """Return what a file is like now, None if it is certainly absent.

    Raises:
        Incomplete: the storage did not say.
    """
    try:
        return (Path(storage.directory) / key).stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unreadable(error) from error


def _told(error: OSError) -> None:
    """Keep a walk from passing over what it can't read, as it would."""
    if not isinstance(error, FileNotFoundError):  # deleted meanwhile
        raise _unreadable(error) from error


def _unreadable(error: OSError) -> Incomplete:
    return Incomplete(f"listing {error.filename!r} was cut short: {error.strerror}")
