"""Users and groups of `[socket.rights]` by the ids that this machine knows them by."""

import grp
import pwd
from collections.abc import Callable
from typing import NamedTuple

from rlmm_daemon.config.model import Config, Peers
from rlmm_daemon.domain.errors import InvalidArgument


class Ids(NamedTuple):
    """Those given as numbers, and those of the names."""

    uids: frozenset[int]
    gids: frozenset[int]


def ids_of(key: str, peers: Peers) -> Ids:
    """Return the ids of one right, `key` in the configuration.

    Raises:
        InvalidArgument: a name is unknown. It is no mistake of the file: a directory service may
            know it in a moment.
    """
    return Ids(
        uids=frozenset(peers.uids) | {_known(f"{key}.users", each, _uid) for each in peers.users},
        gids=frozenset(peers.gids) | {_known(f"{key}.groups", each, _gid) for each in peers.groups},
    )


def unknown_accounts(config: Config) -> list[str]:
    """Return a sentence for each right of which a name is unknown here."""
    found = []
    for right in ("read", "write", "admin"):
        try:
            ids_of(f"socket.rights.{right}", getattr(config.socket.rights, right))
        except InvalidArgument as error:
            found.append(error.message)
    return found


def _uid(name: str) -> int:
    return pwd.getpwnam(name).pw_uid


def _gid(name: str) -> int:
    return grp.getgrnam(name).gr_gid


def _known(key: str, name: str, find: Callable[[str], int]) -> int:
    try:
        return find(name)
    except KeyError:
        raise InvalidArgument(f"{key}: this machine knows no {name}") from None
