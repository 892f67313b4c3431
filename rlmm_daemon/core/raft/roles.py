"""Roles of a replica, each with what only it needs, and the facts that outlive them.

    Unattached   knows no leader's address: asks any server who leads
    Prospective  asks whether it would be elected, without raising the epoch (KIP-996)
    Candidate    asks for votes in an epoch of its own
    Follower     fetches from the leader
    Leader       takes records, and counts who has them
    Resigned     led, and says good-bye; or led before a restart, and must not lead on

An observer is Unattached or Follower, while the newest set of voters is without its key.
"""

from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from rlmm_daemon.core.raft.inputs import SavedState
from rlmm_daemon.core.raft.log_facts import LogFacts, LogPoint
from rlmm_daemon.core.raft.messages import UNKNOWN, Request
from rlmm_daemon.core.raft.voters import Endpoint, ReplicaKey, VoterHistory, VoterSet


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Times in milliseconds, that all replicas of a quorum share."""

    #: Without a leader, an election begins after one to two of these.
    election: int = 500
    #: A follower that has heard so long nothing of its leader asks for another.
    fetch: int = 1_000
    #: So long a leader lets a fetch wait for records.
    poll: int = 250
    #: After a failed request, the next is sent so much later.
    retry: int = 50
    #: A change of voters ends, or has an unknown outcome, after that.
    change: int = 2_000
    #: A successor that is not the first waits up to that.
    backoff: int = 1_000

    @property
    def check_quorum(self) -> int:
        """A leader that so long heard too few voters resigns (KAFKA-15489)."""
        return self.fetch * 3 // 2

    @property
    def begin(self) -> int:
        """A voter that so long did not fetch is told again who leads."""
        return self.fetch // 2


class Unattached(msgspec.Struct, frozen=True, kw_only=True):
    """It knows no leader's address, and asks any server."""

    epoch: int
    election_at: int
    leader: int | None = None
    voted: ReplicaKey | None = None
    ask_at: int = 0


class Prospective(msgspec.Struct, frozen=True, kw_only=True):
    """It asks whether it would be elected."""

    epoch: int
    election_at: int
    leader: int | None = None
    endpoints: tuple[Endpoint, ...] = ()
    voted: ReplicaKey | None = None
    granted: frozenset[int] = frozenset()
    refused: frozenset[int] = frozenset()


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """It has voted for itself in this epoch, and asks the others to."""

    epoch: int
    election_at: int
    granted: frozenset[int] = frozenset()
    refused: frozenset[int] = frozenset()


class Download(msgspec.Struct, frozen=True):
    """A snapshot of which so much was fetched, from this epoch's leader alone."""

    snapshot: LogPoint
    position: int = 0
    size: int | None = None


class Follower(msgspec.Struct, frozen=True, kw_only=True):
    """It fetches from the leader."""

    epoch: int
    leader: int
    #: Without an answer of the leader until then, it asks for another.
    fetch_by: int
    endpoints: tuple[Endpoint, ...] = ()
    voted: ReplicaKey | None = None
    #: It has heard from its leader: nobody else should lead.
    fetched: bool = False
    #: What the leader said is committed; applied as far as it is on this disk.
    high_watermark: int = UNKNOWN
    ask_at: int = 0
    #: When the leader is told again where this voter listens, while the set says otherwise.
    tell_at: int = 0
    download: Download | None = None


class Progress(msgspec.Struct, frozen=True):
    """How far another replica has the leader's log."""

    #: All before it is on that replica's disk.
    end: int = UNKNOWN
    fetched_at: int | None = None
    #: When it last had all that the leader had.
    caught_up_at: int | None = None
    #: It was told to cut, so that its end may fall.
    told_to_cut: bool = False
    #: Its end fell without that: its disk lost what it had acknowledged up to here.
    lost_before: int | None = None

    @property
    def acknowledged(self) -> int:
        """The end that counts."""
        return UNKNOWN if self.lost_before is not None else self.end


class Parked(msgspec.Struct, frozen=True):
    """A fetch at the log's end that waits for news."""

    token: int
    offset: int
    until: int


class Question(msgspec.Struct, frozen=True):
    """A read that waits until most voters have shown that nobody else leads."""

    token: int
    #: What was sent under a later serial was sent after it.
    serial: int
    until: int


class VoterChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change of the voters that has not ended yet: there is one at a time."""

    token: int
    voters: VoterSet
    until: int
    #: Who has to show that it is there and bears the versions, before it may count.
    newcomer: ReplicaKey | None = None
    #: The serial under which it was asked for that.
    probe: int | None = None
    when_committed: bool = True
    #: Where the record of it stands; None: not appended yet.
    offset: int | None = None


class Leader(msgspec.Struct, frozen=True, kw_only=True):
    """It takes records, and counts who has them."""

    epoch: int
    #: Nothing counts as committed before a record of this epoch is (Raft, 5.4.2).
    epoch_start: int
    since: int
    high_watermark: int = UNKNOWN
    peers: Mapping[ReplicaKey, Progress] = msgspec.field(default_factory=dict)
    parked: tuple[Parked, ...] = ()
    change: VoterChange | None = None
    #: When each voter was last told who leads.
    told_at: Mapping[int, int] = msgspec.field(default_factory=dict)
    #: Reads, in the order that they came.
    questions: tuple[Question, ...] = ()
    #: By voter: the serial of the newest request that it answered in this epoch.
    confirmed: Mapping[int, int] = msgspec.field(default_factory=dict)
    #: By voter that did not: when it is asked again for the sake of a read.
    ask_again_at: Mapping[int, int] = msgspec.field(default_factory=dict)


class Resigned(msgspec.Struct, frozen=True, kw_only=True):
    """It led this epoch, and leads no more."""

    epoch: int
    election_at: int
    successors: tuple[ReplicaKey, ...] = ()
    unacknowledged: frozenset[int] = frozenset()
    tell_at: int = 0


Role: TypeAlias = Unattached | Prospective | Candidate | Follower | Leader | Resigned


class Sent(msgspec.Struct, frozen=True):
    """A request that was not answered yet; None where a replica was asked for its versions."""

    to: int | None
    request: Request | None


class Replica(msgspec.Struct, frozen=True, kw_only=True):
    """A role, and what outlives it."""

    me: ReplicaKey
    cluster_id: str
    role: Role
    voters: VoterHistory
    log: LogFacts
    #: As it stands on the disk.
    saved: SavedState
    endpoints: tuple[Endpoint, ...] = ()
    timing: Timing = Timing()
    #: Everything before it was known to be committed in this life: it never falls.
    committed: int = 0
    #: How often the log was cut: a sync from before the last cut says nothing.
    cuts: int = 0
    #: The number of the last request.
    serial: int = 0
    sent: Mapping[int, Sent] = msgspec.field(default_factory=dict)
    #: The snapshot that takes the log's place: until then nothing is fetched, and no office sought.
    installing: LogPoint | None = None
    #: No election is hurried before (one for each fetch timeout, with back-off).
    hurry_at: int = 0
    #: By how much the last one put the next off.
    hurry_pause: int = 0
    #: It serves nothing more.
    failed: str | None = None

    @property
    def epoch(self) -> int:
        """The newest epoch that it knows."""
        return self.role.epoch

    @property
    def in_force(self) -> VoterSet:
        """The voters that count."""
        return self.voters.newest.voters

    @property
    def is_voter(self) -> bool:
        """Whether it counts itself."""
        return self.in_force.holds(self.me)

    @property
    def may_lead(self) -> bool:
        """Whether it stands for elections.

        One that is removed by a record which may not be committed yet does, too (Raft's thesis,
        4.2.2): who is left may have an older log than it, and then nobody could lead.
        """
        *before, newest = self.voters.sets
        removal_is_open = bool(before) and newest.offset >= self.committed
        return self.is_voter or (removal_is_open and before[-1].voters.holds(self.me))

    @property
    def leader(self) -> int | None:
        """Who leads this epoch, as far as it knows."""
        match self.role:
            case Unattached(leader=leader) | Prospective(leader=leader) | Follower(leader=leader):
                return leader
            case Leader():
                return self.me.id
            case Candidate() | Resigned():
                return None

    @property
    def voted(self) -> ReplicaKey | None:
        """Whom it voted for in this epoch."""
        match self.role:
            case Unattached(voted=voted) | Prospective(voted=voted) | Follower(voted=voted):
                return voted
            case Candidate() | Leader():
                return self.me
            case Resigned():
                return self.saved.voted
