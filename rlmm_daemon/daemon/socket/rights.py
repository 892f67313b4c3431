"""Rights of a peer, by the uid and groups that the kernel vouches for (SO_PEERCRED).

Nothing that a peer says about itself grants anything: a role only chooses how it is served.
"""

import array
import os
import socket
import struct
from collections.abc import Collection
from typing import Final

import msgspec

from rlmm_daemon.codec.api import Right

_UCRED: Final = struct.Struct("iII")  # pid_t, uid_t, gid_t
_SO_PEERGROUPS: Final = 59  # Linux 4.13; the socket module has no name for it

#: Whoever may do more may do less as well.
_INCLUDES: Final = {
    Right.READ: frozenset({Right.READ}),
    Right.WRITE: frozenset({Right.READ, Right.WRITE}),
    Right.ADMIN: frozenset(Right),
}
assert _INCLUDES.keys() == set(Right), "every right has a row"


class SocketPeer(msgspec.Struct, frozen=True, kw_only=True):
    """Who is at the other end, as of its connect()."""

    pid: int
    uid: int
    #: Its group and its supplementary ones.
    gids: frozenset[int]


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """The uids and gids that carry one right."""

    uids: frozenset[int] = frozenset()
    gids: frozenset[int] = frozenset()

    def covers(self, peer: SocketPeer) -> bool:
        """Return whether the peer is one of them."""
        return peer.uid in self.uids or not self.gids.isdisjoint(peer.gids)


class RightsTable(msgspec.Struct, frozen=True, kw_only=True):
    """Who may do what; `owners` (root and the daemon's own user unless said otherwise) may all."""

    read: Grant = Grant()
    write: Grant = Grant()
    admin: Grant = Grant()
    owners: Collection[int] = msgspec.field(default_factory=lambda: frozenset({0, os.geteuid()}))

    def rights_of(self, peer: SocketPeer) -> frozenset[Right]:
        """Return all rights of a peer, none included."""
        if peer.uid in self.owners:
            return frozenset(Right)
        grants = {Right.READ: self.read, Right.WRITE: self.write, Right.ADMIN: self.admin}
        held = (_INCLUDES[right] for right, grant in grants.items() if grant.covers(peer))
        return frozenset().union(*held)


def peer_of(connection: socket.socket) -> SocketPeer:
    """Return who connected, by the kernel's word."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, uid, gid = _UCRED.unpack(raw)
    return SocketPeer(pid=pid, uid=uid, gids=frozenset({gid, *_supplementary(connection)}))


def _supplementary(connection: socket.socket) -> list[int]:
    groups = array.array("I")
    try:
        groups.frombytes(
            connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, 64 * groups.itemsize)
        )
    except OSError:  # more than fit (ERANGE), or a kernel without it: the first group decides
        groups = array.array("I")
    return groups.tolist()
