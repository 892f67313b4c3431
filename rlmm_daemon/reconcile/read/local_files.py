"""Listing of a local storage; what can't be read is never taken for absent."""

import os
import platform
import re
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Final

from rlmm_daemon.adapters.storage.local.root import PRIVATE, broken, broken_link
from rlmm_daemon.codec.marker import MARKER_KEY
from rlmm_daemon.config import LocalStorage
from rlmm_daemon.reconcile.errors import Incomplete

#: What `core.storage.layout` makes: a partition's directory, or the hash bits in front of one.
_PARTITION_OR_HASH: Final = re.compile(
    r"[a-zA-Z0-9._-]{1,249}-[0-9]{1,10}-[A-Za-z0-9_-]{22}|[0-9a-f]{1,8}"
)


def directories(
    storage: LocalStorage, root: str, layouts: Collection[str], note: Callable[[str], object]
) -> list[str]:
    """Return the names of the directories directly below a prefix, the storage's own left out.

    `note` is told of those that no object of a layout can lie in and that can't be looked into.

    Raises:
        Incomplete: the storage did not say.
    """
    home = Path(storage.directory)
    try:
        if not home.is_dir():  # nothing is mounted there
            raise Incomplete(f"there is no directory {str(home)!r}")
        found = []
        for each in [*os.scandir(home / root)]:
            if each.is_symlink() and _may_hold(root + each.name, layouts):
                _check_links(storage, f"{root}{each.name}/")
            if each.is_dir():
                found.append(each.name)
    except FileNotFoundError:
        _check_links(storage, root)
        return []  # no daemon has put anything below this prefix yet
    except OSError as error:
        raise _unreadable(error) from error
    kept = []
    for name in sorted(found):
        if root + name == PRIVATE:
            continue
        reason = "" if _may_hold(root + name, layouts) else _shut(home / root / name)
        if reason:
            note(f"what lies below {str(home / root / name)!r} was not looked at: {reason}")
        else:
            kept.append(name)
    return kept


def _may_hold(path: str, layouts: Collection[str]) -> bool:
    """Return whether a directory may be a partition's, or a part of a layout's prefix."""
    named = _PARTITION_OR_HASH.fullmatch(path.rpartition("/")[2])
    return named is not None or any(f"{layout}/".startswith(f"{path}/") for layout in layouts)


def _shut(directory: Path) -> str:
    """Return why nobody can look into a stranger's directory, `lost+found` for one; "": one can."""
    if _is_no_text(str(directory)):
        return "its name is no UTF-8"
    try:
        os.scandir(directory).close()
    except PermissionError as error:
        return error.strerror or "it is shut"
    except OSError:
        pass  # the walk will tell
    return ""


def below(
    storage: LocalStorage, prefix: str, *, shallow: bool
) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the files below a prefix, `shallow` those directly below it, each by its key.

    Raises:
        Incomplete: the storage did not tell all.
    """
    _check_mounted(storage)
    root = Path(storage.directory)
    start = root / prefix.rpartition("/")[0]
    for directory, names, file_names in os.walk(start, onerror=_told):
        if shallow:
            names.clear()
        for name in file_names:
            key = str((Path(directory) / name).relative_to(root))
            status = look_up(storage, key)
            if status is not None:  # not deleted meanwhile
                yield _as_text(key), status
    _check_mounted(storage)
    _check_links(storage, prefix)


def look_up(storage: LocalStorage, key: str) -> os.stat_result | None:
    """Return what a file is like now, None if it is certainly absent.

    Raises:
        Incomplete: the storage did not say.
    """
    try:
        return (Path(storage.directory) / key).stat()
    except FileNotFoundError:
        _check_mounted(storage)
        _check_links(storage, key)
        return None
    except OSError as error:
        raise _unreadable(error) from error


def _check_links(storage: LocalStorage, key: str) -> None:
    """Make sure that what is absent does not lie on a disk that is linked and not mounted."""
    root = str(Path(storage.directory))
    if (link := broken_link(root, f"{root}/{key}")) is not None:
        raise Incomplete(broken(link))


def _check_mounted(storage: LocalStorage) -> None:
    """Make sure that the storage is what this machine has below the root.

    Whatever was listed is under a layout, which a marker has told: where there is none, nothing is
    mounted any more, or this is another machine of the cluster, one without the mount.
    """
    try:
        (Path(storage.directory) / MARKER_KEY).stat()
    except FileNotFoundError:
        raise Incomplete(
            f"there is no {MARKER_KEY} below {storage.directory!r}:"
            f" the storage is not mounted here ({platform.node()})"
        ) from None
    except OSError as error:
        raise _unreadable(error) from error


def _is_no_text(name: str) -> bool:
    return _as_text(name) != name


def _as_text(name: str) -> str:
    """Return a name for people where it is no UTF-8; then it is no key that a daemon made."""
    return os.fsencode(name).decode("utf-8", "replace")


def _told(error: OSError) -> None:
    """Keep a walk from passing over what it can't read, as it would."""
    if not isinstance(error, FileNotFoundError):  # deleted meanwhile
        raise _unreadable(error) from error


def _unreadable(error: OSError) -> Incomplete:
    return Incomplete(f"listing {error.filename!r} was cut short: {error.strerror}")
