"""A copy of this system that can be changed at will: an overlay over it, in a mount namespace."""

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_SECONDS: Final = 300
#: Nothing of this is written to the system itself; it is gone with the process.
_MOUNT: Final = """
set -e
mount -t tmpfs tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=$2,upperdir=$1/upper,workdir=$1/work" "$1/root"
mount -t proc proc "$1/root/proc"
mount -t tmpfs tmpfs "$1/root/run"
mount --bind /dev "$1/root/dev"
echo mounted
exec cat
"""


class Root:
    """Commands in it run as root, without systemd."""

    def __init__(self, holder: int, home: Path) -> None:
        self._enter = ["nsenter", "-t", str(holder), "-m"]
        self.path = home / "root"

    def run(self, *command: str | Path, code: int = 0) -> str:
        done = subprocess.run(
            [*self._enter, "chroot", self.path, *command],
            capture_output=True, text=True, timeout=_SECONDS, check=False,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LC_ALL": "C.UTF-8",
                 "DEBIAN_FRONTEND": "noninteractive"},
        )  # fmt: skip
        assert done.returncode == code, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

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
        ["unshare", "-m", "sh", "-c", _MOUNT, "sh", home, lower],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as holder:  # fmt: skip
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == "mounted\n"
        try:
            yield Root(holder.pid, Path(home))
        finally:
            holder.stdin.close()
