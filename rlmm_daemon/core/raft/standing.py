"""Losses that a set of voters bears, voters that are heard, and changes that leave no majority."""

from collections.abc import Collection
from typing import Final

from rlmm_daemon.core.raft.roles import Candidate, Follower, Leader, Prospective, Replica
from rlmm_daemon.core.raft.voters import ReplicaKey, VoterSet

#: Two need each other: either one's end stops both.
_PAIR: Final = 2


def tolerated(count: int) -> int:
    """Return how many of so many voters may be lost while the others go on."""
    return max(0, (count - 1) // 2)


def reaches_majority(voters: VoterSet, alive: Collection[ReplicaKey]) -> bool:
    """Whether those of the voters that are alive could commit anything."""
    return sum(key in alive for key in voters.keys) >= voters.majority


def heard(replica: Replica, now: int) -> frozenset[int]:
    """Return the voters that a replica hears, itself included where it is one.

    A follower talks to its leader only; who seeks office, to all: those that answered are heard.
    """
    voters = {key.id for key in replica.in_force.keys}
    mine = {replica.me.id} if replica.is_voter else set()
    found: Collection[int] = ()
    match replica.role:
        case Leader(peers=peers):
            since = now - replica.timing.check_quorum
            found = {
                key.id
                for key, progress in peers.items()
                if progress.fetched_at is not None and progress.fetched_at >= since
            }
        case Follower(leader=leader, fetched=True, fetch_by=until) if now < until:
            found = {leader}
        case Prospective(granted=granted, refused=refused):
            found = granted | refused
        case Candidate(granted=granted, refused=refused):
            found = granted | refused
        case _:
            pass
    return frozenset((mine | set(found)) & voters)


def cautions(before: VoterSet, after: VoterSet) -> list[str]:
    """Return what an operator should know before one set becomes the other."""
    said = []
    count = len(after.voters)
    if count == _PAIR:
        said.append("two voters tolerate no failure: if either ends, nothing is committed")
    elif count % 2 == 0:
        said.append(f"{count} voters tolerate no more failures than {count - 1}")
    if count == 1 < len(before.voters):
        said.append("the one that is left has the only copy that counts")
    if tolerated(count) < tolerated(len(before.voters)):
        said.append(
            f"tolerated failures go from {tolerated(len(before.voters))} to {tolerated(count)}"
        )
    return said
