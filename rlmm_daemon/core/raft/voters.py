"""Voters of a quorum: their keys and addresses, the set of them, and the sets along the log."""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from rlmm_daemon.domain.ids import uuid_text

#: Of a voter whose directory nobody knows: with kraft.version 0, any directory of that id is it.
NO_DIRECTORY: Final = bytes(16)


class ReplicaKey(msgspec.Struct, frozen=True, order=True):
    """A node's id, and the id of the directory that it acknowledges with: a new disk is another."""

    id: int
    directory: bytes = NO_DIRECTORY

    def __str__(self) -> str:
        return f"{self.id}-{uuid_text(self.directory)}" if any(self.directory) else f"{self.id}"

    def is_same(self, other: "ReplicaKey") -> bool:
        """Whether both name one replica, as far as their directories are known."""
        return self.id == other.id and (
            self.directory == other.directory or NO_DIRECTORY in (self.directory, other.directory)
        )


class Endpoint(msgspec.Struct, frozen=True):
    """An address under the name of its listener."""

    name: str
    host: str
    port: int


class Voter(msgspec.Struct, frozen=True):
    """A replica that counts, where it listens, and the kraft.versions that it bears."""

    key: ReplicaKey
    endpoints: tuple[Endpoint, ...] = ()
    versions: tuple[int, int] = (0, 1)


class VoterSet(msgspec.Struct, frozen=True):
    """Those whose majority decides, one for each id, by id. Without any, nobody ever leads."""

    voters: tuple[Voter, ...] = ()

    @classmethod
    def of(cls, voters: Iterable[Voter]) -> "VoterSet":
        """Return them as a set."""
        return cls(tuple(sorted(voters, key=lambda voter: voter.key)))

    def __post_init__(self) -> None:
        ids = [voter.key.id for voter in self.voters]
        assert ids == sorted(set(ids)), "one voter for each id"

    @property
    def majority(self) -> int:
        """How many of them decide."""
        return len(self.voters) // 2 + 1

    @property
    def keys(self) -> tuple[ReplicaKey, ...]:
        """Their keys, by id."""
        return tuple(voter.key for voter in self.voters)

    def find(self, replica_id: int) -> Voter | None:
        """Return the voter of that id."""
        return next((voter for voter in self.voters if voter.key.id == replica_id), None)

    def holds(self, key: ReplicaKey) -> bool:
        """Whether that replica is one of them: an id with another directory is not."""
        voter = self.find(key.id)
        return voter is not None and voter.key.is_same(key)

    def with_voter(self, voter: Voter) -> "VoterSet":
        """Return the set with that voter, in the place of the one of its id."""
        return VoterSet.of([*self._others(voter.key.id), voter])

    def without(self, replica_id: int) -> "VoterSet":
        """Return the set without the voter of that id."""
        return VoterSet.of(self._others(replica_id))

    def _others(self, replica_id: int) -> list[Voter]:
        return [voter for voter in self.voters if voter.key.id != replica_id]


class VotersAt(msgspec.Struct, frozen=True):
    """The set that a record at this offset set; -1 for what a bootstrap or a snapshot said."""

    offset: int
    voters: VoterSet
    #: 0 where directories do not count and the set cannot change; 1 with KIP-853.
    kraft_version: int = 1


class VoterHistory(msgspec.Struct, frozen=True):
    """The sets along the log, ascending: the newest is in force as soon as it is appended."""

    sets: tuple[VotersAt, ...]

    @property
    def newest(self) -> VotersAt:
        """The one in force."""
        return self.sets[-1]

    def append(self, change: VotersAt) -> "VoterHistory":
        """Return it with the set of a record that was appended."""
        assert change.offset > self.newest.offset, "sets come in the order of the log"
        return VoterHistory((*self.sets, change))

    def truncate(self, end: int) -> "VoterHistory":
        """Return it without what stood at `end` or behind: the older set is in force again."""
        kept = tuple(each for each in self.sets if each.offset < end)
        return VoterHistory(kept) if len(kept) < len(self.sets) else self

    def begin_at(self, start: int) -> "VoterHistory":
        """Return it without sets that no offset from `start` on needs."""
        at = max((n for n, each in enumerate(self.sets) if each.offset < start), default=0)
        return VoterHistory(self.sets[at:]) if at else self


def majority_reached(ends: Sequence[int], size: int) -> int:
    """Return the greatest end that most of so many voters have reached; absent ones count as -1.

    Source: `LeaderState.maybeUpdateHighWatermark`.
    """
    known = sorted(ends, reverse=True)
    majority = size // 2 + 1
    return known[majority - 1] if len(known) >= majority else -1
