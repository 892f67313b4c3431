"""The socket's file: made so that nobody can connect before its mode and group are right."""

import errno
import os
import socket
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from rlmm_daemon.daemon.base.os_errors import is_for_a_person
from rlmm_daemon.domain.errors import ConfigError, InTheWay

#: sun_path of sockaddr_un holds 108 bytes, the last of which is a zero.
PATH_BYTES_MAX: Final = 107
BACKLOG: Final = 512
_ANSWER_SECONDS: Final = 1.0


class Listener:
    """A listening socket and its file; closing removes the file if it is still ours."""

    def __init__(self, path: str, *, mode: int, group_gid: int | None) -> None:
        """Bind and listen.

        Raises:
            ConfigError: the path is too long, taken by something else than a socket, or not this
                user's to write.
            InTheWay: a daemon answers on it, perhaps one that is killed and whose disk hangs; or
                the system is short of something.
        """
        self.path = path
        self._inode: int | None = None
        _check_length(path)
        try:
            Path(path).parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            _remove_stale(path)
            self.socket = self._listen(path, mode, group_gid)
        except OSError as error:
            kind = ConfigError if is_for_a_person(error) else InTheWay
            raise kind(f"cannot listen on {path}: {error}") from error

    def _listen(self, path: str, mode: int, group_gid: int | None) -> socket.socket:
        # Until listen() a connect() is refused, whatever the mode of the file is by then.
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            listener.settimeout(0)
            listener.bind(path)
            self._inode = os.lstat(path).st_ino
            Path(path).chmod(mode)
            if group_gid is not None:
                os.chown(path, -1, group_gid)
            listener.listen(BACKLOG)
        except OSError:
            listener.close()
            self._remove_file()
            raise
        return listener

    def close(self) -> None:
        """Refuse new connections; idempotent."""
        self.socket.close()
        self._remove_file()

    def _remove_file(self) -> None:
        with suppress(OSError):
            if self._inode is not None and os.lstat(self.path).st_ino == self._inode:
                Path(self.path).unlink()
        self._inode = None


def _check_length(path: str) -> None:
    size = len(os.fsencode(path))
    if size > PATH_BYTES_MAX:
        raise ConfigError(
            f"the socket path has {size} bytes, more than the {PATH_BYTES_MAX} that a Unix socket"
            f" address holds: {path}",
            path=path,
        )


def _remove_stale(path: str) -> None:
    """Remove a socket file on which nobody answers; leave everything else alone."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"{path} exists and is not a socket", path=path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_ANSWER_SECONDS)
        refusal = probe.connect_ex(path)
    if refusal != errno.ECONNREFUSED:
        raise InTheWay(f"another daemon answers on {path}", path=path)
    Path(path).unlink()
