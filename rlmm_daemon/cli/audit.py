"""Audit lines of orders: in the daemon's log, or the system's where no daemon carries them out.

`rlmm log copy`, `restore`, `seal`, `name` and `rlmm storage rebuild-marker` write by themselves.
Then the system's log gets the two lines that the daemon's gets of an order over the socket.
"""

import getpass
import os
import platform
import syslog
from collections.abc import Iterator
from contextlib import contextmanager

import click

from rlmm_daemon import __version__
from rlmm_daemon.domain.errors import RlmmError


def whoever() -> str:
    """Return who runs this command, as user@host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user id without a name
        user = f"uid {os.getuid()}"
    behind = os.environ.get("SUDO_USER", "")
    sudo = f" (sudo of {behind})" if behind and behind != user else ""
    return f"{user}@{platform.node()}{sudo}"


def client_name() -> str:
    """Return what the daemon's log calls this client: the command as it was typed, and by whom.

    Without its arguments, which the daemon sees for itself.
    """
    context = click.get_current_context(silent=True)
    words = [] if context is None else context.command_path.split()[1:]
    return f"{' '.join(['rlmm', *words])}, version {__version__}, by {whoever()}"


@contextmanager
def order(**said: object) -> Iterator[None]:
    """Tell the system's log of an order that this process carries out itself, and how it ended."""
    told = "".join(f" {name}={value!r}" for name, value in said.items())
    line = f"uid={os.getuid()} pid={os.getpid()} client={client_name()!r}{told}"
    syslog.openlog("rlmm", syslog.LOG_PID, syslog.LOG_DAEMON)
    syslog.syslog(syslog.LOG_NOTICE, f"audit.order_begun {line}")
    outcome = "failed"
    try:
        yield
    except RlmmError as error:
        outcome = error.wire_name()
        raise
    else:
        outcome = "ok"
    finally:
        syslog.syslog(syslog.LOG_NOTICE, f"audit.order_ended outcome={outcome} {line}")
