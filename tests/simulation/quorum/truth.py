"""Invariants that hold after every event, whatever happened (Kafka's simulation, TLA+, and ours).

Each thing that a replica does is told as it is done, so that a check looks at what changed alone.
"""

import itertools
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rlmm_daemon.core.raft.inputs import SavedState
from rlmm_daemon.core.raft.log_facts import Batch
from rlmm_daemon.core.raft.messages import VoteRequest
from rlmm_daemon.core.raft.roles import Candidate, Follower, Leader, Prospective, Replica
from rlmm_daemon.core.raft.voters import ReplicaKey, VoterSet

if TYPE_CHECKING:
    from tests.simulation.quorum.node import Disk, Node


class Broken(Exception):
    """An invariant does not hold."""


def hold(condition: object, said: str) -> None:
    """Hold an invariant, or say what broke it."""
    if not condition:
        raise Broken(said)


@dataclass(slots=True)
class Truth:
    """What the whole quorum has done so far."""

    #: Disks by replica: one that was replaced is gone.
    disks: Mapping[ReplicaKey, "Disk"]
    #: Those that were replaced, as they were: what they told before may be on its way still.
    replaced: dict[ReplicaKey, "Disk"] = field(default_factory=dict)
    leaders: dict[int, int] = field(default_factory=dict)
    votes: dict[tuple[ReplicaKey, int], ReplicaKey] = field(default_factory=dict)
    granted: set[tuple[ReplicaKey, int]] = field(default_factory=set)
    #: (offset, epoch) of a batch's first record -> what it was, and the epoch before it.
    written: dict[tuple[int, int], tuple[object, int]] = field(default_factory=dict)
    #: Ascending batches that somebody called committed.
    committed: list[Batch] = field(default_factory=list)
    by_base: dict[int, Batch] = field(default_factory=dict)
    committed_end: int = 0
    #: How far any leader has called its log committed.
    led_end: int = 0
    #: With the epoch in which somebody first called it committed.
    committed_in: list[tuple[Batch, int]] = field(default_factory=list)
    saved: dict[ReplicaKey, SavedState] = field(default_factory=dict)

    # Steps.

    def steps(self, node: "Node", before: Replica, after: Replica) -> None:
        """Look at what a step changed."""
        if after.voters is not before.voters:
            self._changes_voters(before, after)
        if after.committed != before.committed:
            hold(after.committed > before.committed, f"{node.key} takes commits back")
            if isinstance(before.role, Leader):
                self.led_end = max(self.led_end, after.committed)
        old, new = before.role, after.role
        if old is new:
            return
        hold(after.epoch >= before.epoch, f"{node.key} goes back in epochs")
        if isinstance(new, Prospective):
            hold(after.epoch == before.epoch, f"{node.key} bumps its epoch for a pre-vote")
        if isinstance(new, Leader):
            lead = old if isinstance(old, Leader) else None
            if lead is not None and lead.high_watermark == new.high_watermark:
                return
            hold(
                lead is None or new.high_watermark > lead.high_watermark,
                f"the high watermark of {node.key} falls",
            )
            if new.high_watermark >= 0:
                hold(
                    new.high_watermark > new.epoch_start,
                    f"{node.key} counts what is older than its epoch (Raft, 5.4.2)",
                )
                self.led_end = max(self.led_end, new.high_watermark)
                self.on_a_majority(after.in_force, new.high_watermark)

    def _changes_voters(self, before: Replica, after: Replica) -> None:
        """Adjacent sets differ by one voter, one is open at a time, the newest is in force."""
        sets = after.voters.sets
        hold(sets[-1].offset < after.log.end or sets[-1].offset < 0, "voters of what was cut")
        hold(after.in_force == sets[-1].voters, "the newest set of voters is not in force")
        pairs = itertools.pairwise(each.voters for each in sets)
        hold(all(differ_by_one(*pair) for pair in pairs), "voter sets differ by more than one")
        if isinstance(after.role, Leader) and len(sets) > len(before.voters.sets):
            newest = before.voters.newest
            hold(
                newest.offset < before.role.high_watermark
                if isinstance(before.role, Leader)
                else after.log.end <= 3,
                "a change of voters is open, and another begins",
            )

    # Elections.

    def leads(self, node: "Node", after: Replica) -> None:
        """ElectionSafety; LeaderCompleteness; elected by a majority of its voters."""
        epoch = after.epoch
        first = self.leaders.setdefault(epoch, node.key.id)
        hold(first == node.key.id, f"two leaders of epoch {epoch}: {first} and {node.key}")
        gave = sum(self.votes.get((key, epoch)) == node.key for key in after.in_force.keys)
        hold(
            gave >= after.in_force.majority,
            f"{node.key} leads epoch {epoch} by {gave} votes of {len(after.in_force.voters)}",
        )
        before = [batch for batch, known in self.committed_in if known < epoch]
        last = before[-1] if before else None
        hold(
            node.disk.holds(last),
            f"{node.key} leads epoch {epoch} without {last}, committed before",
        )

    def saves(self, node: "Node", state: SavedState) -> None:
        """MonotonicEpoch; SingleLeader; one vote for each epoch."""
        before = self.saved.get(node.key, SavedState())
        hold(
            state.epoch >= before.epoch,
            f"{node.key} fell from epoch {before.epoch} to {state.epoch}",
        )
        same = state.epoch == before.epoch
        kept = before.voted in (None, state.voted) and before.leader in (None, state.leader)
        hold(kept or not same, f"{node.key} forgets what it saved of its epoch: {before}")
        self.saved[node.key] = state
        if state.voted is not None:
            self._votes_for(node, state.epoch, state.voted)
        if state.leader is not None:
            first = self.leaders.setdefault(state.epoch, state.leader)
            hold(first == state.leader, f"two leaders of {state.epoch}: {first}, {state.leader}")

    def _votes_for(self, node: "Node", epoch: int, candidate: ReplicaKey) -> None:
        first = self.votes.setdefault((node.key, epoch), candidate)
        hold(first == candidate, f"{node.key} voted for {first} and {candidate} in epoch {epoch}")

    def asks(self, node: "Node", request: VoteRequest) -> None:
        """A candidate's vote for itself is on the platter before it asks others."""
        saved = node.disk.saved
        if not request.pre_vote:
            hold(
                saved is not None and (saved.epoch, saved.voted) == (request.epoch, node.key),
                f"{node.key} asks for votes in epoch {request.epoch} before it saved its own",
            )

    def grants(self, node: "Node", request: VoteRequest) -> None:
        """A grant is on the platter before its answer is on the wire, and to whom it may go."""
        replica = node.replica
        assert replica is not None
        vote = (node.key, request.epoch)
        # A vote that was granted is granted again, however the log has grown: it is the same one.
        newer = request.last >= replica.log.last or (vote in self.granted and not request.pre_vote)
        hold(newer, f"{node.key} granted a log that lacks some of its")
        if request.pre_vote:
            role = replica.role
            hears = isinstance(role, Leader) or (isinstance(role, Follower) and role.fetched)
            hold(not hears, f"{node.key} hears its leader, and granted a pre-vote")
            return
        self.granted.add(vote)
        self._votes_for(node, request.epoch, request.candidate)
        saved = node.disk.saved
        hold(
            saved is not None and (saved.epoch, saved.voted) == (request.epoch, request.candidate),
            f"{node.key} granted {request.candidate} epoch {request.epoch}, not on its disk",
        )

    # The log.

    def writes(self, node: "Node", batch: Batch) -> None:
        """LogMatching: a record is unique by offset and epoch, and so is all before it."""
        saved = node.disk.saved
        hold(saved is not None and saved.epoch >= batch.epoch, f"{node.key} wrote before its epoch")
        before = node.disk.batches[-1].epoch if node.disk.batches else node.disk.base_epoch
        first = self.written.setdefault((batch.base, batch.epoch), (batch.payload, before))
        hold(
            first == (batch.payload, before),
            f"offset {batch.base} of epoch {batch.epoch} is {first} and {batch.payload}",
        )

    def acknowledges(self, node: "Node", offset: int) -> None:
        """A fetch says that all before it is on the disk."""
        hold(
            offset <= node.disk.synced, f"{node.key} fetched at {offset}, synced {node.disk.synced}"
        )

    def commits(self, node: "Node", end: int, epoch: int) -> None:
        """What is committed is one history; a follower applies what a leader called so."""
        hold(end <= self.led_end, f"{node.key} applied {end}, and leaders committed {self.led_end}")
        fresh: list[Batch] = []
        for batch in reversed(node.disk.batches):
            if batch.base < node.applied:
                break
            if batch.end <= end:
                fresh.append(batch)
        for batch in reversed(fresh):
            known = self.by_base.get(batch.base)
            if known is not None:
                hold(
                    (known.epoch, known.payload) == (batch.epoch, batch.payload),
                    f"{node.key} committed another record at {batch.base}",
                )
                continue
            hold(batch.base == self.committed_end, f"{node.key} committed behind a gap")
            self.by_base[batch.base] = batch
            self.committed.append(batch)
            self.committed_in.append((batch, epoch))
            self.committed_end = batch.end
        hold(end <= self.committed_end, f"{node.key} committed {end}, which it does not have")

    def reads(self, node: "Node", asked_at: int, end: int) -> None:
        """Linearizability: a read sees what any leader had called committed when it was asked."""
        hold(
            asked_at <= end <= self.led_end,
            f"{node.key} reads at {end}, where {asked_at} was committed before it was asked",
        )

    def last_before(self, end: int) -> Batch | None:
        """Return the committed batch that ends there."""
        at = bisect_right(self.committed, end, key=lambda batch: batch.end) - 1
        return self.committed[at] if at >= 0 else None

    def on_a_majority(self, voters: VoterSet, end: int) -> None:
        """QuorumLog: what a leader calls committed is, or was, on the disks of most voters."""
        last = self.last_before(end)
        ever = {**self.replaced, **self.disks}
        disks = [ever[key] for key in voters.keys if key in ever]
        having = sum(disk.synced >= end and disk.holds(last) for disk in disks)
        hold(
            having >= voters.majority,
            f"{end} is committed, and on the disks of {having} of {len(voters.voters)} voters",
        )

    def cuts(self, node: "Node", end: int) -> None:
        """What a replica has applied is never cut."""
        hold(end >= node.applied, f"{node.key} cut at {end} after it had applied {node.applied}")

    def starts(self, node: "Node") -> None:
        """An epoch is not used again: its tail may be lost."""
        assert node.replica is not None
        hold(not isinstance(node.replica.role, Leader), f"{node.key} leads on after a restart")

    def installs(self, node: "Node") -> None:
        """LeaderNeverLoadSnapshot; nor a candidate."""
        assert node.replica is not None
        role = node.replica.role
        hold(not isinstance(role, Leader | Candidate), f"{node.key} loads a snapshot in office")


def differ_by_one(before: VoterSet, after: VoterSet) -> bool:
    """Whether one voter came, went, or changed."""
    return len({*before.voters} ^ {*after.voters}) in (0, 1) or (
        set(before.keys) == set(after.keys)
    )
