"""Facts of the machine for a support bundle: versions, units, journal, process, disks."""

import os
import platform
import pwd
import re
import socket
import stat
import struct
import subprocess
import sys
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from rlmm_daemon import __version__
from rlmm_daemon.core import phrases
from rlmm_daemon.domain.errors import DaemonUnreachable
from rlmm_daemon.observability.escape import escape


class PeerProcess(NamedTuple):
    """The process on the other side of a socket."""

    pid: int
    uid: int


UNITS: Final = ("rlmm-daemon.service", "rlmm-reconcile.service", "rlmm-reconcile.timer")
#: Of one program that is asked.
SECONDS: Final = 10.0
#: Rows of a listing.
_ROWS_MAX: Final = 5_000
#: Of the journal.
_LINES_MAX: Final = 20_000
_OF_PROCESS: Final = ("cmdline", "status", "limits", "smaps_rollup", "wchan")
#: Files of the state directory that are small and say what the daemon knows.
_SMALL: Final = re.compile(r"\.json$|\.txt$|^lock$")
_SMALL_BYTES_MAX: Final = 64 * 1024
_NO_LINK: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK


def versions() -> str:
    """Return the versions of everything that takes part."""
    needed = (re.match(r"[\w.-]+", each) for each in metadata.requires("rlmm-daemon") or ())
    libraries = dict[str, str]()
    for name in sorted({each[0] for each in needed if each}):
        with suppress(metadata.PackageNotFoundError):
            libraries[name] = metadata.version(name)
    os_release = dict[str, str]()
    with suppress(OSError):
        os_release = platform.freedesktop_os_release()
    return in_json(
        {
            "rlmm": __version__,
            "python": sys.version,
            "executable": sys.executable,
            "system": platform.platform(),
            "distribution": os_release.get("PRETTY_NAME"),
            "processors": os.cpu_count(),
            "libraries": libraries,
        }
    )


def in_json(value: object) -> str:
    """Return a value as JSON that a person can read."""
    return msgspec.json.format(msgspec.json.encode(value), indent=1).decode() + "\n"


def said(*words: str, seconds: float = SECONDS) -> str:
    """Return what a program prints, errors included.

    Raises:
        OSError: there is no such program.
        TimeoutError: it did not end; it was killed, and nobody waits for it.
    """
    process = subprocess.Popen(  # noqa: S603 - words of ours
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=os.environ | {"LC_ALL": "C.UTF-8", "SYSTEMD_COLORS": "0"},
    )
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired as error:
        process.kill()
        raise TimeoutError(f"{words[0]} did not end within {seconds:g} s") from error
    return output.decode(errors="replace")


def units() -> str:
    """Return state and text of the daemon's units, drop-ins included."""
    return "\n".join(
        said("systemctl", verb, "--no-pager", *UNITS) for verb in ("status", "show", "cat")
    )


def journal() -> str:
    """Return the last lines that the daemon and the nightly job wrote to the journal."""
    of = [word for unit in UNITS[:2] for word in ("-u", unit)]
    return said("journalctl", "--no-pager", "-o", "short-iso", "-n", str(_LINES_MAX), *of)


def last_lines(file: str, bytes_max: int) -> str:
    """Return the end of a log file."""
    with Path(file).open("rb") as log:
        log.seek(max(0, os.fstat(log.fileno()).st_size - bytes_max))
        return log.read(bytes_max).decode(errors="replace")


def process(socket_path: str) -> str:
    """Return what the kernel says of the process that listens on the socket.

    Raises:
        DaemonUnreachable: nobody does.
    """
    pid = listener(socket_path).pid
    told = [f"pid {pid}, as SO_PEERCRED of {socket_path} says"]
    for name in _OF_PROCESS:
        try:
            text = Path(f"/proc/{pid}/{name}").read_text(errors="replace").replace("\0", " ")
        except OSError as error:
            text = f"{error.strerror}\n"
        told.append(f"== {name}\n{text}")
    with suppress(OSError):
        told.append(f"== open descriptors: {len(list(Path(f'/proc/{pid}/fd').iterdir()))}")
    return "\n".join(told)


def listener(path: str) -> PeerProcess:
    """Return who listens on a Unix socket, by the kernel's word.

    Raises:
        DaemonUnreachable: nobody does.
    """
    with socket.socket(socket.AF_UNIX) as connected:
        connected.settimeout(SECONDS)
        try:
            connected.connect(path)
        except OSError as error:
            raise DaemonUnreachable(f"nobody listens on {path}: {error.strerror}") from error
        told = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", told)
    return PeerProcess(pid, uid)


def metrics(listen: str) -> str:
    """Return /metrics of the admin port."""
    with urllib.request.urlopen(f"http://{listen}/metrics", timeout=SECONDS) as answer:
        text: bytes = answer.read()
    return text.decode(errors="replace")


def listing(directories: Iterable[str]) -> str:
    """Return every file below some directories: mode, owner, size, time; bounded."""
    rows = list[str]()
    for directory in directories:
        rows.append(f"== {directory}")
        for path in _below(directory):
            if len(rows) >= _ROWS_MAX:
                return "\n".join([*rows, f"... only the first {_ROWS_MAX:,} rows"])
            rows.append(_row(path))
    return "\n".join(rows) + "\n"


def _below(directory: str) -> Iterator[str]:
    yield directory
    for parent, names, files in os.walk(directory):
        names.sort()
        yield from (f"{parent}/{name}" for name in (*names, *sorted(files)))


def _row(path: str) -> str:
    try:
        found = os.lstat(path)
    except OSError as error:
        return f"{escape(path)}: {error.strerror}"
    at = datetime.fromtimestamp(found.st_mtime, UTC).isoformat(timespec="seconds")
    mode = stat.filemode(found.st_mode)
    return f"{mode} {_owner(found.st_uid)} {found.st_gid} {found.st_size:>14,} {at} {escape(path)}"


def _owner(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def small_files(directory: str) -> str:
    """Return the small files of a state directory, each under its name."""
    told = list[str]()
    for path in sorted(Path(directory).iterdir()):
        if _SMALL.search(name := path.name):
            try:
                # A link may lead anywhere, for root to read; a FIFO would wait for a writer.
                with open(os.open(path, _NO_LINK), "rb") as file:  # noqa: PTH123 - a descriptor
                    text = file.read(_SMALL_BYTES_MAX).decode(errors="replace")
                    size = os.fstat(file.fileno()).st_size
            except OSError as error:
                told.append(f"== {escape(name)}: {error.strerror}")
                continue
            cut = f", the first {_SMALL_BYTES_MAX:,}" if size > _SMALL_BYTES_MAX else ""
            told.append(f"== {escape(name)}: {size:,} bytes{cut}\n{text}")
    return "\n".join(told) + "\n"


def disks(directories: Sequence[str]) -> str:
    """Return room and inodes of the file systems that hold some directories."""
    told = list[str]()
    for directory in directories:
        try:
            found = os.statvfs(directory)
        except OSError as error:
            told.append(f"{directory}: {error.strerror}")
            continue
        free, whole = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
        told.append(
            f"{directory}: {phrases.size(free)} of {phrases.size(whole)} free, "
            f"{found.f_favail:,} of {found.f_files:,} inodes"
        )
    with suppress(OSError):
        told.append(f"\n== /proc/mounts\n{Path('/proc/mounts').read_text(errors='replace')}")
    return "\n".join(told) + "\n"
