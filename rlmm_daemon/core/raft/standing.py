"""Losses that a set of voters bears, and changes of it that would leave it without a majority."""

from collections.abc import Collection
from typing import Final

from rlmm_daemon.core.raft.voters import ReplicaKey, VoterSet

#: Two need each other: either one's end stops both.
_PAIR: Final = 2


def tolerated(count: int) -> int:
    """Return how many of so many voters may be lost while the others go on."""
    return max(0, (count - 1) // 2)


def reaches_majority(voters: VoterSet, alive: Collection[ReplicaKey]) -> bool:
    """Whether those of the voters that are alive could commit anything."""
    return sum(key in alive for key in voters.keys) >= voters.majority


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
