"""Names of a quorum's members: `rlmm://<cluster id>/<node id>`, or `.../operator/<name>`.

A node may vote and fetch as itself alone; its directory's id is not in the name, so that a new disk
needs no new certificate. An operator may read; only listed ones may change the voters.
"""

import re
from collections.abc import Iterable
from typing import Final

import msgspec

from rlmm_daemon.core.raft.inputs import Peer

SCHEME: Final = "rlmm://"
_ID_MAX: Final = 2**31 - 1
_MEMBER: Final = re.compile(r"(0|[1-9][0-9]{0,9})|operator/([A-Za-z0-9._@-]{1,128})")


class NoPrincipal(Exception):
    """Why a name is not one of a member of this quorum."""


class Principal(msgspec.Struct, frozen=True):
    """A member of a quorum: a node by its id, or an operator by a name."""

    node: int | None = None
    operator: str | None = None

    def __str__(self) -> str:
        return f"{self.node}" if self.node is not None else f"operator/{self.operator}"

    def peer(self, voter_changers: Iterable[str]) -> Peer:
        """Return what it may do; the operators named may change the voters."""
        return Peer(
            id=self.node,
            may_vote=self.node is not None,
            may_change_voters=self.operator is not None and self.operator in voter_changers,
        )


def read_member(member: str) -> Principal:
    """Return whom the part of a name behind the cluster's id means; NoPrincipal: nobody."""
    found = _MEMBER.fullmatch(member)
    if found is None:
        raise NoPrincipal(f"{member[:200]!r} is neither a node's id nor operator/<name>")
    node, operator = found.groups()
    if node is None:
        return Principal(operator=operator)
    if int(node) > _ID_MAX:
        raise NoPrincipal(f"no node has the id {node}")
    return Principal(node=int(node))


def read_uris(uris: Iterable[str], cluster_id: str) -> Principal:
    """Return whom a certificate's URIs mean; those of other schemes are others' matter.

    Raises:
        NoPrincipal: nobody of this cluster, or several.
    """
    uri = _the_only(uris)
    prefix = f"{SCHEME}{cluster_id}/"
    if not uri.startswith(prefix):
        raise NoPrincipal(f"{uri[:200]!r} is not of cluster {cluster_id}")
    return read_member(uri.removeprefix(prefix))


def read_cluster(uris: Iterable[str]) -> str:
    """Return the cluster whose member a certificate's URIs mean; NoPrincipal: none, or several."""
    uri = _the_only(uris)
    cluster_id, slash, member = uri[len(SCHEME) :].partition("/")
    if not slash or not cluster_id:
        raise NoPrincipal(f"{uri[:200]!r} is not {SCHEME}<cluster id>/<member>")
    read_member(member)
    return cluster_id


def _the_only(uris: Iterable[str]) -> str:
    ours = [uri for uri in uris if uri.lower().startswith(SCHEME)]
    if len(ours) != 1:
        raise NoPrincipal(f"the certificate holds {len(ours)} names {SCHEME}..., not one")
    return ours[0]
