"""A copy of this system that can be changed at will: an overlay, in namespaces of its own."""

import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.support.daemon_process import REPOSITORY

_SECONDS: Final = 300
_ENVIRONMENT: Final = {
    "PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LC_ALL": "C.UTF-8",
    "DEBIAN_FRONTEND": "noninteractive",
}
#: Nothing of this is written to the system itself; it is gone with the process.
_MOUNT: Final = """
set -e
mount -t tmpfs tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=$2,upperdir=$1/upper,workdir=$1/work" "$1/root"
mount -t proc proc "$1/root/proc"
mount -t tmpfs tmpfs "$1/root/run"
mount --bind /dev "$1/root/dev"
"""
_WAIT: Final = "echo mounted\nexec cat\n"
#: A machine of its own: the units of this one are there, and none is wanted by any target.
_SYSTEMD: Final = """
mkdir -p "$1/root/run/systemd" "$1/root/run/lock" "$1/root/sys/fs/cgroup"
mount -t sysfs sysfs "$1/root/sys"
mount -t cgroup2 cgroup2 "$1/root/sys/fs/cgroup"
# The machine's users have to see this repository wherever it lies, be it on a mount of its own.
if [ ! -e "$1/root$3/Makefile" ]; then mkdir -p "$1/root$3"; mount --bind -o ro "$3" "$1/root$3"; fi
(cd "$1/root$3"; while cd .. && [ ! "$PWD" -ef "$1/root" ]; do chmod a+x .; done)
rm -rf "$1"/root/etc/systemd/system/* "$1"/root/usr/lib/systemd/system/*.wants
echo mounted
export container=lxc
exec chroot "$1/root" /lib/systemd/systemd --system --unit=basic.target --log-target=console
"""


class Root:
    """Commands in it run as root."""

    def __init__(self, holder: int, home: Path, *namespaces: str) -> None:
        self._enter = ["nsenter", "-t", str(holder), *(namespaces or ("-m",))]
        self.path = home / "root"

    def run(self, *command: str | Path, code: int = 0) -> str:
        done = subprocess.run(
            [*self._enter, "chroot", self.path, *command],
            capture_output=True, text=True, timeout=_SECONDS, check=False,
            env=_ENVIRONMENT,
        )  # fmt: skip
        assert done.returncode == code, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

    def try_(self, *command: str) -> bool:
        """Return whether a command ends well."""
        done = subprocess.run(
            [*self._enter, "chroot", self.path, *command],
            capture_output=True, timeout=_SECONDS, check=False, env=_ENVIRONMENT,
        )  # fmt: skip
        return done.returncode == 0

    def shell(self, script: str, code: int = 0) -> str:
        return self.run("/bin/sh", "-ec", script, code=code)

    def put(self, file: Path) -> str:
        """Copy a file into /tmp there; returns its path there."""
        with file.open("rb") as source:
            subprocess.run(
                [*self._enter, "tee", self.path / "tmp" / file.name],
                stdin=source, stdout=subprocess.DEVNULL, timeout=_SECONDS, check=True,
            )  # fmt: skip
        return f"/tmp/{file.name}"


@contextmanager
def copy_of(lower: Path = Path("/")) -> Iterator[Root]:
    """Hold a changeable copy of a system, this one by default."""
    with tempfile.TemporaryDirectory(prefix="rlmm-root-") as home, subprocess.Popen(
        ["unshare", "-m", "sh", "-c", _MOUNT + _WAIT, "sh", home, lower],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as holder:  # fmt: skip
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == "mounted\n"
        try:
            yield Root(holder.pid, Path(home))
        finally:
            holder.stdin.close()


@contextmanager
def machine(log: Path) -> Iterator[Root]:
    """Hold a copy of this system on which systemd runs, with a network of its own.

    What units write goes to `log`.
    """
    with tempfile.TemporaryDirectory(prefix="rlmm-machine-") as home, log.open("w") as output:
        holder = subprocess.Popen(
            ["unshare", "--pid", "--mount", "--cgroup", "--ipc", "--uts", "--net", "--fork",
             "--kill-child", "--mount-proc", "sh", "-c", _MOUNT + _SYSTEMD, "sh", home, "/",
             str(REPOSITORY)],
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            init = _first_child(holder.pid)
            root = Root(init, Path(home), "-m", "-p", "-n", "-i", "-u", "-C")
            until(lambda: root.try_("systemctl", "is-active", "basic.target"), "systemd is up")
            yield root
        finally:
            holder.kill()  # and with it, by --kill-child, all that is in there
            holder.wait()


def until(holds: Callable[[], bool], what: str) -> None:
    """Return once it holds."""
    end = time.monotonic() + _SECONDS
    while not holds():
        assert time.monotonic() < end, f"not in time: {what}"
        time.sleep(0.2)


def _first_child(pid: int) -> int:
    children = Path(f"/proc/{pid}/task/{pid}/children")
    until(lambda: bool(children.read_text().split()), "a process in the namespaces")
    return int(children.read_text().split()[0])
