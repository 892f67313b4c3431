"""The world of one seed: one heap of events, the network between replicas, and what they do."""

import heapq
import itertools
import random
import traceback
import zlib
from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from rlmm_daemon.core.raft import inputs
from rlmm_daemon.core.raft.inputs import Answered, Asked, Input, Peer, Unanswered
from rlmm_daemon.core.raft.log_facts import Batch
from rlmm_daemon.core.raft.messages import (
    Answer,
    FetchRequest,
    FetchSnapshotRequest,
    Request,
    VoteRequest,
)
from rlmm_daemon.core.raft.roles import Leader, Replica, Timing
from rlmm_daemon.core.raft.step import deadline
from rlmm_daemon.core.raft.turn import LeaderChange
from rlmm_daemon.core.raft.voters import ReplicaKey, VotersAt, VoterSet
from tests.simulation.quorum.chaos import Chaos
from tests.simulation.quorum.images import Images
from tests.simulation.quorum.node import STRANGER, Disk, Node, voter
from tests.simulation.quorum.shape import Outcome, Shape
from tests.simulation.quorum.truth import Broken, Truth, hold

#: After the faults have stopped, so long until all is well, and so long without an election.
HEAL_MS = 15_000
QUIET_MS = 60_000
EVENTS_MAX = 400_000
#: Last digits of seeds whose clients read, too, at leaders that are deposed on purpose.
READING_SEEDS = (5, 6)
#: In the quiet minute, a replica takes no more steps than that in a second.
QUIET_STEPS_MAX = 60


@dataclass(frozen=True, slots=True)
class Call:
    """A request under way: who asked, in which life, under which serial, and who was asked."""

    asker: Node
    life: int
    serial: int
    target: int
    request: Request


class World:
    """One seed."""

    def __init__(self, seed: int, *, keep_tail: bool = False, shape: Shape | None = None) -> None:
        self.rng = random.Random(f"{seed}/quorum")
        self.shape = shape or Shape.draw(self.rng)
        #: Luck of clients that read, in some seeds: the others go as they would without.
        self.readers = random.Random(f"{seed}/quorum/reads")
        if shape is None and seed % 10 in READING_SEEDS:
            self.shape = self.shape.that_is_read()
        self.now = 0
        self.outcome = Outcome(seed)
        self.keep_tail = keep_tail
        self.timing = Timing()
        self.faulty = True
        #: By who asked whom: its newest question that arrived; and where an older one came later.
        self._newest: dict[tuple[ReplicaKey, ReplicaKey], tuple[int, int]] = {}
        self._overtaken = set[tuple[ReplicaKey, ReplicaKey]]()
        self.disks: dict[ReplicaKey, Disk] = {}
        self.nodes: dict[int, Node] = {}
        self.truth = Truth(self.disks)
        self.chaos = Chaos(self)
        self.images = Images(self)
        #: Links that deliver nothing, each one way.
        self.cut: set[tuple[int, int]] = set()
        #: (leader, voter) -> when that voter's fetch last reached it.
        self.heard: dict[tuple[ReplicaKey, int], int] = {}
        self.led_since: dict[ReplicaKey, int] = {}
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._tokens = itertools.count(1)
        self._calls: dict[int, Call] = {}
        self._wakes: dict[int, int] = {}
        self._boot()

    def _boot(self) -> None:
        count = self.shape.voters + self.shape.observers
        keys = [ReplicaKey(n, self.rng.randbytes(16)) for n in range(1, count + 1)]
        voters = VoterSet.of(voter(key) for key in keys[: self.shape.voters])
        for key in keys:
            self.disks[key] = Disk(key, VotersAt(-1, voters))
            self.nodes[key.id] = node = Node(self, self.disks[key])
            if self.shape.drift:
                node.clock = (self.rng.randint(0, 5_000), self.rng.randint(7, 14))
        for node in self.nodes.values():
            node.start(self.timing)

    # Time.

    def at(self, ms: int, do: Callable[[], None]) -> None:
        """Have something happen then."""
        heapq.heappush(self._heap, (ms, next(self._order), do))

    def run(self) -> Outcome:
        """Run the seed: faults for a while, then none, and all has to be well."""
        try:
            self.chaos.begin()
            self._run_until(self.shape.faults_ms)
            self.chaos.end()
            self._run_until(self.shape.faults_ms + HEAL_MS)
            self.chaos.all_is_well()
            self._quiet_minute()
        except (Broken, AssertionError) as error:
            self.outcome.failure = f"{type(error).__name__}: {error}"
            if not isinstance(error, Broken) or self.keep_tail:
                self.outcome.failure += "\n" + traceback.format_exc()
        return self.outcome

    def _quiet_minute(self) -> None:
        epochs, steps = self._epochs(), self.outcome.counts["steps"]
        self._run_until(self.shape.faults_ms + HEAL_MS + QUIET_MS)
        hold(epochs == self._epochs(), f"an election in a quiet minute: {epochs}")
        each = (self.outcome.counts["steps"] - steps) * 1_000 / QUIET_MS / len(self.nodes)
        hold(each <= QUIET_STEPS_MAX, f"{each:.0f} steps a second in a quiet minute")

    def _epochs(self) -> set[int]:
        return {node.replica.epoch for node in self.nodes.values() if node.replica}

    def _run_until(self, ms: int) -> None:
        heap = self._heap
        while heap and heap[0][0] <= ms:
            self.now, _, do = heapq.heappop(heap)
            self.outcome.events += 1
            hold(self.outcome.events < EVENTS_MAX, "a busy loop")
            do()
        self.now = ms

    def note(self, said: str) -> None:
        """Keep a line of the trace, where somebody reads it."""
        if self.keep_tail:
            self.outcome.tail.append(f"{self.now:7d} {said}")

    def wake(self, node: Node) -> None:
        """Tick when the replica wants it."""
        if node.replica is None:
            return
        wanted = deadline(node.replica)
        if wanted is None:
            return
        # What came meanwhile is taken first: a process that wakes up finds it waiting.
        wakes = node.paused_until + 1 if node.paused_until > self.now else 0
        due = max(self.now + 1, node.when(wanted), wakes)
        known = self._wakes.get(node.key.id, -1)
        if self.now < known <= due:
            return
        self._wakes[node.key.id] = due

        def tick() -> None:
            if self._wakes.get(node.key.id) == due:
                del self._wakes[node.key.id]
                node.take(inputs.Tick())

        self.at(due, tick)

    def after_sync(self, do: Callable[[], None]) -> None:
        """Have that happen when a sync that begins now is over."""
        low, high = self.shape.sync_ms if self.faulty else (1, 2)
        took = self.rng.randint(low, high)
        if self.faulty and self.rng.random() < self.shape.stalls:
            took += 5_000
        self.at(self.now + took, do)

    # The network.

    def _path(self) -> int:
        low, high = self.shape.delay_ms if self.faulty else (1, 3)
        return self.rng.randint(low, high)

    def _copies(self, source: int, target: int) -> list[int]:
        """Return when the copies of a message arrive: none, one, or a second much later."""
        if (source, target) in self.cut:
            return []
        if not self.faulty:
            return [self.now + self._path()]
        if self.rng.random() < self.shape.loss:
            return []
        found = [self.now + self._path()]
        if self.rng.random() < self.shape.duplicates:
            found.append(found[0] + self.rng.randint(0, self.shape.stale_ms))
        return found

    def send(self, node: Node, serial: int, to: int | None, request: Request) -> None:
        """Carry a request; where nobody listens, that is said at once or never."""
        target = to if to is not None else self.rng.choice(sorted(self.nodes))
        call = Call(node, node.life, serial, target, request)
        self.note(f"{node.key.id} -> {target}: {request}")
        other = self.nodes.get(target)
        gone = other is None or other.replica is None
        if gone and self.shape.refuses and (node.key.id, target) not in self.cut:
            self._miss(call, self._path(), refused=True)
            return
        self._miss(call, self.timing.fetch * 2, refused=False)
        for arrives in self._copies(node.key.id, target):
            self.at(arrives, lambda: self._arrive(call))

    def _miss(self, call: Call, after: int, *, refused: bool) -> None:
        def miss() -> None:
            asker = call.asker
            if asker.life != call.life or asker.replica is None:
                return
            if call.serial in asker.replica.sent or asker.is_busy:
                asker.take(Unanswered(call.serial, refused=refused))

        self.at(self.now + after, miss)

    def _arrive(self, call: Call) -> None:
        target = self.nodes.get(call.target)
        if target is None or target.replica is None:
            return

        def ask() -> None:
            self.ask(target, call.request, Peer(call.asker.key.id), call)

        self._deliver(target, ask)

    def _deliver(self, node: Node, do: Callable[[], None]) -> None:
        if node.paused_until > self.now:
            self.at(node.paused_until, do)
        else:
            do()

    def ask(self, node: Node, request: Request, peer: Peer, call: Call | None = None) -> int:
        """Ask a replica; return the token of the answer."""
        token = next(self._tokens)
        if call is not None:
            self._calls[token] = call
            way, sent = (call.asker.key, node.key), (call.life, call.serial)
            newest = self._newest.setdefault(way, sent)
            self._newest[way] = max(sent, newest)
            if sent < newest:
                self._overtaken.add(way)
            if isinstance(request, FetchRequest | FetchSnapshotRequest):
                self.heard[node.key, request.replica.id] = self.now
        node.take(Asked(token, request, peer, "quorum"))
        return token

    def granted(self, node: Node, token: int) -> None:
        """Look at a vote that leaves now."""
        call = self._calls.get(token)
        assert call is not None, "a stranger was granted something"
        assert isinstance(call.request, VoteRequest), "votes answer votes"
        self.truth.grants(node, call.request)

    def reply(self, node: Node, token: int, answer: Answer) -> None:
        """Carry an answer back, if the asker still lives."""
        call = self._calls.pop(token, None)
        if call is None:
            self.outcome.counts[f"operator: {answer.error.name}"] += 1
            return
        self.note(f"{node.key.id} => {call.asker.key.id}: {answer}")

        def arrive() -> None:
            if call.asker.life == call.life:
                self._deliver(call.asker, lambda: call.asker.take(Answered(call.serial, answer)))

        for arrives in self._copies(node.key.id, call.asker.key.id):
            self.at(arrives, arrive)

    def probe(self, node: Node, serial: int, key: ReplicaKey) -> None:
        """Ask a newcomer for its versions."""
        life = node.life

        def answer() -> None:
            target = self.nodes.get(key.id)
            if node.life != life:
                return
            if target is None or target.replica is None or target.key != key:
                node.take(Unanswered(serial))
            else:
                node.take(inputs.Reachable(serial, (0, 1)))

        self.at(self.now + 2 * self._path(), answer)

    # What replicas do.

    def sealed(self, batch: Batch) -> Batch:
        """Give a leader's first record its identity, as its bytes would."""
        if isinstance(batch.payload, LeaderChange):
            return replace(batch, payload=("leader", batch.epoch, batch.payload.leader))
        if isinstance(batch.payload, VoterSet):
            return replace(batch, payload=("voters", batch.epoch, batch.payload.voters))
        return batch

    def stepped(self, node: Node, before: Replica, happened: Input) -> None:
        """Look at a step, before its effects are obeyed."""
        self.outcome.counts["steps"] += 1
        after = node.replica
        assert after is not None, "it was just stepped"
        said = f"{self.now}{node.key.id}{type(happened).__name__}{after.epoch}{after.log.end}"
        self.outcome.trace = zlib.crc32(said.encode(), self.outcome.trace)
        if isinstance(happened, Asked) and happened.peer.id == STRANGER:
            hold(before.role == after.role, f"a stranger's {happened.request} changed {node.key}")
        if before.role is after.role and before.voters is after.voters:
            return
        self.truth.steps(node, before, after)
        if type(before.role) is type(after.role) and before.epoch == after.epoch:
            return
        name = type(after.role).__name__
        self.outcome.counts[name] += 1
        self.note(f"{node.key.id} {name} {after.epoch} after {type(happened).__name__}")
        if isinstance(after.role, Leader):
            self.led_since[node.key] = self.now

    def wrote(self, node: Node, batch: Batch) -> None:
        """Look at a leader's first record."""
        assert node.replica is not None, "it runs"
        payload = batch.payload
        leads = isinstance(node.replica.role, Leader)
        if leads and isinstance(payload, tuple) and payload[0] == "leader":
            self.truth.leads(node, node.replica)

    def alarm(self, node: Node, kind: str, message: str) -> None:
        """Count what no healthy quorum does; nobody here lies but strangers."""
        self.outcome.counts[f"alarm: {kind}"] += 1
        self.note(f"{node.key.id} ALARM {message}")
        hold(kind not in {"two_leaders", "foreign_records", "invalid_request"}, message)
        # A fetch that comes twice, or after a later one over another connection, looks like a disk
        # that lost something: nothing else does here.
        late = (asker for asker, asked in self._overtaken if asked == node.key)
        excused = self.shape.duplicates or any(message.startswith(f"{key} ") for key in late)
        hold(kind != "acknowledged_lost" or excused, message)


def run_seed(seed: int, *, keep_tail: bool = False) -> Outcome:
    """Run one seed."""
    return World(seed, keep_tail=keep_tail).run()
