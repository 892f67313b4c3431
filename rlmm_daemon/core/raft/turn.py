"""Turn of a replica: the replica as it is by now, the effects so far, and changes of its role.

A role that lets go of what others wait for tells them; what was sent in another role is forgotten,
so that no late answer to it counts. What must not be forgotten is saved before anything is sent.
"""

from collections.abc import Iterable
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from rlmm_daemon.core.raft.inputs import (
    Alarm,
    Effect,
    Fail,
    Moment,
    ReadRefused,
    Reply,
    Save,
    SavedState,
    Send,
    StartSync,
    Truncate,
    Write,
)
from rlmm_daemon.core.raft.log_facts import Batch
from rlmm_daemon.core.raft.messages import (
    Answer,
    BeginEpochRequest,
    Code,
    EndEpochRequest,
    FetchAnswer,
    FetchRequest,
    FetchSnapshotRequest,
    Request,
    VoteRequest,
    answer_to,
)
from rlmm_daemon.core.raft.roles import (
    Candidate,
    Follower,
    Leader,
    Prospective,
    Replica,
    Resigned,
    Role,
    Sent,
    Unattached,
)
from rlmm_daemon.core.raft.voters import Endpoint, ReplicaKey, VotersAt, VoterSet

_A = TypeVar("_A", bound=Answer)


class LeaderChange(msgspec.Struct, frozen=True):
    """The control record at the start of each leader's epoch, and what goes with the very first."""

    leader: int
    voters: tuple[int, ...]
    granting: tuple[int, ...]
    #: The set that the quorum was bootstrapped with, in the first batch of its log.
    bootstrap: VotersAt | None = None


class Doing:
    """What a step has said and written so far."""

    def __init__(self, replica: Replica, now: Moment) -> None:
        self.replica = replica
        self.now = now
        self.effects: list[Effect] = []

    # What it says.

    def send(self, to: int | None, request: Request, endpoints: tuple[Endpoint, ...] = ()) -> None:
        """Send a request, whose answer counts as long as the role lasts."""
        serial = self.expect(to, request)
        if not endpoints and to is not None:
            voter = self.replica.in_force.find(to)
            endpoints = voter.endpoints if voter is not None else ()
        self.effects.append(Send(serial, to, request, endpoints))

    def expect(self, to: int | None, request: Request | None) -> int:
        """Return the serial of a request whose answer is awaited."""
        serial = self.replica.serial + 1
        sent = {**self.replica.sent, serial: Sent(to, request)}
        self.replica = replace(self.replica, serial=serial, sent=sent)
        return serial

    def take(self, serial: int) -> Sent | None:
        """Return what was sent under that serial, and await no other answer to it."""
        sent = self.replica.sent.get(serial)
        if sent is not None:
            others = {key: each for key, each in self.replica.sent.items() if key != serial}
            self.replica = replace(self.replica, sent=others)
        return sent

    @property
    def awaited(self) -> frozenset[int]:
        """Those whose answer is awaited: nobody is asked twice at a time."""
        return frozenset(sent.to for sent in self.replica.sent.values() if sent.to is not None)

    @property
    def asks(self) -> bool:
        """Whether a fetch, or a snapshot's, is under way."""
        kinds = (FetchRequest, FetchSnapshotRequest)
        return any(isinstance(sent.request, kinds) for sent in self.replica.sent.values())

    def answer(self, kind: type[_A], error: Code = Code.NONE) -> _A:
        """Return an answer of this kind: who leads, as far as is known."""
        return kind(
            error=error,
            epoch=self.replica.epoch,
            leader=self.replica.leader,
            endpoints=self._leader_endpoints(),
        )

    def reply(self, token: int, request: Request, error: Code = Code.NONE) -> None:
        """Answer a request."""
        self.effects.append(Reply(token, self.answer(answer_to(request), error)))

    def alarm(self, kind: str, message: str) -> None:
        """Tell of what no healthy quorum does."""
        self.effects.append(Alarm(kind, message))

    def fail(self, message: str) -> None:
        """Serve nothing more: to go on would lose what was acknowledged."""
        self.replica = replace(self.replica, failed=message, sent={})
        self.effects.append(Fail(message))

    def _leader_endpoints(self) -> tuple[Endpoint, ...]:
        match self.replica.role:
            case Follower(endpoints=endpoints) | Prospective(endpoints=endpoints) if endpoints:
                return endpoints
            case Leader():
                return self.replica.endpoints
            case role:
                leader = self.replica.leader
                voter = self.replica.in_force.find(leader) if leader is not None else None
                assert not isinstance(role, Leader)
                return voter.endpoints if voter is not None else ()

    # The log.

    def write(self, batch: Batch, token: int | None = None) -> None:
        """Write a batch at the log's end; voters in it count from now on."""
        replica = self.replica
        voters = replica.voters
        if batch.voters is not None:
            version = batch.kraft_version
            version = voters.newest.kraft_version if version is None else version
            voters = voters.append(VotersAt(batch.base, batch.voters, version))
        self.replica = replace(replica, log=replica.log.append(batch), voters=voters)
        self.effects.append(Write(batch, token))

    def cut(self, end: int) -> None:
        """Remove what stands at `end` or behind; the older set of voters is in force again."""
        replica = self.replica
        assert end >= replica.committed, "what is committed is never cut"
        self.replica = replace(
            replica,
            log=replica.log.truncate(end),
            voters=replica.voters.truncate(end),
            cuts=replica.cuts + 1,
        )
        self.effects.append(Truncate(end))

    def sync(self) -> None:
        """Have the log synced beside all else."""
        self.effects.append(StartSync(self.replica.log.end, self.replica.cuts))


class Turn(Doing):
    """A step under way, which may take other roles."""

    def become(self, role: Role) -> None:
        """Take a role; what has to be remembered of it is saved first."""
        leaves = self.replica.role
        self.replica = replace(self.replica, role=role, sent={})
        self._save()
        if isinstance(leaves, Leader) and not isinstance(role, Leader):
            self._let_go(leaves)

    def amend(self, role: Role) -> None:
        """Go on in the same role, with a change in it."""
        assert type(role) is type(self.replica.role), "another role is taken by become()"
        self.replica = replace(self.replica, role=role)
        self._save()

    def _save(self) -> None:
        """Save what must be remembered, where it changed; a good-bye is none of that."""
        replica = self.replica
        if isinstance(replica.role, Resigned):
            return
        state = SavedState(replica.epoch, replica.leader, replica.voted)
        assert state.epoch >= replica.saved.epoch, "no replica goes back in epochs"
        if state != replica.saved:
            self.replica = replace(replica, saved=state)
            self.effects.append(Save(state))

    def _let_go(self, leaves: Leader) -> None:
        """Tell whoever waits at a leader that it is none any more."""
        for parked in leaves.parked:
            answer = self.answer(FetchAnswer, Code.NOT_LEADER_OR_FOLLOWER)
            self.effects.append(Reply(parked.token, answer))
        if leaves.change is not None:
            told = self.answer(Answer, Code.NOT_LEADER_OR_FOLLOWER)
            self.effects.append(Reply(leaves.change.token, told))
        for each in leaves.questions:
            self.effects.append(ReadRefused(each.token, self.replica.leader))

    def election_at(self) -> int:
        """Return when to hold an election, unless a leader is heard before."""
        base = self.replica.timing.election
        return self.now.ms + base + int(base * self.now.luck)

    def _rest_of_election(self) -> int:
        """Return when the election is due that was due before: no stranger puts it off."""
        match self.replica.role:
            case (
                Unattached(election_at=at)
                | Prospective(election_at=at)
                | Candidate(election_at=at)
                | Resigned(election_at=at)
            ):
                return at
            case Follower() | Leader():
                return self.election_at()

    def become_unattached(self, epoch: int, leader: int | None = None) -> None:
        """Know an epoch, and no address of its leader."""
        same = epoch == self.replica.epoch
        role = Unattached(
            epoch=epoch,
            election_at=self._rest_of_election(),
            leader=leader,
            voted=self.replica.voted if same else None,
        )
        self.become(role)

    def become_follower(self, epoch: int, leader: int, endpoints: tuple[Endpoint, ...]) -> None:
        """Follow this leader; a vote of the same epoch is remembered."""
        same = epoch == self.replica.epoch
        role = Follower(
            epoch=epoch,
            leader=leader,
            endpoints=endpoints,
            fetch_by=self.now.ms + self.replica.timing.fetch,
            voted=self.replica.voted if same else None,
        )
        self.become(role)

    def hear_of(self, epoch: int, leader: int | None, endpoints: tuple[Endpoint, ...]) -> None:
        """Take the word of a newer epoch, or of who leads this one."""
        replica = self.replica
        known = leader if leader != replica.me.id else None
        if epoch > replica.epoch:
            if known is None:
                self.become_unattached(epoch)
            elif endpoints or replica.in_force.find(known) is not None:
                self.become_follower(epoch, known, endpoints)
            else:
                self.become_unattached(epoch, known)
        elif (
            epoch == replica.epoch
            and known is not None
            and self._may_follow(known)
            and (endpoints or replica.in_force.find(known) is not None)
        ):
            self.become_follower(epoch, known, endpoints)

    def _may_follow(self, leader: int) -> bool:
        match self.replica.role:
            case Unattached(leader=known):
                return known in (None, leader)
            case Prospective(leader=known):
                # Else one that still hears the old leader could end every round with its refusal.
                return known is None
            case Candidate():
                return True
            case Follower() | Leader() | Resigned():
                return False

    def become_prospective(self) -> None:
        """Ask whether it would be elected; alone, it is at once."""
        replica = self.replica
        endpoints = replica.role.endpoints if isinstance(replica.role, Follower) else ()
        role = Prospective(
            epoch=replica.epoch,
            election_at=self.election_at(),
            leader=replica.leader,
            endpoints=endpoints,
            voted=replica.voted,
            granted=frozenset({replica.me.id}),
        )
        self.become(role)
        if is_won(role.granted, replica.in_force):
            self.become_candidate()
            return
        self._ask_for_votes(pre_vote=True)

    def become_candidate(self) -> None:
        """Vote for itself in the next epoch, and ask the others to."""
        replica = self.replica
        role = Candidate(
            epoch=replica.epoch + 1,
            election_at=self.election_at(),
            granted=frozenset({replica.me.id}),
        )
        self.become(role)
        if is_won(role.granted, replica.in_force):
            self.become_leader(role.granted)
            return
        self._ask_for_votes(pre_vote=False)

    def _ask_for_votes(self, *, pre_vote: bool) -> None:
        for key in self.others():
            request = VoteRequest(
                epoch=self.replica.epoch,
                candidate=self.replica.me,
                last=self.replica.log.last,
                voter=key,
                pre_vote=pre_vote,
            )
            self.send(key.id, request)

    def become_leader(self, granting: Iterable[int]) -> None:
        """Lead the epoch that it was elected in: its first record says so to all who read it."""
        replica = self.replica
        log, newest = replica.log, replica.voters.newest
        others = self.others()
        role = Leader(
            epoch=replica.epoch,
            epoch_start=log.end,
            since=self.now.ms,
            told_at={key.id: self.now.ms for key in others},
        )
        self.become(role)
        first = log.end == 0 and newest.offset < 0 and newest.kraft_version > 0
        change = LeaderChange(
            leader=replica.me.id,
            voters=tuple(key.id for key in newest.voters.keys),
            granting=tuple(sorted(granting)),
            bootstrap=newest if first else None,
        )
        batch = Batch(
            base=log.end,
            count=3 if first else 1,
            epoch=role.epoch,
            voters=newest.voters if first else None,
            kraft_version=newest.kraft_version if first else None,
            payload=change,
        )
        self.write(batch)
        self.sync()
        for key in others:
            self.tell_who_leads(key)

    def tell_who_leads(self, key: ReplicaKey) -> None:
        """Say to a voter that this replica leads."""
        replica = self.replica
        request = BeginEpochRequest(
            epoch=replica.epoch, leader=replica.me, voter=key, endpoints=replica.endpoints
        )
        self.send(key.id, request)

    def resign(self) -> None:
        """Lead no more, and say so to the others, the best successors first."""
        role = self.replica.role
        assert isinstance(role, Leader), "who does not lead has nothing to resign"
        ends = {key: role.peers[key].acknowledged for key in role.peers}
        others = sorted(self.others(), key=lambda key: (-ends.get(key, -1), key))
        self.become(
            Resigned(
                epoch=role.epoch,
                election_at=self.election_at(),
                successors=tuple(others),
                unacknowledged=frozenset(key.id for key in others),
            )
        )
        self.say_good_bye()

    def say_good_bye(self) -> None:
        """Tell the voters that have not heard it that the leader goes."""
        role = self.replica.role
        assert isinstance(role, Resigned), "only who led says good-bye"
        request = EndEpochRequest(
            epoch=role.epoch, leader=self.replica.me, successors=role.successors
        )
        for voter in sorted(role.unacknowledged - self.awaited):
            self.send(voter, request)
        self.amend(replace(role, tell_at=self.now.ms + self.replica.timing.retry))

    def others(self) -> tuple[ReplicaKey, ...]:
        """Return the voters but this one."""
        return tuple(key for key in self.replica.in_force.keys if not key.is_same(self.replica.me))


def is_won(granted: Iterable[int], voters: VoterSet) -> bool:
    """Whether most voters granted it."""
    return sum(key.id in set(granted) for key in voters.keys) >= voters.majority


def is_lost(refused: Iterable[int], voters: VoterSet) -> bool:
    """Whether so many voters refused that the others are no majority."""
    left = len(voters.voters) - sum(key.id in set(refused) for key in voters.keys)
    return left < voters.majority
