"""Replicas of a quorum on one wire, driven by one-line commands.

Time passes by `expire` and `wait`, messages arrive by `deliver`: nothing happens in between. A line
of an answer is what a replica became, saved, cut, committed or said; `2>1 fetch ...: ...` is a
request of 2 to 1 and its answer. Log points are written epoch/end.
"""

import shlex
from collections.abc import Callable
from typing import Final

from rlmm_daemon.core.raft import inputs
from rlmm_daemon.core.raft.inputs import (
    Answered,
    Asked,
    Effect,
    Input,
    Moment,
    Peer,
    SavedState,
    Submitted,
    Synced,
    Tick,
    Unanswered,
)
from rlmm_daemon.core.raft.log_facts import Batch, LogFacts, LogPoint
from rlmm_daemon.core.raft.messages import (
    AddVoterRequest,
    Answer,
    BeginEpochRequest,
    Code,
    EndEpochRequest,
    FetchAnswer,
    FetchRequest,
    FetchSnapshotAnswer,
    FetchSnapshotRequest,
    RemoveVoterRequest,
    Request,
    UpdateVoterRequest,
    VoteAnswer,
    VoteRequest,
)
from rlmm_daemon.core.raft.roles import Follower, Replica, Unattached
from rlmm_daemon.core.raft.step import CannotStart, deadline, start, step
from rlmm_daemon.core.raft.voters import (
    Endpoint,
    ReplicaKey,
    Voter,
    VoterHistory,
    VotersAt,
    VoterSet,
)

CLUSTER: Final = "c"
PIECE_BYTES: Final = 4
MESSAGES_MAX: Final = 500


def key_of(number: int, disk: int = 0) -> ReplicaKey:
    return ReplicaKey(number, bytes([number, disk]) * 8)


def voter_of(number: int) -> Voter:
    return Voter(key_of(number), (Endpoint("Q", f"host{number}", 9_000 + number),))


def point_of(text: str) -> LogPoint:
    epoch, end = map(int, text.split("/"))
    return LogPoint(epoch, end)


def shown(point: LogPoint) -> str:
    return f"{point.epoch}/{point.end}"


class Process:
    """One replica, and what it has on its disk."""

    def __init__(self, key: ReplicaKey, voters: VoterSet) -> None:
        self.key = key
        self.bootstrap = voters
        self.saved: SavedState | None = None
        self.batches: list[Batch] = []
        self.facts = LogFacts()
        self.base = VotersAt(-1, voters)
        self.replica: Replica | None = None
        self.holds_syncs = False
        self.waiting: list[Input] = []

    def history(self) -> VoterHistory:
        sets = VoterHistory((self.base,))
        for batch in self.batches:
            if batch.voters is not None:
                sets = sets.append(VotersAt(batch.base, batch.voters))
        return sets


class QuorumHarness:
    """Commands of one scenario file."""

    def __init__(self) -> None:
        self.now = 1_000
        self.lines: list[str] = []
        self.processes: dict[int, Process] = {}
        #: (asker, serial, asked, request) on their way, in the order that they left.
        self.requests: list[tuple[int, int, int, Request]] = []
        #: Token -> who asked, and what.
        self.calls: dict[int, tuple[int, int, int, Request]] = {}
        self.answers: list[tuple[tuple[int, int, int, Request], Answer]] = []
        self.tokens = 0
        self.images: dict[LogPoint, VotersAt] = {}
        self._reachable = True

    async def run(self, command: str) -> str:
        """Run one command; return what happened."""
        self.lines = []
        name, *words = shlex.split(command)
        options = dict(word.split("=", 1) for word in words if "=" in word)
        plain = [word for word in words if "=" not in word]
        getattr(self, f"do_{name}")(*plain, **options)
        return "\n".join(self.lines) or "ok"

    def say(self, line: str) -> None:
        self.lines.append(line)

    # Processes.

    def do_quorum(self, *ids: str, observers: str = "") -> None:
        """Start voters of these ids, each with an empty disk."""
        voters = VoterSet.of(voter_of(int(each)) for each in ids)
        for each in (*ids, *filter(None, observers.split(","))):
            self.processes[int(each)] = Process(key_of(int(each)), voters)
            self.do_start(each)
        self.lines = []

    def do_start(self, number: str) -> None:
        """Start a process on what its disk has."""
        process = self.processes[int(number)]
        process.facts = process.facts.sync(process.facts.end)
        try:
            process.replica, effects = start(
                me=process.key,
                cluster_id=CLUSTER,
                saved=process.saved,
                log=process.facts,
                voters=process.history(),
                now=self._moment(process),
                endpoints=voter_of(int(number)).endpoints,
            )
        except CannotStart as error:
            self.say(f"{number} cannot start: {error}")
            return
        self.say(f"{number} {self._role(process)}")
        self._obey(process, effects)

    def do_crash(self, number: str) -> None:
        """End a process at once: what was not synced is lost, and what is on its way to it."""
        process = self.processes[int(number)]
        process.replica = None
        process.waiting.clear()
        end = process.facts.synced
        process.batches = [each for each in process.batches if each.end <= end]
        process.facts = process.facts.truncate(end)
        self.requests = [each for each in self.requests if each[0] != int(number)]
        self.answers = [each for each in self.answers if each[0][0] != int(number)]

    def do_stop(self, number: str) -> None:
        """Ask a process to hand over."""
        self._happen(self.processes[int(number)], inputs.Resign())

    def do_wipe(self, number: str, *, saved: str = "lost") -> None:
        """Take away a stopped process's log, and its quorum-state unless that is kept."""
        process = self.processes[int(number)]
        process.batches, process.facts = [], LogFacts()
        process.base = VotersAt(-1, process.bootstrap)
        process.saved = None if saved == "lost" else process.saved

    def do_forget(self, number: str) -> None:
        """Take away a stopped process's quorum-state."""
        self.processes[int(number)].saved = None

    def do_replace(self, number: str) -> None:
        """Start a process on a new disk, under another directory id."""
        old = self.processes[int(number)]
        self.processes[int(number)] = Process(key_of(int(number), 1), old.bootstrap)
        self.do_start(number)

    def do_hold(self, number: str) -> None:
        """Let syncs of this disk take for ever, until `sync`."""
        self.processes[int(number)].holds_syncs = True

    def do_sync(self, number: str) -> None:
        """End the syncs that were held."""
        process = self.processes[int(number)]
        process.holds_syncs = False
        waiting, process.waiting = process.waiting, []
        for each in waiting:
            self._happen(process, each)

    def do_elect(self, number: str) -> None:
        """Have this replica elected, as `first_election` shows it, and tell who leads."""
        self.do_drop()
        self.do_expire(number)
        self.do_deliver()
        self.lines = [f"{number} {self._role(self.processes[int(number)])}"]

    def do_show(self) -> None:
        """Say what each replica is."""
        for number, process in sorted(self.processes.items()):
            replica = process.replica
            if replica is None:
                self.say(f"{number} is down")
                continue
            counts = ",".join(str(key.id) for key in replica.in_force.keys)
            self.say(
                f"{number} {self._role(process)}, log {shown(replica.log.last)}, "
                f"committed {replica.committed}, voters {counts}"
            )

    # Time.

    def do_expire(self, number: str) -> None:
        """Let time go by until this replica's election timer, or its patience, is over."""
        process = self.processes[int(number)]
        assert process.replica is not None, "it is down"
        role = process.replica.role
        due = role.fetch_by if isinstance(role, Follower) else deadline(process.replica)
        due = getattr(role, "election_at", due)
        assert due is not None, "it waits for nothing"
        self.now = max(self.now, due)
        self._happen(process, Tick())

    def do_wait(self, number: str, ms: str) -> None:
        """Let so many milliseconds go by for this replica."""
        self.now += int(ms)
        self._happen(self.processes[int(number)], Tick())

    # The wire.

    def do_deliver(self, *links: str) -> None:
        """Deliver what is on its way and what comes of it: all, or what is asked on these links."""
        pairs = {tuple(map(int, link.split(">"))) for link in links}
        for _ in range(MESSAGES_MAX):
            if self._deliver_one(lambda a, b: not pairs or (a, b) in pairs):
                continue
            return
        raise AssertionError("messages without an end")

    def _deliver_one(self, on: Callable[[int, int], bool]) -> bool:
        for each in self.answers:
            (asker, serial, asked, _), answer = each
            if on(asker, asked):
                self.answers.remove(each)
                self._happen(self.processes[asker], Answered(serial, answer))
                return True
        for call in self.requests:
            asker, _, asked, request = call
            if on(asker, asked) and asked in self.processes:
                self.requests.remove(call)
                process = self.processes[asked]
                if process.replica is not None:
                    self.tokens += 1
                    self.calls[self.tokens] = call
                    self._happen(process, Asked(self.tokens, request, Peer(asker), CLUSTER))
                return True
        return False

    def do_drop(self, *links: str) -> None:
        """Lose what is on its way on these links, or on all."""
        pairs = {tuple(map(int, link.split(">"))) for link in links}
        self.requests = [c for c in self.requests if pairs and (c[0], c[2]) not in pairs]
        self.answers = [
            each for each in self.answers if pairs and (each[0][0], each[0][2]) not in pairs
        ]

    def do_miss(self, link: str, *, refused: str = "no") -> None:
        """Lose a request, and tell the asker that there will be no answer."""
        a, b = map(int, link.split(">"))
        held = {token: call for token, call in self.calls.items() if (call[0], call[2]) == (a, b)}
        self.calls = {token: call for token, call in self.calls.items() if token not in held}
        sent = [call for call in self.requests if (call[0], call[2]) == (a, b)]
        self.requests = [call for call in self.requests if call not in sent]
        for call in (*held.values(), *sent):
            self._happen(self.processes[a], Unanswered(call[1], refused=refused == "yes"))

    # Clients, operators, strangers.

    def do_submit(self, number: str, *payloads: str) -> None:
        """Submit records, each alone."""
        for payload in payloads:
            self.tokens += 1
            self._happen(self.processes[int(number)], Submitted(self.tokens, 1, payload))

    def do_read(self, number: str) -> None:
        """Ask how far the log is committed."""
        self.tokens += 1
        self._happen(self.processes[int(number)], inputs.ReadAsked(self.tokens))

    def do_add(self, number: str, who: str, *, reachable: str = "yes") -> None:
        """Ask a replica to count one more."""
        self._reachable = reachable == "yes"
        self._ask(int(number), AddVoterRequest(voter=voter_of(int(who))), Peer())

    def do_remove(self, number: str, who: str, *, by: str = "") -> None:
        """Ask a replica to count one less."""
        peer = Peer(int(by), may_change_voters=False) if by else Peer()
        self._ask(int(number), RemoveVoterRequest(voter=key_of(int(who))), peer)

    def do_update(self, number: str, who: str, *, port: str) -> None:
        """Say for a voter that it listens elsewhere."""
        process = self.processes[int(number)]
        assert process.replica is not None, "it is down"
        moved = Voter(key_of(int(who)), (Endpoint("Q", f"host{who}", int(port)),))
        request = UpdateVoterRequest(epoch=process.replica.epoch, voter=moved)
        self._ask(int(number), request, Peer(int(who)))

    def do_vote(
        self, number: str, *, claims: str, epoch: str, last: str, by: str = "", pre: str = "no"
    ) -> None:
        """Ask for a vote as replica `claims`, by the identity `by`."""
        request = VoteRequest(
            epoch=int(epoch),
            candidate=key_of(int(claims)),
            last=point_of(last),
            pre_vote=pre == "yes",
        )
        self._ask(int(number), request, Peer(int(by or claims)))

    def do_begin(self, number: str, *, claims: str, epoch: str, by: str = "") -> None:
        """Say that `claims` was elected."""
        request = BeginEpochRequest(epoch=int(epoch), leader=key_of(int(claims)))
        self._ask(int(number), request, Peer(int(by or claims)))

    def do_end(self, number: str, *, claims: str, epoch: str, by: str = "") -> None:
        """Say that the leader `claims` goes."""
        request = EndEpochRequest(epoch=int(epoch), leader=key_of(int(claims)))
        self._ask(int(number), request, Peer(int(by or claims)))

    def do_fetch(
        self, number: str, *, claims: str, epoch: str, at: str, by: str = "", cluster: str = CLUSTER
    ) -> None:
        """Fetch as replica `claims`."""
        request = FetchRequest(epoch=int(epoch), replica=key_of(int(claims)), point=point_of(at))
        self._ask(int(number), request, Peer(int(by or claims)), cluster or None)

    def do_snapshot(self, number: str, end: str, *, drops: str = "no") -> None:
        """Have a snapshot made that ends there, and maybe what is before dropped."""
        process = self.processes[int(number)]
        assert process.replica is not None, "it is down"
        epoch = process.facts.epoch_at(int(end) - 1)
        assert epoch is not None, "the log has no such offset"
        point = LogPoint(epoch, int(end))
        sets = [each for each in process.replica.voters.sets if each.offset < point.end]
        self.images[point] = sets[-1]
        process.facts = process.facts.with_snapshot(point)
        self._happen(process, inputs.SnapshotMade(point))
        if drops == "yes":
            process.facts = process.facts.begin_at(point)
            process.batches = [each for each in process.batches if each.base >= point.end]
            process.base = sets[-1]
            self._happen(process, inputs.StartMoved(point))

    def _ask(
        self, number: int, request: Request, peer: Peer, cluster: str | None = CLUSTER
    ) -> None:
        self.tokens += 1
        self._happen(self.processes[number], Asked(self.tokens, request, peer, cluster))

    # The shell.

    def _moment(self, process: Process) -> Moment:
        return Moment(self.now, process.key.id / 10)

    def _happen(self, process: Process, happened: Input) -> None:
        before = process.replica
        if before is None:
            return
        process.replica, effects = step(before, happened, self._moment(process))
        after = process.replica
        if type(after.role) is not type(before.role) or after.epoch != before.epoch:
            self.say(f"{process.key.id} {self._role(process)}")
        self._obey(process, effects)

    def _role(self, process: Process) -> str:
        assert process.replica is not None, "it is down"
        role = process.replica.role
        said = f"{type(role).__name__} in epoch {role.epoch}"
        if isinstance(role, Follower | Unattached) and role.leader is not None:
            said += f" of {role.leader}"
        return said

    def _obey(self, process: Process, effects: list[Effect]) -> None:
        for effect in effects:
            self._do(process, effect)

    def _do(self, process: Process, effect: Effect) -> None:
        me = process.key.id
        match effect:
            case inputs.Save(state=state):
                process.saved = state
                voted = state.voted.id if state.voted else "nobody"
                self.say(f"{me} saves epoch {state.epoch}, leader {state.leader}, voted {voted}")
            case inputs.Send(serial=serial, to=to, request=request):
                found = to if to is not None else min((*self.processes.keys() - {me}, 99))
                self.requests.append((me, serial, found, request))
            case inputs.Probe(serial=serial):
                reachable = self._reachable
                told = inputs.Reachable(serial, (0, 1)) if reachable else Unanswered(serial)
                self._happen(process, told)
            case inputs.Reply() | inputs.ReplyRecords() | inputs.ReplySnapshot():
                self._reply(process, effect)
            case inputs.Write() | inputs.Truncate() | inputs.StartSync():
                self._keep(process, effect)
            case inputs.StorePiece() | inputs.Install():
                self._load(process, effect)
            case _:
                self._tell(me, effect)

    def _keep(
        self, process: Process, effect: inputs.Write | inputs.Truncate | inputs.StartSync
    ) -> None:
        match effect:
            case inputs.Write(batch=batch):
                process.batches.append(batch)
                process.facts = process.facts.append(batch)
            case inputs.Truncate(end=end):
                self.say(f"{process.key.id} cuts its log at {end}")
                process.batches = [each for each in process.batches if each.end <= end]
                process.facts = process.facts.truncate(end)
            case inputs.StartSync(end=end, cuts=cuts):
                done = Synced(end, cuts)
                if process.holds_syncs:
                    process.waiting.append(done)
                else:
                    process.facts = process.facts.sync(min(end, process.facts.end))
                    self._happen(process, done)

    def _load(self, process: Process, effect: inputs.StorePiece | inputs.Install) -> None:
        if isinstance(effect, inputs.StorePiece):
            return
        point = effect.snapshot
        self.say(f"{process.key.id} installs snapshot {shown(point)}")
        process.facts = LogFacts(point.end, point.end, point.end, (), (point,))
        process.base, process.batches = self.images[point], []
        self._happen(process, inputs.SnapshotInstalled(point, self.images[point]))

    def _tell(self, me: int, effect: Effect) -> None:
        match effect:
            case inputs.Accept(base=base):
                self.say(f"{me} accepts offset {base}")
            case inputs.Refuse(leader=leader):
                self.say(f"{me} refuses, leader {leader}")
            case inputs.ReadAt(token=token, end=end):
                self.say(f"{me} answers read {token} at {end}")
            case inputs.ReadRefused(token=token, leader=leader):
                self.say(f"{me} refuses read {token}, leader {leader}")
            case inputs.Commit(end=end):
                self.say(f"{me} commits {end}")
            case inputs.Alarm(kind=kind, message=message):
                self.say(f"{me} ALARM {kind}: {message}")
            case inputs.Fail(message=message):
                self.say(f"{me} FAILS: {message}")
            case _:
                raise AssertionError(effect)

    def _reply(
        self,
        process: Process,
        effect: inputs.Reply | inputs.ReplyRecords | inputs.ReplySnapshot,
    ) -> None:
        answer = effect.answer
        if isinstance(effect, inputs.ReplyRecords):
            found = [b for b in process.batches if effect.offset <= b.base and b.end <= effect.end]
            assert isinstance(answer, FetchAnswer), "records answer fetches"
            answer = FetchAnswer(
                error=answer.error,
                epoch=answer.epoch,
                leader=answer.leader,
                high_watermark=answer.high_watermark,
                batches=tuple(found),
            )
        elif isinstance(effect, inputs.ReplySnapshot):
            size = 2 * PIECE_BYTES
            answer = FetchSnapshotAnswer(
                error=answer.error,
                epoch=answer.epoch,
                leader=answer.leader,
                snapshot=effect.snapshot,
                size=size,
                position=effect.position,
                piece=bytes(min(PIECE_BYTES, size - effect.position)),
            )
        call = self.calls.pop(effect.token, None)
        if call is None:
            self.say(f"{process.key.id} answers {self._said(answer)}")
            return
        self.say(f"{call[0]}>{call[2]} {asked(call[3])}: {self._said(answer)}")
        self.answers.append((call, answer))

    def _said(self, answer: Answer) -> str:
        if answer.error is not Code.NONE:
            return f"{answer.error.name}, epoch {answer.epoch}, leader {answer.leader}"
        match answer:
            case VoteAnswer(granted=granted):
                return "granted" if granted else f"refused, leader {answer.leader}"
            case FetchAnswer():
                return self._fetched(answer)
            case FetchSnapshotAnswer(position=position, size=size, piece=piece):
                return f"bytes {position} to {position + len(piece)} of {size}"
            case _:
                return "done"

    def _fetched(self, answer: FetchAnswer) -> str:
        if answer.diverging is not None:
            return f"diverges from {shown(answer.diverging)}"
        if answer.snapshot is not None:
            return f"fetch snapshot {shown(answer.snapshot)}"
        high, batches = answer.high_watermark, answer.batches
        end = f"records to {batches[-1].end}" if batches else "nothing new"
        return f"{end}, committed {high if high >= 0 else 'unknown'}"


def asked(request: Request) -> str:
    """Return a request in words."""
    match request:
        case VoteRequest(epoch=epoch, last=last, pre_vote=pre):
            return f"{'pre-vote' if pre else 'vote'} epoch {epoch}, log {shown(last)}"
        case BeginEpochRequest(epoch=epoch):
            return f"begin epoch {epoch}"
        case EndEpochRequest(epoch=epoch, successors=successors):
            return f"end epoch {epoch}, successors {','.join(str(s.id) for s in successors)}"
        case FetchRequest(epoch=epoch, point=point):
            return f"fetch epoch {epoch}, at {shown(point)}"
        case FetchSnapshotRequest(snapshot=snapshot, position=position):
            return f"fetch snapshot {shown(snapshot)} from {position}"
        case UpdateVoterRequest():
            return "update its address"
        case _:
            raise AssertionError(request)
