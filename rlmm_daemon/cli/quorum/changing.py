"""Changes of a quorum's voters: planned from what the leader sees, carried out, looked at."""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from rlmm_daemon.adapters.quorum.client import Description, QuorumClient
from rlmm_daemon.cli.quorum import seen
from rlmm_daemon.cli.quorum.addresses import Quorum
from rlmm_daemon.cli.quorum.talking import ask, described
from rlmm_daemon.core.raft import standing
from rlmm_daemon.core.raft.voters import Endpoint, ReplicaKey, Voter, VoterSet
from rlmm_daemon.domain.errors import InvalidArgument, NotReady, OutcomeUnknown
from rlmm_daemon.domain.ids import uuid_text


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A set of voters that is to become another one."""

    before: VoterSet
    after: VoterSet
    cautions: list[str]
    request: Callable[[QuorumClient], Awaitable[None]]

    def told(self) -> dict[str, Any]:
        """Return it for machines."""
        return {
            "before": _told(self.before),
            "after": _told(self.after),
            "cautions": self.cautions,
        }


def added(quorum: Quorum, node_id: int, directory_id: bytes | None, listen: Endpoint) -> Change:
    """Return what an observer would make of the voters.

    Raises:
        InvalidArgument: it is a voter already, or no such observer fetches.
        NotReady: it lags, or too few would be there to commit anything.
    """
    _, found = described(quorum)
    before = seen.voters_of(found)
    other = before.find(node_id)
    if other is not None:
        held = uuid_text(other.key.directory)
        raise InvalidArgument(
            f"replica {node_id} is a voter already, with directory {held}; where its disk was "
            f"lost, first: rlmm quorum remove --node-id {node_id} --directory-id {held}"
        )
    key = _observer(found, node_id, directory_id)
    state = next(each for each in found.observers if each.key == key)
    if state.caught_up_at_ms < 0:
        raise NotReady(f"observer {node_id} has not caught up yet: see rlmm quorum describe")
    voter = Voter(key, (listen,))
    after = before.with_voter(voter)
    _require_majority(found, after)
    return Change(
        before=before,
        after=after,
        cautions=standing.cautions(before, after),
        request=lambda client: client.add_voter(voter),
    )


def removed(quorum: Quorum, node_id: int, directory_id: bytes | None) -> Change:
    """Return what would be left without a voter.

    Raises:
        InvalidArgument: it is no voter, or the last one.
        NotReady: too few would be there to commit anything.
    """
    _, found = described(quorum)
    before = seen.voters_of(found)
    voter = before.find(node_id)
    if voter is None or directory_id not in (None, voter.key.directory):
        raise InvalidArgument(f"no such voter; there are {seen.named(before)}")
    after = before.without(node_id)
    if not after.voters:
        raise InvalidArgument("the last voter can't be removed: nobody would be left to say so")
    _require_majority(found, after)
    key = voter.key
    leads = [f"replica {node_id} leads, and hands over first"] if found.leader == node_id else []
    return Change(
        before=before,
        after=after,
        cautions=[*standing.cautions(before, after), *leads],
        request=lambda client: client.remove_voter(key),
    )


def carry_out(quorum: Quorum, change: Change) -> None:
    """Ask the leader for it; return once it is committed.

    Raises:
        InvalidArgument: the leader refused it.
        OutcomeUnknown: nobody can tell from the answer; says what the leader sees by now.
    """
    try:
        ask(quorum, change.request)
    except OutcomeUnknown as error:
        raise OutcomeUnknown(f"{error.message}; {_looked(quorum, change)}") from error


def _looked(quorum: Quorum, change: Change) -> str:
    """Return what the leader sees after an unknown outcome, in words."""
    server = seen.address(quorum.servers[0])
    look = f"look at it again: rlmm quorum describe --server {server}"
    try:
        _, found = described(quorum)
    except Exception as error:  # noqa: BLE001 - the first error is the one to tell
        return f"and the quorum does not say more ({error}); {look}"
    keys = seen.voters_of(found).keys
    if keys == change.after.keys:
        return f"the leader counts the new voters by now, which a new leader may undo; {look}"
    if keys == change.before.keys:
        return f"the leader counts the old voters; the change may be refused, or late; {look}"
    return f"the voters are {seen.named(seen.voters_of(found))}; {look}"


def _observer(found: Description, node_id: int, directory_id: bytes | None) -> ReplicaKey:
    """Return the only observer of that id, or the one of that directory."""
    keys = [each.key for each in found.observers if each.key.id == node_id]
    if directory_id is not None:
        keys = [key for key in keys if key.directory == directory_id]
    if len(keys) > 1:  # a directory that is no more is remembered for five minutes
        there = seen.alive(found)
        keys = [key for key in keys if key in there] or keys
    if len(keys) > 1:
        ids = ", ".join(uuid_text(key.directory) for key in keys)
        raise InvalidArgument(
            f"several directories fetch as {node_id}: take one as --directory-id: {ids}"
        )
    if not keys:
        raise InvalidArgument(
            f"no observer {node_id} fetches from the leader: format its directory with --join, "
            "start it with rlmm quorum run, and see rlmm quorum describe"
        )
    return keys[0]


def _require_majority(found: Description, after: VoterSet) -> None:
    """Refuse a set of which too few are there: it counts once written, and would never commit."""
    there = seen.alive(found)
    if not standing.reaches_majority(after, there):
        away = ", ".join(str(key.id) for key in after.keys if key not in there)
        raise NotReady(
            f"of voters {seen.named(after)}, but {away} did not fetch for "
            f"{seen.AWAY_MS // 1000} s: nothing could be committed any more"
        )


def _told(voters: VoterSet) -> dict[str, Any]:
    count = len(voters.voters)
    return {
        "voters": [{"id": key.id, "directory_id": uuid_text(key.directory)} for key in voters.keys],
        "majority": voters.majority,
        "tolerates": standing.tolerated(count),
    }
