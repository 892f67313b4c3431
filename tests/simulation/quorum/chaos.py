"""Clients, operators and faults of one seed, and what has to be well when they are over."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rlmm_daemon.core.raft import inputs
from rlmm_daemon.core.raft.inputs import Peer
from rlmm_daemon.core.raft.log_facts import LogPoint
from rlmm_daemon.core.raft.messages import (
    AddVoterRequest,
    BeginEpochRequest,
    EndEpochRequest,
    FetchRequest,
    RemoveVoterRequest,
    Request,
    VoteRequest,
)
from rlmm_daemon.core.raft.roles import Leader
from rlmm_daemon.core.raft.voters import ReplicaKey, VoterSet
from tests.simulation.quorum.node import STRANGER, Disk, Node, endpoint, voter
from tests.simulation.quorum.truth import hold

if TYPE_CHECKING:
    from tests.simulation.quorum.world import World

#: How much later than its time a leader may resign that lost its majority: its own steps wait.
OFFICE_SLACK_MS: Final = 700
#: After all faults, records that are submitted so much later are committed.
LAST_SUBMITS_MS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Accepted:
    """What a leader took, and where."""

    leader: int
    life: int
    base: int
    epoch: int
    payload: int


class Chaos:
    """What replicas don't do themselves."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._payloads = 0
        self._submitted: dict[int, int] = {}
        self._accepted: dict[int, Accepted] = {}
        self._refused: set[int] = set()
        self._acknowledged: set[int] = set()
        self._questions = 0
        #: Reads that wait: what was committed when they were asked, of whom, and in which life.
        self._asked: dict[int, tuple[int, Node, int]] = {}

    def begin(self) -> None:
        """Put clients, operators and faults on the heap."""
        world = self._world
        shape, rng, span = world.shape, world.rng, world.shape.faults_ms
        for _ in range(shape.submits):
            world.at(rng.randint(500, span), self._submit)
        for _ in range(shape.reads):
            world.at(world.readers.randint(500, span), self._read)
        if shape.reads:
            for at in range(2_000, span, 3_000):
                world.at(at, self._depose)
        for rate, do in (
            (shape.crashes, self._crash),
            (shape.partitions, self._partition),
            (shape.pauses, self._pause),
            (shape.wipes, self._wipe),
            (shape.changes, self._change),
            (shape.snapshots, lambda: world.images.make(self._some_node())),
            (shape.moves, self._move),
            (shape.strangers, self._stranger),
            (shape.resignations, self._resign),
        ):
            for _ in range(int(rate * span / 2_000)):
                world.at(rng.randint(500, span), do)
        self._look_at_offices()

    def _look_at_offices(self) -> None:
        """A leader that lost its majority resigns, whatever it does meanwhile (KAFKA-15489)."""
        world = self._world
        for node in world.nodes.values():
            self._look_at_office(node)
        world.at(world.now + 500, self._look_at_offices)

    def _look_at_office(self, node: Node) -> None:
        world, replica = self._world, node.replica
        if replica is None or not isinstance(replica.role, Leader) or world.shape.drift:
            return
        patience = world.timing.check_quorum + OFFICE_SLACK_MS
        if node.is_busy or node.paused_until > world.now - patience:
            return
        since = world.now - patience
        if world.led_since[node.key] >= since or node.was_busy_at >= since:
            return
        voters = replica.in_force
        hears = sum(
            key == node.key or world.heard.get((node.key, key.id), -1) >= since
            for key in voters.keys
        )
        hold(hears >= voters.majority, f"{node.key} leads on, and hears {hears} voters")

    # Clients.

    def _some_node(self) -> Node:
        return self._world.nodes[self._world.rng.choice(sorted(self._world.nodes))]

    def leader(self) -> Node | None:
        """Return who leads the newest epoch."""
        newest: Node | None = None
        for node in self._world.nodes.values():
            if node.replica is None or not isinstance(node.replica.role, Leader):
                continue
            if (
                newest is None
                or newest.replica is None
                or node.replica.epoch > newest.replica.epoch
            ):
                newest = node
        return newest

    def _submit(self) -> None:
        world = self._world
        node = self.leader() if world.rng.random() < 0.8 else self._some_node()
        if node is None or not node.is_up:
            return
        self._payloads += 1
        token = -self._payloads
        self._submitted[token] = self._payloads
        node.take(inputs.Submitted(token, world.rng.choice([1, 1, 1, 3]), self._payloads))

    def accepted(self, node: Node, token: int, base: int, epoch: int) -> None:
        """Remember what a leader took."""
        payload = self._submitted[token]
        self._accepted[token] = Accepted(node.key.id, node.life, base, epoch, payload)

    def refused(self, token: int) -> None:
        """Remember what nobody took."""
        self._world.outcome.counts["refused"] += 1
        self._refused.add(self._submitted[token])

    def applied(self, node: Node, end: int) -> None:
        """Acknowledge what a leader commits of what it accepted in this life and epoch."""
        assert node.replica is not None, "it runs"
        role, truth = node.replica.role, self._world.truth
        done = [
            token
            for token, each in self._accepted.items()
            if each.leader == node.key.id and each.base < end and each.life == node.life
        ]
        for token in done:
            each = self._accepted.pop(token)
            if isinstance(role, Leader) and role.epoch == each.epoch:
                known = truth.by_base.get(each.base)
                hold(known and known.payload == each.payload, "acknowledged, and not there")
                self._acknowledged.add(each.payload)
                self._world.outcome.counts["acknowledged"] += 1

    def _read(self) -> None:
        """Ask somebody who leads, or believes it, how far the log is committed."""
        world = self._world
        leaders = [
            node
            for node in world.nodes.values()
            if node.replica is not None and isinstance(node.replica.role, Leader)
        ]
        node = world.readers.choice(leaders or list(world.nodes.values()))
        self._read_of(node)

    def _read_of(self, node: Node) -> None:
        world = self._world
        if not node.is_up:
            return
        self._questions += 1
        self._asked[self._questions] = (world.truth.led_end, node, node.life)
        node.take(inputs.ReadAsked(self._questions))

    def read(self, node: Node, token: int, end: int | None) -> None:
        """Look at the answer to a read, if it is one."""
        hold(token in self._asked, "a read is answered twice")
        asked_at, _, _ = self._asked.pop(token)
        self._world.outcome.counts["reads" if end is not None else "reads refused"] += 1
        if end is not None:
            self._world.truth.reads(node, asked_at, end)

    def _depose(self) -> None:
        """Have the others elect another than the leader, which does not hear of it and is read."""
        world, leader = self._world, self.leader()
        if leader is None:
            return
        later = world.readers.choice([1_200, 1_600, 3_000])
        if world.readers.random() < 0.5:
            leader.paused_until = world.now + later
        else:
            others = [n for n in world.nodes if n != leader.key.id]
            cut = {(leader.key.id, n) for n in others} | {(n, leader.key.id) for n in others}
            world.cut |= cut
            world.at(world.now + later, lambda: world.cut.difference_update(cut))
        for after in range(900, later + 100, 50):
            world.at(world.now + after, lambda: self._read_of(leader))
            world.at(world.now + after, self._submit)

    # Faults.

    def _crash(self) -> None:
        node = self.leader() if self._world.rng.random() < 0.5 else self._some_node()
        if node is not None and node.replica is not None:
            self.falls(node)

    def falls(self, node: Node) -> None:
        """End a process, and start it again some time later."""
        world = self._world
        world.note(f"{node.key.id} crashes")
        world.outcome.counts["crashes"] += 1
        node.crash()
        later = world.rng.choice([10, 300, 1_500, 6_000]) if world.faulty else 10
        world.at(world.now + later, lambda: self._restart(node))

    def _restart(self, node: Node) -> None:
        if node.replica is None and self._world.nodes[node.key.id] is node:
            node.start(self._world.timing)

    def _resign(self) -> None:
        """A process is asked to end: its leader hands over first."""
        node = self.leader()
        if node is not None and node.is_up:
            node.take(inputs.Resign())
            self._world.outcome.counts["resignations"] += 1

    def _partition(self) -> None:
        world = self._world
        ids = sorted(world.nodes)
        kind = world.rng.choice(["link", "one way", "half", "half one way", "alone", "ring"])
        if kind in {"link", "one way"} and len(ids) > 1:
            a, b = world.rng.sample(ids, 2)
            cut = {(a, b)} if kind == "one way" else {(a, b), (b, a)}
        elif kind == "ring":
            after = dict(zip(ids, ids[1:] + ids[:1], strict=True))
            cut = {(a, b) for a in ids for b in ids if b != after[a] and a != after[b]}
        else:
            leader = self.leader()
            some = {leader.key.id} if kind == "alone" and leader else set()
            some = some or {n for n in ids if world.rng.random() < 0.5}
            both = kind != "half one way"
            cut = {(a, b) for a in some for b in ids if b not in some}
            cut |= {(b, a) for a, b in cut} if both else set()
        world.cut |= cut
        world.outcome.counts["partitions"] += 1

        def mend() -> None:
            world.cut -= cut

        world.at(world.now + world.rng.choice([200, 1_500, 5_000]), mend)

    def _pause(self) -> None:
        node = self._some_node()
        node.paused_until = self._world.now + self._world.rng.choice([300, 2_000, 8_000])
        self._world.outcome.counts["pauses"] += 1

    def _wipe(self) -> None:
        """A disk is replaced: it comes back under another directory's id."""
        world = self._world
        node, leader = self._some_node(), self.leader()
        if leader is None or leader is node or leader.replica is None or len(world.nodes) < 3:
            return
        voters = leader.replica.in_force
        if any(each.replica is None for each in world.nodes.values()):
            return
        if self._counts(voters, node) and not self._may_lose(voters, node):
            return
        node.crash()
        world.truth.replaced[node.key] = world.disks.pop(node.key)
        key = ReplicaKey(node.key.id, world.rng.randbytes(16))
        world.disks[key] = Disk(key, node.disk.bootstrap)
        fresh = Node(world, world.disks[key])
        fresh.clock, fresh.port = node.clock, node.port
        world.nodes[key.id] = fresh
        fresh.start(world.timing)
        world.outcome.counts["wipes"] += 1

    def _counts(self, voters: VoterSet, node: Node) -> bool:
        """Whether anybody may count that replica: a removal that is open may yet be cut."""
        others = self._world.nodes.values()
        return voters.holds(node.key) or any(
            each.voters.holds(node.key)
            for other in others
            if other.replica is not None
            for each in other.replica.voters.sets
        )

    def _may_lose(self, voters: VoterSet, node: Node) -> bool:
        """Whether what is committed outlives this disk, and a majority is left."""
        world = self._world
        if not world.shape.wipes_voters:
            return False
        left = [key for key in voters.keys if key in world.disks and key != node.key]
        end = world.truth.committed_end
        last = world.truth.last_before(end)
        whole = [key for key in left if world.disks[key].synced >= end]
        settled = all(
            other.replica is None or other.replica.in_force == voters
            for other in world.nodes.values()
        )
        having = [key for key in whole if world.disks[key].holds(last)]
        return settled and len(having) >= voters.majority

    def _change(self) -> None:
        world, leader = self._world, self.leader()
        if leader is None or leader.replica is None or not leader.is_up:
            return
        voters, node = leader.replica.in_force, self._some_node()
        known = voters.find(node.key.id)
        request: Request
        if known is not None:
            rest = voters.without(known.key.id)
            if sum(key in world.disks for key in rest.keys) < rest.majority:
                return  # an operator's error: replaced disks would be needed
            stays = len(voters.voters) <= 2 and world.faulty and world.rng.random() < 0.8
            if stays and known.key == node.key:
                return
            request = RemoveVoterRequest(voter=known.key)
        else:
            request = AddVoterRequest(
                voter=voter(node.key), when_committed=world.rng.random() < 0.5
            )
        target = leader if world.rng.random() < 0.8 else self._some_node()
        for _ in range(world.rng.choice([1, 1, 2])):
            if target.replica is not None:
                world.ask(target, request, Peer())
        if world.rng.random() < 0.3:
            self._change()  # another operator, at once

    def _move(self) -> None:
        """A process ends, and listens elsewhere afterwards."""
        node = self._some_node()
        if node.replica is not None:
            node.port += 100
            self.falls(node)
            self._world.outcome.counts["moves"] += 1

    def _stranger(self) -> None:
        """Somebody without an identity speaks as a voter: nothing may change."""
        world, node = self._world, self._some_node()
        if node.replica is None:
            return
        epoch, voters = node.replica.epoch, node.replica.in_force
        claims = world.rng.choice(voters.keys) if voters.keys else ReplicaKey(1)
        requests: list[Request] = [
            VoteRequest(epoch=epoch + 1, candidate=claims, last=LogPoint(epoch, 1_000_000)),
            BeginEpochRequest(epoch=epoch + world.rng.choice([0, 1]), leader=claims),
            EndEpochRequest(epoch=epoch, leader=claims),
            FetchRequest(epoch=epoch, replica=claims, point=node.replica.log.last),
            FetchRequest(epoch=epoch + 1, replica=claims, point=node.replica.log.last),
        ]
        world.ask(node, world.rng.choice(requests), Peer(STRANGER))

    # The end.

    def end(self) -> None:
        """End all faults; some time later, clients go on."""
        world = self._world
        world.faulty = False
        world.cut.clear()
        for node in list(world.nodes.values()):
            node.paused_until = 0
            if node.replica is None:
                node.start(world.timing)
            world.wake(node)
        for n in range(10):
            world.at(world.now + LAST_SUBMITS_MS + n, self._submit)
        if world.shape.reads:
            world.at(world.now + LAST_SUBMITS_MS, self._read_at_last)

    def _read_at_last(self) -> None:
        """Read once more: of a leader that all can reach, it has to be answered."""
        before = self._world.outcome.counts["reads"]
        self._read()
        self._world.at(self._world.now + 1_000, lambda: self._was_read(before))

    def _was_read(self, before: int) -> None:
        hold(self._world.outcome.counts["reads"] > before, "a read is not answered, with no faults")

    def all_is_well(self) -> None:
        """Look whether one leads, all have all, and nothing is unanswered."""
        world, leader = self._world, self.leader()
        hold(leader is not None, "nobody leads though all faults are over")
        assert leader is not None
        assert leader.replica is not None
        end = leader.replica.log.end
        hold(leader.replica.committed == end, "the leader's last records are not committed")
        for node in world.nodes.values():
            self._is_well(node, end, leader.replica.in_force, leads=node is leader)
        open_ = [each for each in self._asked.values() if each[1].life == each[2]]
        hold(not open_, f"{len(open_)} reads were never answered nor refused")
        counts = [each.payload for each in world.truth.committed if isinstance(each.payload, int)]
        hold(len(counts) == len(set(counts)), "a record was committed twice")
        hold(self._acknowledged <= set(counts), "an acknowledged record is not committed")
        hold(not self._refused & set(counts), "a refused record is committed")

    def _is_well(self, node: Node, end: int, voters: VoterSet, *, leads: bool) -> None:
        replica = node.replica
        assert replica is not None, "all run again"
        what = f"{node.key.id} {type(replica.role).__name__}"
        hold(replica.log.end == end, f"{what} ends at {replica.log.end} of {end}")
        hold(replica.committed == end, f"{what} applied {replica.committed} of {end}")
        hold(replica.in_force == voters, f"{what} counts other voters")
        hold(not leads or replica.may_lead, f"{what} leads, and is no voter")
        known = voters.find(node.key.id)
        if known is not None and known.key == node.key and not leads:
            where = (endpoint(node.key.id, node.port),)
            hold(known.endpoints == where, f"{what} moved, and the others don't know")
        start = replica.log.start
        at_start = any(point.end == start for point in replica.log.snapshots)
        hold(start == 0 or at_start, f"{what} begins at {start} without a snapshot")
